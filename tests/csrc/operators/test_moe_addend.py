"""Y = addend + the weighted sum: added in float32, before the one rounding of Y."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.elements import ELEMENTS
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids, with_addend
from support.moe_weights import MoeSpec, make_weights

EXPERTS = 4


@every_level
@pytest.mark.parametrize("x_type", ELEMENTS)
@pytest.mark.parametrize("hidden", [40, 1100])
def test_every_type(isa, x_type, hidden):
    """1100 outputs are summed in several blocks; 100 tokens by several items."""
    weights = make_weights(MoeSpec(EXPERTS, hidden, 24, bias=True))
    for count in (1, 9, 100):
        inputs = make_tokens(random_ids(count, 2, EXPERTS), hidden, x_type=x_type, addend=True)
        y = NativeMoe(weights, isa, guard=True).run(inputs, 2)
        assert_within(y, expected(weights, inputs, isa))
        without = NativeMoe(weights, isa).run(replace(inputs, addend=None), 2)
        assert np.abs(y - without).max() > 0.5


@every_level
@pytest.mark.parametrize("x_type", ["float16", "bfloat16"])
def test_y_is_rounded_once(isa, x_type):
    """The sum that a 16-bit Y would give, rounded, plus the addend, rounded again, leaves the bound."""
    weights = make_weights(MoeSpec(EXPERTS, 40, 24))
    inputs = make_tokens(random_ids(64, 2, EXPERTS), 40, x_type=x_type, addend=True)
    bound = expected(weights, inputs, isa)
    plain = replace(inputs, addend=None)
    twice = with_addend(inputs, NativeMoe(weights, isa).run(plain) + inputs.addend).addend
    assert (np.abs(twice - bound.value) > bound.error).any()
    assert_within(NativeMoe(weights, isa).run(inputs), bound)


@every_level
def test_a_large_addend_costs_one_rounding(isa):
    """It is added after the experts are summed, as the graph would."""
    weights = make_weights(MoeSpec(EXPERTS, 40, 24))
    inputs = make_tokens(random_ids(20, 4, EXPERTS), 40)
    alone = NativeMoe(weights, isa).run(inputs)
    large = with_addend(inputs, np.full_like(inputs.x, 4096.0))
    np.testing.assert_array_equal(NativeMoe(weights, isa).run(large), (alone + 4096.0).astype(np.float32))


@every_level
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("count", [2, 60])
def test_nan_stays_in_its_place(isa, poison, count):
    weights = make_weights(MoeSpec(EXPERTS, 40, 24))
    inputs = make_tokens(random_ids(count, 2, EXPERTS), 40, addend=True)
    clean = NativeMoe(weights, isa).run(inputs, 2)
    addend = inputs.addend.copy()
    addend[1, 39] = poison
    y = NativeMoe(weights, isa).run(with_addend(inputs, addend), 2)
    assert not np.isfinite(y[1, 39])
    y[1, 39] = clean[1, 39]
    np.testing.assert_array_equal(y, clean)
