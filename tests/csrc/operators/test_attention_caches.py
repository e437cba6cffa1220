"""Caches that are carried over: in ranges of rows, on any number of threads, whatever lies beyond the keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.attention_native import assert_attends, run_native
from support.attention_reference import make_case, present_caches
from support.elements import ELEMENTS

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("past", "capacity"), [(3000, 3000), (3000, 9000), (10, 7000), (0, 5000)])
@pytest.mark.parametrize("value_size", [32, 100])
def test_long_caches_apart(kind, threads, past, capacity, value_size):
    """One head, so that its rows are what threads share. Rows beyond the keys are 0, whatever the past has there."""
    case = make_case(
        RNG, batch=2, queries=3, past=past, capacity=capacity, value_size=value_size, kind=kind, total=max(capacity, past + 3),
        seqlens_k=np.array([past + 2, past // 2 + 2], np.int32), window=40,
    )  # fmt: skip
    for b, old in enumerate((past, past // 2)):
        case.past_key[b, :, old:] = np.nan
        case.past_value[b, :, old:] = np.nan
    assert_attends(case, threads=threads)


@pytest.mark.parametrize("queries", [31, 32, 33, 200])
def test_many_new_tokens(queries):
    """Cut into items of their own; those of padding enter no cache."""
    case = make_case(RNG, batch=3, kv_heads=2, group=2, queries=queries, rotary=8)
    case = replace(case, seqlens_k=np.array([queries - 1, 5, queries // 2], np.int32))
    expected = run_native(case)
    keys, values = present_caches(case)
    np.testing.assert_allclose(expected[1], keys.values, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(expected[2], values)
    for threads in (2, 5):
        for found, wanted in zip(run_native(case, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_keys_that_stay_as_given_keep_their_bits():
    """Without norm and rotation a row is copied: the sign of a zero too."""
    case = make_case(RNG, queries=2, past=1)
    case.key[...] = -0.0
    _, keys, _ = run_native(case)
    assert np.signbit(keys[:, :, 1:]).all()
