"""gpt-oss's activation: defaults, limits, interleaved gate and up with interleaved biases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.elements import ELEMENTS
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import MoeTokens, make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

HIDDEN, EXPERTS = 48, 4


def run(isa: str, extra: dict, layout: str = "kn_interleaved", seed: int = 1, **spec) -> np.ndarray:
    """Y, known to be right for these attributes. Gate and up reach beyond ±20."""
    weights = make_weights(
        MoeSpec(EXPERTS, HIDDEN, 40, layout, "kn", scale=8.0, activation="swiglu_oai", extra=extra, **spec), seed
    )
    inputs = tokens(seed)
    y = NativeMoe(weights, isa).run(inputs)
    assert_within(y, expected(weights, inputs))
    return y


def tokens(seed: int) -> MoeTokens:
    return make_tokens(random_ids(9, 2, EXPERTS, seed=seed), HIDDEN, seed=seed)


@every_level
@pytest.mark.parametrize("layout", ["kn_interleaved", "nk_interleaved", "kn_concatenated", "nk_concatenated"])
def test_layout_parameters_and_limit_are_independent(isa, layout):
    parameters = [{"activation_alpha": 1.702, "activation_beta": 1.0}, {"activation_alpha": 1.0, "activation_beta": 0.0}]
    limits = [{"swiglu_limit": 7.0}, {}]
    results = [run(isa, one | other, layout) for one, other in itertools.product(parameters, limits)]
    for one, other in itertools.combinations(results, 2):
        assert np.abs(one - other).max() > 0.1  # every parameter matters at these magnitudes


@every_level
def test_absent_attributes_are_the_documented_defaults(isa):
    explicit = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": float("inf")}
    np.testing.assert_array_equal(run(isa, {}), run(isa, explicit))


@every_level
def test_a_limit_of_zero_is_a_limit(isa):
    y = run(isa, {"swiglu_limit": 0.0})
    # The gate is at most 0 and up is 0: h = g·sigmoid(alpha·g)·beta, which no up-weight reaches.
    assert np.abs(y - run(isa, {})).max() > 0.1


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("layout", ["kn_interleaved", "nk_interleaved"])
def test_interleaved_biases(isa, kind, layout):
    weights = make_weights(
        MoeSpec(EXPERTS, HIDDEN, 37, layout, windows=(kind,), bias=True, activation="swiglu_oai"), seed=2
    )
    assert weights.attributes["gate_bias_stride"] == weights.attributes["up_bias_stride"] == 2
    inputs = tokens(2)
    assert_within(NativeMoe(weights, isa, guard=True).run(inputs), expected(weights, inputs))


@every_level
def test_what_is_interleaved_equals_what_is_not(isa):
    """The same values in another order in memory: the same numbers, within both bounds."""
    spec = dict(experts=EXPERTS, hidden=HIDDEN, intermediate=37, bias=True, activation="swiglu_oai")
    inputs = tokens(3)
    weights = {layout: make_weights(MoeSpec(gate_up_layout=layout, **spec), seed=3) for layout in ("nk", "nk_interleaved")}
    np.testing.assert_array_equal(weights["nk_interleaved"].matrices["gate"].shape, weights["nk"].matrices["gate"].shape)
    for each in weights.values():
        assert_within(NativeMoe(each, isa).run(inputs), expected(each, inputs))
