"""What the tests of the Router operator compare with is right, and narrow enough to find what is a little wrong."""

from __future__ import annotations

import numpy as np
import pytest

from ort_hina.graph_passes.router_spec import RouterSpec

from .router_native import assert_answers
from .router_reference import route, select, weights_of

SIGMOID = RouterSpec(3, "sigmoid", 4, 2, "top2_sum", normalize=True, normalize_epsilon=1e-20, scale=2.5)
LOGITS = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)
BIAS = np.random.default_rng(1).standard_normal(32).astype(np.float32)


def literally(spec: RouterSpec, logits: np.ndarray, bias: np.ndarray) -> tuple[list[int], list[float]]:
    """One token of `SIGMOID`, step by step with Python's numbers."""
    score = [1 / (1 + np.exp(-float(x))) for x in logits]
    value = [s + float(b) for s, b in zip(score, bias)]
    size = len(value) // spec.num_groups
    groups = [value[g * size : (g + 1) * size] for g in range(spec.num_groups)]
    worth = [sum(sorted(group)[-2:]) for group in groups]
    best = sorted(range(spec.num_groups), key=lambda g: -worth[g])[: spec.top_groups]
    masked = [v if i // size in best else spec.masked_score for i, v in enumerate(value)]
    ids = sorted(range(len(masked)), key=lambda i: -masked[i])[: spec.k]
    total = sum(score[i] for i in ids) + spec.normalize_epsilon
    return ids, [spec.scale * score[i] / total for i in ids]


def test_is_what_the_words_say():
    ids, weights = route(SIGMOID, LOGITS, BIAS)
    for t, logits in enumerate(LOGITS):
        expected_ids, expected = literally(SIGMOID, logits, BIAS)
        assert ids[t].tolist() == expected_ids
        np.testing.assert_allclose(weights[t], expected, rtol=1e-14)


def test_takes_any_leading_dimensions():
    ids, weights = route(SIGMOID, LOGITS.reshape(5, 8, 32), BIAS)
    assert ids.shape == weights.shape == (5, 8, 3)
    np.testing.assert_array_equal(ids.reshape(40, 3), route(SIGMOID, LOGITS, BIAS)[0])


@pytest.mark.parametrize("spec", [RouterSpec(3), SIGMOID, RouterSpec(3, "none", weight_function="softmax", scale=2.5)])
def test_a_weight_that_is_a_little_wrong_is_found(spec):
    selection = select(spec, LOGITS, BIAS)
    right = weights_of(spec, selection)
    assert_answers(spec, selection, selection.ids, right.astype(np.float32), 32)
    for wrong in (right * (1 + 1e-4), right + 1e-3 * right[:, ::-1], right[:, ::-1]):
        with pytest.raises(AssertionError, match="outside their bounds"):
            assert_answers(spec, selection, selection.ids, wrong.astype(np.float32), 32)


def test_another_order_and_a_repeated_expert_are_found():
    selection = select(SIGMOID, LOGITS, BIAS)
    weights = weights_of(SIGMOID, selection).astype(np.float32)
    with pytest.raises(AssertionError):
        assert_answers(SIGMOID, selection, selection.ids[:, ::-1], weights, 32)
    with pytest.raises(AssertionError, match="chosen twice"):
        assert_answers(SIGMOID, selection, selection.ids[:, [0, 1, 1]], weights, 32)


def test_what_hangs_on_a_rounding_is_undecided_and_an_exact_tie_is_not():
    logits = np.array([[1, 1, 0, 0], [1, 1 + 2**-23, 0, 0], [1, 1.1, 0, 0], [1, 0, 0.5, 0.5 + 2**-24]], np.float32)
    assert select(RouterSpec(1, "sigmoid"), logits).decided.tolist() == [True, False, True, True]
    assert select(RouterSpec(2, "sigmoid"), logits).decided.tolist() == [True, False, True, False]
    assert select(RouterSpec(2, "none"), logits).decided.all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RouterSpec(33), "k"), (RouterSpec(0), "k"), (RouterSpec(2, num_groups=5), "groups"),
        (RouterSpec(2, num_groups=4, top_groups=5), "groups"), (RouterSpec(3, "sparse_mixer"), "sparse_mixer"),
        (RouterSpec(2, num_groups=32, top_groups=4, group_score="top2_sum"), "top2_sum"),
    ],
)  # fmt: skip
def test_what_is_no_router_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        route(spec, LOGITS)
