"""Products of bfloat16: of weights of that type at the levels that have such instructions, and of any weights on request."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.elements import ELEMENTS
from support.layouts import GATE_UP, SINGLE
from support.levels import LEVELS, ROUNDS_TO_BFLOAT16, every_level
from support.moe_native import NativeMoe, assert_within, exact, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

HIDDEN, INTERMEDIATE, EXPERTS = 70, 45, 5
# Kernels for few tokens, a block with a few more, several blocks.
COUNTS = (1, 3, 40, 150)
every_bf16_level = pytest.mark.parametrize("isa", [isa for isa in LEVELS if isa in ROUNDS_TO_BFLOAT16])


def tokens(count: int, k: int = 2, **arguments):
    return make_tokens(random_ids(count, k, EXPERTS, seed=count), HIDDEN, seed=count, **arguments)


@every_bf16_level
@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("gate_up", GATE_UP)
@pytest.mark.parametrize("down", SINGLE)
def test_on_request_weights_are_rounded_too(isa, kind, gate_up, down):
    spec = MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE, gate_up, down, windows=(kind,), bias=True, padding=3)
    weights = make_weights(spec, seed=1)
    node = NativeMoe(weights, isa, guard=True, bf16_compute=True)
    for count in COUNTS:
        inputs = tokens(count)
        assert_within(node.run(inputs, 2), expected(weights, inputs, isa, bf16_compute=True))


@every_level
@pytest.mark.parametrize("gate_up", GATE_UP)
@pytest.mark.parametrize("kinds", list(itertools.permutations(ELEMENTS, 2)))
def test_gate_and_up_of_another_type_than_down(isa, gate_up, kinds):
    """Rows of float32 pass into blocks of bfloat16 and back between the two matmuls."""
    of_gate_up, of_down = kinds
    for down in SINGLE:
        spec = MoeSpec(
            EXPERTS, HIDDEN, INTERMEDIATE, gate_up, down, windows=(of_gate_up,), down_windows=(of_down,), bias=True
        )
        weights = make_weights(spec, seed=2)
        node = NativeMoe(weights, isa, guard=True)
        for count in COUNTS:
            inputs = tokens(count)
            assert_within(node.run(inputs, 2), expected(weights, inputs, isa))


@every_bf16_level
@pytest.mark.parametrize("x_type", ELEMENTS)
@pytest.mark.parametrize("layout", SINGLE)
def test_the_weight_is_on_the_input(isa, x_type, layout):
    """p·x is formed in float32 and rounded once, whatever the type of X."""
    spec = MoeSpec(
        EXPERTS, HIDDEN, INTERMEDIATE, layout, layout, windows=("bfloat16",), extra={"weight_on": "input"}
    )
    weights = make_weights(spec, seed=3)
    for count in COUNTS:
        inputs = tokens(count, x_type=x_type)
        assert_within(NativeMoe(weights, isa, guard=True).run(inputs, 2), expected(weights, inputs, isa))


@every_bf16_level
@pytest.mark.parametrize("layout", SINGLE)
@pytest.mark.parametrize("k", range(1, 10))
def test_every_number_of_choices(isa, layout, k):
    weights = make_weights(MoeSpec(9, HIDDEN, INTERMEDIATE, layout, layout, windows=("bfloat16",)), seed=4)
    for count in (1, 20):
        inputs = make_tokens(random_ids(count, k, 9, seed=k), HIDDEN, seed=k, x_type="bfloat16")
        assert_within(NativeMoe(weights, isa, guard=True).run(inputs, 2), expected(weights, inputs, isa))


@every_bf16_level
@pytest.mark.parametrize("layout", SINGLE)
@pytest.mark.parametrize("count", range(1, 70))
def test_every_number_of_tokens_of_an_expert(isa, layout, count):
    """Every way in which the last block of 16 is filled, in lanes or in rows."""
    weights = make_weights(MoeSpec(1, 40, 36, layout, layout, windows=("bfloat16",), bias=True), seed=5)
    inputs = make_tokens(random_ids(count, 1, 1), 40, seed=count)
    assert_within(NativeMoe(weights, isa, guard=True).run(inputs, 2), expected(weights, inputs, isa))


@every_bf16_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("layout", SINGLE)
def test_what_is_promised_against_exact_arithmetic(isa, kind, layout):
    """docs/operators.md. The bound of the rounded factors (`expected`), to which all tests hold the node, lies inside."""
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE, layout, layout, windows=(kind,), bias=True), seed=6)
    for count, x_type in itertools.product(COUNTS, ELEMENTS):
        inputs = tokens(count, x_type=x_type)
        promised = exact(weights, inputs, isa, bf16_compute=True)
        close = expected(weights, inputs, isa, bf16_compute=True)
        assert_within(NativeMoe(weights, isa, bf16_compute=True).run(inputs, 2), promised)
        assert (np.abs(close.value - promised.value) + close.error <= promised.error * 1.001).all()


@every_bf16_level
@pytest.mark.parametrize("layout", SINGLE)
def test_without_the_request_float_weights_stay_float(isa, layout):
    """Rounded factors would show: the two bounds exclude each other in most outputs."""
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE, layout, layout), seed=7)
    inputs = tokens(20)
    as_stored, rounded = NativeMoe(weights, isa).run(inputs), NativeMoe(weights, isa, bf16_compute=True).run(inputs)
    assert_within(as_stored, expected(weights, inputs, isa))
    assert_within(rounded, expected(weights, inputs, isa, bf16_compute=True))
    outside = np.abs(rounded - expected(weights, inputs, isa).value) > expected(weights, inputs, isa).error
    assert outside.mean() > 0.9


@pytest.mark.parametrize("isa", [isa for isa in LEVELS if isa not in ROUNDS_TO_BFLOAT16])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_the_request_changes_nothing_where_there_are_no_such_instructions(isa, kind):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE, windows=(kind,)))
    inputs = tokens(20)
    plain, requested = (NativeMoe(weights, isa, bf16_compute=on).run(inputs) for on in (False, True))
    np.testing.assert_array_equal(plain, requested)


@every_bf16_level
@pytest.mark.parametrize("layout", SINGLE)
def test_a_token_answers_nearly_the_same_in_any_company(isa, layout):
    """C03. Another kernel sums in another order, by which a hidden unit may fall on the other side of a rounding to 8 bits:
    then 2^-8 of one product of 700 is between two answers, about 1e-4 of the largest output."""
    weights = make_weights(MoeSpec(4, 150, 700, layout, layout, windows=("bfloat16",)))
    node = NativeMoe(weights, isa)
    inputs = make_tokens(random_ids(200, 2, 4), 150)
    together, bound = node.run(inputs, 2), expected(weights, inputs, isa)
    assert_within(together, bound)
    for count in (1, 3, 8, 20, 60):
        alone = node.run(inputs.head(count), 2)
        assert (np.abs(alone - bound.value[:count]) <= bound.error[:count]).all()
        assert np.abs(alone - together[:count]).max() <= 1e-3 * np.abs(together).max()


@every_level
@pytest.mark.parametrize(("gate_up", "down"), [("float", "bfloat16"), ("bfloat16", "float")])
def test_many_tokens_when_gate_and_down_differ_in_type(isa, gate_up, down):
    """More rows than an item takes: those of f32 gates are cut where blocks of bf16 hidden units begin."""
    weights = make_weights(MoeSpec(1, 5, 6, windows=(gate_up,), down_windows=(down,)), seed=1)
    inputs = make_tokens(random_ids(300, 1, 1, seed=2), 5, seed=3)
    assert_within(NativeMoe(weights, isa).run(inputs, 2), expected(weights, inputs, isa))
