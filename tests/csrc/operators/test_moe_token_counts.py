"""No token, one token, all tokens with one expert, one expert twice; unused experts are not touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.elements import size_of
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, MoeWeights, make_weights

HIDDEN = 40


def check(isa: str, weights: MoeWeights, ids, threads: int = 2) -> np.ndarray:
    inputs = make_tokens(np.asarray(ids, np.int64), HIDDEN, seed=9)
    y = NativeMoe(weights, isa).run(inputs, threads)
    assert_within(y, expected(weights, inputs, isa))
    return y


def with_nan_experts(weights: MoeWeights, spared: set[int]) -> MoeWeights:
    """The same node, every byte that is not a matrix of the spared experts 0xff: NaN."""
    (data, kind), = weights.windows
    blank = np.full_like(data, 0xFF)
    for role in ("gate", "up", "down"):
        length = size_of(kind) * weights.matrices[role][0].size
        for expert in spared:
            offset = weights.attributes[f"{role}_offsets"][expert]
            blank[offset : offset + length] = data[offset : offset + length]
    return replace(weights, windows=[(blank, kind)])


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_no_token(isa, layout, kind):
    weights = make_weights(MoeSpec(4, HIDDEN, 24, layout, layout, windows=(kind,)))
    assert check(isa, weights, np.zeros((0, 2))).shape == (0, HIDDEN)


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_all_tokens_with_one_expert_and_no_other_is_read(isa, layout, kind):
    weights = make_weights(MoeSpec(8, HIDDEN, 24, layout, layout, windows=(kind,)))
    check(isa, with_nan_experts(weights, {3}), np.full((257, 1), 3))


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_one_token_among_512_experts_reads_its_own_only(isa, layout, kind):
    weights = make_weights(MoeSpec(512, HIDDEN, 8, layout, layout, windows=(kind,)))
    check(isa, with_nan_experts(weights, {17, 300}), [[300, 17]])


@every_level
def test_exactly_one_token_for_the_last_expert(isa):
    weights = make_weights(MoeSpec(6, HIDDEN, 24))
    ids = random_ids(50, 2, 5)
    ids[23, 1] = 5
    check(isa, with_nan_experts(weights, {*ids.reshape(-1)}), ids)


@every_level
@pytest.mark.parametrize("ids", [[[3, 3]], [[3, 3], [3, 1]], [[2] * 5], [[0, 3, 0, 3]] * 20])
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_an_expert_chosen_twice_counts_twice(isa, ids, kind, layout):
    """R13."""
    weights = make_weights(MoeSpec(4, HIDDEN, 24, layout, layout, windows=(kind,)))
    y = check(isa, weights, ids)
    if ids == [[3, 3]] and kind == "float":
        inputs = make_tokens(np.array([[3]], np.int64), HIDDEN, seed=9)
        twice = make_tokens(np.array([[3, 3]], np.int64), HIDDEN, seed=9)
        once = expected(weights, replace(inputs, x=twice.x, routing=twice.routing.sum(1, keepdims=True)))
        np.testing.assert_allclose(y, once.value, atol=1e-5)


@every_level
@pytest.mark.parametrize("experts", [1, 2, 6, 8, 60, 72, 160, 256, 384, 512, 1024])
def test_every_number_of_experts_and_choices(isa, experts):
    weights = make_weights(MoeSpec(experts, HIDDEN, 5))
    for k in sorted({k for k in (1, 2, 4, 6, 8, 10, experts) if k <= experts}):
        check(isa, weights, random_ids(3, k, experts, seed=k))


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_token_does_not_depend_on_its_company(isa, layout, bias):
    """A05. Few and many tokens go through different kernels; row 0 says the same through each, biases included."""
    spec = MoeSpec(4, 80, 56, layout, layout, bias=bias)
    weights = make_weights(spec)
    node = NativeMoe(weights, isa)
    everyone = make_tokens(random_ids(1000, 2, 4), 80, seed=1)
    alone = node.run(everyone.head(1))[0]
    for count in (2, 15, 16, 17, 64, 65, 1000):
        np.testing.assert_allclose(node.run(everyone.head(count), 2)[0], alone, atol=1e-5, rtol=0)
