"""Sigmoid gates: an expert's weight is multiplied by sigmoid(x · g), as that of Qwen2-MoE's shared expert is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.elements import ELEMENTS
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids, with_addend, with_x, without_ids
from support.moe_weights import MoeSpec, make_weights

HIDDEN, EXPERTS = 70, 4
ALL = frozenset(range(EXPERTS))


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("x_type", ELEMENTS)
@pytest.mark.parametrize("stride", [1, 2, 7])
def test_every_type_and_stride(isa, kind, x_type, stride):
    """The gate's arithmetic is that of float32 at every level."""
    spec = MoeSpec(EXPERTS, HIDDEN, 24, windows=(kind,), sigmoid_gates=ALL, sigmoid_gate_stride=stride, bias=True)
    weights = make_weights(spec)
    node = NativeMoe(weights, isa, guard=True)
    for count in (1, 5, 100):
        for inputs in (
            make_tokens(random_ids(count, 2, EXPERTS, repeats=True), HIDDEN, x_type=x_type),
            without_ids(count, EXPERTS, HIDDEN, x_type=x_type, addend=True),
        ):
            y = node.run(inputs, 2)
            assert_within(y, expected(weights, inputs, isa))
            np.testing.assert_array_equal(node.run(inputs, 7), y)


@every_level
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_the_bound_notices_a_gate_of_bfloat16(isa, kind):
    """Products of rounded factors would leave it. (Few of them here: the bound grows with their number.)"""
    hidden = 8
    weights = make_weights(MoeSpec(1, hidden, 4, windows=("float",), down_windows=(kind,), sigmoid_gates=frozenset({0})))
    inputs = without_ids(50, 1, hidden)
    bound = expected(weights, inputs, isa)
    x = (inputs.x.astype(np.float32).view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    z, rounded = (each.astype(np.float64) @ weights.sigmoid_gates[0] for each in (inputs.x, x))
    share = ((1 + np.exp(-z)) / (1 + np.exp(-rounded)))[:, None]
    y = NativeMoe(weights, isa).run(inputs)
    assert_within(y, bound)
    assert (np.abs(y * share - bound.value) > bound.error).mean() > 0.7


@every_level
def test_some_experts_only(isa):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 24, sigmoid_gates=frozenset({1, 2})))
    plain = replace(weights, sigmoid_gates=None, attributes={
        name: value for name, value in weights.attributes.items() if not name.startswith("sigmoid_gate")
    })  # fmt: skip
    for ids in (np.array([[1]]), random_ids(30, 1, EXPERTS)):
        inputs = make_tokens(ids, HIDDEN)
        y, ungated = NativeMoe(weights, isa).run(inputs, 2), NativeMoe(plain, isa).run(inputs, 2)
        assert_within(y, expected(weights, inputs, isa))
        gated = np.isin(inputs.ids[:, 0], (1, 2))
        np.testing.assert_array_equal(y[~gated], ungated[~gated])
        assert (y[gated] != ungated[gated]).mean() > 0.9


@every_level
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize("count", [1, 9, 100])
def test_routed_plus_gated_shared_expert(isa, kind, count):
    """R17. Two nodes, the second one adding to the first: routed + sigmoid(x·g)·shared(x). Sizes as 1408 to 5632."""
    routed = make_weights(MoeSpec(6, HIDDEN, 44, windows=(kind,)), seed=1)
    shared = make_weights(MoeSpec(1, HIDDEN, 176, windows=(kind,), sigmoid_gates=frozenset({0})), seed=2)
    inputs = make_tokens(random_ids(count, 2, 6), HIDDEN)
    first = NativeMoe(routed, isa).run(inputs, 2)
    assert_within(first, expected(routed, inputs, isa))
    second = with_addend(with_x(without_ids(count, 1, HIDDEN), inputs.x), first)
    y = NativeMoe(shared, isa).run(second, 2)
    assert_within(y, expected(shared, second, isa))

    ungated = expected(replace(shared, sigmoid_gates=None), replace(second, addend=None), isa)
    gate = 1 / (1 + np.exp(-inputs.x @ shared.sigmoid_gates[0]))[:, None]
    error = expected(shared, second, isa).error + ungated.error
    assert (np.abs(y - (first + gate * ungated.value)) <= error).all()


@every_level
@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_gates_that_are_wide_open_or_shut(isa, scale):
    """Where e^-z overflows the gate is 0, not NaN."""
    weights = make_weights(MoeSpec(1, HIDDEN, 24, sigmoid_gates=frozenset({0})))
    inputs = without_ids(40, 1, HIDDEN)
    z = inputs.x @ weights.sigmoid_gates[0] * scale
    (data, _), = weights.windows
    offset = weights.attributes["sigmoid_gate_offsets"][0]
    gate = (weights.sigmoid_gates[0] * scale).astype(np.float32)
    data[offset : offset + gate.nbytes] = gate.view(np.uint8)
    y = NativeMoe(weights, isa).run(inputs)
    assert (np.abs(z) > 90).any()
    np.testing.assert_array_equal(y[z < -110], 0)
    plain = replace(weights, sigmoid_gates=None, attributes=weights.attributes | {"sigmoid_gate_offsets": [-1]})
    np.testing.assert_array_equal(y[z > 110], NativeMoe(plain, isa).run(inputs)[z > 110])


@every_level
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_stays_in_its_row(isa, poison):
    weights = make_weights(MoeSpec(2, HIDDEN, 24, sigmoid_gates=frozenset({0, 1})))
    for count in (2, 40):
        inputs = without_ids(count, 2, HIDDEN)
        clean = NativeMoe(weights, isa).run(inputs, 2)
        x = inputs.x.copy()
        x[1, HIDDEN - 1] = poison
        y = NativeMoe(weights, isa).run(with_x(inputs, x), 2)
        assert not np.isfinite(y[1]).any()
        np.testing.assert_array_equal(np.delete(y, 1, axis=0), np.delete(clean, 1, axis=0))


@every_level
def test_the_gate_of_an_expert_that_nobody_chose_is_not_read(isa):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 24, sigmoid_gates=ALL))
    inputs = make_tokens(random_ids(20, 2, [0, 2]), HIDDEN)
    clean = NativeMoe(weights, isa).run(inputs, 2)
    (data, _), = weights.windows
    for expert in (1, 3):
        offset = weights.attributes["sigmoid_gate_offsets"][expert]
        data[offset : offset + 4 * HIDDEN] = 0xFF
    np.testing.assert_array_equal(NativeMoe(weights, isa).run(inputs, 2), clean)


def test_gates_and_weights_on_the_input_are_refused():
    weights = make_weights(MoeSpec(2, HIDDEN, 24, sigmoid_gates=frozenset({0}), extra={"weight_on": "input"}))
    with pytest.raises(ValueError, match="attribute weight_on: expected output, since there are sigmoid_gate_offsets"):
        NativeMoe(weights)
