"""missing_experts = skip: to choose an expert without weights contributes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids, with_x, without_ids
from support.moe_weights import MoeSpec, MoeWeights, make_weights

EXPERTS, HIDDEN = 5, 40
every_kind = pytest.mark.parametrize("kind", ["float", "bfloat16"])


def skipping(kind: str = "float", *, missing=(0, 3), **spec) -> MoeWeights:
    extra = {"missing_experts": "skip", **spec.pop("extra", {})}
    return make_weights(
        MoeSpec(EXPERTS, HIDDEN, 24, windows=(kind,), bias=True, missing=frozenset(missing), extra=extra, **spec)
    )


@every_level
@every_kind
@pytest.mark.parametrize("where", ["output", "input"])
def test_a_skipped_slot_contributes_nothing(isa, kind, where):
    """NaN as its weight included. 1000 tokens are sorted by several threads."""
    weights = skipping(kind, extra={"weight_on": where})
    node = NativeMoe(weights, isa, guard=True)
    for count in (1, 2, 30, 1000):
        inputs = make_tokens(random_ids(count, 3, EXPERTS, repeats=True), HIDDEN, addend=count == 30)
        y = node.run(inputs, 2)
        assert_within(y, expected(weights, inputs, isa))
        routing = np.where(np.isin(inputs.ids, (0, 3)), np.nan, inputs.routing)
        np.testing.assert_array_equal(node.run(with_x(inputs, inputs.x, routing), 7), y)


@every_level
@every_kind
@pytest.mark.parametrize("ids", [[[0]], [[0, 3]], [[3, 3], [0, 3]], [[0, 1], [3, 3]], [[3] * 4] * 700])
def test_tokens_of_which_every_slot_is_skipped(isa, kind, ids):
    """They get 0, or the addend."""
    weights = skipping(kind)
    for addend in (False, True):
        inputs = make_tokens(np.array(ids), HIDDEN, addend=addend)
        y = NativeMoe(weights, isa).run(inputs, 2)
        nothing = np.isin(inputs.ids, (0, 3)).all(axis=1)
        np.testing.assert_array_equal(y[nothing], inputs.addend[nothing] if addend else 0)
        assert_within(y, expected(weights, inputs, isa))


@every_level
def test_no_expert_at_all(isa):
    weights = skipping(missing=())
    for role in ("gate", "up", "down"):
        weights.attributes[f"{role}_offsets"] = [-1] * EXPERTS
    for inputs in (make_tokens(random_ids(9, 2, EXPERTS), HIDDEN), without_ids(9, EXPERTS, HIDDEN)):
        np.testing.assert_array_equal(NativeMoe(weights, isa).run(inputs, 2), 0)


@every_level
@pytest.mark.parametrize("count", [1, 40])
def test_without_ids(isa, count):
    weights = skipping()
    inputs = without_ids(count, EXPERTS, HIDDEN, weights=True)
    assert_within(NativeMoe(weights, isa).run(inputs, 2), expected(weights, inputs, isa))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [2, 1500])
def test_an_id_out_of_range_is_still_an_error(threads, count):
    ids = random_ids(count, 2, EXPERTS)
    ids[0, 0], ids[1, 1] = 3, EXPERTS
    with pytest.raises(ValueError, match=r"expert_ids\[1, 1\] is 5, expected an id in \[0, 5\)"):
        NativeMoe(skipping()).run(make_tokens(ids, HIDDEN), threads)


@pytest.mark.parametrize("extra", [{}, {"missing_experts": "error"}])
def test_is_an_error_unless_asked_for(extra):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 24, missing=frozenset({3}), extra=extra))
    with pytest.raises(ValueError, match=r"expert_ids\[0, 1\] is 3, but this model holds no weights of that expert"):
        NativeMoe(weights).run(make_tokens(np.array([[1, 3]]), HIDDEN))
