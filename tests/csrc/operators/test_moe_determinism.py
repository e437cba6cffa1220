"""Equal inputs give equal bits: run after run, with any number of threads, and with several callers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.levels import every_level
from support.moe_native import NativeMoe
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn", "kn_interleaved"])
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize("count", [1, 9, 300, 700])
def test_runs_and_threads(isa, layout, kind, count):
    """C03. 700 tokens are sorted by several threads."""
    weights = make_weights(MoeSpec(6, 80, 50, layout, layout[:2], windows=(kind,), bias=True))
    node = NativeMoe(weights, isa)
    inputs = make_tokens(random_ids(count, 3, 6), 80)
    first = node.run(inputs)
    for threads in (1, 2, 7, 16):
        for _ in range(3):
            np.testing.assert_array_equal(node.run(inputs, threads), first)


@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_concurrent_callers(kind):
    weights = make_weights(MoeSpec(6, 64, 48, windows=(kind,)))
    node = NativeMoe(weights)
    counts = (1, 2, 5, 17, 40, 64, 100, 150)
    calls = [make_tokens(random_ids(count, 2, 6, seed=count), 64, seed=count) for count in counts]
    alone = [node.run(inputs) for inputs in calls]
    with ThreadPoolExecutor(len(calls)) as callers:
        for _ in range(5):
            together = callers.map(lambda inputs: node.run(inputs, 2), calls)
            for one, other in zip(alone, together):
                np.testing.assert_array_equal(other, one)


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_a_token_answers_the_same_in_any_company(isa, layout):
    """C03. Other company means other kernels, which sum in other orders: 1e-6 of the largest output is 8 roundings, and
    a single chain over 1500 products would differ by more. (Products of bfloat16: test_moe_bfloat16.py.)"""
    weights = make_weights(MoeSpec(4, 1500, 700, layout, layout))
    node = NativeMoe(weights, isa)
    inputs = make_tokens(random_ids(200, 2, 4), 1500)
    together = node.run(inputs, 2)
    for count in (1, 3, 8, 20, 60):
        alone = node.run(inputs.head(count), 2)
        assert np.abs(alone - together[:count]).max() <= 1e-6 * np.abs(together).max()
