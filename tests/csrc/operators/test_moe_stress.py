"""I04. Random nodes on 1 to 64 threads, every buffer's end at a forbidden page; nodes that come and go."""

from __future__ import annotations

import numpy as np
import pytest
from support.activations import ACTIVATIONS
from support.elements import ELEMENTS
from support.layouts import GATE_UP, SINGLE
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights


def random_node(rng: np.random.Generator) -> MoeSpec:
    def pick(values):
        return values[rng.integers(len(values))]

    return MoeSpec(
        experts=int(rng.integers(1, 9)),
        hidden=int(rng.integers(1, 130)),
        intermediate=int(rng.integers(1, 130)),
        gate_up_layout=pick(GATE_UP),
        down_layout=pick(SINGLE),
        windows=tuple(pick(ELEMENTS) for _ in range(rng.integers(1, 3))),
        down_windows=pick([None, ("bfloat16",)]),
        bias=bool(rng.integers(2)),
        padding=pick([0, 1, 7]),
        activation=pick(ACTIVATIONS),
    )


def run_random(isa: str, rounds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for round_ in range(rounds):
        spec = random_node(rng)
        weights = make_weights(spec, seed=round_)
        tokens, k = int(rng.integers(1, 71)), int(rng.integers(1, 5))
        ids = random_ids(tokens, k, spec.experts, repeats=True, seed=round_)
        inputs = make_tokens(ids, spec.hidden, x_type=ELEMENTS[rng.integers(3)], seed=round_)
        bf16_compute, threads = bool(rng.integers(2)), int(rng.integers(1, 65))
        y = NativeMoe(weights, isa, guard=True, bf16_compute=bf16_compute).run(inputs, threads)
        assert_within(y, expected(weights, inputs, isa, bf16_compute=bf16_compute))


@every_level
def test_random_nodes(isa):
    run_random(isa, rounds=60, seed=0)


@pytest.mark.slow
@every_level
def test_many_random_nodes(isa):
    run_random(isa, rounds=2000, seed=1)


@every_level
@pytest.mark.parametrize("layout", SINGLE)
def test_nodes_come_and_go(isa, layout):
    """50 times: the memory of the one before may be any other's by then."""
    weights = make_weights(MoeSpec(3, 40, 33, layout, layout, windows=("bfloat16",)))
    inputs = make_tokens(random_ids(20, 2, 3), 40)
    first = NativeMoe(weights, isa, guard=True).run(inputs, 2)
    for _ in range(50):
        np.testing.assert_array_equal(NativeMoe(weights, isa, guard=True).run(inputs, 2), first)
