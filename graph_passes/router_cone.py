"""The nodes between a router's logits and what it hands out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir


def router_nodes(outputs: Iterable[ir.Value], inputs: Iterable[ir.Value | None]) -> list[ir.Node]:
    """All nodes that compute `outputs`, back to `inputs` and to where only shapes are looked at, each after what it needs."""
    stops = {value for value in inputs if value is not None}
    found: dict[ir.Node, None] = {}
    pending = [(value, False) for value in outputs]
    while pending:
        value, ready = pending.pop()
        node = value.producer()
        if node is None or value in stops or node in found:
            continue
        if ready:
            found[node] = None
            continue
        pending.append((value, True))
        pending.extend((operand, False) for operand in looked_at(node, stops) if operand is not None)
    return list(found)


def looked_at(node: ir.Node, stops: set[ir.Value]) -> Sequence[ir.Value | None]:
    """The operands of `node` that are followed. Of a Shape they are only if the value depends on `stops`: what is outside
    of the router has the same shape, whatever computes it."""
    return node.inputs if node.op_type != "Shape" or _depends(node.inputs[0], stops) else ()


def _depends(value: ir.Value, stops: set[ir.Value], limit: int = 64) -> bool:
    """Whether `value` is computed from one of `stops` (the router's inputs) within `limit` nodes."""
    pending, seen = [value], set()
    while pending and len(seen) < limit:
        current = pending.pop()
        if current in stops:
            return True
        node = current.producer()
        if node is not None and node not in seen:
            seen.add(node)
            pending.extend(operand for operand in node.inputs if operand is not None)
    return False


def unused_nodes(nodes: Sequence[ir.Node], replaced: Iterable[ir.Value]) -> tuple[ir.Node, ...]:
    """Those of `nodes` (each after what it needs) that nothing uses any more once `replaced` come from elsewhere."""
    replaced = set(replaced)
    unused: set[ir.Node] = set()
    for node in reversed(nodes):
        rest = [value for value in node.outputs if value not in replaced]
        if not any(value.is_graph_output() or any(user not in unused for user in value.consumers()) for value in rest):
            unused.add(node)
    return tuple(node for node in nodes if node in unused)
