"""Dispatch: from the mask of one expert to its rows of X and its routing weights."""

from __future__ import annotations

import onnx_ir as ir

from .axes import atoms
from .constants import attribute, small_constant
from .dims import ONE, Dim, product
from .meanings import (
    Axes,
    Axis,
    Coordinates,
    Every,
    ExpertMask,
    Meaning,
    PickIndex,
    Picks,
    Refusal,
    RoutingWeights,
    Rows,
    Tokens,
)
from .recogniser import Recogniser

NOTHING = Dim(0)


def non_zero(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    mask = recogniser.meaning(node.inputs[0])
    if not isinstance(mask, ExpertMask):
        return None
    order = tuple(axis.role for axis in mask.axes)
    if sorted(order) != ["slot", "token"]:
        raise Refusal(f"NonZero of an expert's mask with axes {order}; expected (slot, token) or (token, slot)")
    selection = Picks(mask.routing, mask.expert, order)
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
    rows = recogniser.rows(data)
    if rows is None or not isinstance(rows.selection, Every) or not isinstance(rows.form, Tokens):
        raise Refusal(f"tokens are gathered from {data.name!r}, which is not proved to be [tokens, features]")
    place %= len(rows.axes)
    if [axis.role for axis in atoms(rows.axes)] != ["token", "feature"] or rows.axes[place].role != "token":
        raise Refusal(f"tokens are gathered from {data.name!r} along an axis that is not its tokens'")
    axes = (*rows.axes[:place], *index.axes, *rows.axes[place + 1 :])
    return Rows(index.routing, axes, index.selection, rows.source, Tokens(), rows.dtype)


def _weights(recogniser: Recogniser, data: ir.Value, place: int, index: PickIndex) -> RoutingWeights:
    routing = index.routing
    found = recogniser.routing_weights(data, routing)
    if found is None:
        raise Refusal(f"routing weights are gathered from {data.name!r}, which is not proved to be [tokens, {routing.k}]")
    if index.slot_factor != ONE or not recogniser.shapes.dims.same(index.token_factor, Dim(routing.k)):
        raise Refusal("routing weights are not gathered at token * k + slot")
    place %= len(found.axes)
    flat = [axis.role for axis in atoms(found.axes)]
    if len(atoms((found.axes[place],))) != len(flat) or flat not in (["token", "slot"], ["token"] if routing.k == 1 else None):
        raise Refusal("routing weights are not gathered from one flat row of them")
    axes = (*found.axes[:place], *index.axes, *found.axes[place + 1 :])
    return RoutingWeights(routing, axes, index.selection, found.weights, found.dtype)


RULES = {
    "NonZero": [non_zero],
    "Split": [split_coordinates],
    "Gather": [gather_coordinate, gather_picks],
    "Mul": [scale_index],
    "Add": [add_indices],
}
