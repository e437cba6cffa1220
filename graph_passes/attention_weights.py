"""From a softmax over keys forward to the product with the values."""

from __future__ import annotations

import onnx_ir as ir

from .attention_heads import LAST_OF_FOUR, only_user
from .constants import is_standard, small_constant
from .router_expressions import Reader, refuse


def product_with_values(reader: Reader, softmax: ir.Node, *, beside_sink: bool) -> ir.Node:
    """The MatMul of the weights (the output of `softmax`, without the column of the sink) with the values.

    Raises:
        Refusal: the weights are used in another way as well.
    """
    value, has_sink = softmax.outputs[0], beside_sink
    while True:
        if value.is_graph_output():
            refuse(softmax, "computes weights that are an output of the model")
        cleaned = _without_nan(reader, value)
        if cleaned is not None:
            value = cleaned
            continue
        node = _only_user(softmax, value)
        if node.op_type in ("Cast", "Identity", "Dropout"):
            value = node.outputs[0]
        elif node.op_type == "Slice" and has_sink and _drops_last(node):
            value, has_sink = node.outputs[0], False
        elif node.op_type == "MatMul" and node.inputs[0] is value and node.inputs[1] is not value and not has_sink:
            return node
        else:
            refuse(softmax, f"computes weights that {node.op_type} {(node.name or node.outputs[0].name)!r} uses")


def _only_user(softmax: ir.Node, value: ir.Value) -> ir.Node:
    users = {use.node for use in value.uses()}
    if len(users) != 1:
        refuse(softmax, f"computes weights that {len(users)} nodes use")
    (node,) = users
    if not is_standard(node):
        refuse(softmax, f"computes weights that {node.op_type} {node.name!r} uses")
    return node


def _without_nan(reader: Reader, value: ir.Value) -> ir.Value | None:
    """``Where(IsNaN(w), 0, w)``: of a query that sees no key, whose output the operator defines as 0."""
    users = {use.node.op_type: use.node for use in value.uses()}
    if users.keys() != {"IsNaN", "Where"} or len(list(value.uses())) != 2:
        return None
    cleaned = users["Where"].outputs[0]
    test, nothing, otherwise = users["Where"].inputs
    is_test = test is users["IsNaN"].outputs[0] and only_user(test, "Where") is cleaned
    return cleaned if is_test and otherwise is value and reader.fill(nothing) == 0 else None


def _drops_last(node: ir.Node) -> bool:
    """Whether the Slice keeps all but the last element of the last axis."""
    starts, ends, axes, *steps = (small_constant(value) for value in node.inputs[1:])
    if any(found is None or found.size != 1 for found in (starts, ends, axes, *steps)):
        return False
    whole = all(int(step.item()) == 1 for step in steps) and int(starts.item()) == 0 and int(ends.item()) == -1
    return whole and int(axes.item()) in LAST_OF_FOUR
