"""I02. Every level that is forced gives the same answer: two differ by no more than the sum of what each promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.elements import ELEMENTS
from support.levels import LEVELS
from support.moe_native import NativeMoe, exact
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights


@pytest.mark.parametrize("layout", ["nk", "kn", "nk_interleaved", "kn_interleaved"])
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("bf16_compute", [False, True])
@pytest.mark.parametrize("count", [1, 20, 90])
def test_any_two_levels(layout, kind, bf16_compute, count):
    weights = make_weights(MoeSpec(4, 60, 50, layout, layout[:2], windows=(kind,), bias=True))
    inputs = make_tokens(random_ids(count, 2, 4), 60, x_type="bfloat16")
    answers = {}
    for isa in LEVELS:
        y = NativeMoe(weights, isa, bf16_compute=bf16_compute).run(inputs, 2)
        answers[isa] = y, exact(weights, inputs, isa, bf16_compute=bf16_compute).error
    for (one, (y, error)), (other, (z, its_error)) in itertools.combinations(answers.items(), 2):
        assert (np.abs(y - z) <= error + its_error).all(), f"{one} and {other}"
