"""The sparse mixer of Phi-3.5-MoE: two experts, each weighed by a softmax over the experts that are nearly as good.

best   = ArgMax(scores)                                     scores: the logits; for the second expert, with the first
far    = (max(scores) - logits) / max(|logits|, max(scores)) > 2 * jitter                            one set to -inf
weight = Softmax(Where(far, -inf, scores))[best]
"""

from __future__ import annotations

import math

import onnx_ir as ir

from .constants import attribute
from .meanings import Refusal
from .router_expressions import Reader, is_output_of, pairs, refuse
from .router_spec import RouterSpec

_LARGEST = frozenset({"ReduceMax"})


def read_sparse_mixer(reader: Reader, ids: ir.Node, weights: ir.Value) -> tuple[RouterSpec, ir.Value, ir.Value, ir.Value]:
    """What the Concat `ids` of two choices and their `weights` compute.

    Returns:
        The spec, the logits, and the values of the ids and of the weights, [..., 2] both.

    Raises:
        Refusal: they are not a sparse mixer, and the reason.
    """
    root = reader.root(weights)
    joined = root.producer() if is_output_of(root, "Concat") else None
    if joined is None or not _joins_two(reader, ids) or not _joins_two(reader, joined):
        refuse(ids, "joins ids of single choices, and the weights are not joined in the same way")
    first, second = (reader.root(value) for value in ids.inputs)
    for chosen in (first, second):
        if not is_output_of(chosen, "ArgMax"):
            refuse(ids, "joins ids that are not each the place of the largest score")
    logits = reader.root(first.producer().inputs[0])
    jitters = {
        _read_choice(reader, chosen, weight, logits, before)
        for chosen, weight, before in zip((first, second), joined.inputs, (None, first), strict=True)
    }
    if len(jitters) != 1:
        refuse(joined, "weighs its two experts with different thresholds")
    reader.need_float(joined, joined.inputs[0])
    return RouterSpec(k=2, score="sparse_mixer", jitter=jitters.pop()), logits, ids.outputs[0], root


def _joins_two(reader: Reader, node: ir.Node) -> bool:
    ones = all(reader.columns(value) == 1 for value in node.inputs)
    return len(node.inputs) == 2 and ones and reader.is_last_axis(attribute(node, "axis", 0), node.inputs[0])


def _read_choice(reader: Reader, chosen: ir.Value, weight: ir.Value, logits: ir.Value, before: ir.Value | None) -> float:
    """The jitter of one choice. `before` is the place of the expert that cannot be chosen any more."""
    place = chosen.producer()
    scores = reader.root(place.inputs[0])
    if not reader.is_last_axis(attribute(place, "axis", 0), place.inputs[0]) or attribute(place, "select_last_index", 0):
        refuse(place, "does not find the first of the largest scores along the last axis")
    if before is not None:
        _check_without_first(reader, scores, logits, before)
    softmax = _weight_table(reader, weight, chosen)
    where = reader.root_node(softmax.inputs[0], "Where")
    reader.softmax_of(softmax)
    if where is None or reader.number(where.inputs[1]) != -math.inf or reader.root(where.inputs[2]) is not scores:
        refuse(softmax, "is not over the scores that its expert was chosen by, with those of far experts -inf")
    return _read_threshold(reader, where, scores, logits)


def _check_without_first(reader: Reader, scores: ir.Value, logits: ir.Value, first: ir.Value) -> None:
    node = scores.producer()
    if not is_output_of(scores, "ScatterElements") or reader.root(node.inputs[0]) is not logits:
        raise Refusal(f"the second expert is chosen by {scores.name!r}, which is not the logits without the first one")
    last = reader.is_last_axis(attribute(node, "axis", 0), node.inputs[0])
    if not last or attribute(node, "reduction", "none") != "none":
        refuse(node, "does not overwrite logits along the last axis")
    if reader.root(node.inputs[1]) is not first or reader.fill(node.inputs[2]) != -math.inf:
        refuse(node, "does not set the score of the first expert to -inf")
    if not reader.same_rows(node.inputs[0], node.inputs[1]) or not reader.same_shape(node.inputs[1], node.inputs[2]):
        refuse(node, "overwrites logits of rows that are not proved to be those of the router")


def _weight_table(reader: Reader, weight: ir.Value, chosen: ir.Value) -> ir.Node:
    """The Softmax from which `weight` takes what `chosen` points at."""
    gather = reader.root_node(weight, "GatherElements")
    softmax = None if gather is None else reader.root_node(gather.inputs[0], "Softmax")
    if softmax is None or not reader.is_last_axis(attribute(gather, "axis", 0), gather.inputs[0]):
        raise Refusal(f"the weight {weight.name!r} is not taken from a Softmax along the last axis")
    if reader.root(gather.inputs[1]) is not chosen or not reader.same_rows(*gather.inputs):
        refuse(gather, "takes the weight of another expert than the chosen one")
    return softmax


def _read_threshold(reader: Reader, where: ir.Node, scores: ir.Value, logits: ir.Value) -> float:
    """The jitter of ``(largest - logits) / max(|logits|, largest) > 2 * jitter``, the condition of `where`."""
    condition = reader.root_node(where.inputs[0], "Greater")
    if condition is None or not reader.same_shape(condition.outputs[0], where.inputs[2]):
        refuse(where, "is not decided by how far a score lies from the largest one")
    limit, quotient = reader.number(condition.inputs[1]), reader.root_node(condition.inputs[0], "Div")
    if limit is None or quotient is None:
        refuse(condition, "does not compare a quotient with a constant")
    distance, factor = (reader.root_node(quotient.inputs[i], kind) for i, kind in ((0, "Sub"), (1, "Max")))
    if distance is None or factor is None:
        refuse(quotient, "is not a difference divided by the larger one of two")
    if not _is_largest(reader, distance.inputs[0], scores) or reader.root(distance.inputs[1]) is not logits:
        refuse(distance, "is not the largest score minus the logits")
    if len(factor.inputs) != 2 or not any(
        _is_absolute(reader, a, logits) and _is_largest(reader, b, scores) for a, b in pairs(factor)
    ):
        refuse(factor, "is not the larger one of |logits| and the largest score")
    return limit / 2


def _is_absolute(reader: Reader, value: ir.Value, logits: ir.Value) -> bool:
    node = reader.root_node(value, "Abs")
    return node is not None and reader.root(node.inputs[0]) is logits


def _is_largest(reader: Reader, value: ir.Value, scores: ir.Value) -> bool:
    found = reader.reduced_keeping(reader.root(value), _LARGEST)
    return found is not None and reader.root(found[1]) is scores and reader.same_rows(value, found[1])
