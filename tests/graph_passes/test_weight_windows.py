"""Windows hold exactly the bytes of the source (field report L06: a release wrote wrong bytes to external data)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.external_data import save_external
from support.looped_graph import looped_model
from support.sessions import relative_difference, session

from ort_hina import fuse

ROLES = ("gate", "up", "down")


def source_weights(model: onnx.ModelProto) -> dict[tuple[int, str], np.ndarray]:
    """The builder writes gate, up and down of each expert in turn."""
    tensors = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    return {(i // 3, ROLES[i % 3]): tensor for i, tensor in enumerate(tensors)}


def windows_of(path: str) -> tuple[dict, list[tuple[bytes, int]]]:
    """The attributes of the only MoE node, and of each window its bytes (read from its file) and its element size."""
    model = onnx.load(path, load_external_data=False)
    (node,) = (node for node in model.graph.node if node.op_type == "MoE")
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    windows = []
    for name in node.input[4:]:
        tensor = tensors[name]
        size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entry = {item.key: item.value for item in tensor.external_data}
            data = Path(path).with_name(entry["location"]).read_bytes()
            begin, length = int(entry["offset"]), int(entry["length"])
            assert length == tensor.dims[0] * size and begin + length <= len(data)
            windows.append((data[begin : begin + length], size))
        else:
            windows.append((tensor.raw_data, size))
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}, windows


def check(model: onnx.ModelProto, path: Path) -> dict:
    """Fuses the file at `path`, saved from `model` (with its weights still in it), and compares bytes and outputs."""
    expected = source_weights(model)
    report = fuse(path)
    assert report.fused == 1 and report.layers[0].verification == "verified", report.to_text()
    attributes, windows = windows_of(report.output)
    for (expert, role), array in expected.items():
        which = attributes.get(f"{role}_windows", [0] * len(expected))[expert]
        data, _ = windows[which]
        begin = attributes[f"{role}_offsets"][expert]
        assert data[begin : begin + array.nbytes] == array.tobytes(), (expert, role)
    random = np.random.default_rng(0)
    element = expected[0, "gate"].dtype
    feeds = {"x": random.standard_normal((1, 6, 8)).astype(element), "logits": random.standard_normal((6, 4)).astype(element)}
    found, wanted = (session(file).run(None, feeds)[0] for file in (report.output, path))
    assert relative_difference(found, wanted) < (1e-5 if element == np.float32 else 1e-2)
    return attributes | {"window_count": len(windows), "report": report}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("gaps", [(0,), (1,), (3, 0, 5), (64,)], ids=str)
def test_unaligned_offsets(tmp_path, dtype, gaps):
    model = looped_model(dtype=dtype)
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", gap=lambda i: gaps[i % len(gaps)])
    assert check(kept, tmp_path / "model.onnx")["window_count"] == 1


def test_several_files(tmp_path):
    model = looped_model()
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", file_of=lambda i, tensor: f"part-{i % 3}.bin", gap=lambda i: 7)
    attributes = check(kept, tmp_path / "model.onnx")
    assert attributes["window_count"] == 3
    assert attributes["down_windows"] == [2] * 4


def test_inline_beside_external(tmp_path):
    """Writers leave small tensors (commonly under 1 kB) in the model file."""
    model = looped_model()
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", file_of=lambda i, tensor: None if i in (1, 5) else "weights.bin")
    assert check(kept, tmp_path / "model.onnx")["window_count"] == 2


def test_tied_tensors(tmp_path):
    """Two experts share a matrix, and one initializer lies over the bytes of another."""
    model = looped_model()
    gates = [node for node in model.graph.node if node.op_type == "MatMul"]
    gates[3].input[1] = gates[0].input[1]
    names = [tensor.name for tensor in model.graph.initializer]
    del model.graph.initializer[names.index(model.graph.initializer[3].name)]
    onnx.save(model, tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    attributes, windows = windows_of(report.output)
    assert attributes["gate_offsets"][0] == attributes["gate_offsets"][1]
    assert len(windows[0][0]) == report.layers[0].bytes_referenced == 11 * 8 * 12 * 4
    assert report.layers[0].verification == "verified"


def test_a_window_at_the_very_beginning(tmp_path):
    """There is nothing before the first tensor to make the elements whole: the window grows at its end."""
    model = looped_model()
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", gap=lambda i: 0 if i == 0 else 2)
    with open(tmp_path / "weights.bin", "ab") as file:
        file.write(b"\xaa" * 4)
    check(kept, tmp_path / "model.onnx")


def test_no_whole_elements(tmp_path):
    model = looped_model()
    save_external(model, tmp_path / "model.onnx", gap=lambda i: 1 if i == 5 else 0)
    report = fuse(tmp_path / "model.onnx")
    assert report.output is None
    assert "do not span whole elements of FLOAT" in report.layers[0].reason


def test_biases_have_places_too(tmp_path):
    onnx.save(looped_model(gemm=True), tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert report.layers[0].verification == "verified"
    attributes, windows = windows_of(report.output)
    assert len(attributes["down_bias_offsets"]) == 4 and attributes["gate_strides"] == [1, 8]
    assert report.layers[0].bytes_referenced == len(windows[0][0]) == 4 * (3 * 8 * 12 + 12 + 12 + 8) * 4
