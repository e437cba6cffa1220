"""Parts of one expert in several windows, and experts that no window holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.elements import ELEMENTS
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, MoeWeights, make_weights
from support.windows import WindowWriter

EXPERTS, HIDDEN = 4, 40


def tokens(count: int, experts=EXPERTS):
    return make_tokens(random_ids(count, 2, experts), HIDDEN)


def with_role_windows(weights: MoeWeights) -> MoeWeights:
    """Gate, up and down in a window each: copies of the one window, in which the other two are NaN."""
    (data, kind), = weights.windows
    attributes, windows = dict(weights.attributes), []
    for place, role in enumerate(("gate", "up", "down")):
        copy = np.full_like(data, 0xFF)
        length = weights.matrices[role][0].size * (4 if kind == "float" else 2)
        for offset in attributes[f"{role}_offsets"]:
            copy[offset : offset + length] = data[offset : offset + length]
        attributes[f"{role}_windows"] = [place] * EXPERTS
        windows.append((copy, kind))
    return replace(weights, attributes=attributes, windows=windows)


def with_bias_window(weights: MoeWeights, kind: str) -> MoeWeights:
    """The biases in a window of their own, of this type."""
    writer = WindowWriter(kind, np.random.default_rng(0))
    attributes, biases = dict(weights.attributes), {}
    for role, values in weights.biases.items():
        placed = [writer.place(each.astype(np.float32)) for each in values]
        attributes[f"{role}_bias_offsets"] = [offset for offset, _ in placed]
        attributes[f"{role}_bias_windows"] = [len(weights.windows)] * EXPERTS
        biases[role] = np.array([kept for _, kept in placed])
    return replace(weights, attributes=attributes, windows=[*weights.windows, (writer.bytes(), kind)], biases=biases)


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_gate_up_and_down_in_a_window_each(isa, layout):
    weights = with_role_windows(make_weights(MoeSpec(EXPERTS, HIDDEN, 24, layout, layout)))
    for count in (1, 60):
        inputs = tokens(count)
        assert_within(NativeMoe(weights, isa, guard=True).run(inputs), expected(weights, inputs, isa))


@every_level
@pytest.mark.parametrize("of_weights", ELEMENTS)
@pytest.mark.parametrize("of_biases", ELEMENTS)
def test_biases_of_another_type_than_the_weights(isa, of_weights, of_biases):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 24, windows=(of_weights,), bias=True))
    weights = with_bias_window(weights, of_biases)
    for count in (1, 60):
        inputs = tokens(count)
        assert_within(NativeMoe(weights, isa, guard=True).run(inputs), expected(weights, inputs, isa))


@every_level
def test_experts_of_different_types(isa):
    """Experts 0, 3 in a float window, 1 in a float16 one, 2 in a bfloat16 one; down the other way round."""
    spec = MoeSpec(EXPERTS, HIDDEN, 24, windows=ELEMENTS, down_windows=ELEMENTS[::-1], bias=True)
    weights = make_weights(spec)
    for count in (1, 60):
        inputs = tokens(count)
        assert_within(NativeMoe(weights, isa).run(inputs), expected(weights, inputs, isa))


def test_gate_and_up_of_different_types_are_refused():
    weights = with_role_windows(make_weights(MoeSpec(EXPERTS, HIDDEN, 24, windows=("float16",))))
    weights.windows[1] = (weights.windows[1][0], "bfloat16")
    message = r"expert 0: expected gate and up in one element type and layout, got float16 \[N,K\] and bfloat16 \[N,K\]"
    with pytest.raises(ValueError, match=message):
        NativeMoe(weights)


@every_level
def test_a_missing_expert_is_an_error_only_where_it_is_chosen(isa):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 24, bias=True, missing=frozenset({0, 2})))
    node = NativeMoe(weights, isa)
    inputs = tokens(30, [1, 3])
    assert_within(node.run(inputs), expected(weights, inputs, isa))
    with pytest.raises(ValueError, match=r"expert_ids\[0, 1\] is 2, but this model holds no weights of that expert"):
        node.run(make_tokens(np.array([[1, 2], [1, 3]]), HIDDEN))
    assert_within(node.run(inputs), expected(weights, inputs, isa))


@every_level
def test_the_weight_is_on_the_input_or_on_the_output(isa):
    """R16. Llama-4's experts see a scaled token: another function, since the activation is not linear."""
    for inputs in (tokens(9), make_tokens(random_ids(9, 1, EXPERTS), HIDDEN)):
        results, bounds = [], []
        for where in ("input", "output"):
            weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 24, extra={"weight_on": where}))
            results.append(NativeMoe(weights, isa).run(inputs))
            bounds.append(expected(weights, inputs, isa))
            assert_within(results[-1], bounds[-1])
        scaled_output_is_refused = np.abs(results[1] - bounds[0].value) > bounds[0].error
        assert scaled_output_is_refused.mean() > 0.9
