"""Keys and values that the graph makes anew at every step, of all tokens, as latent attention does from a cache of latents.

The operator takes what is new apart from what is old. It is given all of them as a past of the full length, and the last of
them as new once more: they land where they lie.
"""

from __future__ import annotations

import onnx_ir as ir

from .attention_angles import NewNodes


def last_rows(whole: ir.Value, query: ir.Value, query_axis: int, nodes: NewNodes) -> tuple[ir.Value, list[ir.Node]]:
    """The last rows of `whole` (B, heads, T, size), as many as `query` has on `query_axis`; and the nodes that take them."""
    place, axis, end = nodes.integers(query_axis), nodes.integers(2), nodes.integers(2**63 - 1)
    shape = nodes.node("Shape", f"{query.name}.shape", [query], like=place.outputs[0])
    inputs = [shape.outputs[0], place.outputs[0]]
    count = nodes.node("Gather", f"{query.name}.rows", inputs, like=place.outputs[0], axis=0)
    start = nodes.node("Neg", f"{query.name}.last_rows", [count.outputs[0]], like=place.outputs[0])
    inputs = [whole, start.outputs[0], end.outputs[0], axis.outputs[0]]
    taken = nodes.node("Slice", f"{whole.name}.new", inputs, like=whole)
    return taken.outputs[0], [place, axis, end, shape, count, start, taken]
