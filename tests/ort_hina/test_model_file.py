"""What is checked of files before anything is believed, with the text that the user reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from support.external_data import save_external, set_external
from support.looped_graph import looped_model

from ort_hina import OrtHinaError, fuse


@pytest.fixture
def model_path(tmp_path) -> Path:
    """A model in a folder of its own, its weights in weights.bin."""
    folder = tmp_path / "folder"
    folder.mkdir()
    save_external(looped_model(), folder / "model.onnx")
    return folder / "model.onnx"


def refused(path: Path) -> str:
    before = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else None
    with pytest.raises(OrtHinaError) as caught:
        fuse(path)
    if before is not None:
        assert sorted(entry.name for entry in path.parent.iterdir()) == before
    return str(caught.value)


def change_first(path: Path, location="weights.bin", offset=0, length=384) -> None:
    model = onnx.load(path, load_external_data=False)
    set_external(model.graph.initializer[0], location, offset, length)
    onnx.save(model, path)


def test_missing_model(tmp_path):
    assert refused(tmp_path / "nothing.onnx") == f"{tmp_path / 'nothing.onnx'} does not exist"


def test_a_folder(tmp_path):
    assert "is a folder; expected the path of an .onnx file" in refused(tmp_path)


def test_empty_file(tmp_path):
    (tmp_path / "model.onnx").touch()
    assert refused(tmp_path / "model.onnx").endswith("is empty")


@pytest.mark.parametrize("content", [b"hello, world: this is no model\n", b"\x00" * 64, b'{"a": 1}', b"\x08\x08"])
def test_not_an_onnx_file(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    assert "is not an ONNX model" in refused(tmp_path / "model.onnx")


def test_half_an_onnx_file(model_path):
    data = model_path.read_bytes()
    model_path.write_bytes(data[: len(data) // 2])
    assert "is not an ONNX model" in refused(model_path)


def test_more_than_two_gigabytes_inline(tmp_path):
    """L02: such a file cannot be parsed; saying so needs no reading."""
    with open(tmp_path / "model.onnx", "wb") as file:
        file.truncate(2_600_000_000)
    assert "is larger than 2 GB, which no ONNX file can be: save the model with its weights as external data" in refused(
        tmp_path / "model.onnx"
    )


def test_missing_data_file(model_path):
    model_path.with_name("weights.bin").unlink()
    text = refused(model_path)
    assert f"data file {model_path.with_name('weights.bin')} does not exist" in text and "external data of tensor" in text


def test_truncated_data_file(model_path):
    data = model_path.with_name("weights.bin")
    with open(data, "r+b") as file:
        file.truncate(data.stat().st_size - 1)
    assert "ends at byte 4608, and the file has 4607 bytes: it is truncated or not the right one" in refused(model_path)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({"offset": -4}, "offset -4 and length 384 must not be negative"),
        ({"length": -384}, "offset 0 and length -384 must not be negative"),
        ({"length": 388}, "length 388, expected 384 for FLOAT of shape [8, 12]"),
        ({"offset": 10**12}, "ends at byte 1000000000384, and the file has 4608 bytes"),
        ({"offset": 2**63 - 1}, "and the file has 4608 bytes"),
        ({"offset": "many"}, "invalid literal for int() with base 10: 'many'"),
        ({"location": ""}, "leads out of the folder"),
        ({"location": "../outside.bin"}, "location '../outside.bin' leads out of the folder"),
        ({"location": "sub/../../outside.bin"}, "leads out of the folder"),
        ({"location": "/etc/passwd"}, "location '/etc/passwd' leads out of the folder"),
        ({"location": "."}, "is not a regular file"),
    ],
    ids=str,
)
def test_external_data_that_lies(model_path, place, text):
    """L03."""
    (model_path.parent.parent / "outside.bin").write_bytes(bytes(100_000))
    change_first(model_path, **place)
    assert text in refused(model_path)


def test_a_link_out_of_the_folder(model_path):
    outside = model_path.parent.parent / "outside.bin"
    model_path.with_name("weights.bin").rename(outside)
    model_path.with_name("weights.bin").symlink_to(outside)
    assert f"is a link to {outside}, outside of the folder of {model_path}" in refused(model_path)


def test_a_link_within_the_folder(model_path):
    model_path.with_name("weights.bin").rename(model_path.with_name("real.bin"))
    model_path.with_name("weights.bin").symlink_to("real.bin")
    assert fuse(model_path).fused == 1


def test_a_subfolder(model_path):
    (model_path.parent / "data").mkdir()
    model_path.with_name("weights.bin").rename(model_path.parent / "data" / "weights.bin")
    model = onnx.load(model_path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "data/weights.bin"
    onnx.save(model, model_path)
    assert fuse(model_path).fused == 1


def test_without_offset_and_length(tmp_path):
    """Both may be left out: the tensor begins at 0 and its shape gives its size."""
    model = looped_model()
    for i, tensor in enumerate(model.graph.initializer):
        (tmp_path / f"{i}.bin").write_bytes(tensor.raw_data)
        set_external(tensor, f"{i}.bin", None, None)
    onnx.save(model, tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert report.layers[0].verification == "verified" and report.layers[0].windows == 12


def test_output_folder_is_missing(model_path):
    with pytest.raises(OrtHinaError, match="its folder does not exist"):
        fuse(model_path, model_path.parent / "nowhere" / "out.onnx")


def test_output_is_a_data_file(model_path):
    before = model_path.with_name("weights.bin").read_bytes()
    with pytest.raises(OrtHinaError, match="is a data file of the model"):
        fuse(model_path, model_path.with_name("weights.bin"))
    assert model_path.with_name("weights.bin").read_bytes() == before


def test_output_is_a_folder(model_path):
    with pytest.raises(OrtHinaError, match="it is a folder"):
        fuse(model_path, model_path.parent)


_PEAK = """
import sys
from pathlib import Path
from ort_hina import fuse
report = fuse(sys.argv[1], verify="none")
assert report.fused == 1, report.to_text()
# Not ru_maxrss: that begins with what the parent had when it started this process.
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(report.layers[0].bytes_referenced, int(peak) * 1024)
"""


def test_more_than_two_gigabytes_of_external_weights(tmp_path):
    """L02: neither read nor put into the model; the data file is sparse, so that the test costs nothing."""
    model = looped_model(experts=4)
    sizes = {(8, 12): (8192, 6800), (12, 8): (6800, 8192)}
    end = 0
    for tensor in model.graph.initializer:
        tensor.dims[:] = sizes[tuple(tensor.dims)]
        set_external(tensor, "weights.bin", end, 8192 * 6800 * 4)
        end += 8192 * 6800 * 4
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[2].dim_value = 8192
    for node in model.graph.node:
        constant = node.attribute[0].t if node.op_type == "Constant" else None
        if constant is not None and onnx.numpy_helper.to_array(constant).tolist() == [-1, 8]:
            constant.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(constant) * [1, 1024]))
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(end)
    onnx.save(model, tmp_path / "model.onnx")

    output = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path / "model.onnx")], capture_output=True, text=True, check=False
    )

    assert output.returncode == 0, output.stderr
    referenced, peak = map(int, output.stdout.split())
    assert referenced == end > 2_600_000_000
    assert peak < 300_000_000
    assert (tmp_path / "model_hina.onnx").stat().st_size < 100_000
