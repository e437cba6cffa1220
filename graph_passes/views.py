"""Operators that move nothing and compute nothing: they may stand anywhere in the pattern.

Identity, no-op Cast, Unsqueeze, Squeeze, Flatten, Reshape, Transpose and Expand hand a meaning on with other axes.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .constants import attribute, axes_of
from .dims import ONE, Dim, product
from .meanings import (
    Axes,
    Axis,
    Contribution,
    Coordinates,
    ExpertMask,
    Ids,
    Meaning,
    OneHotIds,
    PartialSum,
    PickIndex,
    PickWeight,
    Refusal,
    Rows,
)
from .recogniser import Recogniser
from .shapes import unsqueezed

ONE_AXIS = Axis("one", ONE)
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


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
        case OneHotIds() | ExpertMask():
            return meaning  # zeros and ones are exact in every type
        case Ids() | Coordinates() | PickIndex():
            if target in _INTEGERS:
                return meaning
            raise Refusal(f"indices are cast to {target.name}, which may round them")
        case Rows() | PickWeight() | Contribution() | PartialSum():
            if meaning.dtype == target:
                return meaning
            came = "an unknown type" if meaning.dtype is None else meaning.dtype.name
            raise Refusal(f"a cast from {came} to {target.name} inside the experts changes what is rounded")
    return None


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
    return with_axes(meaning, tuple(meaning.axes[axis] for axis in permutation))


def flatten(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    axis = attribute(node, "axis", 1)
    axis = axis if axis >= 0 else axis + len(meaning.axes)
    sizes = [axis_.size for axis_ in meaning.axes]
    return with_axes(meaning, _regrouped(recogniser, meaning.axes, (product(sizes[:axis]), product(sizes[axis:]))))


def reshape(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    target = recogniser.shapes.integers(node.inputs[1])
    if target is None or attribute(node, "allowzero", 0) and Dim(0) in target.items:
        raise Refusal("the new shape of a Reshape could not be worked out")
    shape = recogniser.shapes.reshaped(tuple(axis.size for axis in meaning.axes), target.items)
    if shape is None:
        raise Refusal("the dimension that a Reshape leaves open (-1) could not be worked out")
    return with_axes(meaning, _regrouped(recogniser, meaning.axes, shape))


def _regrouped(recogniser: Recogniser, axes: Axes, shape: tuple[Dim, ...]) -> Axes:
    """`axes` spread over `shape`, where the two differ in nothing but axes of one element."""
    rest = [axis for axis in axes if axis.size != ONE]
    result = []
    for size in shape:
        if size == ONE:
            result.append(ONE_AXIS)
        elif rest and recogniser.shapes.dims.same(rest[0].size, size):
            result.append(rest.pop(0))
        else:
            raise Refusal("a reshape joins or splits axes")
    if rest:
        raise Refusal("a reshape joins or splits axes")
    return tuple(result)


def expand(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    meaning = recogniser.meaning(node.inputs[0])
    if meaning is None:
        return None
    target = recogniser.shapes.integers(node.inputs[1])
    if target is None:
        raise Refusal("the shape of an Expand could not be worked out")
    sizes = tuple(axis.size for axis in meaning.axes)
    shape = recogniser.shapes.broadcast(sizes, target.items)
    if shape is None:
        raise Refusal("an Expand could not be proved to fit")
    axes = (ONE_AXIS,) * (len(shape) - len(sizes)) + meaning.axes
    grown = (axis if axis.size != ONE or size == ONE else Axis("repeat", size) for axis, size in zip(axes, shape, strict=True))
    return with_axes(meaning, tuple(grown))


RULES = {
    "Identity": [identity],
    "Cast": [cast],
    "Unsqueeze": [unsqueeze],
    "Squeeze": [squeeze],
    "Transpose": [transpose],
    "Flatten": [flatten],
    "Reshape": [reshape],
    "Expand": [expand],
}
