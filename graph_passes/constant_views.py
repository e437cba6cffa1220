"""Constants seen through the operators that move nothing: Transpose, Split, Slice, Squeeze, … of an initializer.

Exporters write such nodes between a weight and its use. What reaches the use is a strided view of the stored bytes, and
that is all the operator MoE needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from .constants import (
    attribute,
    axes_of,
    initializer_tensor,
    is_standard,
    small_constant,
)


@dataclass(frozen=True)
class ConstantView:
    """Element ``i`` lies ``offset + Σ i * strides`` elements into `tensor`."""

    tensor: ir.TensorProtocol
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_contiguous(self) -> bool:
        return self.strides == contiguous_strides(self.shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def constant_view(value: ir.Value | None, known: dict[ir.Value, ConstantView | None]) -> ConstantView | None:
    """`value` as a view of an initializer, or None. `known` keeps what was found."""
    if value is None:
        return None
    if value not in known:
        known[value] = _view(value, known)
    return known[value]


def _view(value: ir.Value, known: dict[ir.Value, ConstantView | None]) -> ConstantView | None:
    node = value.producer()
    if node is None:
        tensor = initializer_tensor(value)
        return None if tensor is None else _whole(tensor)
    if not is_standard(node):
        return None
    if node.op_type == "Constant":
        content = node.attributes.get("value")
        return None if content is None else _whole(content.value)
    rule = _RULES.get(node.op_type)
    source = constant_view(node.inputs[0], known) if rule else None
    return None if source is None else rule(source, node, value)


def _whole(tensor: ir.TensorProtocol) -> ConstantView:
    shape = tuple(int(size) for size in tensor.shape)
    return ConstantView(tensor, shape, contiguous_strides(shape))


def _identity(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView:
    return view


def _cast(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView | None:
    return view if view.tensor.dtype == ir.DataType(attribute(node, "to", 0)) else None


def _transpose(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView:
    order = attribute(node, "perm", range(len(view.shape))[::-1])
    return replace(view, shape=tuple(view.shape[i] for i in order), strides=tuple(view.strides[i] for i in order))


def _unsqueeze(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView | None:
    axes = axes_of(node)
    if axes is None:
        return None
    shape, strides = list(view.shape), list(view.strides)
    for axis in sorted(axis % (len(view.shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
        strides.insert(axis, 0)
    return replace(view, shape=tuple(shape), strides=tuple(strides))


def _squeeze(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView | None:
    axes = axes_of(node)
    if axes is None:
        return None
    dropped = {axis % len(view.shape) for axis in axes}
    if any(view.shape[axis] != 1 for axis in dropped):
        return None
    kept = [axis for axis in range(len(view.shape)) if axis not in dropped]
    return replace(view, shape=tuple(view.shape[i] for i in kept), strides=tuple(view.strides[i] for i in kept))


def _reshape(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView | None:
    target = small_constant(node.inputs[1])
    if target is None or not view.is_contiguous or attribute(node, "allowzero", 0):
        return None
    shape = [view.shape[i] if size == 0 else int(size) for i, size in enumerate(target)]
    if shape.count(-1) == 1:
        rest = math.prod(size for size in shape if size != -1)
        if rest == 0:
            return None
        shape[shape.index(-1)] = math.prod(view.shape) // rest
    if math.prod(shape) != math.prod(view.shape):
        return None
    return replace(view, shape=tuple(shape), strides=contiguous_strides(shape))


def _split(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView | None:
    axis = attribute(node, "axis", 0) % len(view.shape)
    sizes = split_sizes(node, view.shape[axis])
    if sizes is None:
        return None
    place = node.outputs.index(value)
    return _part(view, axis, sum(sizes[:place]), sizes[place])


def split_sizes(node: ir.Node, total: int) -> list[int] | None:
    """The sizes into which a Split node cuts an axis of `total` elements: an attribute, an input, or evenly."""
    stated = attribute(node, "split", None)
    if stated is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        stated = small_constant(node.inputs[1])
        if stated is None:
            return None
    if stated is not None:
        sizes = [int(size) for size in stated]
        return sizes if sum(sizes) == total and len(sizes) == len(node.outputs) else None
    count = len(node.outputs)
    chunk = -(-total // count)  # the last one may be smaller
    return [chunk] * (count - 1) + [total - chunk * (count - 1)] if chunk * (count - 1) < total else None


def _part(view: ConstantView, axis: int, start: int, size: int) -> ConstantView:
    shape = (*view.shape[:axis], size, *view.shape[axis + 1 :])
    return replace(view, shape=shape, offset=view.offset + start * view.strides[axis])


def _slice(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView | None:
    cuts = slice_cuts(node, view.shape)
    if cuts is None:
        return None
    shape, strides, offset = list(view.shape), list(view.strides), view.offset
    for axis, cut in cuts.items():
        shape[axis] = len(cut)
        offset += cut.start * strides[axis]
        strides[axis] *= cut.step
    return replace(view, shape=tuple(shape), strides=tuple(strides), offset=offset)


def slice_cuts(
    node: ir.Node, shape: Sequence[int | None], numbers: Callable[[ir.Value], Sequence[int] | None] = small_constant
) -> dict[int, range] | None:
    """What a Slice node with constant bounds keeps of the axes that it names. None: not constant, backwards, or an
    axis whose size is unknown (None in `shape`). `numbers` gives the integers of a constant."""
    arguments = [None if i >= len(node.inputs) else node.inputs[i] for i in range(1, 5)]
    found = [None if argument is None else numbers(argument) for argument in arguments]
    if any(argument is not None and number is None for argument, number in zip(arguments, found, strict=True)):
        return None
    starts, ends, axes, steps = found
    if starts is None or ends is None:
        return None
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cuts = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[int(axis)]
        if step < 1 or size is None:
            return None
        cuts[int(axis) % len(shape)] = range(size)[slice(int(start), int(end), int(step))]
    return cuts


def _gather(view: ConstantView, node: ir.Node, value: ir.Value) -> ConstantView | None:
    axis = attribute(node, "axis", 0) % len(view.shape)
    index = small_constant(node.inputs[1])
    if index is None or index.size != 1 or not -view.shape[axis] <= index.item() < view.shape[axis]:
        return None
    part = _part(view, axis, int(index.item()) % view.shape[axis], 1)
    shape = (*part.shape[:axis], *(1,) * index.ndim, *part.shape[axis + 1 :])
    strides = (*part.strides[:axis], *(0,) * index.ndim, *part.strides[axis + 1 :])
    return replace(part, shape=shape, strides=strides)


_RULES = {
    "Identity": _identity,
    "Cast": _cast,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
}
