"""The graph after a router became one node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support import router_graphs as graphs
from support.router_graphs import EXPERTS, RouterGraph, built, run_router, values_of
from support.sessions import session

from ort_hina.graph_passes.cleanup import remove_unused
from ort_hina.graph_passes.router_match import match_router
from ort_hina.graph_passes.router_node import (
    is_router_node,
    make_router_node,
    put_router_node,
)
from ort_hina.graph_passes.shapes import Shapes


def fused(model):
    """The model with a Router in it, what the router was, and how many nodes went."""
    read, ids, weights = values_of(model)
    match = match_router(Shapes(), ids, weights)
    node = make_router_node(match.call, "router", match.ids, match.weights)
    put_router_node(read.graph, match, node)
    return read, match, remove_unused(read.graph)


@pytest.mark.parametrize("spelling", [graphs.softmax_topk, graphs.deepseek_v3, graphs.deepseek_v2, graphs.sparse_mixer])
def test_what_is_called_unused_is_unused(spelling):
    read, match, removed = fused(built(spelling))
    assert removed == len(match.nodes) and not any(node.graph is not None for node in match.nodes)
    before = ["Constant", "Reshape"] if spelling is graphs.deepseek_v2 else []
    assert [node.op_type for node in read.graph] == [*before, "Router", "Identity", "Identity"]


@pytest.mark.parametrize("spelling", [graphs.softmax_topk, graphs.ernie, graphs.deepseek_v3, graphs.deepseek_v2])
def test_the_fused_model_answers_the_same(spelling):
    model = built(spelling)
    read, _, _ = fused(model)
    rows = np.random.default_rng(0).standard_normal((40, EXPERTS)).astype(np.float32)
    expected = run_router(model, rows)
    running = session(ir.to_proto(read))
    name = running.get_inputs()[0].name
    found = running.run(["ids", "weights"], {name: rows[None] if name == "whole" else rows})
    order, other = np.argsort(expected[0], axis=1), np.argsort(found[0], axis=1)
    for left, right in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.take_along_axis(left, order, 1), np.take_along_axis(right, other, 1), atol=1e-5)


def test_attributes_and_names():
    model = built(graphs.deepseek_v3, filled=-np.inf)
    read, match, _ = fused(model)
    (node,) = (node for node in read.graph if is_router_node(node))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    assert attributes["k"] == 3 and attributes["normalize"] == 1 and attributes["masked_score"] == -np.inf
    assert attributes["score"] == "sigmoid" and attributes["scale"] == 2.5 and attributes["group_score"] == "top2_sum"
    assert [value.name for value in (match.ids, match.weights)] == [f"{value.name}.unfused" for value in node.outputs]
    assert [value.dtype for value in node.outputs] == [ir.DataType.INT64, ir.DataType.FLOAT]
    assert node.inputs[1].name in read.graph.initializers and list(node.inputs[1].shape) == [EXPERTS]


def test_scores_with_another_use_stay():
    graph = RouterGraph()
    scores = graph.op("Softmax", graph.logits(), axis=-1)
    values, ids = graph.top_k(scores, 3)
    model = graph.model(ids, graph.op("Div", values, graph.reduce("ReduceSum", values)))
    model.graph.output.append(graphs.helper.make_tensor_value_info(scores, 1, None))
    read, match, _ = fused(model)
    assert sorted(node.op_type for node in match.nodes) == ["Constant", "Constant", "Div", "ReduceSum", "TopK"]
    assert sorted(node.op_type for node in read.graph) == ["Identity", "Identity", "Router", "Softmax"]
