"""The routing boundary: where a router's choice becomes masks of single experts.

How the router scored the experts (softmax, sigmoid, groups, bias, normalisation) is none of this file's business: the
ids and the weights stay as the graph computes them (`router_match` reads those).
"""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, axes_of, scalar, small_constant
from .dims import Dim
from .fills import fill_of
from .meanings import (
    Axis,
    Counts,
    ExpertMask,
    Hits,
    Ids,
    Meaning,
    OneHotIds,
    Refusal,
    Routing,
)
from .recogniser import Recogniser


def top_k(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning | None, ...] | None:
    """TopK over the last axis of [tokens, experts] with a constant k: its second output may be expert ids. They are
    distinct within a token, since TopK takes each position once."""
    scores = node.inputs[0]
    if recogniser.meaning(scores) is not None and isinstance(recogniser.meaning(scores), Ids):
        return None
    k = recogniser.shapes.integers(node.inputs[1])
    shape = recogniser.shapes.shape(scores)
    if k is None or len(k.items) != 1 or (k.items[0].constant or 0) < 1 or shape is None or len(shape) != 2:
        return None
    if attribute(node, "axis", -1) not in (-1, 1):
        return None
    routing = Routing(node, node.outputs[1], k.items[0].constant, shape[0], shape[1].constant)
    recogniser.routings.append(routing)
    return None, Ids(routing, (Axis("token", shape[0]), Axis("slot", k.items[0])))


def concatenated_choices(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """ArgMax and again ArgMax, side by side (Phi-3.5-MoE): ids of another kind, distinct if each was taken out of the scores
    before the next was chosen."""
    choices = [_single_choice(operand) for operand in node.inputs]
    if None in choices or len(choices) < 2:
        return None
    shape = recogniser.shapes.shape(choices[0].inputs[0])
    if shape is None or len(shape) != 2 or attribute(node, "axis", 0) % 2 != 1:
        return None
    distinct = all(_takes_out(later.inputs[0], earlier.outputs[0]) for earlier, later in zip(choices, choices[1:]))
    k = len(choices)
    routing = Routing(node, node.outputs[0], k, shape[0], shape[1].constant, distinct=distinct and k == 2)
    recogniser.routings.append(routing)
    return Ids(routing, (Axis("token", shape[0]), Axis("slot", Dim(k))))


def _single_choice(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    if (
        node is None
        or node.op_type != "ArgMax"
        or attribute(node, "axis", 0) not in (-1, 1)
        or not attribute(node, "keepdims", 1)
    ):
        return None
    return node


def _takes_out(scores: ir.Value, chosen: ir.Value) -> bool:
    """Whether `scores` were made by writing -inf at `chosen`."""
    node = scores.producer()
    if node is None or node.op_type != "ScatterElements" or node.inputs[1] is not chosen:
        return False
    if attribute(node, "axis", 0) not in (-1, 1) or attribute(node, "reduction", "none") != "none":
        return False
    update = node.inputs[2]
    while (maker := update.producer()) is not None and maker.op_type in ("Expand", "Identity", "Cast"):
        update = maker.inputs[0]
    maker = update.producer()
    if maker is not None and maker.op_type == "ConstantOfShape":
        fill = maker.attributes.get("value")
        return fill is not None and fill.value.numpy().item() == float("-inf")
    return scalar(update) == float("-inf")


def one_hot(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    ids = recogniser.meaning(node.inputs[0])
    if not isinstance(ids, Ids):
        return None
    ids.routing.dispatch = node
    values = small_constant(node.inputs[2])
    if values is None or values.size != 2 or values[0] != 0 or values[1] != 1:
        raise Refusal("the values of OneHot are not [0, 1]")
    found = recogniser.shapes.integers(node.inputs[1])
    depth = None if found is None or len(found.items) != 1 else found.items[0].constant
    if depth is None:
        raise Refusal("the depth of OneHot is not constant")
    if (ids.routing.num_experts or depth) > depth:
        raise Refusal(f"OneHot has a depth of {depth}, and the router chooses from {ids.routing.num_experts} experts")
    ids.routing.num_experts = ids.routing.num_experts or depth
    rank = len(ids.axes) + 1
    place = attribute(node, "axis", -1) % rank
    axes = (*ids.axes[:place], Axis("expert", Dim(int(depth))), *ids.axes[place:])
    return OneHotIds(ids.routing, axes)


def equal(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """``ids == 5``: the mask of expert 5 without a OneHot."""
    for ids, other in (node.inputs, node.inputs[::-1]):
        meaning = recogniser.meaning(ids)
        if isinstance(meaning, Ids):
            expert = scalar(other)
            if expert is None:
                raise Refusal("expert ids are compared with something that is not one constant")
            return _mask(meaning.routing, int(expert), meaning.axes, node)
    return None


def pick_expert(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Gather of one constant index along the expert axis."""
    one_hot_ids = recogniser.meaning(node.inputs[0])
    if not isinstance(one_hot_ids, OneHotIds):
        return None
    axes = one_hot_ids.axes
    place = attribute(node, "axis", 0) % len(axes)
    if isinstance(recogniser.meaning(node.inputs[1]), Hits):
        raise Refusal(
            "the loop over the experts was exported for those that the example input hit: body i runs for the i-th expert "
            "that any token chooses, whichever that is, so the file is wrong for other inputs; no fusion can repair that"
        )
    index = small_constant(node.inputs[1])
    if axes[place].role != "expert" or index is None or index.size != 1:
        raise Refusal("the one-hot ids are not taken apart one expert at a time")
    count = axes[place].size.factor
    expert = int(index.item())
    if not -count <= expert < count:
        raise Refusal(f"expert {expert} is taken from one-hot ids of {count} experts")
    kept = tuple(Axis("one", Dim(1)) for _ in range(index.ndim))
    return _mask(one_hot_ids.routing, expert % count, (*axes[:place], *kept, *axes[place + 1 :]), node)


def _mask(routing: Routing, expert: int, axes: tuple[Axis, ...], node: ir.Node) -> ExpertMask:
    routing.dispatch = routing.dispatch or node
    routing.experts_seen.add(expert)
    return ExpertMask(routing, axes, expert)


def scatter_ones(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Ones written to the columns of the chosen experts: the one-hot ids of all slots together."""
    ids = recogniser.meaning(node.inputs[1])
    if not isinstance(ids, Ids) or [axis.role for axis in ids.axes] != ["token", "slot"] or not ids.routing.distinct:
        return None
    base = recogniser.shapes.shape(node.inputs[0])
    if base is None or len(base) != 2 or attribute(node, "axis", 0) not in (1, -1):
        return None
    if not recogniser.shapes.dims.same(base[0], ids.axes[0].size):
        return None
    if (fill_of(node.inputs[0]), fill_of(node.inputs[2]), attribute(node, "reduction", "none")) != (0, 1, "none"):
        return None
    experts = base[1].constant
    if experts is None or ids.routing.num_experts not in (None, experts):
        return None
    ids.routing.num_experts = experts
    return OneHotIds(ids.routing, (ids.axes[0], Axis("expert", Dim(experts))))


def count_hits(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """How often each expert was chosen: the one-hot ids summed over everything else."""
    one_hot_ids = recogniser.meaning(node.inputs[0])
    if not isinstance(one_hot_ids, OneHotIds):
        return None
    axes = axes_of(node)
    if axes is None or attribute(node, "keepdims", 1) == 1:
        return None
    kept = [
        axis
        for place, axis in enumerate(one_hot_ids.axes)
        if place - len(one_hot_ids.axes) not in axes and place not in axes
    ]
    return Counts(one_hot_ids.routing, tuple(kept)) if [axis.role for axis in kept] == ["expert"] else None


def which_hits(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Which experts were chosen at all: a comparison of their counts with 0, or NonZero, which lists them."""
    hits = recogniser.meaning(node.inputs[0])
    if isinstance(hits, Counts) and node.op_type != "NonZero":
        return Hits(hits.routing, hits.axes)
    if not isinstance(hits, Hits | Counts):
        return None
    hit = recogniser.shapes.dims.unknown(("experts hit", hits.routing.node))
    return Hits(hits.routing, (Axis("one", Dim(1)), Axis("hit", hit)), listed=True)


def each_hit(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning, ...] | None:
    """The experts hit, taken apart: as many as the example input hit."""
    hits = recogniser.meaning(node.inputs[0])
    if not isinstance(hits, Hits) or not hits.listed:
        return None
    hits.routing.dispatch = hits.routing.dispatch or node
    return tuple(Hits(hits.routing, (Axis("one", Dim(1)),) * len(hits.axes), listed=True) for _ in node.outputs)


def same_hit(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    hits = recogniser.meaning(node.inputs[0])
    return hits if isinstance(hits, Hits) and hits.listed else None


RULES = {
    "ScatterElements": [scatter_ones],
    "TopK": [top_k],
    "Concat": [concatenated_choices],
    "OneHot": [one_hot],
    "Equal": [equal],
    "Gather": [pick_expert, same_hit],
    "ReduceSum": [count_hits],
    "Greater": [which_hits],
    "NonZero": [which_hits],
    "Split": [each_hit],
}
