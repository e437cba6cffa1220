"""Rotary embeddings of queries and keys: x · cos + rotate(x) · sin, with angles that the graph computes for each token.

The angles stay in the graph, exactly as they are; the operator takes cosine and sine of each token, without the second half
that exporters repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .attention_heads import sizes_of_heads
from .constant_views import slice_cuts, split_sizes
from .constants import attribute, axes_of, is_standard
from .router_expressions import Reader, is_output_of, pairs

# Elementwise operators: of two equal halves they make two equal halves.
_ELEMENTWISE = frozenset({"Cos", "Sin", "Cast", "Identity", "Neg"})
_WITH_NUMBER = frozenset({"Mul", "Div", "Add", "Sub"})


@dataclass(frozen=True)
class Angles:
    """A cosine or sine of each token: `value` (B or 1, S, R) or, with an axis for heads, (B or 1, 1, S, R). Its last axis
    holds `count` different angles, and then (``twice``) the same again."""

    value: ir.Value
    count: int
    twice: bool


@dataclass(frozen=True)
class Rotation:
    """`inner` (B, heads, S, D), of which the first elements are turned."""

    inner: ir.Value
    cosine: Angles
    sine: Angles
    interleaved: bool


@dataclass(frozen=True)
class _Part:
    """Elements ``start``, ``start + step``, … of the last axis of `whole`: `count` of them."""

    whole: ir.Value
    start: int
    step: int
    count: int


def read_rotation(reader: Reader, value: ir.Value) -> Rotation | None:
    """`value` (B, heads, S, D) as something turned, or None."""
    sizes = sizes_of_heads(reader, value)
    if sizes is None:
        return None
    whole = _turned(reader, value)
    if whole is not None:
        return whole
    return _turned_in_part(reader, value, sizes[1])


def _turned_in_part(reader: Reader, value: ir.Value, size: int) -> Rotation | None:
    """The first elements turned, and the rest as it was."""
    if not _is_last_concat(reader, value):
        return None
    head, *tail = value.producer().inputs
    found = _turned(reader, head)
    if found is None or len(tail) != 1:
        return None
    first, rest = _part(reader, found.inner), _part(reader, tail[0])
    if first is None or rest is None or first.whole is not rest.whole:
        return None
    if (first.start, first.step, rest.step) != (0, 1, 1) or rest.start != first.count or first.count + rest.count != size:
        return None
    return Rotation(first.whole, found.cosine, found.sine, found.interleaved)


def _turned(reader: Reader, value: ir.Value) -> Rotation | None:
    node = value.producer()
    if node is None or not is_standard(node):
        return None
    if node.op_type == "Add":
        return _by_rotating(reader, node)
    if _is_last_concat(reader, value) and len(node.inputs) == 2:
        return _by_halves(reader, *node.inputs)
    return None


def _by_rotating(reader: Reader, add: ir.Node) -> Rotation | None:
    """``x * cos + rotate(x) * sin``"""
    for plain, rotated in pairs(add):
        if not (is_output_of(plain, "Mul") and is_output_of(rotated, "Mul")):
            continue
        for x, cosine in pairs(plain.producer()):
            for turned, sine in pairs(rotated.producer()):
                how = _rotated(reader, turned)
                if how is not None and how[0] is x:
                    return _rotation(reader, x, cosine, sine, interleaved=how[1])
    return None


def _rotated(reader: Reader, value: ir.Value) -> tuple[ir.Value, bool] | None:
    """(x, interleaved), where `value` is (-x2, x1): halves of x, or, interleaved, odd and even elements."""
    interleaved = False
    if is_output_of(value, "Reshape"):
        value, interleaved = value.producer().inputs[0], True
    if not _is_last_concat(reader, value) or len(value.producer().inputs) != 2:
        return None
    first, second = value.producer().inputs
    if interleaved:
        first, second = _without_last_axis(reader, first), _without_last_axis(reader, second)
    if first is None or second is None or not is_output_of(first, "Neg"):
        return None
    back, front = _part(reader, first.producer().inputs[0]), _part(reader, second)
    if back is None or front is None or back.whole is not front.whole:
        return None
    sizes = sizes_of_heads(reader, back.whole)
    expected = _expected(sizes[1], interleaved) if sizes else None
    return (back.whole, interleaved) if (front, back) == _parts(back.whole, expected) else None


def _expected(size: int, interleaved: bool) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
    """(start, step, count) of the first and of the second elements of the pairs."""
    if size % 2:
        return None
    half = size // 2
    return ((0, 2, half), (1, 2, half)) if interleaved else ((0, 1, half), (half, 1, half))


def _parts(whole: ir.Value, expected) -> tuple[_Part, _Part] | None:
    return expected and tuple(_Part(whole, *part) for part in expected)


def _without_last_axis(reader: Reader, value: ir.Value) -> ir.Value | None:
    """x, where `value` is x with a last axis of one element."""
    node = value.producer()
    if not is_output_of(value, "Unsqueeze"):
        return None
    axes, rank = axes_of(node), reader.shapes.rank(value)
    return node.inputs[0] if axes is not None and rank is not None and [a % rank for a in axes] == [rank - 1] else None


def _by_halves(reader: Reader, first: ir.Value, second: ir.Value) -> Rotation | None:
    """``(x1 * cos - x2 * sin, x2 * cos + x1 * sin)``"""
    if not (is_output_of(first, "Sub") and is_output_of(second, "Add")):
        return None
    terms = [*first.producer().inputs, *second.producer().inputs]
    if not all(is_output_of(term, "Mul") for term in terms):
        return None
    for front, cosine in pairs(terms[0].producer()):
        for back, sine in pairs(terms[1].producer()):
            a, b = _part(reader, front), _part(reader, back)
            if a is None or b is None or a.whole is not b.whole:
                continue
            sizes = sizes_of_heads(reader, a.whole)
            if sizes is None or (a, b) != _parts(a.whole, _expected(sizes[1], False)):
                continue
            if _same_products(reader, terms[2:], (a, b), cosine, sine):
                return _rotation(reader, a.whole, cosine, sine, interleaved=False)
    return None


def _same_products(
    reader: Reader, terms: list[ir.Value], parts: tuple[_Part, _Part], cosine: ir.Value, sine: ir.Value
) -> bool:
    """Whether `terms` are ``x2 * cos`` and ``x1 * sin``; a half may be cut out more than once."""
    found = set()
    for term in terms:
        for half, angle in pairs(term.producer()):
            part = _part(reader, half) if angle in (cosine, sine) else None
            if part is not None:
                found.add((part, angle))
    front, back = parts
    return {(back, cosine), (front, sine)} <= found


def _rotation(reader: Reader, x: ir.Value, cosine: ir.Value, sine: ir.Value, *, interleaved: bool) -> Rotation | None:
    sizes = sizes_of_heads(reader, x)
    angles = [_angles(reader, value, interleaved) for value in (cosine, sine)]
    if None in angles or any(found.count * 2 != sizes[1] for found in angles):
        return None
    return Rotation(x, *angles, interleaved)


def _angles(reader: Reader, value: ir.Value, interleaved: bool) -> Angles | None:
    """`value`, which heads are multiplied by: (B or 1, 1, S, R or R / 2)."""
    shape = reader.shapes.shape(value)
    if shape is None or len(shape) != 4 or shape[1].constant != 1 or shape[3].constant is None:
        return None
    width = shape[3].constant
    if interleaved:
        inner = _each_twice(reader, value)
        return None if inner is None else Angles(_three_axes(inner), width // 2, twice=False)
    value = _three_axes(value)
    if _repeats(reader, value):
        return Angles(value, width // 2, twice=True)
    return Angles(value, width, twice=False)


def _each_twice(reader: Reader, value: ir.Value) -> ir.Value | None:
    """x, where `value` is every element of x twice, one after the other: with a last axis inserted, and expanded to two."""
    if not is_output_of(value, "Reshape"):
        return None
    grown = value.producer().inputs[0].producer()
    if grown is None or not is_standard(grown) or grown.op_type not in ("Expand", "Tile"):
        return None
    counts = reader.shapes.integers(grown.inputs[1])
    inner = _without_last_axis(reader, grown.inputs[0])
    if counts is None or inner is None or counts.items[-1].constant != 2:
        return None
    if grown.op_type == "Tile" and any(count.constant != 1 for count in counts.items[:-1]):
        return None
    columns = reader.columns(inner)
    return inner if columns is not None and reader.columns(value) == 2 * columns else None


def _three_axes(value: ir.Value) -> ir.Value:
    """`value` without the axis for heads, where an Unsqueeze put it there."""
    node = value.producer()
    return node.inputs[0] if is_output_of(value, "Unsqueeze") and axes_of(node) in ((1,), (-3,)) else value


def _repeats(reader: Reader, value: ir.Value) -> bool:
    """Whether the second half of the last axis is proved to equal the first: something elementwise of ``Concat(f, f)``."""
    node = value.producer()
    while node is not None and is_standard(node):
        if _is_last_concat(reader, value):
            return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        if node.op_type in _ELEMENTWISE or (node.op_type in ("Unsqueeze", "Gather") and _keeps_last(reader, node)):
            value = node.inputs[0]
        elif node.op_type in _WITH_NUMBER:
            others = [other for number, other in pairs(node) if reader.number(number) is not None]
            if not others:
                return False
            value = others[0]
        else:
            return False
        node = value.producer()
    return False


def _keeps_last(reader: Reader, node: ir.Node) -> bool:
    """Whether the last axis of the first input is that of the output: of an Unsqueeze, or of a Gather (of rows)."""
    if node.op_type == "Gather":
        return attribute(node, "axis", 0) == 0 and (reader.shapes.rank(node.inputs[0]) or 0) > 1
    axes, rank = axes_of(node), reader.shapes.rank(node.outputs[0])
    return axes is not None and rank is not None and all(axis % rank != rank - 1 for axis in axes)


def _is_last_concat(reader: Reader, value: ir.Value) -> bool:
    return is_output_of(value, "Concat") and reader.is_last_axis(attribute(value.producer(), "axis", 0), value)


def _part(reader: Reader, value: ir.Value) -> _Part | None:
    """`value` as elements of the last axis of something that a Slice or Split cuts."""
    node = value.producer()
    if node is None or not is_standard(node) or node.op_type not in ("Slice", "Split"):
        return None
    whole = node.inputs[0]
    shape = reader.shapes.shape(whole)
    size = None if not shape else reader.shapes.dims.simplify(shape[-1]).constant
    if size is None:
        return None
    if node.op_type == "Split":
        sizes = split_sizes(node, size) if reader.is_last_axis(attribute(node, "axis", 0), whole) else None
        place = node.outputs.index(value)
        return None if sizes is None else _Part(whole, sum(sizes[:place]), 1, sizes[place])
    cuts = slice_cuts(node, [*(None for _ in shape[:-1]), size], lambda bound: _numbers(reader, bound))
    if cuts is None or set(cuts) != {len(shape) - 1}:
        return None
    (cut,) = cuts.values()
    return _Part(whole, cut.start, cut.step, len(cut))


def _numbers(reader: Reader, value: ir.Value) -> list[int] | None:
    found = reader.shapes.integers(value)
    if found is None or any(item.constant is None for item in found.items):
        return None
    return [item.constant for item in found.items]
