"""What is done with weights, given what the nodes have: bind only if it fits, then interleave, then leave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_hina import _native

GB = 10**9


def _nodes(*free, threads=None, allowed=None):
    return [
        (i, size, True if allowed is None else allowed[i], 4.0 if threads is None else float(threads[i]))
        for i, size in enumerate(free)
    ]


def _choose(mode, size, nodes):
    found = _native.placement_choice(mode, size, nodes)
    return found["action"], found["nodes"], found["reason"]


@pytest.mark.parametrize("mode", ["off", "read"])
def test_nothing_is_done_unasked(mode):
    assert _choose(mode, 10 * GB, _nodes(32 * GB, 32 * GB)) == ("leave", [], "")


@pytest.mark.parametrize("mode", ["interleave", "bind"])
def test_what_fits_is_done_as_asked(mode):
    assert _choose(mode, 40 * GB, _nodes(32 * GB, 32 * GB)) == (mode, [0, 1], "")


@pytest.mark.parametrize("mode", ["interleave", "bind"])
def test_a_large_model_spreads_over_many_small_nodes(mode):
    """N04."""
    assert _choose(mode, 140 * GB, _nodes(*[32 * GB] * 16)) == (mode, list(range(16)), "")


def test_two_nodes_that_cannot_hold_it_are_not_bound_to():
    """N04."""
    nodes = _nodes(*[32 * GB] * 16, threads=[4, 4] + [0] * 14)
    action, used, reason = _choose("bind", 140 * GB, nodes)
    assert (action, used) == ("interleave", list(range(16)))
    assert reason.startswith("node 0 has 32.00 GB free and its rows are 70.00 GB; the nodes with threads have no room for 140.00")
    assert "interleaved over nodes 0, 1, 2" in reason


def test_a_full_node_is_left_out():
    nodes = _nodes(32 * GB, 1 * GB, 32 * GB)
    assert _choose("interleave", 30 * GB, nodes) == ("interleave", [0, 2], "of the nodes with threads only nodes 0, 2 have room")
    action, used, reason = _choose("bind", 30 * GB, nodes)
    assert (action, used) == ("interleave", [0, 2]) and reason.startswith("node 1 has 1.00 GB free and its rows are 10.00 GB")


def test_what_fits_nowhere_stays():
    for mode in ("interleave", "bind"):
        action, used, reason = _choose(mode, 100 * GB, _nodes(32 * GB, 32 * GB))
        assert (action, used) == ("leave", []) and "no two nodes have room for 100.00 GB: left where it is" in reason


def test_rows_go_by_threads():
    assert _choose("bind", 40 * GB, _nodes(40 * GB, 12 * GB, threads=[12, 4]))[0] == "bind"
    assert _choose("bind", 40 * GB, _nodes(12 * GB, 40 * GB, threads=[12, 4]))[0] != "bind"


def test_forbidden_memory_is_not_used():
    nodes = _nodes(32 * GB, 32 * GB, 32 * GB, allowed=[True, False, True])
    assert _choose("interleave", 10 * GB, nodes)[:2] == ("interleave", [0, 2])
    action, used, reason = _choose("bind", 10 * GB, nodes)
    assert (action, used) == ("interleave", [0, 2]) and reason.startswith("this process may not allocate memory on node 1")


def test_bind_with_threads_on_one_node_does_nothing():
    expected = "leave", [], "threads run on one node only: left where it is"
    assert _choose("bind", GB, _nodes(32 * GB, 32 * GB, threads=[4, 0])) == expected


@given(
    mode=st.sampled_from(["interleave", "bind"]), size=st.integers(0, 10**12),
    nodes=st.lists(st.tuples(st.integers(0, 10**11), st.booleans(), st.integers(0, 8)), max_size=18),
)  # fmt: skip
def test_no_node_is_asked_for_more_than_it_has(mode, size, nodes):
    listed = [(2 * i, free, allowed, float(threads)) for i, (free, allowed, threads) in enumerate(nodes)]
    action, used, reason = _choose(mode, size, listed)
    assert used == sorted(set(used)) and (len(used) > 1) == (action != "leave")
    assert (reason == "") <= (action == mode)
    threads = sum(t for _, _, t in nodes)
    for n in used:
        free, allowed, own = nodes[n]
        assert allowed and (size / len(used) if action == "interleave" else size * own / threads) <= free * 7 / 8 + 1


def test_an_unknown_mode():
    with pytest.raises(ValueError, match="mode: expected off, read, interleave or bind, got 'spread'"):
        _native.placement_choice("spread", 1, [])


@pytest.mark.parametrize(
    ("runs", "usable", "expected"),
    [
        ([(8 << 20, 1)], [0, 1], 1),
        ([(8 << 20, 1)], [1], None),  # there is no other
        ([(8 << 20, 2)], [0, 1], 2),
        ([(9 << 20, 0), (1 << 20, 1)], [0, 1], 0),
        ([(8 << 20, 0), (2 << 20, 1)], [0, 1], None),
        ([(4096, 0), (4096, 1)] * 4096, [0, 1], None),
        ([(3 << 20, 0)], [0, 1], None),  # too small to tell
        ([(8 << 20, None)], [0, 1], None),
        ([], [0, 1], None),
    ],
)
def test_a_crowded_node(runs, usable, expected):
    assert _native.crowded_node(runs, usable) == expected
