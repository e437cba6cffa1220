"""Operators that move nothing and compute nothing: they may stand anywhere in the pattern.

Identity, no-op Cast, Unsqueeze, Squeeze, Flatten, Reshape, Transpose and Expand hand a meaning on with other axes.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .axes import ONE_AXIS, regrouped, sizes
from .constants import attribute, axes_of
from .dims import ONE, Dim, product
from .meanings import (
    Axes,
    Axis,
    ChosenConstant,
    Contribution,
    Coordinates,
    Counts,
    Expert,
    ExpertMask,
    ExpertPlaces,
    Hits,
    Ids,
    Meaning,
    OneHotIds,
    PairPlaces,
    PartialSum,
    PickIndex,
    PlaceIndex,
    Refusal,
    RoutingWeights,
    Rows,
)
from .recogniser import Recogniser
from .shapes import unsqueezed

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def with_axes(meaning: Meaning, axes: Axes) -> Meaning:
    return meaning if axes == meaning.axes else dataclasses.replace(meaning, axes=axes)


def identity(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    return recogniser.meaning(node.inputs[0])


def cast(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    target = ir.DataType(attribute(node, "to", 0))
    match meaning:
        case None:
            return None
        case OneHotIds() | ExpertMask() | Hits(listed=False) | PlaceIndex(what="zero"):
            return meaning  # zeros and ones are exact in every type
        case Ids() | Coordinates() | PickIndex() | Hits() | PlaceIndex() | Counts() | ExpertPlaces() | PairPlaces():
            if target in _INTEGERS:
                return meaning
            raise Refusal(f"indices are cast to {target.name}, which may round them")
        case Rows() | RoutingWeights() | Contribution() | PartialSum():
            if meaning.dtype == target:
                return meaning
            if target in _exact_targets(meaning):
                return dataclasses.replace(meaning, dtype=target)
            came = "an unknown type" if meaning.dtype is None else meaning.dtype.name
            raise Refusal(f"a cast from {came} to {target.name} inside the experts changes what is rounded")
        case ChosenConstant() if meaning.view.tensor.dtype == target:
            return meaning
    return None


def _exact_targets(meaning: Meaning) -> set[ir.DataType]:
    """The types that a value may be cast to, since the operator computes in float and rounds once at the end: from its
    16-bit type to float, and back."""
    if meaning.dtype not in (ir.DataType.FLOAT, *_NARROW):
        return set()
    match meaning:
        case Contribution(expert=expert) | Rows(form=Expert() as expert):
            return {ir.DataType.FLOAT, expert.down.matrix.dtype}
        case PartialSum():
            return {ir.DataType.FLOAT, meaning.contributions()[0].expert.down.matrix.dtype}
        case RoutingWeights():
            return {ir.DataType.FLOAT}
    return set()


def unsqueeze(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    axes = axes_of(node)
    if axes is None:
        raise Refusal("the axes of Unsqueeze are not constant")
    return with_axes(meaning, unsqueezed(meaning.axes, axes, ONE_AXIS))


def squeeze(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    axes = axes_of(node)
    if axes is None:
        raise Refusal("the axes of Squeeze are not given or not constant: what it removes would depend on the input")
    dropped = {axis % len(meaning.axes) for axis in axes}
    if any(meaning.axes[axis].size != ONE for axis in dropped):
        raise Refusal("Squeeze removes an axis that is not proved to have one element")
    return with_axes(meaning, tuple(axis for i, axis in enumerate(meaning.axes) if i not in dropped))


def transpose(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    permutation = attribute(node, "perm", range(len(meaning.axes))[::-1])
    tokens = [place for place in permutation if _holds_tokens(meaning.axes[place])]
    if tokens != sorted(tokens):
        raise Refusal("a transposition changes the order of the tokens")
    return with_axes(meaning, tuple(meaning.axes[axis] for axis in permutation))


def _holds_tokens(axis: Axis) -> bool:
    return axis.role == "token" or any(part.role == "token" for part in axis.parts)


def flatten(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    axis = attribute(node, "axis", 1)
    axis = axis if axis >= 0 else axis + len(meaning.axes)
    outer, inner = sizes(meaning.axes[:axis]), sizes(meaning.axes[axis:])
    return with_axes(meaning, regrouped(recogniser.shapes.dims, meaning.axes, (product(outer), product(inner))))


def reshape(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    target = recogniser.shapes.integers(node.inputs[1])
    if target is None or attribute(node, "allowzero", 0) and Dim(0) in target.items:
        raise Refusal("the new shape of a Reshape could not be worked out")
    shape = recogniser.shapes.reshaped(sizes(meaning.axes), target.items)
    if shape is None:
        raise Refusal("the dimension that a Reshape leaves open (-1) could not be worked out")
    return with_axes(meaning, regrouped(recogniser.shapes.dims, meaning.axes, shape))


def expand(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    target = recogniser.shapes.integers(node.inputs[1])
    if target is None:
        raise Refusal("the shape of an Expand could not be worked out")
    shape = recogniser.shapes.broadcast(sizes(meaning.axes), target.items)
    if shape is None:
        raise Refusal("an Expand could not be proved to fit")
    axes = (ONE_AXIS,) * (len(shape) - len(meaning.axes)) + meaning.axes
    grown = (
        axis if axis.size != ONE or size == ONE else Axis("repeat", size) for axis, size in zip(axes, shape, strict=True)
    )
    return with_axes(meaning, tuple(grown))


def tile(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Repetition of everything: the copies follow one another."""
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    repeats = recogniser.shapes.integers(node.inputs[1])
    if repeats is None or len(repeats.items) != len(meaning.axes):
        raise Refusal("the repeats of a Tile could not be worked out")
    return with_axes(meaning, tuple(_repeated(axis, count) for axis, count in zip(meaning.axes, repeats.items, strict=True)))


def _repeated(axis: Axis, count: Dim) -> Axis:
    if count == ONE:
        return axis
    if axis.size == ONE:
        return Axis("repeat", count)
    return Axis("joined", product((count, axis.size)), (Axis("repeat", count), axis))


RULES = {
    "Identity": [identity],
    "Cast": [cast],
    "Unsqueeze": [unsqueeze],
    "Squeeze": [squeeze],
    "Transpose": [transpose],
    "Flatten": [flatten],
    "Reshape": [reshape],
    "Expand": [expand],
    "Tile": [tile],
}
