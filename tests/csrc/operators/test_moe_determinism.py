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
@pytest.mark.parametrize("count", [1, 9, 300])
def test_runs_and_threads(isa, layout, count):
    weights = make_weights(MoeSpec(6, 160, 130, layout, layout[:2], bias=True))
    node = NativeMoe(weights, isa)
    inputs = make_tokens(random_ids(count, 3, 6), 160)
    first = node.run(inputs)
    for threads in (1, 2, 7, 16):
        for _ in range(5):
            np.testing.assert_array_equal(node.run(inputs, threads), first)


def test_concurrent_callers():
    weights = make_weights(MoeSpec(6, 64, 48))
    node = NativeMoe(weights)
    counts = (1, 2, 5, 17, 40, 64, 100, 150)
    calls = [make_tokens(random_ids(count, 2, 6, seed=count), 64, seed=count) for count in counts]
    alone = [node.run(inputs) for inputs in calls]
    with ThreadPoolExecutor(len(calls)) as callers:
        for _ in range(5):
            together = callers.map(lambda inputs: node.run(inputs, 2), calls)
            for one, other in zip(alone, together):
                np.testing.assert_array_equal(other, one)
