"""How exporters lay heads out: split from a token's features, repeated for groups, transposed for a product."""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, axes_of, is_standard
from .dims import INFERRED, Dim
from .router_expressions import Reader, is_output_of
from .shapes import Shape

_HEADS_FIRST = (0, 2, 1, 3)
LAST_OF_FOUR = (-1, 3)
"""The axis of the keys in scores (B, heads, S, T)."""


def sizes_of_heads(reader: Reader, value: ir.Value) -> tuple[int, int] | None:
    """(heads, head size) of `value`, (B, heads, S, head size)."""
    shape = reader.shapes.shape(value)
    if shape is None or len(shape) != 4:
        return None
    heads, size = (reader.shapes.dims.simplify(shape[axis]).constant for axis in (1, 3))
    return None if heads is None or size is None else (heads, size)


def is_transposed(value: ir.Value, permutation: tuple[int, ...]) -> bool:
    return is_output_of(value, "Transpose") and tuple(attribute(value.producer(), "perm", ())) == permutation


def before_heads(reader: Reader, value: ir.Value) -> ir.Value | None:
    """Of `value` (B, heads, S, D): the same as (B, S, heads, D), where it is a transposition of that."""
    return value.producer().inputs[0] if is_transposed(value, _HEADS_FIRST) else None


def features(reader: Reader, value: ir.Value) -> ir.Value | None:
    """Of `value` (B, S, heads, D): the same as (B, S, heads · D), where it is a view of that."""
    node = value.producer()
    if node is None or node.op_type != "Reshape" or not is_standard(node):
        return None
    flat, split = reader.shapes.shape(node.inputs[0]), reader.shapes.shape(value)
    if flat is None or split is None or len(flat) != 3 or len(split) != 4:
        return None
    heads, size = (reader.shapes.dims.simplify(dim).constant for dim in split[2:])
    if heads is None or size is None or not same(reader, flat, (split[0], split[1], Dim(heads * size))):
        return None
    return node.inputs[0]


def split_heads(reader: Reader, value: ir.Value) -> ir.Value:
    """`value` (B, heads, S, D), or the (B, S, heads · D) that it is a view of."""
    inner = before_heads(reader, value)
    flat = None if inner is None else features(reader, inner)
    return value if flat is None else flat


def joined_heads(reader: Reader, value: ir.Value, rows: tuple[Dim, Dim], width: int) -> ir.Value | None:
    """(B, S, width), which a Transpose and a Reshape make of `value` (B, heads, S, size), where B and S are `rows` and width
    is heads · size; None: something else happens to it."""
    transposed = only_user(value, "Transpose")
    joined = only_user(transposed, "Reshape") if transposed is not None and is_transposed(transposed, _HEADS_FIRST) else None
    if joined is None or joined.producer().inputs[0] is not transposed:
        return None
    target = reader.shapes.integers(joined.producer().inputs[1])
    wanted = (*rows, Dim(width))
    if target is None:
        shape = reader.shapes.shape(joined)
        return joined if shape is not None and same(reader, shape, wanted) else None
    # 0 copies a size, and what is left for -1 is the rest: both are right by themselves.
    by_itself = [{Dim(0)}, {Dim(0)}, {INFERRED}]
    fits = len(target.items) == 3 and all(
        item in free or reader.shapes.dims.same(item, size)
        for item, free, size in zip(target.items, by_itself, wanted, strict=True)
    )
    return joined if fits else None


def without_idle_reshape(reader: Reader, value: ir.Value) -> ir.Value:
    """What a Reshape makes of `value`, if nothing else uses it and the Reshape leaves its shape as it is."""
    reshaped = only_user(value, "Reshape")
    shapes = [reader.shapes.shape(found) for found in (value, reshaped) if found is not None]
    return reshaped if len(shapes) == 2 and None not in shapes and same(reader, *shapes) else value


def only_user(value: ir.Value, operator: str) -> ir.Value | None:
    """The first output of the only node that uses `value`, an `operator` of ONNX's own."""
    users = list(value.uses())
    if len(users) != 1 or value.is_graph_output():
        return None
    node = users[0].node
    return node.outputs[0] if node.op_type == operator and is_standard(node) else None


def repeated(reader: Reader, value: ir.Value) -> tuple[ir.Value, int]:
    """(v, n): `value` holds every head of v (B, heads, T, D) n times, one after the other; (value, 1) if it is nothing of
    the kind."""
    node = value.producer()
    if node is None or node.op_type != "Reshape" or not is_standard(node):
        return value, 1
    expanded = node.inputs[0]
    inserted = expanded.producer().inputs[0] if is_output_of(expanded, "Expand") else None
    if inserted is None or not is_output_of(inserted, "Unsqueeze") or axes_of(inserted.producer()) not in ((2,), (-3,)):
        return value, 1
    inner = inserted.producer().inputs[0]
    heads, outer = sizes_of_heads(reader, inner), reader.shapes.shape(expanded)
    sizes, shape = sizes_of_heads(reader, value), reader.shapes.shape(inner)
    if heads is None or sizes is None or outer is None or len(outer) != 5:
        return value, 1
    count = reader.shapes.dims.simplify(outer[2]).constant
    grown = (shape[0], shape[1], outer[2], shape[2], shape[3])
    result = reader.shapes.shape(value)
    fits = (
        count is not None
        and same(reader, outer, grown, but=(3,))
        and sizes == (heads[0] * count, heads[1])
        and reader.shapes.dims.same(result[0], shape[0])
    )
    # The sizes of all other axes agree, so that of the keys does.
    return (inner, count) if fits else (value, 1)


def transposed_keys(reader: Reader, value: ir.Value) -> ir.Value | None:
    """k (B, heads, T, D), where `value` is (B, heads, D, T)."""
    if is_transposed(value, (0, 1, 3, 2)):
        return value.producer().inputs[0]
    node = value.producer()
    if node is None or node.op_type != "Reshape" or not is_standard(node) or not is_transposed(node.inputs[0], (0, 2, 1)):
        return None
    flat = node.inputs[0].producer().inputs[0]
    if not is_output_of(flat, "Reshape"):
        return None
    keys = flat.producer().inputs[0]
    shape, middle, result = (reader.shapes.shape(v) for v in (keys, flat, value))
    if shape is None or middle is None or result is None or len(shape) != 4 or len(middle) != 3 or len(result) != 4:
        return None
    fits = same(reader, middle[1:], shape[2:]) and same(reader, result, (shape[0], shape[1], shape[3], shape[2]))
    return keys if fits else None


def same(reader: Reader, left: Shape, right: Shape, but: tuple[int, ...] = ()) -> bool:
    return len(left) == len(right) and all(
        axis in but or reader.shapes.dims.same(a, b) for axis, (a, b) in enumerate(zip(left, right, strict=True))
    )
