"""The spellings of routers with what they mean, and the check that a graph computes what was read from it."""

from __future__ import annotations

import numpy as np
import onnx

from ort_hina.graph_passes.router_match import RouterMatch, match_router
from ort_hina.graph_passes.router_spec import RouterSpec
from ort_hina.graph_passes.shapes import Shapes
from ort_hina.router_comparison import SIGMOID_ERROR, router_rows

from . import router_graphs as graphs
from .router_graphs import EXPERTS, run_router, values_of
from .router_reference import select, weight_error, weights_of

INF = float("inf")
NOTHING = 2.0**-120


def spec(**fields) -> RouterSpec:
    return RouterSpec(**({"k": 3} | fields))


def single(value: float) -> float:
    return float(np.float32(value))


V3 = {"score": "sigmoid", "normalize": True, "scale": 2.5}
V3_GROUPS = V3 | {"num_groups": 4, "top_groups": 2, "group_score": "top2_sum", "normalize_epsilon": single(1e-20)}
V2_GROUPS = {"num_groups": 4, "top_groups": 2, "masked_score": -INF, "scale": 16.0}
SIGMOID = {"score": "sigmoid", "normalize": True, "normalize_epsilon": single(1e-6)}

# name: spelling, its options, the spec
SPELLINGS = {
    "softmax, topk, div": (graphs.softmax_topk, {}, spec(normalize=True)),
    "softmax over the last axis": (graphs.softmax_topk, {"axis": -1}, spec(normalize=True)),
    "dbrx": (graphs.softmax_topk, {"norm": "l1"}, spec(normalize=True)),
    "softmax, topk": (graphs.softmax_topk, {"norm": None}, spec()),
    "with a scale": (graphs.softmax_topk, {"norm": None, "scale": 6.0}, spec(scale=6.0)),
    "a scale of one": (graphs.softmax_topk, {"scale": 1.0}, spec(normalize=True)),
    "inverse": (graphs.softmax_topk, {"norm": "reciprocal"}, spec(normalize=True)),
    "epsilon": (graphs.softmax_topk, {"epsilon": 1e-6}, spec(normalize=True, normalize_epsilon=single(1e-6))),
    "clip, epsilon and scale": (
        graphs.softmax_topk,
        {"epsilon": 0.25, "minimum": 0.5, "scale": 2.0},
        spec(normalize=True, normalize_epsilon=0.25, normalize_min=0.5, scale=2.0),
    ),
    "softmax by dynamo": (graphs.softmax_dynamo, {}, spec(normalize=True)),
    "ernie": (graphs.ernie, {}, spec(normalize=True, normalize_min=single(1e-12))),
    "topk, softmax": (graphs.topk_softmax, {}, spec(k=4, score="none", weight_function="softmax")),
    "topk, softmax of picked": (graphs.topk_softmax_of_picked, {}, spec(k=4, score="none", weight_function="softmax")),
    "llama 4": (graphs.topk_sigmoid, {}, spec(k=1, score="none", weight_function="sigmoid")),
    "sigmoid and bias": (graphs.sigmoid_bias, {}, spec(**SIGMOID)),
    "sigmoid as reciprocal": (graphs.sigmoid_bias, {"sigmoid": "reciprocal", "scale": 1.5}, spec(**SIGMOID, scale=1.5)),
    "sigmoid as division": (graphs.sigmoid_bias, {"sigmoid": "division"}, spec(**SIGMOID)),
    "inverse of a sum with epsilon": (graphs.sigmoid_bias, {"norm": "reciprocal"}, spec(**SIGMOID)),
    "deepseek v3": (graphs.deepseek_v3, {}, spec(**V3_GROUPS)),
    "deepseek v3, -inf": (graphs.deepseek_v3, {"filled": -np.inf}, spec(**V3_GROUPS, masked_score=-INF)),
    "deepseek v3, one group": (
        graphs.deepseek_v3, {"groups": 1, "top": 1}, spec(**V3, normalize_epsilon=single(1e-20))
    ),
    "deepseek v3, all groups": (graphs.deepseek_v3, {"top": 4}, spec(**V3, normalize_epsilon=single(1e-20))),
    "groups of one": (
        graphs.deepseek_v3,
        {"groups": 12, "top": 5, "best": 1},
        spec(**(V3_GROUPS | {"num_groups": 12, "top_groups": 5, "group_score": "max"})),
    ),
    "deepseek v3 by dynamo": (
        graphs.deepseek_v3_dynamo,
        {},
        spec(**(V3 | {"k": 4, "num_groups": 3, "top_groups": 1, "group_score": "top2_sum", "masked_score": -INF})),
    ),
    "deepseek v2": (graphs.deepseek_v2, {}, spec(**V2_GROUPS)),
    "deepseek v2, best of one": (graphs.deepseek_v2, {"by": "top1"}, spec(**V2_GROUPS)),
    "phi-3.5": (graphs.sparse_mixer, {}, spec(k=2, score="sparse_mixer", jitter=single(0.02) / 2)),
}  # fmt: skip


def matched(model: onnx.ModelProto):
    read, ids, weights = values_of(model)
    return read, match_router(Shapes(), ids, weights)


def bias_of(match: RouterMatch) -> np.ndarray | None:
    """[E], where it is constant; views of a constant are seen through."""
    value = match.call.bias
    while value is not None and value.const_value is None:
        value = value.producer().inputs[0]
    return None if value is None else value.const_value.numpy().reshape(-1)


def assert_same_routes(model, match, element=np.float32):
    """The graph in ONNX Runtime against the reference of the operator, with the found spec."""
    found = match.call.spec
    random = np.random.default_rng(0)
    finite = found.score == "sparse_mixer"
    rows = graphs.sparse_mixer_logits(random, 100) if finite else router_rows(EXPERTS, random)
    rows = np.concatenate([rows, random.standard_normal((100, EXPERTS)).astype(np.float32)]).astype(element)
    ids, weights = (array.reshape(len(rows), -1) for array in run_router(model, rows))
    selection = select(found, rows, bias_of(match))
    sure = selection.decided & roundings_of_sigmoid_do_not_matter(found, rows)
    assert sure.mean() > 0.6
    assert_equal_choice(found, ids, weights, selection, sure)
    order, other = np.argsort(ids, axis=1), np.argsort(selection.ids, axis=1)
    sure &= (take(ids, order) == take(selection.ids, other)).all(axis=1)
    bounds = take(weight_error(found, selection), other)
    share = SIGMOID_ERROR * abs(found.scale) * sensitivity(found, selection.scores) if uses_sigmoid(found) else 0.0
    left, right = take(weights, order).astype(np.float64), take(weights_of(found, selection), other)
    with np.errstate(invalid="ignore"):
        assert ((left == right) | (np.abs(left - right) <= 2 * bounds + share))[sure].all()


def assert_equal_choice(found, ids, weights, selection, sure):
    """The same experts for every token, in any order. With DeepSeek-V2's masked weights those of weight 0 (or so little that
    the operator takes it for 0) are no choice."""
    masked_weights = found.group_score == "max" and found.masked_score == -INF
    expected = weights_of(found, selection)
    left = np.where((weights < NOTHING) & masked_weights, -1, ids)
    right = np.where((expected < NOTHING) & masked_weights, -1, selection.ids)
    np.testing.assert_array_equal(np.sort(left, axis=1)[sure], np.sort(right, axis=1)[sure])


def take(array, order):
    return np.take_along_axis(array, order, axis=1)


def uses_sigmoid(found) -> bool:
    return "sigmoid" in (found.score, found.weight_function)


def sensitivity(found, scores) -> np.ndarray:
    """How much of an error of the scores reaches a weight: ONNX Runtime's Sigmoid is not exact (see `SIGMOID_ERROR`)."""
    if not found.normalize:
        return np.ones((len(scores), 1))
    return (1 + found.k) / (np.maximum(scores.sum(axis=1, keepdims=True), found.normalize_min) + found.normalize_epsilon)


def roundings_of_sigmoid_do_not_matter(found, rows) -> np.ndarray:
    """Below -8 the scores of ONNX Runtime's Sigmoid lose their order."""
    if found.score != "sigmoid":
        return np.ones(len(rows), bool)
    return ((np.abs(rows) <= 8) & ((rows == 0) | (np.abs(rows) > 1e-3))).all(axis=1)
