"""The nodes that compute attention from what its node takes."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from .router_cone import looked_at

_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


def attention_nodes(outputs: Iterable[ir.Value], inputs: Iterable[ir.Value]) -> list[ir.Node]:
    """All nodes that compute `outputs` from `inputs`, and masks from what they are made of. Of tokens and caches outside
    only the shape is read, and what computes them is not followed."""
    stops = set(inputs)
    found: dict[ir.Node, None] = {}
    pending = [value.producer() for value in outputs]
    while pending:
        node = pending.pop()
        if node is None or node in found:
            continue
        found[node] = None
        operands = looked_at(node, stops)
        if node.op_type == "Shape" and node.inputs[0].dtype in _INTEGERS:
            operands = node.inputs
        pending.extend(value.producer() for value in operands if value is not None and value not in stops)
    return list(found)
