"""`inspect`: what a model holds, and what would be fused."""

from __future__ import annotations

import json

import onnx
import pytest
from support.external_data import save_external, set_external
from support.looped_graph import looped_model

from ort_hina import OrtHinaError, fuse, inspect

EXPERT_BYTES = 8 * 3 * 64 * 96 * 4


def test_an_export(tiny_export):
    path = tiny_export("qwen3_moe_nonorm_dense")
    inventory = inspect(path)
    (layer,) = inventory.layers
    assert (layer.num_experts, layer.k, layer.dtype, layer.layout, layer.reason) == (8, 3, "float", "[K, N]", None)
    assert inventory.fusable == 1 and inventory.fused_nodes == 0
    assert inventory.bytes_by_kind["experts"] == EXPERT_BYTES * 72 // 96
    (file,) = inventory.external_files
    assert file.location == "model.onnx_data" and file.size == path.with_name("model.onnx_data").stat().st_size
    assert file.bytes_used == sum(inventory.bytes_by_kind.values()) == sum(inventory.bytes_by_dtype.values()) <= file.size
    text = inventory.to_text()
    assert "mixture-of-experts layers to fuse: 1 of 1 found" in text and layer.where in text
    assert "attention to fuse: 2 of 2 found" in text and "4 heads for 2 of 32" in text
    assert json.loads(inventory.to_json())["fusable"] == 1


def test_mixed_types(tiny_export):
    inventory = inspect(tiny_export(dtype="fp16"))
    assert set(inventory.bytes_by_dtype) == {"float16", "float"}
    assert inventory.bytes_by_kind["experts"] == 2 * EXPERT_BYTES // 2


def test_nothing_changes(tiny_copy):
    path = tiny_copy()
    before = {entry: entry.stat().st_mtime_ns for entry in path.parent.iterdir()}
    inspect(path)
    assert {entry: entry.stat().st_mtime_ns for entry in path.parent.iterdir()} == before


def test_a_fused_model(tiny_copy):
    path = tiny_copy()
    before, after = inspect(path), inspect(fuse(path, verify="none").output)
    assert (after.fused_nodes, after.layers, after.bytes_by_kind) == (2, [], before.bytes_by_kind)
    assert (len(before.attention), before.fused_attention) == (2, 0) and (after.attention, after.fused_attention) == ([], 2)
    assert "fused mixture-of-experts nodes: 2" in after.to_text() and "fused attention nodes: 2" in after.to_text()


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_windows_count_as_what_lies_in_them(tiny_copy, dtype):
    path = tiny_copy(dtype=dtype)
    before, after = inspect(path), inspect(fuse(path, verify="none").output)
    kind = {"fp32": "float", "fp16": "float16"}[dtype]
    assert "uint8" not in after.bytes_by_dtype
    assert after.bytes_by_kind["experts"] <= after.bytes_by_dtype[kind] <= before.bytes_by_dtype[kind]


@pytest.mark.parametrize("types", [None, [1.5], [99], [], [1, 1, 1]], ids=str)
def test_a_fused_node_that_does_not_say_what_its_windows_hold(tiny_copy, types):
    output = fuse(tiny_copy(), verify="none").output
    model = onnx.load(output, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "MoE":
            (stated,) = (attribute for attribute in node.attribute if attribute.name == "window_types")
            node.attribute.remove(stated)
            if types is not None:
                kind = onnx.AttributeProto.FLOATS if types == [1.5] else onnx.AttributeProto.INTS
                node.attribute.append(onnx.helper.make_attribute("window_types", types, attr_type=kind))
    onnx.save(model, output)
    inventory = inspect(output)
    assert inventory.fused_nodes == 2
    assert ("uint8" in inventory.bytes_by_dtype) == (types != [1, 1, 1])


def test_overlapping_tensors_count_once(tmp_path):
    model = looped_model()
    save_external(model, tmp_path / "model.onnx")
    first, second = model.graph.initializer[0], model.graph.initializer[1]
    set_external(second, "weights.bin", 0, 384)
    assert tuple(first.dims) == tuple(second.dims)
    onnx.save(model, tmp_path / "model.onnx")
    inventory = inspect(tmp_path / "model.onnx")
    assert inventory.external_files[0].bytes_used == inventory.bytes_by_kind["experts"] == 11 * 384


def test_a_refused_layer_says_why(tmp_path):
    onnx.save(looped_model(experts=5, bodies=(0, 1)), tmp_path / "model.onnx")
    inventory = inspect(tmp_path / "model.onnx")
    assert inventory.fusable == 0
    reason = "the router chooses from 5 experts, and the graph holds 2: missing 2, 3, 4"
    assert f"would stay as it is: {reason}" in inventory.to_text()


def test_bad_files_are_refused_as_in_fuse(tmp_path):
    (tmp_path / "model.onnx").write_text("hello")
    with pytest.raises(OrtHinaError, match="is not an ONNX model"):
        inspect(tmp_path / "model.onnx")
