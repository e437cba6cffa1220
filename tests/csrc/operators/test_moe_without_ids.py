"""Without expert_ids every token goes to every expert: shared experts, and dense networks as a node with one expert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.kernel_log import log_of_calls, questions
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import MoeTokens, make_tokens, random_ids, without_ids, without_weights
from support.moe_weights import MoeSpec, make_weights

HIDDEN, INTERMEDIATE = 40, 24
every_layout = pytest.mark.parametrize("layout", ["nk", "kn", "kn_interleaved"])


def with_ids(tokens: MoeTokens) -> MoeTokens:
    """The same call, all of it said."""
    return replace(tokens, omit=frozenset())


@every_level
@every_layout
@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("weights", [False, True])
def test_says_what_it_says_with_ids(isa, layout, kind, weights):
    """Bit for bit: the same kernels, in the same order. 700 tokens are sorted by several threads."""
    for experts in (1, 3):
        made = make_weights(MoeSpec(experts, HIDDEN, INTERMEDIATE, layout, layout[:2], windows=(kind,), bias=True))
        node = NativeMoe(made, isa, guard=True)
        for count in (1, 5, 40, 700):
            inputs = without_ids(count, experts, HIDDEN, weights=weights, x_type="bfloat16", seed=count)
            y = node.run(inputs)
            np.testing.assert_array_equal(node.run(with_ids(inputs)), y)
            for threads in (2, 7):
                np.testing.assert_array_equal(node.run(inputs, threads), y)
        assert_within(y, expected(made, inputs, isa))


@every_level
def test_weights_may_be_left_out_where_ids_are_given(isa):
    """Then they are 1."""
    made = make_weights(MoeSpec(4, HIDDEN, INTERMEDIATE))
    for where in ("output", "input"):
        made.attributes["weight_on"] = where
        for count in (1, 50):
            inputs = without_weights(make_tokens(random_ids(count, 2, 4), HIDDEN))
            y = NativeMoe(made, isa).run(inputs, 2)
            assert_within(y, expected(made, inputs, isa))
            np.testing.assert_array_equal(NativeMoe(made, isa).run(with_ids(inputs), 2), y)


def test_no_token():
    made = make_weights(MoeSpec(2, HIDDEN, INTERMEDIATE))
    assert NativeMoe(made).run(without_ids(0, 2, HIDDEN)).shape == (0, HIDDEN)


def test_a_missing_expert_is_an_error():
    made = make_weights(MoeSpec(3, HIDDEN, INTERMEDIATE, missing=frozenset({1})))
    message = "expert_ids is absent, so every token goes to expert 1, but this model holds no weights of that expert"
    for count in (1, 2000):
        with pytest.raises(ValueError, match=message):
            NativeMoe(made).run(without_ids(count, 3, HIDDEN), 2)
