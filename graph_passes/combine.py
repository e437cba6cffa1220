"""Combination: the outputs of experts times their weights, put back to the rows of their tokens, and summed."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .axes import ONE_AXIS, atoms, sizes
from .constants import attribute, axes_of
from .dims import ONE, Dim
from .dispatch import NOTHING
from .fills import fill_of
from .meanings import (
    Axis,
    Contribution,
    Every,
    EveryExpert,
    Expert,
    Ids,
    Meaning,
    Pairs,
    PartialSum,
    PickIndex,
    Picks,
    PlaceIndex,
    Refusal,
    RoutingWeights,
    Rows,
    Tokens,
)
from .recogniser import Recogniser

# ---- weights


def scatter_weights(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Routing weights written to the columns of their experts: [tokens, experts], a fill elsewhere. The experts of a token
    differ, so nothing is written over."""
    ids = recogniser.meaning(node.inputs[1])
    if not isinstance(ids, Ids) or [axis.role for axis in ids.axes] != ["token", "slot"]:
        return None
    routing = ids.routing
    base = recogniser.shapes.shape(node.inputs[0])
    fill = fill_of(node.inputs[0])
    weights = recogniser.routing_weights(node.inputs[2], routing)
    if base is None or len(base) != 2 or attribute(node, "axis", 0) not in (1, -1) or weights is None or fill is None:
        return None
    if attribute(node, "reduction", "none") != "none" or not routing.distinct:
        raise Refusal("routing weights are scattered by ids that may repeat, or with a reduction")
    if not recogniser.shapes.dims.same(base[0], ids.axes[0].size):
        raise Refusal("routing weights are scattered into a table that is not proved to have one row for each token")
    experts = base[1].constant
    if experts is None or routing.num_experts not in (None, experts):
        raise Refusal(
            f"routing weights are scattered to {experts} experts, and the router chooses from {routing.num_experts}"
        )
    routing.num_experts = experts
    if fill in (0.0, float("-inf")):  # other fills are for a router that comes after this one
        routing.dispatch = routing.dispatch or node
    axes = (ids.axes[0], Axis("expert", Dim(experts)))
    return RoutingWeights(routing, axes, EveryExpert(), weights.weights, weights.dtype, fill=fill)


def sigmoid_of_weights(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Of -inf it is 0: experts that were not chosen stay out."""
    weights = recogniser.meaning(node.inputs[0])
    if not isinstance(weights, RoutingWeights) or weights.function != "none":
        return None
    if isinstance(weights.selection, EveryExpert) and weights.fill != float("-inf"):
        raise Refusal("a sigmoid of routing weights gives experts that were not chosen a weight that is not 0")
    return dataclasses.replace(weights, function="sigmoid", fill=0.0)


def weigh(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Outputs of experts times their routing weights; or tokens times theirs, before the experts."""
    for operand, other in (node.inputs, node.inputs[::-1]):
        rows = recogniser.meaning(operand)
        if not isinstance(rows, Rows) or not isinstance(rows.form, Expert | Tokens):
            continue
        weights = recogniser.meaning(other)
        if weights is None and isinstance(rows.selection, Pairs) and isinstance(rows.form, Expert):
            weights = recogniser.routing_weights(other, rows.selection.routing)
        if not isinstance(weights, RoutingWeights):
            continue
        if isinstance(rows.form, Tokens):
            return _scaled(recogniser, rows, weights)
        return _weighed(recogniser, rows, weights)
    return None


def _weighed(recogniser: Recogniser, rows: Rows, weights: RoutingWeights) -> Contribution:
    if rows.scaled is not None:
        raise Refusal("routing weights are applied before an expert and again after it")
    if rows.selection != weights.selection:
        raise Refusal("the output of one expert is multiplied by the routing weights of another")
    if weights.fill != 0:
        raise Refusal("experts that were not chosen have a weight that is not 0")
    _check_one_number_each(recogniser, rows, weights)
    return Contribution(weights.routing, rows.axes, rows.selection, rows.source, weights, rows.form, rows.dtype)


def _check_one_number_each(recogniser: Recogniser, rows: Rows, weights: RoutingWeights) -> None:
    lead = tuple(axis for axis in rows.axes if axis.role != "feature")
    last_is_one = weights.axes[-1].size == ONE and len(weights.axes) == len(rows.axes)
    dims = recogniser.shapes.dims
    same = [axis.role for axis in atoms(lead)] == [axis.role for axis in atoms(weights.axes)]
    if not (last_is_one and same and all(map(dims.same, sizes(rows.axes[:-1]), sizes(weights.axes[:-1])))):
        raise Refusal("the outputs of experts and their routing weights do not line up, one weight for each row")


def _scaled(recogniser: Recogniser, rows: Rows, weights: RoutingWeights) -> Rows:
    if not isinstance(rows.selection, Every) or not isinstance(weights.selection, EveryExpert) or weights.fill != 0:
        raise Refusal(
            "routing weights multiply the tokens themselves: an expert that hands them on as they are is not known here"
        )
    partners = {"repeat": "expert", "token": "token"}
    mine = [partners.get(axis.role) for axis in atoms(rows.axes[:-1])]
    dims = recogniser.shapes.dims
    lined_up = all(map(dims.same, sizes(rows.axes[:-1]), sizes(weights.axes[:-1]))) and weights.axes[-1].size == ONE
    if mine != [axis.role for axis in atoms(weights.axes)] or not lined_up or len(weights.axes) != len(rows.axes):
        raise Refusal("tokens and their routing weights do not line up")
    axes = (*weights.axes[:-1], rows.axes[-1])
    return dataclasses.replace(rows, routing=weights.routing, selection=EveryExpert(), axes=axes, scaled=weights)


# ---- one expert after the other


def scatter_elements(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Into zeros without reduction, if a token chooses an expert at most once; or added to the sum so far."""
    contribution = recogniser.meaning(node.inputs[2])
    if not isinstance(contribution, Contribution):
        return None
    index = recogniser.meaning(node.inputs[1])
    if attribute(node, "axis", 0) % 2 or not _is_token_of(index, contribution):
        raise Refusal("the output of an expert is not scattered to the rows of its own tokens")
    whole_rows = [axis.role for axis in index.axes] in (["pick", "repeat"], ["place", "repeat"])
    if not whole_rows or not recogniser.shapes.dims.same(index.axes[1].size, contribution.axes[1].size):
        raise Refusal("the output of an expert is scattered to a part of a row")
    return _scattered(recogniser, node, contribution)


def scatter_nd(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The same with whole rows: index_add as newer exporters write it."""
    contribution = recogniser.meaning(node.inputs[2])
    if not isinstance(contribution, Contribution):
        return None
    index = recogniser.meaning(node.inputs[1])
    if not _is_token_of(index, contribution) or [axis.role for axis in index.axes] not in (
        ["pick", "one"],
        ["place", "one"],
    ):
        raise Refusal("the output of an expert is not scattered to the rows of its own tokens")
    return _scattered(recogniser, node, contribution)


def _is_token_of(index: Meaning | None, contribution: Contribution) -> bool:
    if isinstance(index, PlaceIndex):
        return index.whole == contribution.selection and index.what == "token"
    return (
        isinstance(index, PickIndex)
        and index.selection == contribution.selection
        and (index.token_factor, index.slot_factor) == (ONE, NOTHING)
    )


def _scattered(recogniser: Recogniser, node: ir.Node, contribution: Contribution) -> PartialSum:
    base = node.inputs[0]
    reduction = attribute(node, "reduction", "none")
    before = recogniser.meaning(base)
    if reduction == "add" and isinstance(before, PartialSum):
        _fits(recogniser, before, contribution.axes[1].size)
        return _sum(recogniser, before, contribution, before.axes)
    if reduction not in ("none", "add"):
        raise Refusal(f"expert outputs are combined with reduction {reduction!r}, expected a sum")
    if reduction == "none" and not (isinstance(contribution.selection, Picks) and contribution.routing.distinct):
        raise Refusal("expert outputs are scattered without a sum, and a token may choose an expert twice")
    shape = recogniser.shapes.shape(base) if fill_of(base) == 0 else None
    if shape is None or len(shape) != 2:
        raise Refusal("the output of an expert is scattered into something that is neither zeros nor the sum so far")
    axes = (Axis("token", shape[0]), Axis("feature", shape[1]))
    count = 1 if isinstance(contribution.selection, Picks) else contribution.routing.num_experts
    single = PartialSum(contribution.routing, axes, (contribution,), count, contribution.dtype)
    return _fits(recogniser, single, contribution.axes[1].size)


def add(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The sum so far plus another expert's, or plus zeros."""
    left, right = (recogniser.meaning(operand) for operand in node.inputs)
    if isinstance(left, PartialSum) and isinstance(right, PartialSum) and left.routing is right.routing:
        return _sum(recogniser, left, right, left.axes)
    for known, operand in ((left, node.inputs[1]), (right, node.inputs[0])):
        if isinstance(known, PartialSum):
            if fill_of(operand) != 0:
                raise Refusal("something is added to the sum of experts that is neither zeros nor an expert")
            zeros = recogniser.shapes.shape(operand)
            if (
                zeros is None
                or len(zeros) != len(known.axes)
                or not all(map(recogniser.shapes.dims.same, zeros, sizes(known.axes)))
            ):
                raise Refusal("the zeros that start the sum of experts are not proved to have its shape")
            return known
    return None


def _sum(recogniser: Recogniser, left: PartialSum, right: PartialSum | Contribution, axes: tuple[Axis, ...]) -> PartialSum:
    if left.routing is not right.routing:
        raise Refusal("experts of different routers are added")
    added = 1
    if isinstance(right, PartialSum):
        added = right.count
        dims = recogniser.shapes.dims
        if len(left.axes) != len(right.axes) or not all(map(dims.same, sizes(left.axes), sizes(right.axes))):
            raise Refusal("sums of experts with different shapes are added")
    return PartialSum(left.routing, axes, (left, right), left.count + added, left.dtype)


def _fits(recogniser: Recogniser, single: PartialSum, features: Dim) -> PartialSum:
    if not recogniser.shapes.dims.same(single.axes[1].size, features):
        raise Refusal("the output of an expert is scattered into rows of another size")
    return dataclasses.replace(single, axes=(single.axes[0], Axis("feature", features)))


# ---- all at once


def sum_over_choices(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Weighted outputs of every (token, slot) pair summed over the slots, or of every (token, expert) over the experts."""
    parts = recogniser.meaning(node.inputs[0])
    if isinstance(parts, Rows) and isinstance(parts.form, Expert) and parts.scaled is not None:
        parts = _already_weighed(parts)
    if not isinstance(parts, Contribution):
        return None
    role = "slot" if isinstance(parts.selection, Pairs) else "expert"
    axes = axes_of(node)
    summed = {axis % len(parts.axes) for axis in axes or ()}
    over = [[part.role for part in atoms((parts.axes[place],))] for place in summed]
    if over != [[role]] and not (over == [[]] and role == "slot" and parts.routing.k == 1):
        raise Refusal(f"the outputs of experts are not summed over their {role}s alone")
    left = (ONE_AXIS,) if attribute(node, "keepdims", 1) == 1 else ()
    kept = tuple(part for place, axis in enumerate(parts.axes) for part in (left if place in summed else (axis,)))
    if [axis.role for axis in atoms(kept)][-1:] != ["feature"] or any(
        a.role not in ("token", "feature") for a in atoms(kept)
    ):
        raise Refusal("the sum of the experts' outputs is not [tokens, features]")
    return PartialSum(parts.routing, kept, (parts,), parts.routing.num_experts, parts.dtype)


def _already_weighed(rows: Rows) -> Contribution:
    """The weights were on the input. Experts that were not chosen have seen zeros, and must answer with zeros."""
    linears = (rows.form.gate, rows.form.up, rows.form.down)
    if any(linear is not None and linear.bias is not None for linear in linears):
        raise Refusal("routing weights multiply the input of experts that have biases: those not chosen would answer, too")
    dtype = rows.form.down.matrix.dtype
    return Contribution(
        rows.scaled.routing, rows.axes, rows.selection, rows.source, rows.scaled, rows.form, dtype, weight_on="input"
    )


RULES = {
    "ScatterElements": [scatter_weights, scatter_elements],
    "Sigmoid": [sigmoid_of_weights],
    "Mul": [weigh],
    "ScatterND": [scatter_nd],
    "Add": [add],
    "ReduceSum": [sum_over_choices],
}
