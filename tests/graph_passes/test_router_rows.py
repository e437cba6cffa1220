"""Reshapes before the routers of fused models."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from support import fixtures
from support.sessions import session

import ort_hina
from ort_hina.graph_passes.router_rows import remove_router_reshapes
from ort_hina.graph_passes.shapes import Shapes

HIDDEN, EXPERTS = 8, 4


def fused_model(
    *, width: int = HIDDEN, users: str = "layer", product: str = "MatMul", again: bool = False
) -> onnx.ModelProto:
    """Tokens (B, S, H), joined before the router of a fused layer.

    Args:
        width: of the joined tokens.
        users: ``output``: the ids are an output as well; ``logits``: the logits are.
        again: they are joined twice.
    """
    random = np.random.default_rng(0)
    constants = {
        "rows": np.array([-1, width]),
        "matrix": random.standard_normal((width, EXPERTS)).astype(np.float32),
        "window": random.standard_normal(EXPERTS * 2 * HIDDEN * 2).astype(np.float32).view(np.uint8),
    }
    nodes = [helper.make_node("Reshape", ["x", "rows"], ["joined"], name="join")]
    if again:
        nodes.append(helper.make_node("Reshape", ["joined", "rows"], ["joined again"], name="again"))
    nodes.append(helper.make_node(product, [nodes[-1].output[0], "matrix"], ["logits"], name="router matrix"))
    nodes.append(helper.make_node("Router", ["logits"], ["ids", "weights"], name="router", domain="ort_hina", k=2))
    size = 2 * HIDDEN * 4
    attributes = dict(
        num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=2, activation="relu", window_types=[1],
        gate_offsets=[2 * size * e for e in range(EXPERTS)], gate_strides=[1, HIDDEN],
        down_offsets=[2 * size * e + size for e in range(EXPERTS)], down_strides=[1, 2],
    )  # fmt: skip
    inputs = ["x", "ids", "weights", "", "window"]
    nodes.append(helper.make_node("MoE", inputs, ["y"], "layer", domain="ort_hina", **attributes))
    outputs = ["y", *{"layer": [], "output": ["ids"], "logits": ["logits"]}[users]]
    kinds = {"ids": onnx.TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        "fused",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["B", "S", HIDDEN])],
        [helper.make_tensor_value_info(name, kinds.get(name, onnx.TensorProto.FLOAT), None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
        value_info=[helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["T", EXPERTS])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ort_hina", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def without_reshapes(model: onnx.ModelProto) -> tuple[int, onnx.ModelProto]:
    read = ir.from_proto(model)
    return remove_router_reshapes(read.graph, Shapes()), ir.to_proto(read)


@pytest.mark.parametrize("again", [False, True])
def test_the_matrix_reads_tokens_as_they_are(again):
    before = fused_model(again=again)
    count, after = without_reshapes(before)
    matrix = next(node for node in after.graph.node if node.op_type == "MatMul")
    assert count == 1 and matrix.input[0] == "x"
    x = np.random.default_rng(1).standard_normal((2, 3, HIDDEN)).astype(np.float32)
    expected, found = (session(model).run(None, {"x": x})[0] for model in (before, after))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "options", [{"width": 2 * HIDDEN}, {"users": "output"}, {"users": "logits"}, {"product": "Gemm"}], ids=str
)
def test_reshapes_that_stay(options):
    """Rows that are no tokens, ids or logits that someone else wants, and a product that has no other rank."""
    assert without_reshapes(fused_model(**options))[0] == 0


def test_an_export(tmp_path):
    report = ort_hina.fuse(fixtures.write("qwen3_moe-optimum", tmp_path), verify="none")
    graph = onnx.load(report.output, load_external_data=False).graph
    kinds = Counter(node.op_type for node in graph.node if "layers.1/" in node.output[0] and node.op_type != "Constant")
    once = {"GroupQueryAttention": 1, "Router": 1, "MoE": 1}
    assert kinds == {"MatMul": 5, "SkipSimplifiedLayerNormalization": 2} | once
