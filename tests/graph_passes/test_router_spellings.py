"""Routers as exporters spell them: each is recognised, and the spec says what the graph computes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto
from support import router_graphs as graphs
from support.router_checks import SPELLINGS, assert_same_routes, matched, spec
from support.router_graphs import BIAS, EXPERTS, RouterGraph, built, run_router
from support.router_reference import select, weights_of


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(name):
    spelling, options, expected = SPELLINGS[name]
    model = built(spelling, **options)
    _, match = matched(model)
    assert match.call.spec == expected
    assert match.call.logits.name == "logits" or match.call.logits.producer().inputs[0].name == "whole"
    assert_same_routes(model, match)


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 20])
@pytest.mark.parametrize("name", ["softmax, topk, div", "ernie", "topk, softmax", "phi-3.5", "sigmoid and bias"])
def test_opset(name, opset):
    spelling, options, expected = SPELLINGS[name]
    model = built(spelling, RouterGraph(opset=opset), **options)
    _, match = matched(model)
    assert match.call.spec == expected
    assert_same_routes(model, match)


def test_logits_in_16_bits_enter_as_they_are():
    model = built(graphs.softmax_half_logits, RouterGraph(element=TensorProto.FLOAT16))
    _, match = matched(model)
    assert match.call.logits.name == "logits" and match.call.logits.dtype.name == "FLOAT16"
    assert_same_routes(model, match, np.float16)


def test_weights_rounded_at_the_end_stay_outside():
    graph = RouterGraph()
    ids, weights = graphs.softmax_topk(graph)
    model = graph.model(ids, graph.cast(weights, TensorProto.FLOAT16), TensorProto.FLOAT16)
    _, match = matched(model)
    assert match.weights.producer().op_type == "Div"


def test_views_around_ids_and_weights():
    graph = RouterGraph()
    ids, weights = graphs.softmax_topk(graph)
    flat = graph.op("Reshape", graph.op("Unsqueeze", weights, graph.const([0])), graph.const([-1, 3]))
    _, match = matched(graph.model(graph.op("Unsqueeze", ids, graph.const([0])), flat))
    assert match.ids.producer().op_type == "TopK" and match.weights.producer().op_type == "Div"


def test_the_bias_becomes_a_vector():
    _, match = matched(built(graphs.deepseek_v3))
    assert list(match.call.bias.shape) == [EXPERTS] and match.call.bias.producer() is None
    np.testing.assert_array_equal(match.call.bias.const_value.numpy(), BIAS)
    _, match = matched(built(graphs.sigmoid_bias))
    assert match.call.bias.name == "bias"


@pytest.mark.parametrize("norm, scale", itertools.product(["div", None], [None, 2.5, 16.0]))
def test_scale_with_and_without_normalisation(norm, scale):
    """Field report R05: the scale was skipped where the weights are not normalised."""
    model = built(graphs.softmax_topk, norm=norm, scale=scale)
    _, match = matched(model)
    assert match.call.spec == spec(normalize=norm is not None, scale=scale or 1.0)
    assert_same_routes(model, match)
    rows = np.random.default_rng(1).standard_normal((20, EXPERTS)).astype(np.float32)
    total = weights_of(match.call.spec, select(match.call.spec, rows)).sum(axis=1)
    if norm is not None:
        np.testing.assert_allclose(total, scale or 1.0, rtol=1e-12)
    else:
        assert (total < (scale or 1.0)).all()


def test_softmax_over_all_is_not_renormalised():
    """Field report R06: the weights sum to what the chosen experts have of the whole."""
    graph = RouterGraph(experts=64)
    model = graph.model(*graphs.softmax_topk(graph, k=8, norm=None))
    _, match = matched(model)
    rows = np.random.default_rng(2).standard_normal((50, 64)).astype(np.float32)
    powers = np.exp(rows.astype(np.float64))
    expected = np.sort(powers / powers.sum(axis=1, keepdims=True), axis=1)[:, -8:].sum(axis=1)
    np.testing.assert_allclose(weights_of(match.call.spec, select(match.call.spec, rows)).sum(axis=1), expected, rtol=1e-12)
    np.testing.assert_allclose(run_router(model, rows)[1].sum(axis=1), expected, rtol=1e-5)
    assert (expected < 0.9).all()


def test_three_spellings_and_which_are_equal():
    """Field report R07: softmax-topk-div equals topk-softmax, and neither equals softmax-topk."""
    rows = np.random.default_rng(3).standard_normal((50, EXPERTS)).astype(np.float32)
    answers = []
    plain = {"k": 4, "norm": None}
    for spelling, options in ((graphs.softmax_topk, {"k": 4}), (graphs.topk_softmax, {}), (graphs.softmax_topk, plain)):
        model = built(spelling, **options)
        _, match = matched(model)
        weights = weights_of(match.call.spec, select(match.call.spec, rows))
        np.testing.assert_allclose(run_router(model, rows)[1], weights, rtol=1e-5)
        answers.append(weights)
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-6)
    assert np.abs(answers[0] - answers[2]).max() > 0.1
