"""What the operators of masks do to single elements, and to sizes: the rules of `symbolic_tensors`."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from .constants import attribute, axes_of
from .formulas import at_least_zero, negation
from .polynomials import ONE, ZERO, Polynomial, number, product
from .symbolic_elements import (
    BINARY,
    FORMULAS,
    INTEGERS,
    Element,
    NotUnderstood,
    as_formula,
    either,
    lifted,
    numbers,
    to_float,
    to_integer,
)
from .symbolic_tensors import Index, Sizes, Tensors, constant_element


def new_tensors() -> Tensors:
    """For a graph of which nothing was asked yet."""
    return Tensors(_SIZES, _ELEMENTS)


def _binary(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    if len(node.inputs) != 2:
        raise NotUnderstood(f"{node.op_type} of {len(node.inputs)} values is not understood in a mask")
    tensors.sizes(node.outputs[0])  # the operands' sizes meet here
    return lifted(BINARY[node.op_type], tensors.operand(node, 0, index), tensors.operand(node, 1, index))


def _not(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    return negation(as_formula(tensors.element(node.inputs[0], index)))


def _negative(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    return lifted(lambda value: -numbers(value)[0], tensors.element(node.inputs[0], index))


def _where(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    tensors.sizes(node.outputs[0])
    condition = tensors.settled(as_formula(tensors.operand(node, 0, index)))
    if isinstance(condition, bool):
        return tensors.operand(node, 1 if condition else 2, index)
    return either(condition, tensors.operand(node, 1, index), tensors.operand(node, 2, index))


def _cast(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    element = tensors.element(node.inputs[0], index)
    target = ir.DataType(attribute(node, "to", 0))
    if target == ir.DataType.BOOL:
        return as_formula(element)
    if isinstance(element, FORMULAS):
        element = either(element, ONE, ZERO)
    if target in INTEGERS:
        return lifted(to_integer, element)
    return element if isinstance(element, Polynomial) and element.constant is None else lifted(to_float, element)


# ---- views


def _same_place(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    return tensors.element(node.inputs[0], index)


def _view(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    """Reshape, Flatten, Unsqueeze, Squeeze: the same order of elements."""
    inner, outer = tensors.sizes(node.inputs[0]), tensors.sizes(node.outputs[0])
    return tensors.element(node.inputs[0], tensors.moved(index, outer, inner))


def _expand(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    tensors.sizes(node.outputs[0])
    return tensors.operand(node, 0, index)


def _transpose(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    order = attribute(node, "perm", tuple(reversed(range(len(index)))))
    inner: list[Polynomial] = [ZERO] * len(index)
    for place, axis in enumerate(order):
        inner[axis] = index[place]
    return tensors.element(node.inputs[0], tuple(inner))


def _slice_starts(tensors: Tensors, node: ir.Node) -> dict[int, tuple[Polynomial, Polynomial]]:
    """By axis: where a Slice begins, and how many it keeps. Steps are 1."""
    inner = tensors.sizes(node.inputs[0])
    starts, ends = tensors.integers(node.inputs[1]), tensors.integers(node.inputs[2])
    given = [node.inputs[i] if len(node.inputs) > i else None for i in (3, 4)]
    axes = [i.constant for i in tensors.integers(given[0])] if given[0] is not None else list(range(len(starts)))
    if given[1] is not None and any(step != ONE for step in tensors.integers(given[1])):
        raise NotUnderstood("a Slice takes steps")
    cuts = {}
    for start, end, axis in zip(starts, ends, axes, strict=True):
        size = inner[axis]
        begin, finish = (tensors.simplified(_bound(bound, size)) for bound in (start, end))
        if not tensors.always_at_least_zero(begin):
            raise NotUnderstood("a Slice may begin before its axis")
        if finish.constant is not None and size.constant is not None:
            finish = number(min(finish.constant, size.constant))
        elif finish.constant is not None and finish.constant >= 2**31 - 1:
            finish = size
        elif not tensors.same(finish, size):
            # It may be that there are no more than the end says: then this is the size of the axis.
            if tensors.always_at_least_zero(finish - size):
                finish = size
            elif not tensors.always_at_least_zero(size - finish):
                raise NotUnderstood("where a Slice ends is not understood")
        cuts[axis % len(inner)] = (begin, finish - begin)
    return cuts


def _bound(bound: Polynomial, size: Polynomial) -> Polynomial:
    return size + bound if bound.constant is not None and -(2**31) < bound.constant < 0 else bound


def _slice(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    cuts = _slice_starts(tensors, node)
    return tensors.element(node.inputs[0], tuple(i + cuts[axis][0] if axis in cuts else i for axis, i in enumerate(index)))


def _sizes_of_slice(tensors: Tensors, node: ir.Node) -> Sizes:
    cuts = _slice_starts(tensors, node)
    return tuple(cuts[axis][1] if axis in cuts else size for axis, size in enumerate(tensors.sizes(node.inputs[0])))


def _concat(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    axis = attribute(node, "axis", 0) % len(index)
    place = index[axis].constant
    if place is None:
        raise NotUnderstood("a Concat is read at a place that depends on the input")
    for value in node.inputs:
        length = tensors.sizes(value)[axis].constant
        if length is None:
            break
        if place < length:
            return tensors.element(value, (*index[:axis], number(place), *index[axis + 1 :]))
        place -= length
    raise NotUnderstood("a Concat of unknown lengths is not understood")


def _sizes_of_concat(tensors: Tensors, node: ir.Node) -> Sizes:
    shapes = [tensors.sizes(value) for value in node.inputs]
    axis = attribute(node, "axis", 0) % len(shapes[0])
    total = ZERO
    for shape in shapes:
        total = total + shape[axis]
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


# ---- gathers


def _gather(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    axis = attribute(node, "axis", 0) % len(data)
    inside = index[axis : axis + len(indices)]
    inside = tuple(ZERO if size == ONE else i for i, size in zip(inside, indices, strict=True))
    place = _not_negative(tensors.integer(node.inputs[1], inside), data[axis])
    return tensors.element(node.inputs[0], (*index[:axis], place, *index[axis + len(indices) :]))


def _not_negative(place: Polynomial, size: Polynomial) -> Polynomial:
    return size + place if place.constant is not None and place.constant < 0 else place


def _sizes_of_gather(tensors: Tensors, node: ir.Node) -> Sizes:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    axis = attribute(node, "axis", 0) % len(data)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _gather_nd(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    width = indices[-1].constant
    if attribute(node, "batch_dims", 0) or width is None:
        raise NotUnderstood("GatherND with batch dimensions is not understood")
    outer = tuple(ZERO if size == ONE else i for i, size in zip(index[: len(indices) - 1], indices[:-1], strict=True))
    places = tuple(tensors.integer(node.inputs[1], (*outer, number(i))) for i in range(width))
    places = tuple(_not_negative(place, size) for place, size in zip(places, data[:width], strict=True))
    return tensors.element(node.inputs[0], (*places, *index[len(indices) - 1 :]))


def _sizes_of_gather_nd(tensors: Tensors, node: ir.Node) -> Sizes:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    width = indices[-1].constant
    if width is None or attribute(node, "batch_dims", 0):
        raise NotUnderstood("GatherND is not understood")
    return (*indices[:-1], *data[width:])


def _scatter_nd(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    """Only where the updates replace everything, each at its own place."""
    data, updates = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[2])
    if attribute(node, "reduction", "none") != "none" or len(updates) != len(data):
        raise NotUnderstood("ScatterND of a part is not understood")
    if not all(tensors.same(a, b) for a, b in zip(data, updates, strict=True)):
        raise NotUnderstood("ScatterND of a part is not understood")
    place = tuple(tensors.position("p", size) if size != ONE else ZERO for size in data)
    indices = tensors.sizes(node.inputs[1])
    if indices[-1].constant != len(data):
        raise NotUnderstood("ScatterND of a part is not understood")
    for axis, expected in enumerate(place):
        if not tensors.same(tensors.integer(node.inputs[1], (*place, number(axis))), expected):
            raise NotUnderstood("ScatterND moves elements")
    return tensors.element(node.inputs[2], index)


# ---- makers


def _range(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    start, _, step = (tensors.integer(value, _only(tensors, value)) for value in node.inputs)
    return start + index[0] * step


def _only(tensors: Tensors, value: ir.Value) -> Index:
    return (ZERO,) * len(tensors.sizes(value))


def _sizes_of_range(tensors: Tensors, node: ir.Node) -> Sizes:
    start, limit, step = (tensors.integer(value, _only(tensors, value)) for value in node.inputs)
    if step != ONE:
        raise NotUnderstood("a Range takes steps")
    return (limit - start,)


def _shape(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    sizes = tensors.sizes(node.inputs[0])[attribute(node, "start", 0) : attribute(node, "end", None)]
    place = index[0].constant
    if place is None:
        raise NotUnderstood("a shape is read at a place that depends on the input")
    return sizes[place]


def _sizes_of_shape(tensors: Tensors, node: ir.Node) -> Sizes:
    return (number(len(tensors.sizes(node.inputs[0])[attribute(node, "start", 0) : attribute(node, "end", None)])),)


def _filled(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    fill = attribute(node, "value", None)
    return 0.0 if fill is None else constant_element(fill.numpy(), ())


def _sizes_of_filled(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.integers(node.inputs[0])


def _trilu(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    """The upper triangle keeps column >= row + k, the lower one column <= row + k; 0 elsewhere."""
    diagonal = tensors.integer(node.inputs[1], _only(tensors, node.inputs[1])) if len(node.inputs) > 1 else ZERO
    ahead = index[-1] - index[-2] - diagonal
    kept = at_least_zero(ahead if attribute(node, "upper", 1) else -ahead)
    inner = tensors.element(node.inputs[0], index)
    nothing: Element = False if isinstance(inner, FORMULAS) else ZERO if isinstance(inner, Polynomial) else 0.0
    return either(kept, inner, nothing)


# ---- sizes of the rest


def _sizes_like_first(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.sizes(node.inputs[0])


def _sizes_met(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.broadcast(*(tensors.sizes(value) for value in node.inputs))


def _sizes_of_unsqueeze(tensors: Tensors, node: ir.Node) -> Sizes:
    inner, axes = tensors.sizes(node.inputs[0]), axes_of(node)
    if axes is None:
        raise NotUnderstood("the axes of Unsqueeze are not constant")
    rank = len(inner) + len(axes)
    inserted, rest = {axis % rank for axis in axes}, iter(inner)
    return tuple(ONE if axis in inserted else next(rest) for axis in range(rank))


def _sizes_of_squeeze(tensors: Tensors, node: ir.Node) -> Sizes:
    inner, axes = tensors.sizes(node.inputs[0]), axes_of(node)
    if axes is None:
        if len(node.inputs) > 1 or any(size.constant is None for size in inner):
            raise NotUnderstood("the axes of Squeeze are not constant")
        return tuple(size for size in inner if size != ONE)
    dropped = {axis % len(inner) for axis in axes}
    return tuple(size for axis, size in enumerate(inner) if axis not in dropped)


def _sizes_of_reshape(tensors: Tensors, node: ir.Node) -> Sizes:
    inner, target = tensors.sizes(node.inputs[0]), list(tensors.integers(node.inputs[1]))
    if not attribute(node, "allowzero", 0):
        target = [inner[axis] if size == ZERO else size for axis, size in enumerate(target)]
    if number(-1) not in target:
        return tuple(target)
    place = target.index(number(-1))
    split = product(inner).split_by(product(target[:place] + target[place + 1 :]))
    if split is None or split[1].terms:
        raise NotUnderstood("a Reshape leaves a size that is not understood")
    return (*target[:place], split[0], *target[place + 1 :])


def _sizes_of_flatten(tensors: Tensors, node: ir.Node) -> Sizes:
    inner = tensors.sizes(node.inputs[0])
    axis = attribute(node, "axis", 1)
    axis = axis if axis >= 0 else axis + len(inner)
    return product(inner[:axis]), product(inner[axis:])


def _sizes_of_transpose(tensors: Tensors, node: ir.Node) -> Sizes:
    inner = tensors.sizes(node.inputs[0])
    return tuple(inner[axis] for axis in attribute(node, "perm", tuple(reversed(range(len(inner))))))


def _sizes_of_expand(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.broadcast(tensors.sizes(node.inputs[0]), tensors.integers(node.inputs[1]))


_LIKE_FIRST = ("Identity", "Cast", "Not", "Neg", "Trilu", "ScatterND", "Dropout")
_SIZES: dict[str, Callable[[Tensors, ir.Node], Sizes]] = {
    **dict.fromkeys(_LIKE_FIRST, _sizes_like_first),
    **dict.fromkeys((*BINARY, "Where"), _sizes_met),
    "Unsqueeze": _sizes_of_unsqueeze,
    "Squeeze": _sizes_of_squeeze,
    "Reshape": _sizes_of_reshape,
    "Flatten": _sizes_of_flatten,
    "Transpose": _sizes_of_transpose,
    "Expand": _sizes_of_expand,
    "Slice": _sizes_of_slice,
    "Concat": _sizes_of_concat,
    "Gather": _sizes_of_gather,
    "GatherND": _sizes_of_gather_nd,
    "Range": _sizes_of_range,
    "Shape": _sizes_of_shape,
    "ConstantOfShape": _sizes_of_filled,
}
_ELEMENTS: dict[str, Callable[[Tensors, ir.Node, Index], Element]] = {
    **dict.fromkeys(BINARY, _binary),
    "Identity": _same_place,
    "Not": _not,
    "Neg": _negative,
    "Where": _where,
    "Cast": _cast,
    "Reshape": _view,
    "Flatten": _view,
    "Unsqueeze": _view,
    "Squeeze": _view,
    "Expand": _expand,
    "Transpose": _transpose,
    "Slice": _slice,
    "Concat": _concat,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Range": _range,
    "Shape": _shape,
    "ConstantOfShape": _filled,
    "Trilu": _trilu,
}
