"""The routing boundary: where a router's choice becomes masks of single experts.

How the router scored the experts (softmax, sigmoid, groups, bias, normalisation) is none of this file's business: the
ids and the weights stay as the graph computes them.
"""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, scalar, small_constant
from .dims import Dim
from .meanings import Axis, ExpertMask, Ids, Meaning, OneHotIds, Refusal, Routing
from .recogniser import Recogniser


def top_k(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning | None, ...] | None:
    """TopK over the last axis of [tokens, experts] with a constant k: its second output may be expert ids. They are
    distinct within a token, since TopK takes each position once."""
    scores = node.inputs[0]
    k = recogniser.shapes.integers(node.inputs[1])
    shape = recogniser.shapes.shape(scores)
    if k is None or len(k.items) != 1 or k.items[0].constant is None or shape is None or len(shape) != 2:
        return None
    if attribute(node, "axis", -1) not in (-1, 1):
        return None
    routing = Routing(node, node.outputs[1], k.items[0].constant, shape[0], shape[1].constant)
    recogniser.routings.append(routing)
    return None, Ids(routing, (Axis("token", shape[0]), Axis("slot", k.items[0])))


def one_hot(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    ids = recogniser.meaning(node.inputs[0])
    if not isinstance(ids, Ids):
        return None
    ids.routing.dispatch = node
    values = small_constant(node.inputs[2])
    if values is None or values.size != 2 or values[0] != 0 or values[1] != 1:
        raise Refusal("the values of OneHot are not [0, 1]")
    depth = scalar(node.inputs[1])
    if depth is None:
        raise Refusal("the depth of OneHot is not constant")
    if ids.routing.num_experts not in (None, depth):
        raise Refusal(f"OneHot has a depth of {depth}, and the router chooses from {ids.routing.num_experts} experts")
    ids.routing.num_experts = int(depth)
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


RULES = {
    "TopK": [top_k],
    "OneHot": [one_hot],
    "Equal": [equal],
    "Gather": [pick_expert],
}
