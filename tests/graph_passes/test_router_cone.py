"""Which nodes belong to a router, and which of them nothing else needs."""

from __future__ import annotations

import onnx_ir as ir
from support.router_graphs import RouterGraph, values_of

from ort_hina.graph_passes.router_cone import router_nodes, unused_nodes


def graph_with_a_shape_from_outside() -> tuple[ir.Model, dict[str, ir.Value]]:
    """The scores are reshaped to as many rows as hidden states have that were computed by other nodes."""
    g = RouterGraph()
    logits = g.logits()
    hidden = g.op("Tanh", g.input("x", "tokens", 5))
    rows = g.op("Slice", g.op("Shape", hidden), g.const([0]), g.const([1]))
    scores = g.op("Reshape", g.op("Softmax", logits), g.op("Concat", rows, g.const([-1]), axis=0))
    values, ids = g.top_k(scores, 3)
    read, ids, weights = values_of(g.model(ids, values))
    top = ids.producer().inputs[0].producer()
    inner = {value.name: value for node in read.graph for value in node.outputs}
    return read, {"ids": top.outputs[1], "weights": top.outputs[0], "logits": read.graph.inputs[0], "hidden": inner[hidden]}


def test_what_only_its_shape_is_read_of_is_outside():
    _, values = graph_with_a_shape_from_outside()
    nodes = router_nodes((values["ids"], values["weights"]), (values["logits"], None))
    operators = [node.op_type for node in nodes]
    assert "Tanh" not in operators and {"Shape", "Slice", "Concat", "Reshape", "Softmax", "TopK"} <= set(operators)
    place = {node: i for i, node in enumerate(nodes)}
    for node in nodes:
        assert all(place.get(v.producer(), -1) < place[node] for v in node.inputs if v is not None)


def test_nodes_that_others_need_stay():
    read, values = graph_with_a_shape_from_outside()
    outputs = values["ids"], values["weights"]
    nodes = router_nodes(outputs, (values["logits"],))
    assert unused_nodes(nodes, outputs) == tuple(nodes)
    softmax = next(node for node in nodes if node.op_type == "Softmax")
    read.graph.append(ir.Node("", "Relu", [softmax.outputs[0]]))
    assert {node.op_type for node in nodes} - {node.op_type for node in unused_nodes(nodes, outputs)} == {"Softmax"}
    assert unused_nodes(nodes, ()) == ()
