"""What the operators for attention have in common: attributes, operands by name, and sizes that are proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from .dims import Dim
from .dtypes import dtype
from .meanings import Refusal
from .shapes import Shapes

Attributes = Mapping[str, tuple[ir.AttributeType, Any]]
"""Name → type, and the value where the node leaves it out."""

_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def attributes_of(node: ir.Node, known: Attributes) -> dict[str, Any]:
    """All that are known, with the defaults of those that are absent.

    Raises:
        Refusal: the node has another one, or one of another type.
    """
    values = {name: default for name, (_, default) in known.items()}
    for name, attribute in node.attributes.items():
        if name not in known:
            raise Refusal(f"attribute {name!r} is not known")
        if attribute.is_ref() or attribute.type != known[name][0]:
            raise Refusal(f"attribute {name!r} is not a constant of type {known[name][0].name}")
        values[name] = attribute.value
    return values


def operands_of(node: ir.Node, names: Sequence[str], refused: Mapping[str, str]) -> dict[str, ir.Value]:
    """The inputs that are given, by name.

    Args:
        refused: why an input of this name cannot be there.

    Raises:
        Refusal: one of these is there, or one that is not known.
    """
    given = {}
    for place, value in enumerate(node.inputs):
        if value is None:
            continue
        name = names[place] if place < len(names) else ""
        if not name or name in refused:
            raise Refusal(f"input {place} ({name or 'not known'}) is given" + (f": {refused[name]}" if name else ""))
        given[name] = value
    return given


def used_output(node: ir.Node, place: int) -> ir.Value | None:
    """An output that something uses."""
    value = node.outputs[place] if len(node.outputs) > place else None
    return value if value is not None and (value.uses() or value.is_graph_output()) else None


def caches_of(node: ir.Node, given: Mapping[str, ir.Value]) -> dict[str, ir.Value | None]:
    """Past and present caches, by their names in `AttentionLayer`: both or none of each two."""
    if ("past_key" in given) != ("past_value" in given):
        raise Refusal("one of past_key and past_value is given without the other")
    caches = {name: given.get(name) for name in ("past_key", "past_value")}
    if used_output(node, 1) is None and used_output(node, 2) is None:
        return caches
    if len(node.outputs) < 3:
        raise Refusal("one of present_key and present_value is given without the other")
    return caches | {"present_key": node.outputs[1], "present_value": node.outputs[2]}


def shape_of(shapes: Shapes, value: ir.Value, name: str, ranks: tuple[int, ...]) -> tuple[Dim, ...]:
    """The shape of an operand, which must have one of the `ranks`."""
    shape = shapes.shape(value)
    if shape is None:
        raise Refusal(f"the shape of {name} could not be worked out")
    if len(shape) not in ranks:
        raise Refusal(f"{name} has rank {len(shape)}, expected {' or '.join(map(str, ranks))}")
    return tuple(map(shapes.dims.simplify, shape))


def quotient_of(width: Dim, heads: int, name: str) -> int:
    """The size of a head in a row of `heads`."""
    if width.constant is None or heads < 1 or width.constant % heads:
        raise Refusal(f"the last dimension of {name} is {width.constant or 'not known'}, expected a multiple of {heads}")
    return width.constant // heads


def element_type(value: ir.Value, name: str) -> ir.DataType:
    found = dtype(value)
    if found not in _TYPES:
        came = "not known" if found is None else found.name
        raise Refusal(f"the type of {name} is {came}, expected float, float16 or bfloat16")
    return found
