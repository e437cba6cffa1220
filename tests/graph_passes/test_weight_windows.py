"""Windows are bytes, exactly those of the source (field report L06: a release wrote wrong bytes to external data)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.external_data import save_external
from support.looped_graph import looped_model
from support.sessions import relative_difference, session

from ort_hina import fuse
from ort_hina.graph_passes.weight_windows import build_windows

ROLES = ("gate", "up", "down")


def source_weights(model: onnx.ModelProto) -> dict[tuple[int, str], np.ndarray]:
    """The builder writes gate, up and down of each expert in turn."""
    tensors = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    return {(i // 3, ROLES[i % 3]): tensor for i, tensor in enumerate(tensors)}


def windows_of(path: str) -> tuple[dict, list[bytes]]:
    """The attributes of the only MoE node, and the bytes of each window (read from its file)."""
    model = onnx.load(path, load_external_data=False)
    (node,) = (node for node in model.graph.node if node.op_type == "MoE")
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    windows = []
    for name in node.input[4:]:
        tensor = tensors[name]
        assert tensor.data_type == onnx.TensorProto.UINT8
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entry = {item.key: item.value for item in tensor.external_data}
            data = Path(path).with_name(entry["location"]).read_bytes()
            begin, length = int(entry["offset"]), int(entry["length"])
            assert list(tensor.dims) == [length] and begin + length <= len(data)
            windows.append(data[begin : begin + length])
        else:
            assert list(tensor.dims) == [len(tensor.raw_data)]
            windows.append(tensor.raw_data)
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}, windows


def check(model: onnx.ModelProto, path: Path) -> dict:
    """Fuses the file at `path`, saved from `model` (with its weights still in it), and compares bytes and outputs."""
    expected = source_weights(model)
    report = fuse(path)
    assert report.fused == 1 and report.layers[0].verification == "verified", report.to_text()
    attributes, windows = windows_of(report.output)
    for (expert, role), array in expected.items():
        which = attributes.get(f"{role}_windows", [0] * len(expected))[expert]
        begin = attributes[f"{role}_offsets"][expert]
        assert windows[which][begin : begin + array.nbytes] == array.tobytes(), (expert, role)
    random = np.random.default_rng(0)
    element = expected[0, "gate"].dtype
    assert attributes["window_types"] == [onnx.helper.np_dtype_to_tensor_dtype(element)] * len(windows)
    feeds = {name: random.standard_normal(shape).astype(element) for name, shape in (("x", (1, 6, 8)), ("logits", (6, 4)))}
    found, wanted = (session(file).run(None, feeds)[0] for file in (report.output, path))
    assert relative_difference(found, wanted) < (1e-5 if element == np.float32 else 1e-2)
    return attributes | {"windows": windows}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("gaps", [(0,), (1,), (3, 0, 5), (64,)], ids=str)
def test_unaligned_offsets(tmp_path, dtype, gaps):
    model = looped_model(dtype=dtype)
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", gap=lambda i: gaps[i % len(gaps)])
    assert len(check(kept, tmp_path / "model.onnx")["windows"]) == 1


def test_several_files(tmp_path):
    model = looped_model()
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", file_of=lambda i, tensor: f"part-{i % 3}.bin", gap=lambda i: 7)
    attributes = check(kept, tmp_path / "model.onnx")
    assert len(attributes["windows"]) == 3
    assert attributes["down_windows"] == [2] * 4


def test_inline_beside_external(tmp_path):
    """Writers leave small tensors (commonly under 1 kB) in the model file."""
    model = looped_model()
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", file_of=lambda i, tensor: None if i in (1, 5) else "weights.bin")
    assert len(check(kept, tmp_path / "model.onnx")["windows"]) == 2


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
    assert len(windows[0]) == report.layers[0].bytes_referenced == 11 * 8 * 12 * 4
    assert report.layers[0].verification == "verified"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("odd", [1, 5, 11])
def test_a_window_ends_with_its_last_matrix(tmp_path, dtype, odd):
    """It begins at the first byte of the first one, too, whether or not whole elements lie in between."""
    model = looped_model(dtype=dtype)
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    save_external(model, tmp_path / "model.onnx", gap=lambda i: 1 if i == odd else 0)
    (window,) = check(kept, tmp_path / "model.onnx")["windows"]
    assert len(window) == sum(array.nbytes for array in source_weights(kept).values()) + 1


def test_a_window_for_each_element_type():
    types = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT)
    values = {dtype: np.arange(6).astype(dtype.numpy()) for dtype in types}
    tensors = [ir.Tensor(array, name=f"{dtype.name}.{i}") for i in range(2) for dtype, array in values.items()]
    windows = build_windows(tensors, "node")
    assert windows.types == list(values)
    assert [window.dtype for window in windows.tensors] == [ir.DataType.UINT8] * 3
    assert [window.tobytes() for window in windows.tensors] == [2 * array.tobytes() for array in values.values()]
    assert [windows.place(tensor) for tensor in tensors] == [(0, 0), (1, 0), (2, 0), (0, 12), (1, 12), (2, 24)]


def test_biases_have_places_too(tmp_path):
    onnx.save(looped_model(gemm=True), tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert report.layers[0].verification == "verified"
    attributes, windows = windows_of(report.output)
    assert len(attributes["down_bias_offsets"]) == 4 and attributes["gate_strides"] == [1, 8]
    assert report.layers[0].bytes_referenced == len(windows[0]) == 4 * (3 * 8 * 12 + 12 + 12 + 8) * 4
