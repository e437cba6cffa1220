"""Sizes that the graph computes from shapes, and that are known: a constant instead of half a dozen nodes.

Exporters write ``[Shape(x)[0], Shape(x)[1], -1, 32]`` as the target of a Reshape, which can say that itself, as
``[0, 0, -1, 32]``; and halve the last size of a tensor where they cut it in two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from .attention_angles import NewNodes
from .constants import attribute, is_standard, small_constant
from .dims import Dim
from .shapes import Shape, Shapes

Numbers = tuple[int, ...]


def make_constant(graph: ir.Graph, shapes: Shapes) -> int:
    """Gives Reshape, Expand and Slice constant sizes where they are known. What computed them is left behind.

    Returns:
        How many inputs were changed.
    """
    known = [(node, place, numbers) for node in graph for place, numbers in _known(node, shapes)]
    nodes, made = NewNodes(graph), {}
    for node, place, numbers in known:
        constant = nodes.integers(*numbers)
        made[constant] = None
        node.replace_input_with(place, constant.outputs[0])
    if known:
        graph.insert_before(graph[0], [node for node in made if node.graph is None])
    return len(known)


def _known(node: ir.Node, shapes: Shapes) -> Iterator[tuple[int, Numbers]]:
    """Inputs of `node` that are computed, and are the numbers given."""
    rule = _RULES.get(node.op_type)
    if rule is None or not is_standard(node) or attribute(node, "allowzero", 0):
        return
    places = range(1, len(node.inputs)) if node.op_type == "Slice" else (1,)
    for place in places:
        value = node.inputs[place] if len(node.inputs) > place else None
        if value is None or value.is_initializer() or value.is_graph_input() or small_constant(value) is not None:
            continue
        sizes, source = shapes.integers(value), shapes.shape(node.inputs[0])
        if sizes is None or sizes.is_scalar or source is None:
            continue
        numbers = rule([shapes.dims.simplify(size) for size in sizes.items], source, shapes)
        if numbers is not None:
            yield place, numbers


def _reshape(sizes: list[Dim], source: Shape, shapes: Shapes) -> Numbers | None:
    """0 keeps the size of the same axis; and one size may be left open: the number of elements fixes it."""
    items: list[int | None] = []
    for place, size in enumerate(sizes):
        if size.constant is not None and size != Dim(0):
            items.append(size.constant)
        else:
            kept = place < len(source) and (size == Dim(0) or shapes.dims.same(size, source[place]))
            items.append(0 if kept else None)
    return tuple(-1 if item is None else item for item in items) if items.count(None) + items.count(-1) <= 1 else None


def _expand(sizes: list[Dim], source: Shape, shapes: Shapes) -> Numbers | None:
    """1 keeps the size of the same axis, counted from the last."""
    source = (Dim(1),) * (len(sizes) - len(source)) + source[-len(sizes) :] if sizes else ()
    kept = [shapes.dims.same(size, old) for size, old in zip(sizes, source, strict=True)]
    items = [1 if same else size.constant for same, size in zip(kept, sizes, strict=True)]
    return None if None in items else tuple(items)


def _slice(sizes: list[Dim], source: Shape, shapes: Shapes) -> Numbers | None:
    items = [size.constant for size in sizes]
    return None if None in items else tuple(items)


_RULES: dict[str, Callable[[list[Dim], Shape, Shapes], Numbers | None]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
}
