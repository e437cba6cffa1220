"""New nodes that bring what a graph has into the rows that the operator takes."""

from __future__ import annotations

import onnx_ir as ir

from .attention_angles import NewNodes


def last_rows(whole: ir.Value, query: ir.Value, query_axis: int, nodes: NewNodes) -> tuple[ir.Value, list[ir.Node]]:
    """The last rows of `whole` (B, heads, T, size), as many as `query` has on that axis; and the nodes that take them.

    Of keys and values that the graph makes anew at every step, of all tokens (latent attention does, from a cache of
    latents), the operator is given all as a past of the full length, and the last of them as new once more: they land where
    they lie.
    """
    axis, end = nodes.integers(2), nodes.integers(2**63 - 1)
    counting = _rows(query, query_axis, nodes)
    place, count = counting[0], counting[-1]
    start = nodes.node("Neg", f"{query.name}.last_rows", [count.outputs[0]], like=place.outputs[0])
    inputs = [whole, start.outputs[0], end.outputs[0], axis.outputs[0]]
    taken = nodes.node("Slice", f"{whole.name}.new", inputs, like=whole)
    return taken.outputs[0], [*counting, axis, end, start, taken]


def rows_for_all(bias: ir.Value, query: ir.Value, query_axis: int, nodes: NewNodes) -> list[ir.Node]:
    """Nodes of which the last is `bias` (B or 1, heads or 1, 1, T) with a row for each token of `query`, on that axis."""
    counting, ones = _rows(query, query_axis, nodes), nodes.integers(1, 1)
    one = nodes.integers(1)
    inputs = [ones.outputs[0], counting[-1].outputs[0], one.outputs[0]]
    target = nodes.node("Concat", f"{query.name}.rows_alone", inputs, like=one.outputs[0], axis=0)
    return [*counting, ones, one, target, nodes.node("Expand", f"{bias.name}.rows", [bias, target.outputs[0]], like=bias)]


def _rows(query: ir.Value, axis: int, nodes: NewNodes) -> list[ir.Node]:
    """Nodes of which the last is the size of an axis of `query`, (1)."""
    place = nodes.integers(axis)
    shape = nodes.node("Shape", f"{query.name}.shape", [query], like=place.outputs[0])
    inputs = [shape.outputs[0], place.outputs[0]]
    return [place, shape, nodes.node("Gather", f"{query.name}.size_{axis}", inputs, like=place.outputs[0], axis=0)]
