"""The part of a graph between given values."""

from __future__ import annotations

import onnx_ir as ir

from .constants import is_standard


def inner_nodes(
    output: ir.Value, inputs: set[ir.Value], order: dict[ir.Node, int]
) -> tuple[tuple[ir.Node, ...], tuple[ir.Value, ...]]:
    """The nodes that compute `output` from `inputs` and constants, in the graph's order; and the values of which they
    read only the shape, which are not followed further (behind them lies the rest of the model)."""
    nodes: set[ir.Node] = set()
    watched: set[ir.Value] = set()
    pending = [output.producer()]
    while pending:
        while pending:
            node = pending.pop()
            if node is None or node in nodes:
                continue
            nodes.add(node)
            if node.op_type == "Shape" and is_standard(node):
                watched.add(node.inputs[0])
            else:
                pending.extend(value.producer() for value in node.inputs if value is not None and value not in inputs)
        pending = [value.producer() for value in watched if _comes_from(value, nodes, inputs)]
    onlooked = {value for value in watched if value.producer() not in nodes and value not in inputs}
    return tuple(sorted(nodes, key=order.__getitem__)), tuple(sorted(onlooked, key=lambda value: value.name or ""))


def _comes_from(value: ir.Value, nodes: set[ir.Node], inputs: set[ir.Value]) -> bool:
    """Whether `value` (of which a shape is read) is not in `nodes`, but computed directly from something that is."""
    node = value.producer()
    if node is None or node in nodes or value in inputs:
        return False
    return any(operand is not None and (operand in inputs or operand.producer() in nodes) for operand in node.inputs)


def where_of(node: ir.Node) -> str:
    """The path of the module that a node belongs to, for people to read: exporters write it into node names."""
    name = node.name or (node.outputs[0].name if node.outputs else None) or node.op_type
    return name.rsplit("/", 1)[0] or name
