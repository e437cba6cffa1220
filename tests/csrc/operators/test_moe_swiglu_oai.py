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
    assert_within(y, expected(weights, inputs, isa))
    return y


def tokens(seed: int, count: int = 9) -> MoeTokens:
    return make_tokens(random_ids(count, 2, EXPERTS, seed=seed), HIDDEN, seed=seed)


@every_level
@pytest.mark.parametrize("layout", ["kn_interleaved", "nk_interleaved", "kn_concatenated", "nk_concatenated"])
def test_layout_parameters_and_limit_are_independent(isa, layout):
    """A01."""
    parameters = [
        {"activation_alpha": 1.702, "activation_beta": 1.0},
        {"activation_alpha": 1.0, "activation_beta": 0.0},
    ]
    limits = [{"swiglu_limit": 7.0}, {}]
    results = [run(isa, one | other, layout) for one, other in itertools.product(parameters, limits)]
    for one, other in itertools.combinations(results, 2):
        assert np.abs(one - other).max() > 0.1  # every parameter matters at these magnitudes


@every_level
def test_absent_attributes_are_the_documented_defaults(isa):
    """A02."""
    explicit = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": float("inf")}
    np.testing.assert_array_equal(run(isa, {}), run(isa, explicit))


@every_level
def test_a_limit_of_zero_is_a_limit(isa):
    """A02. Not the absence of one: `run` compares with a gate of at most 0 and an up of 0."""
    assert np.abs(run(isa, {"swiglu_limit": 0.0}) - run(isa, {})).max() > 0.1


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("layout", ["kn_interleaved", "nk_interleaved"])
def test_interleaved_biases(isa, kind, layout):
    """A03. Gate and up, and their biases, in turn: nothing was taken apart when the file was loaded. Few tokens and many."""
    weights = make_weights(
        MoeSpec(EXPERTS, HIDDEN, 37, layout, windows=(kind,), bias=True, activation="swiglu_oai"), seed=2
    )
    assert weights.attributes["gate_bias_stride"] == weights.attributes["up_bias_stride"] == 2
    node = NativeMoe(weights, isa, guard=True)
    for count in (1, 9, 70):
        inputs = tokens(2, count)
        assert_within(node.run(inputs), expected(weights, inputs, isa))


@every_level
@pytest.mark.parametrize("base", ["nk", "kn"])
def test_the_order_in_memory_does_not_matter(isa, base):
    """The same values, separate, concatenated and interleaved: the same answers, within their bounds."""
    inputs = tokens(3)
    answers = []
    for layout in (base, f"{base}_concatenated", f"{base}_interleaved"):
        spec = MoeSpec(EXPERTS, HIDDEN, 37, layout, bias=True, activation="swiglu_oai", extra={"swiglu_limit": 1.0})
        weights = make_weights(spec, seed=3)
        answers.append(expected(weights, inputs, isa))
        np.testing.assert_array_equal(answers[-1].value, answers[0].value)
        assert_within(NativeMoe(weights, isa).run(inputs), answers[0])
