"""The bound to which every test holds the operator is narrow enough: what is a little wrong leaves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.elements import size_of
from support.levels import every_level
from support.moe_native import NativeMoe, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, MoeWeights, make_weights

HIDDEN, INTERMEDIATE, EXPERTS = 64, 32, 4
every_kind = pytest.mark.parametrize("kind", ["float", "bfloat16"])
every_layout = pytest.mark.parametrize("layout", ["nk", "kn"])


def make(kind: str, layout: str, count: int):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE, layout, layout, windows=(kind,)), seed=1)
    return weights, make_tokens(random_ids(count, 2, EXPERTS, seed=1), HIDDEN, seed=1)


def with_lost_element(weights: MoeWeights, role: str, expert: int, element: int) -> MoeWeights:
    """The same node, one element of a matrix 0."""
    (data, kind), = weights.windows
    data = data.copy()
    offset = weights.attributes[f"{role}_offsets"][expert] + element * size_of(kind)
    data[offset : offset + size_of(kind)] = 0
    return replace(weights, windows=[(data, kind)])


def found(node: NativeMoe, inputs, bound) -> np.ndarray:
    """Which outputs leave their bounds, [T, H]."""
    return np.abs(node.run(inputs, 2) - bound.value) > bound.error


@every_level
@every_kind
@every_layout
@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("role", ["gate", "up"])
def test_one_lost_element_of_gate_or_up_is_found(isa, kind, layout, count, role):
    """One product of 64 in one hidden unit of 32. Most outputs of the tokens that use the expert show it."""
    weights, inputs = make(kind, layout, count)
    bound = expected(weights, inputs, isa)
    assert not found(NativeMoe(weights, isa), inputs, bound).any()
    expert = inputs.ids[0, 0]
    # The largest, so that the test does not hang on a weight that is nearly 0 anyway.
    matrix = weights.matrices[role][expert]
    matrix = matrix.T if layout == "nk" else matrix
    wrong = with_lost_element(weights, role, expert, int(np.abs(matrix).argmax()))
    hit = (inputs.ids == expert).any(axis=1)
    outside = found(NativeMoe(wrong, isa), inputs, bound)
    assert np.median(outside[hit].mean(axis=1)) > 0.5
    assert not outside[~hit].any()


@every_level
@every_kind
@every_layout
@pytest.mark.parametrize("count", [1, 40])
def test_one_lost_element_of_down_is_found(isa, kind, layout, count):
    """In its own output, and only there."""
    weights, inputs = make(kind, layout, count)
    bound = expected(weights, inputs, isa)
    expert = inputs.ids[0, 0]
    matrix = weights.matrices["down"][expert]  # [I, H]
    unit, output = np.unravel_index(np.abs(matrix).argmax(), matrix.shape)
    element = output * INTERMEDIATE + unit if layout == "nk" else unit * HIDDEN + output
    outside = found(NativeMoe(with_lost_element(weights, "down", expert, int(element)), isa), inputs, bound)
    hit = (inputs.ids == expert).any(axis=1)
    assert outside[hit, output].mean() > 0.7
    outside[:, output] = False
    assert not outside.any()


@every_level
@every_kind
@every_layout
def test_the_bound_is_near_what_happens(isa, kind, layout):
    """The bound adds up what may go wrong in thousands of roundings, of which most cancels."""
    weights, inputs = make(kind, layout, 40)
    bound = expected(weights, inputs, isa)
    errors = np.abs(NativeMoe(weights, isa).run(inputs) - bound.value) / bound.error
    assert 1e-4 < errors.mean() < 0.5
