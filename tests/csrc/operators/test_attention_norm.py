"""q_norm_weight and k_norm_weight: RMSNorm of new queries and keys, over each head or over the whole token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.attention_native import assert_attends, run_native
from support.attention_reference import AttentionCase, make_case
from support.elements import ELEMENTS
from support.levels import every_level

RNG = np.random.default_rng(0)
HEADS, KV_HEADS, SIZE = 6, 2, 40


def weights(heads: int) -> np.ndarray:
    return RNG.uniform(0.5, 2, heads * SIZE).astype(np.float32)


def normed_case(**rest) -> AttentionCase:
    return make_case(RNG, batch=2, kv_heads=KV_HEADS, group=HEADS // KV_HEADS, size=SIZE, **rest)


def normalised(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """PyTorch's, in float64."""
    batch, queries, heads, size = x.shape
    shape = (batch, queries, heads, size) if weight.size == size else (batch, queries, heads * size)
    rows = torch.from_numpy(x.astype(np.float64)).reshape(shape)
    normed = torch.nn.functional.rms_norm(rows, rows.shape[-1:], torch.from_numpy(weight.astype(np.float64)), epsilon)
    return normed.reshape(x.shape).numpy()


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("whole_token", [False, True])
@pytest.mark.parametrize(("queries", "past"), [(1, 0), (9, 0), (1, 40), (3, 40), (70, 10), (1, 1200)])
def test_against_the_reference(isa, kind, whole_token, queries, past):
    heads = (HEADS, KV_HEADS) if whole_token else (1, 1)
    case = normed_case(queries=queries, past=past, kind=kind, rotary=16)
    case = replace(case, q_norm=weights(heads[0]), k_norm=weights(heads[1]))
    assert_attends(case, isa=isa, threads=2)


@every_level
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
@pytest.mark.parametrize("q_heads", [0, 1, HEADS])
@pytest.mark.parametrize("k_heads", [0, 1, KV_HEADS])
def test_either_or_both_of_each_width(isa, epsilon, q_heads, k_heads):
    """The same as the norm before the node; keys of the past are normalised already."""
    case = normed_case(queries=4, past=7, rotary=8)
    q, k = (weights(n) if n else None for n in (q_heads, k_heads))
    before = replace(
        case,
        query=case.query if q is None else normalised(case.query, q, epsilon).astype(np.float32),
        key=case.key if k is None else normalised(case.key, k, epsilon).astype(np.float32),
    )
    found = assert_attends(replace(case, q_norm=q, k_norm=k, epsilon=epsilon), isa=isa)
    for own, wanted in zip(found, run_native(before, isa=isa), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("whole_token", [False, True])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e4])
def test_small_and_large_tokens(whole_token, scale):
    """Epsilon counts where the mean is as small."""
    heads = (HEADS, KV_HEADS) if whole_token else (1, 1)
    case = normed_case(queries=5, past=3, width=scale)
    case = replace(case, q_norm=weights(heads[0]), k_norm=weights(heads[1]), past_key=case.past_key / np.float32(scale))
    assert_attends(case)


def test_a_token_of_zeros_stays_one():
    case = normed_case(queries=3)
    case = replace(case, key=np.zeros_like(case.key), k_norm=weights(1), q_norm=weights(HEADS))
    _, keys, _ = assert_attends(case)
    assert (keys == 0).all()


@every_level
def test_epsilons_of_their_own(isa):
    """com.microsoft's q_norm_epsilon and k_norm_epsilon come before qk_norm_epsilon."""
    case = replace(normed_case(queries=3), q_norm=weights(1), k_norm=weights(1))
    before = replace(
        case, query=normalised(case.query, case.q_norm, 0.5).astype(np.float32), q_norm=None,
        key=normalised(case.key, case.k_norm, 0.25).astype(np.float32), k_norm=None,
    )  # fmt: skip
    expected = run_native(before, isa=isa)
    for own in (
        {"qk_norm_epsilon": 0.5, "k_norm_epsilon": 0.25}, {"qk_norm_epsilon": 0.25, "q_norm_epsilon": 0.5},
        {"q_norm_epsilon": 0.5, "k_norm_epsilon": 0.25},
    ):  # fmt: skip
        attributes = {name: value for name, value in case.attributes().items() if name != "qk_norm_epsilon"} | own
        found = run_native(case, isa=isa, attributes=attributes)
        for own_array, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(own_array, wanted, rtol=0, atol=1e-5)


@every_level
def test_a_token_that_is_not_a_number_stays_alone(isa):
    for heads, touched in (((1, 1), 1), ((HEADS, KV_HEADS), KV_HEADS)):
        case = normed_case(queries=20)
        case.key[0, 7, 1, 3] = np.nan
        output, keys, _ = run_native(replace(case, q_norm=weights(heads[0]), k_norm=weights(heads[1])), isa=isa)
        assert np.isnan(keys).sum() == touched * SIZE
        assert np.isfinite(output[1]).all() and np.isfinite(output[0, :7]).all()


def test_the_number_of_threads_changes_no_bit():
    case = replace(normed_case(queries=70, past=30, rotary=8), q_norm=weights(HEADS), k_norm=weights(KV_HEADS))
    expected = run_native(case)
    for threads in (2, 5):
        for found, wanted in zip(run_native(case, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
