"""Routing is a stable counting sort of the chosen ids, in however many chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_hina import _native

NO_EXPERT = 2**32 - 1


def reference(ids: np.ndarray, experts: int) -> dict:
    order = np.argsort(ids, kind="stable")
    counts = np.bincount(ids, minlength=experts)
    present = np.flatnonzero(counts)
    begins = np.cumsum(counts) - counts
    position = np.empty_like(order)
    position[order] = np.arange(ids.size)
    return {
        "active": [(e, begins[e], counts[e]) for e in present],
        "order": order.tolist(),
        "position": position.tolist(),
        "expert": np.searchsorted(present, ids).tolist(),
    }


@settings(max_examples=200, deadline=None)
@given(data=st.data(), experts=st.integers(1, 40), chunks=st.integers(1, 70))
def test_is_a_stable_sort(data, experts, chunks):
    """Chunks without a slot included."""
    ids = np.array(data.draw(st.lists(st.integers(0, experts - 1), max_size=60)), np.int64)
    assert _native.route(ids, experts, chunks) == reference(ids, experts)


@pytest.mark.parametrize("slots", [2048, 16384, 16385, 40_001])
@pytest.mark.parametrize("chunks", [1, 2, 7, 16])
def test_chunks_of_a_large_call_change_nothing(slots, chunks):
    ids = np.random.default_rng(slots).zipf(1.3, slots) % 128
    assert _native.route(ids, 128, chunks) == reference(ids, 128)


def test_one_expert_twice_for_one_token_keeps_both_slots():
    assert _native.route(np.array([[3, 3]], np.int64), 4) == {
        "active": [(3, 0, 2)],
        "order": [0, 1],
        "position": [0, 1],
        "expert": [0, 0],
    }


@settings(max_examples=100, deadline=None)
@given(data=st.data(), experts=st.integers(1, 20), chunks=st.integers(1, 7))
def test_experts_that_are_left_out(data, experts, chunks):
    """They are not active, and their slots say so; all others lie where they would lie otherwise."""
    ids = np.array(data.draw(st.lists(st.integers(0, experts - 1), max_size=60)), np.int64)
    left_out = np.array(data.draw(st.lists(st.booleans(), min_size=experts, max_size=experts)))
    whole, found = reference(ids, experts), _native.route(ids, experts, chunks, left_out)
    kept = [each for each in whole["active"] if not left_out[each[0]]]
    assert found == whole | {
        "active": kept,
        "expert": [NO_EXPERT if left_out[e] else [each[0] for each in kept].index(e) for e in ids],
    }


@pytest.mark.parametrize("experts", [1, 2, 6, 8, 60, 72, 160, 256, 384, 512, 1024])
def test_every_number_of_experts(experts):
    ids = np.random.default_rng(experts).permutation(np.arange(experts).repeat(3))
    assert _native.route(ids, experts) == reference(ids, experts)


@pytest.mark.parametrize("bad", [-1, 4, 2**32, 2**62, -(2**63)])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_names_the_first_slot_out_of_range(bad, chunks):
    with pytest.raises(ValueError, match="slot 2 is out of range"):
        _native.route(np.array([[0, 3], [bad, bad]], np.int64), 4, chunks)
