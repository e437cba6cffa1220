"""Dispatch: from the mask of one expert to its rows of X and its routing weights."""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, axes_of, is_standard, small_constant
from .dims import ONE, Dim, product
from .meanings import Axes, Axis, Coordinates, ExpertMask, Meaning, PickIndex, PickWeight, Refusal, Rows, Selection, Tokens
from .recogniser import Recogniser

NOTHING = Dim(0)


def non_zero(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    mask = recogniser.meaning(node.inputs[0])
    if not isinstance(mask, ExpertMask):
        return None
    order = tuple(axis.role for axis in mask.axes)
    if sorted(order) != ["slot", "token"]:
        raise Refusal(f"NonZero of an expert's mask with axes {order}; expected (slot, token) or (token, slot)")
    selection = Selection(mask.routing, mask.expert, order)
    picks = recogniser.shapes.dims.unknown(selection)
    return Coordinates(mask.routing, (Axis("coordinate", Dim(2)), Axis("pick", picks)), selection)


def split_coordinates(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning, ...] | None:
    coordinates = recogniser.meaning(node.inputs[0])
    if not isinstance(coordinates, Coordinates):
        return None
    place = attribute(node, "axis", 0) % len(coordinates.axes)
    sizes = small_constant(node.inputs[1]) if len(node.inputs) > 1 else None
    even = attribute(node, "num_outputs", 2) == 2 if sizes is None else list(sizes) == [1, 1]
    if coordinates.axes[place].role != "coordinate" or len(node.outputs) != 2 or not even:
        raise Refusal("the coordinates of an expert's mask are not split into token and slot")
    axes = (*coordinates.axes[:place], Axis("one", ONE), *coordinates.axes[place + 1 :])
    return tuple(_coordinate(coordinates, which, axes) for which in (0, 1))


def gather_coordinate(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    coordinates = recogniser.meaning(node.inputs[0])
    if not isinstance(coordinates, Coordinates):
        return None
    place = attribute(node, "axis", 0) % len(coordinates.axes)
    index = small_constant(node.inputs[1])
    if coordinates.axes[place].role != "coordinate" or index is None or index.size != 1 or not -2 <= index.item() < 2:
        raise Refusal("the coordinates of an expert's mask are not taken one at a time")
    kept = tuple(Axis("one", ONE) for _ in range(index.ndim))
    axes = (*coordinates.axes[:place], *kept, *coordinates.axes[place + 1 :])
    return _coordinate(coordinates, int(index.item()) % 2, axes)


def _coordinate(coordinates: Coordinates, which: int, axes: Axes) -> PickIndex:
    is_token = coordinates.selection.order[which] == "token"
    return PickIndex(
        coordinates.routing, axes, coordinates.selection, ONE if is_token else NOTHING, NOTHING if is_token else ONE
    )


def scale_index(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Index times an integer: one step of ``token * k + slot``."""
    for operand, other in (node.inputs, node.inputs[::-1]):
        index = recogniser.meaning(operand)
        if isinstance(index, PickIndex):
            factor = recogniser.shapes.integers(other)
            if factor is None or len(factor.items) != 1 or not factor.is_scalar and not index.axes:
                raise Refusal("token or slot indices are multiplied by something unknown")
            scaled = (product((part, factor.items[0])) for part in (index.token_factor, index.slot_factor))
            return PickIndex(index.routing, index.axes, index.selection, *scaled)
    return None


def add_indices(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    left, right = (recogniser.meaning(operand) for operand in node.inputs)
    if not (isinstance(left, PickIndex) and isinstance(right, PickIndex)):
        return None
    token = _one_of(left.token_factor, right.token_factor)
    slot = _one_of(left.slot_factor, right.slot_factor)
    if left.selection != right.selection or left.axes != right.axes or token is None or slot is None:
        raise Refusal("indices of different picks are added")
    return PickIndex(left.routing, left.axes, left.selection, token, slot)


def _one_of(left: Dim, right: Dim) -> Dim | None:
    return right if left == NOTHING else left if right == NOTHING else None


def gather_picks(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Gather of something by token (rows of X), or by ``token * k + slot`` (elements of the flat routing weights)."""
    index = recogniser.meaning(node.inputs[1])
    if not isinstance(index, PickIndex):
        return None
    if any(axis.role not in ("pick", "one") for axis in index.axes):
        raise Refusal("an expanded index is used to gather")
    data = node.inputs[0]
    place = attribute(node, "axis", 0)
    if (index.token_factor, index.slot_factor) == (ONE, NOTHING):
        return _rows(recogniser, data, place, index)
    return _weights(recogniser, data, place, index)


def _rows(recogniser: Recogniser, data: ir.Value, place: int, index: PickIndex) -> Rows:
    source = _without_added_axes(data)
    shape, outer = recogniser.shapes.shape(source), recogniser.shapes.shape(data)
    if shape is None or outer is None or len(shape) != 2:
        raise Refusal(f"tokens are gathered from {source.name!r}, which is not proved to be [tokens, features]")
    # `data` is [tokens, features] with axes of one element around it: what stands before `place` must be those.
    place %= len(outer)
    before, after = outer[:place], outer[place + 1 :]
    after_is_row = [dim for dim in after if dim != ONE] == [shape[1]] or list(after) == [shape[1]]
    if not (all(dim == ONE for dim in before) and outer[place] == shape[0] and after_is_row):
        raise Refusal(f"tokens are gathered from {source.name!r} along an axis that is not its first")
    axes = (
        *(Axis("one", ONE) for _ in before),
        *index.axes,
        *(Axis("one" if dim == ONE else "feature", dim) for dim in after),
    )
    return Rows(index.routing, axes, index.selection, source, Tokens(), recogniser.dtype(source))


def _weights(recogniser: Recogniser, data: ir.Value, place: int, index: PickIndex) -> PickWeight:
    weights = _without_views(recogniser, data)
    shape, flat = recogniser.shapes.shape(weights), recogniser.shapes.shape(data)
    if shape is None or flat is None or len(shape) != 2:
        raise Refusal(f"routing weights are gathered from {weights.name!r}, which is not proved to be [tokens, k]")
    dims = recogniser.shapes.dims
    if index.slot_factor != ONE or not dims.same(index.token_factor, shape[1]):
        raise Refusal("routing weights are not gathered at token * k + slot")
    if shape[1].constant not in (None, index.routing.k):
        raise Refusal(f"routing weights have {shape[1].constant} columns, and the router chooses {index.routing.k} experts")
    place %= len(flat)
    others = flat[:place] + flat[place + 1 :]
    if not dims.same(flat[place], product(shape)) or any(dim != ONE for dim in others):
        raise Refusal("routing weights are not gathered from one flat row of them")
    axes = (
        *(Axis("one", ONE) for _ in flat[:place]),
        *index.axes,
        *(Axis("one", ONE) for _ in flat[place + 1 :]),
    )
    return PickWeight(index.routing, axes, index.selection, weights, recogniser.dtype(weights))


def _without_added_axes(value: ir.Value) -> ir.Value:
    """The value behind Identity and Unsqueeze: the same elements in the same order, and its axes are still there."""
    while (node := value.producer()) is not None and is_standard(node):
        if node.op_type != "Identity" and not (node.op_type == "Unsqueeze" and axes_of(node) is not None):
            break
        value = node.inputs[0]
    return value


def _without_views(recogniser: Recogniser, value: ir.Value) -> ir.Value:
    """The nearest matrix behind the operators that keep elements in their order, where `value` is a flat view of it."""
    start = value
    while (node := value.producer()) is not None and is_standard(node):
        if node.op_type not in ("Identity", "Unsqueeze", "Squeeze", "Flatten", "Reshape"):
            break
        value = node.inputs[0]
        shape = recogniser.shapes.shape(value)
        if shape is not None and len(shape) == 2 and ONE not in shape:
            return value
    return value if recogniser.shapes.rank(value) == 2 else start


RULES = {
    "NonZero": [non_zero],
    "Split": [split_coordinates],
    "Gather": [gather_coordinate, gather_picks],
    "Mul": [scale_index],
    "Add": [add_indices],
}
