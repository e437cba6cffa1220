"""Sizes that fill no whole vectors or tiles, with every buffer's end at a forbidden page."""

from __future__ import annotations

from functools import lru_cache

import pytest
from support.elements import ELEMENTS
from support.levels import LEVELS, every_level, product_type
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

# Each hidden and intermediate size of real models, and awkward ones, at least once (D01).
SIZES = [
    (80, 33), (80, 544), (80, 704), (80, 1407), (80, 1408), (80, 2880), (1056, 44), (2880, 33), (1, 1), (1, 300), (300, 1),
    (12, 8), (8, 12),
]  # fmt: skip


@lru_cache(maxsize=2)  # every level in turn, with products of two types
def cases(hidden: int, intermediate: int, layout: str, kind: str, products: str):
    """A node's weights; inputs with what they should give."""
    weights = make_weights(MoeSpec(2, hidden, intermediate, layout, layout, windows=(kind,)))
    calls = [make_tokens(random_ids(t, 1, 2, seed=t), hidden, x_type=kind, seed=t) for t in (1, 3, 16, 17, 100)]
    isa = next(isa for isa in LEVELS if product_type(isa, kind) == products)
    return weights, [(inputs, expected(weights, inputs, isa)) for inputs in calls]


@every_level
@pytest.mark.parametrize(("hidden", "intermediate"), SIZES)
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_no_reads_beyond_the_end(isa, hidden, intermediate, layout, kind):
    weights, calls = cases(hidden, intermediate, layout, kind, product_type(isa, kind))
    node = NativeMoe(weights, isa, guard=True)
    for inputs, exact in calls:
        assert_within(node.run(inputs, 2), exact)


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_both_sizes_large_and_awkward(layout):
    weights = make_weights(MoeSpec(1, 2880, 1407, layout, layout, windows=("bfloat16",)))
    node = NativeMoe(weights, guard=True)
    for tokens in (1, 17):
        inputs = make_tokens(random_ids(tokens, 1, 1), 2880, x_type="bfloat16")
        assert_within(node.run(inputs, 2), expected(weights, inputs))
