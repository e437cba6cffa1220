"""Routing that went wrong elsewhere: small cases whose answers can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support.levels import every_level
from support.router_native import assert_routes, run_native

from ort_hina.graph_passes.router_spec import RouterSpec

INF, NAN = np.inf, np.nan


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def logit(probabilities: list[float]) -> np.ndarray:
    p = np.array([probabilities])
    return np.log(p / (1 - p)).astype(np.float32)


@every_level
def test_the_bias_selects_and_does_not_weigh(isa):
    """R01."""
    spec = RouterSpec(2, "sigmoid", normalize=True, scale=2.5)
    logits, bias = logit([0.9, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), np.array([-5, 0, 3, 0, 0, 0, 0, 0], np.float32)
    ids, weights = run_native(spec, logits, bias, isa=isa)
    assert ids.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[2.5 / 9, 2.5 * 8 / 9]], rtol=1e-6)


@every_level
def test_small_scores_survive_a_large_bias(isa):
    """R03. Weights of 1e-8 beside a bias of 12 would be lost in score + bias - bias."""
    rng = np.random.default_rng(0)
    logits = rng.uniform(-19, -16, (50, 64)).astype(np.float32)
    bias = (12 + rng.permutation(64) * 1e-3).astype(np.float32)
    spec = RouterSpec(8, "sigmoid", normalize=True, normalize_epsilon=1e-20, scale=2.5)
    assert assert_routes(spec, logits, bias, isa=isa).decided.all()
    ids, weights = run_native(spec, logits, bias, isa=isa)
    assert (ids == np.argsort(-bias, kind="stable")[:8]).all()
    exact = np.take_along_axis(1 / (1 + np.exp(-logits.astype(np.float64))), ids, axis=1)
    np.testing.assert_allclose(weights, 2.5 * exact / exact.sum(axis=1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=1), 2.5, rtol=1e-6)


@every_level
@pytest.mark.parametrize(("first", "second"), [(12.0001, 12.0002), (12.0002, 12.0001)])
def test_biases_that_differ_in_the_fifth_digit(isa, first, second):
    """M03. float16 or bfloat16 would make them equal, and the lower index would win."""
    bias = np.full(8, 11.0, np.float32)
    bias[[2, 5]] = first, second
    ids, _ = run_native(RouterSpec(1, "sigmoid"), np.zeros((1, 8), np.float32), bias, isa=isa)
    assert ids.tolist() == [[2 if first > second else 5]]


@every_level
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.5, 16.0])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_scale_counts_with_and_without_normalisation(isa, normalize, scale, score):
    """R05, R06."""
    logits = np.random.default_rng(1).standard_normal((20, 64)).astype(np.float32)
    ids, weights = run_native(RouterSpec(8, score, normalize=normalize, scale=scale), logits, isa=isa)
    e = np.exp(logits.astype(np.float64))
    scores = e / e.sum(axis=1, keepdims=True) if score == "softmax" else e / (1 + e)
    total = scale * (1.0 if normalize else np.sort(scores, axis=1)[:, -8:].sum(axis=1))
    np.testing.assert_allclose(weights.sum(axis=1), total, rtol=1e-5)
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :8])


@every_level
def test_three_spellings_of_softmax_and_top_k(isa):
    """R07. The first two are equal, the third is not."""
    logits = np.random.default_rng(2).standard_normal((200, 32)).astype(np.float32)
    divided = run_native(RouterSpec(4, normalize=True), logits, isa=isa)
    over_k = run_native(RouterSpec(4, "none", weight_function="softmax"), logits, isa=isa)
    undivided = run_native(RouterSpec(4), logits, isa=isa)
    np.testing.assert_array_equal(divided[0], over_k[0])
    np.testing.assert_allclose(divided[1], over_k[1], rtol=1e-6)
    assert (undivided[1].sum(axis=1) < 0.95).all()


@every_level
def test_a_logarithm_of_sigmoids_with_a_filler(isa):
    """R09. The softmax over the chosen ones undoes the logarithm; a chosen -Inf falls below the filler, and weighs 0."""
    spec = RouterSpec(4, "none", weight_function="softmax")
    chosen, sigmoids = [3, 9, 20, 31], np.array([0.9, 0.5, 0.25, 0.01])
    logits = np.full((2, 32), -1e4, np.float32)
    logits[0, chosen] = np.log(sigmoids)
    logits[1, chosen] = [*np.log(sigmoids[:3]), -INF]
    ids, weights = run_native(spec, logits, isa=isa)
    assert ids.tolist() == [chosen, [3, 9, 20, 0]]
    np.testing.assert_allclose(weights[0], sigmoids / sigmoids.sum(), rtol=1e-5)
    np.testing.assert_allclose(weights[1], [*(sigmoids[:3] / sigmoids[:3].sum()), 0], rtol=1e-5)
    assert_routes(spec, logits, isa=isa)


@every_level
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "none"])
def test_ties_go_to_the_lower_index(isa, score):
    """R10."""
    ids, weights = run_native(RouterSpec(2, score, normalize=True), np.ones((1, 8), np.float32), isa=isa)
    assert ids.tolist() == [[0, 1]] and weights.tolist() == [[0.5, 0.5]]
    assert run_native(RouterSpec(2, score), row(1, 2, 2, 2), isa=isa)[0].tolist() == [[1, 2]]
    assert run_native(RouterSpec(2, "none"), row(-1, -0.0, 0.0, -0.0), isa=isa)[0].tolist() == [[1, 2]]


@every_level
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6, 20, 40, 128])
@pytest.mark.parametrize(
    "equal", [[15, 16, 17, 127], [3, 4, 7, 8, 31, 32, 63, 64], list(range(0, 128, 2)), list(range(128))]
)
def test_ties_across_vectors(isa, k, equal):
    """R10. Equal values on both sides of every vector's end, few and many of them."""
    logits = np.zeros((1, 128), np.float32)
    logits[0, equal] = 1.0
    rest = [i for i in range(128) if i not in equal]
    ids, _ = run_native(RouterSpec(k), logits, isa=isa)
    assert ids[0].tolist() == (equal + rest)[:k]


@every_level
def test_ties_of_groups_go_to_the_lower_index(isa):
    for group_score in ("max", "top2_sum"):
        spec = RouterSpec(4, "none", 8, 2, group_score, -INF)
        assert run_native(spec, np.ones((1, 32), np.float32), isa=isa)[0].tolist() == [[0, 1, 2, 3]]
        assert run_native(spec, np.repeat(row(0, 3, 1, 3, 3, 0, 0, 0), 4, axis=1), isa=isa)[0].tolist() == [[4, 5, 6, 7]]


@every_level
def test_two_best_of_a_group_in_one_lane_of_two_vectors(isa):
    """Groups of several vectors: the second best may lie above, below or beside the best."""
    spec = RouterSpec(2, "none", 2, 1, "top2_sum", -INF)
    for first, second in [(0, 16), (16, 0), (4, 8), (0, 1), (63, 47), (62, 63), (5, 37)]:
        logits = np.zeros((1, 128), np.float32)
        logits[0, [first, second]] = 5.0, 4.0
        logits[0, [70, 75]] = 8.0, 0.5  # the best expert, in the worse group
        assert run_native(spec, logits, isa=isa)[0].tolist() == [[first, second]]


@every_level
def test_two_best_of_a_group_that_are_equal(isa):
    """Both count: 5 + 5 beats 8 + 1.5. The pair may share a lane of two vectors, or not."""
    spec = RouterSpec(2, "none", 2, 1, "top2_sum", -INF)
    for first, second in [(0, 16), (4, 8), (0, 1), (47, 63), (5, 37)]:
        logits = np.zeros((1, 128), np.float32)
        logits[0, [first, second]] = 5.0
        logits[0, [70, 75]] = 8.0, 1.5
        assert run_native(spec, logits, isa=isa)[0].tolist() == [[first, second]]


@every_level
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("at", [0, 9, 31])
def test_one_finite_logit(isa, normalize, at):
    """R12."""
    logits = np.full((1, 32), -INF, np.float32)
    logits[0, at] = 0.25
    ids, weights = run_native(RouterSpec(4, normalize=normalize), logits, isa=isa)
    assert ids[0].tolist() == [at, *(i for i in range(32) if i != at)][:4]
    assert weights.tolist() == [[1, 0, 0, 0]]


@every_level
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "none", "sparse_mixer"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("experts", [16, 40])
def test_what_is_not_a_number_stays_in_its_row(isa, score, value, experts):
    """R12. Whatever comes: ids are distinct experts, and other tokens answer as ever."""
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((6, experts)).astype(np.float32)
    spec = RouterSpec(2, score, jitter=0.01)
    _, clean = run_native(spec, logits, isa=isa)
    logits[1, 7], logits[3], logits[4, [0, experts - 1]] = value, value, value
    ids, weights = run_native(spec, logits, isa=isa)
    assert ((ids >= 0) & (ids < experts)).all() and (ids[:, 0] != ids[:, 1]).all()
    np.testing.assert_array_equal(weights[[0, 2, 5]], clean[[0, 2, 5]])
    assert_routes(spec, logits, isa=isa)
    if np.isnan(value) and score != "sparse_mixer":
        assert np.isnan(weights[[1, 3, 4], 0]).all()


@every_level
def test_scores_that_are_all_zero(isa):
    """R14. The sigmoid of -120 is 0 in float32: with an epsilon the weights are 0, too."""
    spec = RouterSpec(8, "sigmoid", normalize=True, normalize_epsilon=1e-20, scale=2.5)
    ids, weights = run_native(spec, np.full((3, 128), -120, np.float32), isa=isa)
    assert (ids == np.arange(8)).all() and (weights == 0).all()
    floor = RouterSpec(8, "sigmoid", normalize=True, normalize_min=1e-12)
    assert (run_native(floor, np.full((3, 128), -120, np.float32), isa=isa)[1] == 0).all()


@every_level
def test_more_experts_than_the_best_groups_hold(isa):
    """The rest are masked ones, in order, with their own scores."""
    for masked in (0.0, -INF):
        spec = RouterSpec(6, "sigmoid", 4, 2, "max", masked)
        ids, weights = run_native(spec, row(0, 1, 2, 3, -1, -2, 1, 5), isa=isa)
        assert ids.tolist() == [[7, 3, 2, 6, 0, 1]]
        np.testing.assert_allclose(weights[0], 1 / (1 + np.exp(-np.array([5.0, 3, 2, 1, 0, 1]))), rtol=1e-6)


def test_no_tokens():
    ids, weights = run_native(RouterSpec(2), np.zeros((0, 8), np.float32))
    assert ids.shape == weights.shape == (0, 2)
