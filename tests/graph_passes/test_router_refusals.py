"""Almost routers: what the operator would compute otherwise is refused, and the reason names the node."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from support import router_graphs as graphs
from support.router_graphs import BIAS, EXPERTS, RouterGraph, built, values_of

from ort_hina.graph_passes.meanings import Refusal
from ort_hina.graph_passes.router_match import match_router
from ort_hina.graph_passes.shapes import Shapes


def two_topks(g):
    """The weights are of the three best, the ids of another choice."""
    scores = g.op("Softmax", g.logits(), axis=-1)
    values, _ = g.top_k(scores, 3)
    _, ids = g.top_k(g.op("Add", scores, g.initializer(BIAS)), 3)
    return ids, values


def one_more_than_used(g):
    """The weights are those of the second best and on."""
    values, ids = g.top_k(g.op("Softmax", g.logits(), axis=-1), 4)
    first, rest = (g.const([0]), g.const([3])), (g.const([1]), g.const([4]))
    return g.op("Slice", ids, *first, g.const([1])), g.op("Slice", values, *rest, g.const([1]))


def k_of_the_caller(g):
    values, ids = g.op("TopK", g.op("Softmax", g.logits(), axis=-1), g.input("k", 1, element=TensorProto.INT64), outputs=2)
    return ids, values


def along_the_tokens(g):
    values, ids = g.top_k(g.op("Softmax", g.logits(), axis=-1), 3, axis=0)
    return ids, values


def the_worst(g):
    values, ids = g.top_k(g.op("Softmax", g.logits(), axis=-1), 3, largest=0)
    return ids, values


def epsilon_in_the_weights(g):
    values, ids = g.top_k(g.op("Softmax", g.logits(), axis=-1), 3)
    total = g.reduce("ReduceSum", values)
    return ids, g.op("Div", g.op("Add", values, g.real(1e-3)), total)


def epsilon_below_the_bound(g):
    values, ids = g.top_k(g.op("Softmax", g.logits(), axis=-1), 3)
    total = g.op("Clip", g.op("Add", g.reduce("ReduceSum", values), g.real(0.1)), g.real(0.5))
    return ids, g.op("Div", values, total)


def bound_from_above(g):
    values, ids = g.top_k(g.op("Softmax", g.logits(), axis=-1), 3)
    return ids, g.op("Div", values, g.op("Clip", g.reduce("ReduceSum", values), g.real(0.1), g.real(0.5)))


def sum_over_all_experts(g):
    scores = g.op("Sigmoid", g.logits())
    values, ids = g.top_k(scores, 3)
    return ids, g.op("Div", values, g.reduce("ReduceSum", scores))


def sum_that_is_broadcast_over_tokens(g):
    """[T, k] / [k]: of a square of tokens and experts it would not even fail."""
    values, ids = g.top_k(g.op("Softmax", g.logits(), axis=-1), 3)
    return ids, g.op("Div", values, g.reduce("ReduceSum", values, axis=0, keepdims=0))


def scaled_before_the_choice(g):
    scores = g.op("Mul", g.op("Softmax", g.logits(), axis=-1), g.real(2.5))
    values, ids = g.top_k(scores, 3)
    return ids, values


def scaled_twice(g):
    ids, weights = graphs.softmax_topk(g, scale=2.5)
    return ids, g.op("Mul", weights, g.real(0.3))


def divided_by_a_constant(g):
    ids, weights = graphs.softmax_topk(g)
    return ids, g.op("Div", weights, g.real(3.0))


def log_softmax(g):
    values, ids = g.top_k(g.op("LogSoftmax", g.logits(), axis=-1), 3)
    return ids, g.op("Softmax", values, axis=-1)


def logarithm_of_sigmoid(g):
    values, ids = g.top_k(g.op("Log", g.op("Sigmoid", g.logits())), 3)
    return ids, g.op("Softmax", values, axis=-1)


def logits_over_their_sum(g):
    values, ids = g.top_k(g.logits(), 3)
    return ids, g.op("Div", values, g.reduce("ReduceSum", values))


def bias_for_each_token(g):
    scores = g.op("Sigmoid", g.logits())
    _, ids = g.top_k(g.op("Add", scores, g.input("bias", "tokens", EXPERTS)), 3)
    return ids, g.op("GatherElements", scores, ids, axis=-1)


def one_bias_for_all(g):
    scores = g.op("Sigmoid", g.logits())
    _, ids = g.top_k(g.op("Add", scores, g.initializer(np.ones(1, np.float32))), 3)
    return ids, g.op("GatherElements", scores, ids, axis=-1)


def weights_of_other_logits(g):
    _, ids = g.top_k(g.op("Sigmoid", g.logits()), 3)
    return ids, g.op("GatherElements", g.op("Sigmoid", g.input("others", "tokens", EXPERTS)), ids, axis=-1)


def weights_along_the_tokens(g):
    scores = g.op("Sigmoid", g.logits())
    _, ids = g.top_k(scores, 3)
    return ids, g.op("GatherElements", scores, ids, axis=0)


def scores_rounded_to_half(g):
    scores = g.cast(g.cast(g.op("Softmax", g.logits(), axis=-1), TensorProto.FLOAT16))
    values, ids = g.top_k(scores, 3)
    return ids, values


def mask_of_padding(g):
    """Where, but of no groups."""
    scores = g.op("Sigmoid", g.logits())
    masked = g.op("Where", g.op("Greater", scores, g.real(0.5)), scores, g.real(0.0))
    values, ids = g.top_k(masked, 3)
    return ids, values


V3, V2, MIXER = graphs.deepseek_v3, graphs.deepseek_v2, graphs.sparse_mixer

# name: spelling, its options, words of the reason
REFUSED = {
    "softmax over the tokens": (graphs.softmax_topk, {"axis": 0}, r"Softmax '.*' runs over axis 0"),
    "softmax of the chosen over the tokens": (graphs.topk_softmax, {"axis": 0}, "runs over axis 0"),
    "weights of another choice": (two_topks, {}, "TopK '.*' is not understood on the way"),
    "the second best and on": (one_more_than_used, {}, "are not chosen by a TopK"),
    "k of the caller": (k_of_the_caller, {}, "TopK '.*' takes a number of experts that is not constant"),
    "along the tokens": (along_the_tokens, {}, "TopK '.*' does not choose along the last axis"),
    "the worst": (the_worst, {}, "TopK '.*' takes the smallest"),
    "euclidean norm": (graphs.softmax_topk, {"norm": "l2"}, "Div '.*' divides by something that is not the sum"),
    "sum over the tokens": (graphs.softmax_topk, {"sum_axis": 0}, "Div '.*' divides by something that is not proved"),
    "sum over all experts": (sum_over_all_experts, {}, "Div '.*' divides by something that is not the sum of the chosen"),
    "sum broadcast over tokens": (sum_that_is_broadcast_over_tokens, {}, "Div '.*' divides by something"),
    "epsilon in the weights": (epsilon_in_the_weights, {}, "Div '.*' divides by something that is not the sum"),
    "epsilon below the bound": (epsilon_below_the_bound, {}, "Div '.*' divides by something that is not the sum"),
    "bound from above": (bound_from_above, {}, "Clip '.*' bounds the sum"),
    "negative epsilon": (graphs.softmax_topk, {"epsilon": -0.1}, "Add '.*' adds -0.1"),
    "scale before the sum": (graphs.softmax_topk, {"scale": 2.5, "scale_first": True}, "Mul '.*' is not understood"),
    "scale before the choice": (scaled_before_the_choice, {}, "Mul '.*' stands between Softmax '.*' and the choice"),
    "two scales": (scaled_twice, {}, "Mul '.*' is not understood"),
    "division by three": (divided_by_a_constant, {}, "Div '.*' divides the weights by 3.0"),
    "infinite scale": (graphs.softmax_topk, {"scale": np.inf}, "Mul '.*' multiplies the weights by inf"),
    "log-softmax": (log_softmax, {}, "LogSoftmax '.*' is not a scoring function"),
    "logarithm of sigmoid": (logarithm_of_sigmoid, {}, "Log '.*' stands between Sigmoid"),
    "logits over their sum": (logits_over_their_sum, {}, "which may be negative"),
    "inverse of a sum that may vanish": (
        graphs.sigmoid_bias, {"norm": "reciprocal", "epsilon": None}, "which may overflow"
    ),
    "biased weights": (graphs.sigmoid_bias, {"biased_weights": True}, "takes weights with the bias"),
    "bias for each token": (bias_for_each_token, {}, "Add '.*' adds to the scores something of another shape"),
    "one bias for all": (one_bias_for_all, {}, "the bias 'bias' of the selection is not one vector"),
    "weights of other logits": (weights_of_other_logits, {}, "GatherElements '.*' takes the weights from other scores"),
    "weights along the tokens": (weights_along_the_tokens, {}, "GatherElements '.*' does not take the weights along"),
    "scores rounded to half": (scores_rounded_to_half, {}, "Cast '.*' stands between Softmax"),
    "padding": (mask_of_padding, {}, "Greater '.*' stands between the choice of groups and the mask"),
    "groups by unbiased scores": (V3, {"group_from": "scores"}, "TopK '.*' chooses groups by other scores"),
    "unbiased scores masked": (V3, {"masked_from": "scores"}, "TopK '.*' chooses groups by other scores"),
    "groups not used": (V3, {"weights_from": "masked"}, "takes weights with the bias"),
    "biased weights with groups": (V3, {"weights_from": "biased"}, "GatherElements '.*' takes weights with the bias"),
    "mask the wrong way round": (V3, {"inverted": True}, "Where '.*' does not give the experts of other groups"),
    "mask of a large number": (V3, {"filled": -1e9}, "Where '.*' does not give the experts of other groups"),
    "mask of twos": (V3, {"ones": 2.0}, "ScatterElements '.*' does not write ones into zeros"),
    "the worst groups": (V3, {"largest": 0}, "TopK '.*' takes the smallest"),
    "sum of three": (V3, {"best": 3}, "TopK '.*' chooses groups by something"),
    "interleaved groups": (V3, {"interleaved": True}, "Expand '.*' repeats the mask of groups along another axis"),
    "more than the groups have": (V2, {"k": 7}, "of which more may be chosen than there are"),
    "two thresholds": (MIXER, {"jitters": (0.01, 0.02)}, "Concat '.*' weighs its two experts with different thresholds"),
    "first expert set to 0": (MIXER, {"removed": 0.0}, "ScatterElements '.*' does not set the score"),
    "signed factor": (MIXER, {"absolute": False}, "Max '.*' is not the larger one"),
    "the same expert twice": (MIXER, {"second_from": "logits"}, "which is not the logits without the first one"),
    "distance from what is left": (MIXER, {"subtracted": "left"}, "Sub '.*' is not the largest score minus the logits"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    spelling, options, words = REFUSED[name]
    _, ids, weights = values_of(built(spelling, **options))
    with pytest.raises(Refusal, match=words):
        match_router(Shapes(), ids, weights)


@pytest.mark.parametrize("is_sorted", [0, 1])
def test_values_with_another_use(is_sorted):
    """Whoever pairs them with the ids needs an order that both have."""
    graph = RouterGraph()
    scores = graph.op("Softmax", graph.logits(), axis=-1)
    values, ids = graph.top_k(scores, 3, sorted=is_sorted)
    model = graph.model(ids, graph.op("GatherElements", scores, ids, axis=-1))
    model.graph.output.append(graphs.helper.make_tensor_value_info(values, TensorProto.FLOAT, None))
    _, ids, weights = values_of(model)
    if is_sorted:
        match = match_router(Shapes(), ids, weights)
        assert [node.op_type for node in match.nodes] == ["GatherElements"]
    else:
        with pytest.raises(Refusal, match="TopK '.*' is not sorted, and its values have other uses"):
            match_router(Shapes(), ids, weights)


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
@pytest.mark.parametrize("spelling", [graphs.topk_softmax, graphs.topk_sigmoid])
def test_arithmetic_in_another_type(spelling, element):
    graph = RouterGraph(element=element)
    _, ids, weights = values_of(graph.model(*spelling(graph), weight_type=element))
    with pytest.raises(Refusal, match="(Softmax|Sigmoid) '.*' computes in (FLOAT16|BFLOAT16|DOUBLE)"):
        match_router(Shapes(), ids, weights)


def test_logits_of_another_shape_than_the_ids():
    """[B, S, E] enters, and ids are [B * S, k]: the operator would answer [B, S, k]."""
    graph = RouterGraph()
    scores = graph.op("Softmax", graph.input("logits", "batch", "length", EXPERTS), axis=-1)
    values, ids = graph.top_k(graph.op("Reshape", scores, graph.const([-1, EXPERTS])), 3)
    _, ids, weights = values_of(graph.model(ids, values))
    with pytest.raises(Refusal, match="not proved to have the same axes"):
        match_router(Shapes(), ids, weights)


def test_softmax_of_an_old_opset_over_two_axes():
    """Up to opset 12, axis 1 of [B, S, E] is all of S and E together."""
    graph = RouterGraph(opset=12)
    values, ids = graph.top_k(graph.op("Softmax", graph.input("logits", "batch", "length", EXPERTS)), 3)
    _, ids, weights = values_of(graph.model(ids, values))
    with pytest.raises(Refusal, match="runs over axis 1"):
        match_router(Shapes(), ids, weights)


def test_a_graph_input_is_no_constant():
    """A caller may replace an initializer that is an input too."""
    model = built(graphs.sigmoid_bias, epsilon=None)
    model.graph.input.append(graphs.helper.make_tensor_value_info("bias", TensorProto.FLOAT, [EXPERTS]))
    _, ids, weights = values_of(model)
    with pytest.raises(Refusal, match="Add '.*' adds to the scores something of another shape"):
        match_router(Shapes(), ids, weights)


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_softmax_in_16_bits_stays_outside(element):
    """What comes after it is in float: the router takes its scores for logits."""
    graph = RouterGraph(element=element)
    scores = graph.op("Softmax", graph.logits(), axis=-1)
    values, ids = graph.top_k(graph.cast(scores), 3, axis=-1)
    weights = graph.op("Div", values, graph.reduce("ReduceSum", values))
    _, ids, weights = values_of(graph.model(ids, weights))
    match = match_router(Shapes(), ids, weights)
    assert (match.call.spec.score, match.call.spec.normalize) == ("none", True)
    assert match.call.logits.producer().op_type == "Softmax"
    assert "Softmax" not in [node.op_type for node in match.nodes]
