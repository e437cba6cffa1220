"""The reference of attention against PyTorch in float64, and whether its bounds would tell a wrong answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from .attention_native import assert_answers, run_native
from .attention_reference import attend, make_case, present_caches, visible

RNG = np.random.default_rng(0)
CASE = make_case(RNG, batch=2, kv_heads=2, group=3, size=64, value_size=48, queries=20, past=11, window=9, rotary=16)
SINK = np.array([0, 1, 2, 0, 1, 2], np.float32)


@pytest.mark.parametrize("changes", [{}, {"window": -1}, {"window": -1, "causal": False}, {"scale": 0.3}])
def test_pytorch_says_the_same(changes):
    case = replace(CASE, cos=None, sin=None, **changes)
    keys, values = present_caches(case)
    repeated = [torch.from_numpy(x).repeat_interleave(3, dim=1) for x in (keys.values, values)]
    mask = torch.from_numpy(np.stack([visible(case, b) for b in range(2)])[:, None])
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.from_numpy(case.query.astype(np.float64)).transpose(1, 2), *repeated, attn_mask=mask,
        scale=case.scale or None,
    )  # fmt: skip
    found = attend(case, keys.values, values).values
    np.testing.assert_allclose(found, expected.transpose(1, 2).numpy(), rtol=1e-7, atol=1e-7)


def test_the_bound_is_small():
    for kind, most in (("float", 1e-4), ("float16", 1e-3), ("bfloat16", 8e-3)):
        case = replace(CASE, kind=kind)
        keys, values = present_caches(case)
        answer = attend(case, keys.values, values)
        assert answer.errors.max() < most * np.abs(answer.values).max()


def test_scores_whose_errors_are_large_still_have_a_bound():
    """A mean of values is not larger than the largest of them."""
    case = replace(CASE, kind="bfloat16", query=CASE.query * 100)
    keys, values = present_caches(case)
    answer = attend(case, keys.values, values, "bfloat16")
    most = np.abs(values).max(axis=2).repeat(3, axis=1)[:, None]
    assert (answer.errors > 0).all() and (answer.errors < 2.05 * most).all()
    assert (answer.errors > np.abs(answer.values)).mean() > 0.5
    assert_answers(case, run_native(case))


MISTAKES = {
    "window of one more": {"window": 10},
    "window of one less": {"window": 8},
    "no window": {"window": -1},
    "not causal": {"causal": False, "window": -1},
    "another scale": {"scale": 0.126},
    "soft cap": {"softcap": 4.0},
    "sink": {"sink": SINK},
    "smooth softmax": {"smooth": True},
    "interleaved": {"interleaved": True},
    "no rotation": {"cos": None, "sin": None},
    "positions": {"position_ids": np.tile(np.arange(20), (2, 1))},
    "lengths": {"seqlens_k": np.array([30, 29], np.int32)},
    "no lengths": {"seqlens_k": None, "total": 30},
    "mask of all but one": {"mask": np.arange(31)[None] + np.zeros((2, 1)) != 15},
    "padding": {"mask": np.arange(31)[None] + np.zeros((2, 1)) >= 13},
    "norm of queries": {"q_norm": np.ones(64, np.float32)},
    "norm of keys": {"k_norm": np.ones(64, np.float32)},
    "angles of each token": {"cos": CASE.cos[None, :20], "sin": CASE.sin[None, :20]},
    "bias": {"bias": np.full((1, 1, 20, 31), 0.0, np.float32) + np.linspace(0, 0.01, 31, dtype=np.float32)},
}


@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_answer_is_outside_the_bounds(mistake, kind):
    if kind == "bfloat16" and mistake in ("another scale", "bias"):
        pytest.skip("as small as the type's rounding")
    case = replace(CASE, kind=kind)
    answer = run_native(case)
    assert_answers(case, answer)
    with pytest.raises(AssertionError):
        assert_answers(case, run_native(replace(case, **MISTAKES[mistake])))


NORMED = replace(
    CASE, q_norm=np.linspace(0.5, 2, 64).astype(np.float32), k_norm=np.linspace(2, 0.5, 128).astype(np.float32)
)
NORM_MISTAKES = {
    "over the token": {"q_norm": np.tile(NORMED.q_norm, 6)},
    "over each head": {"k_norm": NORMED.k_norm[:64]},
    "another head's weight": {"k_norm": np.roll(NORMED.k_norm, 64)},
    "another epsilon": {"epsilon": 1e-2},
    "no norm of queries": {"q_norm": None},
    "no norm of keys": {"k_norm": None},
}


@pytest.mark.parametrize("mistake", NORM_MISTAKES)
def test_a_wrong_norm_is_outside_the_bounds(mistake):
    answer = run_native(NORMED)
    assert_answers(NORMED, answer)
    with pytest.raises(AssertionError):
        assert_answers(NORMED, run_native(replace(NORMED, **NORM_MISTAKES[mistake])))
