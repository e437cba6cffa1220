"""NaN and Inf stay in the row of their token; whatever else the workspace held before has no say."""

from __future__ import annotations

import numpy as np
import pytest
from support.elements import size_of
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids, with_x
from support.moe_weights import MoeSpec, make_weights

HIDDEN = 40
every_kind = pytest.mark.parametrize("kind", ["float", "bfloat16"])


@every_level
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("count", [2, 7, 60])
@every_kind
def test_x(isa, poison, layout, count, kind):
    """Among the tokens of its tile, too."""
    weights = make_weights(MoeSpec(3, HIDDEN, 24, layout, layout, windows=(kind,)))
    node = NativeMoe(weights, isa)
    inputs = make_tokens(random_ids(count, 2, 3), HIDDEN)
    clean = node.run(inputs, 2)
    for row in {0, count // 2, count - 1}:
        x = inputs.x.copy()
        x[row, HIDDEN - 1] = poison
        y = node.run(with_x(inputs, x), 2)
        assert not np.isfinite(y[row]).any()
        others = np.arange(count) != row
        np.testing.assert_array_equal(y[others], clean[others])


@every_level
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["output", "input"])
@every_kind
def test_routing_weights(isa, poison, where, kind):
    weights = make_weights(MoeSpec(3, HIDDEN, 24, windows=(kind,), extra={"weight_on": where}))
    node = NativeMoe(weights, isa)
    inputs = make_tokens(random_ids(7, 2, 3), HIDDEN)
    clean = node.run(inputs, 2)
    routing = inputs.routing.copy()
    routing[3, 1] = poison
    y = node.run(with_x(inputs, inputs.x, routing), 2)
    assert not np.isfinite(y[3]).any()
    np.testing.assert_array_equal(np.delete(y, 3, axis=0), np.delete(clean, 3, axis=0))


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("count", [1, 60])
@every_kind
def test_an_experts_nan_reaches_its_own_tokens_only(isa, layout, count, kind):
    weights = make_weights(MoeSpec(3, HIDDEN, 24, layout, layout, windows=(kind,)))
    (data, _), = weights.windows
    offset = weights.attributes["down_offsets"][1]
    data[offset : offset + size_of(kind)] = 0xFF  # the weight of output 0
    inputs = make_tokens(random_ids(count, 2, 3, seed=1), HIDDEN)
    y = NativeMoe(weights, isa).run(inputs, 2)
    hit = (inputs.ids == 1).any(axis=1)
    assert np.isnan(y[hit, 0]).all()
    exact = expected(weights, inputs, isa)  # of the weights as they were
    y[hit, 0] = exact.value[hit, 0]
    assert_within(y, exact)


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@every_kind
def test_a_large_call_leaves_nothing_to_a_small_one(isa, layout, kind):
    """The next call gets memory that held other numbers, NaN among them: where it pads, it must write."""
    weights = make_weights(MoeSpec(3, HIDDEN, 23, layout, layout, windows=(kind,)))
    node = NativeMoe(weights, isa)
    large = make_tokens(random_ids(200, 2, 3), HIDDEN)
    small = make_tokens(random_ids(5, 2, 3, seed=2), HIDDEN, seed=2)
    clean = node.run(small)
    node.run(with_x(large, np.full_like(large.x, np.nan)), 2)
    np.testing.assert_array_equal(node.run(small), clean)
