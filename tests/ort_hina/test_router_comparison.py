"""What counts as the same routing, and what does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ort_hina.graph_passes.router_spec import RouterSpec
from ort_hina.router_comparison import Routes, compare_routes, decided, router_rows

EXPERTS = 16
SPECS = (
    RouterSpec(k=3, normalize=True),
    RouterSpec(k=4, score="none", weight_function="softmax"),
    RouterSpec(k=3, score="sigmoid", normalize=True, normalize_epsilon=1e-20, scale=2.5),
)


def rows() -> np.ndarray:
    return router_rows(EXPERTS, np.random.default_rng(0)).astype(np.float64)


def scores(spec: RouterSpec, logits: np.ndarray) -> np.ndarray:
    if spec.score == "softmax":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    return 1 / (1 + np.exp(-logits)) if spec.score == "sigmoid" else logits


def answers(spec: RouterSpec, logits: np.ndarray) -> Routes:
    """In float64."""
    with np.errstate(invalid="ignore"):
        table = scores(spec, logits)
        ids = np.argsort(-table, axis=1, kind="stable")[:, : spec.k]
        weights = np.take_along_axis(table, ids, 1)
        if spec.weight_function == "softmax":
            weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
        if spec.normalize:
            weights = weights / (weights.sum(axis=1, keepdims=True) + spec.normalize_epsilon)
    return Routes(ids, weights * spec.scale, table, None)


@pytest.mark.parametrize("spec", SPECS)
def test_itself_in_float32_and_in_another_order(spec):
    logits = rows()
    expected = answers(spec, logits)
    order = np.random.default_rng(1).permutation(spec.k)
    result = compare_routes(spec, logits, expected, expected.ids[:, order], expected.weights[:, order].astype(np.float32))
    assert result.state == "verified" and result.difference <= result.tolerance < 1e-4 * spec.scale


@pytest.mark.parametrize("spec", SPECS)
def test_a_wrong_expert_in_one_row(spec):
    logits = rows()
    expected = answers(spec, logits)
    ids = expected.ids.copy()
    ids[5, 1] = np.setdiff1d(np.arange(EXPERTS), ids[5])[0]
    result = compare_routes(spec, logits, expected, ids, expected.weights)
    assert result.state == "failed" and "row 5: the fused node chooses experts" in result.detail


@pytest.mark.parametrize("spec", SPECS)
def test_a_tie_in_the_wrong_order(spec):
    logits = np.zeros((4, EXPERTS))
    expected = answers(spec, logits)
    result = compare_routes(spec, logits, expected, expected.ids + 1, expected.weights)
    assert result.state == "failed"


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("change", ["not normalised", "scaled", "swapped", "NaN"])
def test_wrong_weights(spec, change):
    logits = rows()
    expected = answers(spec, logits)
    weights = expected.weights.copy()
    if change == "not normalised":
        weights *= 1.001
    elif change == "scaled":
        weights *= 2.5
    elif change == "swapped":
        weights[:, :2] = weights[:, 1::-1]
    else:
        weights[3, 0] = np.nan
    result = compare_routes(spec, logits, expected, expected.ids, weights)
    assert result.state == "failed" and "weight" in result.detail


def test_a_choice_that_hangs_on_rounding_is_not_judged():
    spec = RouterSpec(k=1)
    logits = np.array([[1.0, 1.0 + 1e-8, 0.0], [1.0, 0.5, 0.0], [1.0, 1.0, 0.0]])
    expected = answers(spec, logits)
    np.testing.assert_array_equal(decided(spec, logits, expected, np.full(logits.shape, 1e-7)), [False, True, True])
    ids = expected.ids.copy()
    ids[0] = 0
    assert compare_routes(spec, logits, expected, ids, expected.weights).state == "verified"


def test_nothing_but_rounding_is_inconclusive():
    spec = RouterSpec(k=1)
    logits = np.array([[1.0, 1.0 + 1e-8, 0.0]] * 3)
    expected = answers(spec, logits)
    assert compare_routes(spec, logits, expected, expected.ids, expected.weights).state == "inconclusive"


def test_groups_within_rounding_are_not_judged():
    spec = RouterSpec(k=1, num_groups=2, top_groups=1)
    table = np.array([[0.5, 0.1, 0.5 + 1e-9, 0.2], [0.5, 0.1, 0.3, 0.2]])
    masked = table * [[0, 0, 1, 1], [1, 1, 0, 0]]
    expected = Routes(masked.argmax(axis=1)[:, None], masked.max(axis=1)[:, None], masked, table)
    np.testing.assert_array_equal(decided(spec, table, expected, np.full(table.shape, 1e-7)), [False, True])


def test_another_shape():
    spec = RouterSpec(k=3)
    logits = rows()
    expected = answers(spec, logits)
    result = compare_routes(spec, logits, expected, expected.ids[:, :2], expected.weights[:, :2])
    assert result.state == "failed" and "shapes" in result.detail


def test_a_bias_separates_equal_logits():
    spec = RouterSpec(k=1, score="sigmoid")
    logits = np.zeros((1, 3))
    table = np.array([[0.5, 0.5 + 1e-9, 0.1]])
    routes = Routes(np.array([[1]]), np.array([[0.5]]), table, None, np.array([0.0, 1e-9, -0.4]))
    assert not decided(spec, logits, routes, np.full((1, 3), 1e-7)).any()
    equal = dataclasses.replace(routes, table=np.array([[0.5, 0.5, 0.1]]), bias=np.array([0.0, 0.0, -0.4]))
    assert decided(spec, logits, equal, np.full((1, 3), 1e-7)).all()
