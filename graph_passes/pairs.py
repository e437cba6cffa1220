"""Every (token, slot) pair at once, each with the weights of its own expert: the dispatch that gathers whole matrices
(``batched_mm`` of transformers 5)."""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute
from .dims import ONE, Dim
from .meanings import (
    Axis,
    ChosenConstant,
    Ids,
    Meaning,
    Pairs,
    PlaceIndex,
    Refusal,
    Routing,
)
from .recogniser import Recogniser


def gather_constants(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """GatherND (or Gather) of a stack of constants by the experts' ids."""
    index = recogniser.meaning(node.inputs[1])
    view = recogniser.constant(node.inputs[0])
    if view is None or len(view.shape) < 2:
        return None
    if index is None and node.op_type == "GatherND" and len(view.shape) > 2:
        index = _free_ids(recogniser, node.inputs[1], view.shape[0])
    if isinstance(index, Ids):
        selection = Pairs(index.routing)
    elif isinstance(index, PlaceIndex) and index.what == "expert":
        selection = index.whole
    else:
        return None
    axes = index.axes
    if node.op_type == "GatherND":
        if attribute(node, "batch_dims", 0) or axes[-1].size != ONE:
            raise Refusal("constants are gathered by more than one index")
        axes = axes[:-1]
    elif attribute(node, "axis", 0) % len(view.shape):
        raise Refusal("constants are gathered by expert along an axis that is not their first")
    _note_width(index.routing, view.shape[0], node)
    stored = tuple(Axis(f"stored{place}", Dim(size)) for place, size in enumerate(view.shape[1:], 1))
    return ChosenConstant(index.routing, (*axes, *stored), selection, view)


def _note_width(routing: Routing, experts: int, node: ir.Node) -> None:
    routing.dispatch = routing.dispatch or node
    routing.experts_seen.update(range(experts))
    if routing.num_experts is None:
        routing.num_experts = experts
    if routing.num_experts != experts:
        raise Refusal(f"there are weights of {experts} experts, and the router chooses from {routing.num_experts}")


def _free_ids(recogniser: Recogniser, value: ir.Value, experts: int) -> Ids | None:
    """Ids that no router in this graph chose: an input, or computed in a way that is not known. Nothing needs to be known of
    them, as long as each pair's weights are gathered by its own id."""
    ids, node = value, value.producer()
    while node is not None and node.op_type in ("Unsqueeze", "Reshape", "Identity", "Cast", "Flatten"):
        ids, node = node.inputs[0], node.inputs[0].producer()
    shape = recogniser.shapes.shape(ids)
    if ids is value or shape is None or len(shape) != 2 or shape[1].constant is None:
        return None
    maker = node if node is not None else next(iter(ids.uses())).node
    routing = Routing(maker, ids, shape[1].constant, shape[0], experts, distinct=False)
    axes = (Axis("token", shape[0]), Axis("slot", shape[1]))
    found = recogniser.seen_through(value, lambda inner: _ids_of(recogniser, inner, ids, Ids(routing, axes)), Ids)
    if found is not None:
        recogniser.routings.append(routing)
    return found


def _ids_of(recogniser: Recogniser, value: ir.Value, ids: ir.Value, meaning: Ids) -> Ids | None:
    if value is ids:
        return meaning
    return recogniser.seen_through(value, lambda inner: _ids_of(recogniser, inner, ids, meaning), Ids)


RULES = {
    "GatherND": [gather_constants],
    "Gather": [gather_constants],
}
