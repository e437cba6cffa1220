"""Rewriting: a router becomes one node ``ort_hina::Router``."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .domain import DOMAIN, OPSET
from .router_match import RouterMatch
from .router_spec import RouterCall


def is_router_node(node: ir.Node) -> bool:
    return node.domain == DOMAIN and node.op_type == "Router"


def make_router_node(call: RouterCall, name: str, ids: ir.Value, weights: ir.Value) -> ir.Node:
    """The node for `call`, with outputs that are called like `ids` and `weights`. Nothing is added to a graph yet."""
    attributes = {
        field: int(value) if isinstance(value, bool) else value for field, value in dataclasses.asdict(call.spec).items()
    }
    outputs = [
        ir.Value(name=ids.name, type=ir.TensorType(ir.DataType.INT64), shape=ids.shape),
        ir.Value(name=weights.name, type=ir.TensorType(ir.DataType.FLOAT), shape=weights.shape),
    ]
    inputs = [call.logits] if call.bias is None else [call.logits, call.bias]
    return ir.Node(DOMAIN, "Router", inputs, ir.convenience.convert_attributes(attributes), outputs=outputs, name=name)


def put_router_node(graph: ir.Graph, match: RouterMatch, node: ir.Node) -> None:
    """Lets `node` compute the ids and weights of `match`. What it replaces is left behind without a user."""
    bias = match.call.bias
    if bias is not None and bias.graph is None and bias.producer() is None:
        graph.register_initializer(bias)
    graph.insert_before(_first_choice(match.ids), node)
    for old, new in zip((match.ids, match.weights), node.outputs, strict=True):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        # Two values of one graph cannot share a name, and the new one has to keep it.
        old.name, new.name = f"{old.name}.unfused", old.name
    graph.opset_imports[DOMAIN] = OPSET


def _first_choice(ids: ir.Value) -> ir.Node:
    """The first node that chooses: all inputs of the router are computed before, all users of its outputs come after."""
    node = ids.producer()
    while node.op_type != "TopK" and node.op_type != "ArgMax":
        node = node.inputs[0].producer()
    return node
