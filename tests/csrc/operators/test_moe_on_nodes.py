"""The MoE operator on made-up NUMA nodes: the same answers within the bound, equal bits, whoever does what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.elements import ELEMENTS
from support.layouts import GATE_UP, SINGLE
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected, made_up_nodes
from support.moe_tokens import make_tokens, random_ids, with_x
from support.moe_weights import MoeSpec, MoeWeights, make_weights
from support.page_maps import interleaved, mixed, one_node, page_maps, scattered

GRANULES = (64, 256, 1024, 4096)


def nodes_for(weights: MoeWeights, make, nodes: int, threads=(0, 1)) -> dict:
    """`make`: size -> runs, of each window."""
    return made_up_nodes([make(len(data)) for data, _ in weights.windows], nodes, threads)


@st.composite
def specs(draw) -> MoeSpec:
    kinds = st.sampled_from(ELEMENTS)
    experts = draw(st.integers(1, 6))
    return MoeSpec(
        experts=experts,
        hidden=draw(st.integers(1, 40) | st.sampled_from([64, 100, 257, 640])),
        intermediate=draw(st.integers(1, 40) | st.sampled_from([48, 65, 300, 512])),
        gate_up_layout=draw(st.sampled_from(GATE_UP)),
        down_layout=draw(st.sampled_from(SINGLE)),
        windows=tuple(draw(st.lists(kinds, min_size=1, max_size=2))),
        down_windows=draw(st.none() | kinds.map(lambda kind: (kind,))),
        bias=draw(st.booleans()),
        missing=frozenset(draw(st.sets(st.integers(0, experts - 1), max_size=experts - 1))),
        padding=draw(st.sampled_from([0, 0, 3])),
    )


@every_level
@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    spec=specs(),
    tokens=st.integers(1, 40) | st.sampled_from([100, 300, 600]),
    k=st.integers(1, 4),
    threads=st.sampled_from([1, 2, 5]),
    bf16_compute=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_node_on_any_placement(isa, data, spec, tokens, k, threads, bf16_compute, seed):
    weights = make_weights(spec, seed)
    maps, nodes = [], 1
    for bytes_, _ in weights.windows:
        runs, of_window = data.draw(page_maps(len(bytes_), GRANULES))
        # A window of which nothing is known is left to anyone.
        maps.append([] if data.draw(st.sampled_from([False] * 5 + [True])) else runs)
        nodes = max(nodes, of_window)
    on = data.draw(st.lists(st.none() | st.integers(0, nodes - 1), min_size=1, max_size=5))
    present = [e for e in range(spec.experts) if e not in spec.missing]
    ids = random_ids(tokens, min(k, len(present)), present, seed=seed)
    inputs = make_tokens(ids, spec.hidden, seed=seed)
    node = NativeMoe(weights, isa, guard=True, bf16_compute=bf16_compute, numa=made_up_nodes(maps, nodes, on))
    y = node.run(inputs, threads)
    assert_within(y, expected(weights, inputs, isa, bf16_compute=bf16_compute))
    np.testing.assert_array_equal(node.run(inputs, threads), y)


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn", "nk_interleaved", "kn_interleaved"])
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize("count", [1, 40])
def test_equal_bits_whoever_does_what(isa, layout, kind, count):
    """The nodes of the threads, their number, and who helps whom change nothing."""
    weights = make_weights(MoeSpec(5, 640, 200, layout, layout[:2], windows=(kind,), bias=True))
    inputs = make_tokens(random_ids(count, 3, 5), 640)
    expected_y = expected(weights, inputs, isa)
    first = None
    for threads, on in ((1, [0]), (1, [2]), (2, [0, 1]), (7, [0, 1, 2]), (7, [1, 1, 1, 2]), (5, [None, 2])):
        nodes = nodes_for(weights, lambda size: interleaved(size, 1024, 3), 3, on)
        node = NativeMoe(weights, isa, numa=nodes)
        for _ in range(2):
            y = node.run(inputs, threads)
            first = y if first is None else first
            np.testing.assert_array_equal(y, first)
    assert_within(first, expected_y)


@every_level
@pytest.mark.parametrize("hidden, intermediate", [(768, 96), (96, 768), (2880, 64), (64, 2880), (16, 14336)])
@pytest.mark.parametrize("layout", SINGLE)
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_sizes_of_models_on_pages_of_4_kb(isa, hidden, intermediate, layout, kind):
    """The window begins mid-page."""
    weights = make_weights(MoeSpec(2, hidden, intermediate, layout, layout, windows=(kind,)))
    numa = nodes_for(weights, lambda size: interleaved(size, 4096, 4, phase=1000), 4, range(4))
    for count in (1, 5):
        inputs = make_tokens(random_ids(count, 1, 2), hidden)
        assert_within(NativeMoe(weights, isa, guard=True, numa=numa).run(inputs, 3), expected(weights, inputs, isa))


@every_level
@pytest.mark.parametrize("layout", SINGLE)
def test_nan_and_inf_stay_in_their_row(isa, layout):
    weights = make_weights(MoeSpec(4, 320, 130, layout, layout))
    numa = nodes_for(weights, lambda size: scattered(size, 256, 2, np.random.default_rng(0)), 2)
    inputs = make_tokens(random_ids(6, 2, 4), 320)
    node = NativeMoe(weights, isa, numa=numa)
    clean = node.run(inputs, 2)
    for poison in (np.nan, np.inf):
        x = inputs.x.copy()
        x[2, 5] = poison
        y = node.run(with_x(inputs, x), 2)
        assert not np.isfinite(y[2]).any()
        np.testing.assert_array_equal(np.delete(y, 2, 0), np.delete(clean, 2, 0))


def test_no_token_on_nodes():
    weights = make_weights(MoeSpec(4, 40, 24))
    node = NativeMoe(weights, numa=nodes_for(weights, one_node, 2))
    assert node.run(make_tokens(np.zeros((0, 2), np.int64), 40)).shape == (0, 40)


@pytest.mark.parametrize("make", [
    lambda size: one_node(size, 1),
    lambda size: mixed(size, (256, 4096), 16, np.random.default_rng(3)),
])  # fmt: skip
def test_nodes_without_threads_are_helped(make):
    """All weights, or most, on nodes on which no thread runs."""
    weights = make_weights(MoeSpec(5, 200, 90))
    inputs = make_tokens(random_ids(3, 2, 5), 200)
    for threads in (1, 4):
        node = NativeMoe(weights, numa=nodes_for(weights, make, 16, [0]))
        assert_within(node.run(inputs, threads), expected(weights, inputs))


def test_threads_that_came_to_the_last_call_only_are_not_waited_for_in_vain():
    weights = make_weights(MoeSpec(5, 640, 200))
    inputs = make_tokens(random_ids(9, 3, 5), 640)
    node = NativeMoe(weights, numa=nodes_for(weights, lambda size: interleaved(size, 1024, 3), 3, [0, 1, 2]))
    first = node.run(inputs, 6)
    for threads in (1, 2, 6, 1):
        np.testing.assert_array_equal(node.run(inputs, threads), first)


def test_a_map_for_each_window():
    weights = make_weights(MoeSpec(2, 40, 24))
    with pytest.raises(ValueError, match="a map for each window"):
        NativeMoe(weights, numa=made_up_nodes([], 2, [0]))


@every_level
@pytest.mark.parametrize("layout", SINGLE)
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_more_tokens_than_a_block(isa, layout, kind):
    """The last block of activations may lie otherwise than the others, and inputs are taken from the middle of both."""
    weights = make_weights(MoeSpec(1, 1440, 1440, layout, layout, windows=(kind,)))
    node = NativeMoe(weights, isa, guard=True, numa=nodes_for(weights, lambda size: interleaved(size, 4096, 2), 2))
    for count in (16, 18):
        inputs = make_tokens(np.zeros((count, 1), np.int64), 1440)
        assert_within(node.run(inputs, 2), expected(weights, inputs, isa))


@every_level
@pytest.mark.parametrize("layout", SINGLE)
@pytest.mark.parametrize("first", ["gate", "up"])
def test_what_a_sum_does_not_have_is_zero(isa, layout, first):
    """Gate on one node and up on several, or the other way round; the workspace holds what a call with NaN left."""
    weights = make_weights(MoeSpec(1, 640, 120, layout, layout))
    (data, _), = weights.windows
    gate, up = (weights.attributes[f"{role}_offsets"][0] for role in ("gate", "up"))
    half = max(gate, up)
    whole, cut = [(half, 0)], interleaved(len(data) - half, 256, 3)
    runs = whole + cut if (gate < up) == (first == "gate") else [*interleaved(half, 256, 3), (len(data) - half, 0)]
    node = NativeMoe(weights, isa, numa=made_up_nodes([runs], 3, [0, 1, 2]))
    inputs = make_tokens(np.zeros((2, 1), np.int64), 640)
    for _ in range(3):
        node.run(with_x(inputs, np.full_like(inputs.x, np.nan)), 2)
        assert_within(node.run(inputs, 2), expected(weights, inputs, isa))
