"""Who takes which item: the own node's first, then anyone's; others are helped where that pays, and nothing is left behind."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_hina import _native

TWO = [[10, 20], [20, 10]]
FAR = [[10, 30], [30, 10]]


def claims(queues: list[list[list[int]]], distances=None, arrived=(), expected=(), in_memory=False) -> _native.NodeClaims:
    made = _native.NodeClaims(queues, distances or TWO, list(expected), in_memory)
    for node in arrived:
        made.arrive(node)
    return made


def take_all(made: _native.NodeClaims, node: int | None, step: int = 0) -> list[int]:
    taken = []
    while (item := made.claim(step, node)) is not None:
        taken.append(item)
    return taken


def test_the_own_node_comes_first_then_anyone_then_the_nearest_without_threads():
    distances = [[10, 21, 12], [21, 10, 21], [12, 21, 10]]
    made = claims([[[1, 2], [3], [4], [5, 6]]], distances, [0])
    assert take_all(made, 0) == [1, 2, 5, 6, 4, 3]


def test_a_thread_of_no_known_node_takes_what_is_anyones_first():
    assert take_all(claims([[[1], [2], [3]]], arrived=[None, 0, 1]), None) == [3, 1, 2]


def test_a_node_with_threads_keeps_what_they_can_do_in_the_time_of_a_helper():
    """Behind by plan: all of it lies there. At twice the distance one item of two is not worth fetching, at three times of three."""
    assert take_all(claims([[[], list(range(10)), []]], TWO, [0, 1]), 0) == list(range(8))
    assert take_all(claims([[[], list(range(10)), []]], FAR, [0, 1]), 0) == list(range(7))
    assert take_all(claims([[[], list(range(10)), []]], TWO, [0, 1, 1, 1]), 0) == list(range(4))


@pytest.mark.parametrize(("in_memory", "left"), [(False, 4), (True, 30)])
def test_a_node_with_as_much_to_do_is_helped_only_where_it_is_late(in_memory, left):
    """By an eighth; by three quarters where memory is the limit."""
    made = claims([[list(range(40)), list(range(100, 140)), []]], TWO, [0, 1], in_memory=in_memory)
    assert [item for item in take_all(made, 0) if item >= 100] == list(range(100, 140 - left))
    made = claims([[list(range(40)), list(range(100, 140)), []]], TWO, [0, 1], in_memory=in_memory)
    for _ in range(40 - left):
        made.claim(0, 1)
    assert take_all(made, 0) == list(range(40))


@pytest.mark.parametrize(("in_memory", "left"), [(False, 2), (True, 30)])
def test_half_as_much_again_is_behind_unless_memory_is_the_limit(in_memory, left):
    """Its own threads have all that a node's memory gives."""
    made = claims([[list(range(26)), list(range(100, 140)), []]], TWO, [0, 1], in_memory=in_memory)
    assert [item for item in take_all(made, 0) if item >= 100] == list(range(100, 140 - left))


def test_threads_that_came_before_are_waited_for_but_not_for_ever():
    made = claims([[list(range(8)), [100, 101], []], [[], [], []]], TWO, [0], expected=[1, 1])
    assert take_all(made, 0) == list(range(8))
    assert made.claim_abandoned(0) is None
    assert [made.claim_abandoned(1) for _ in range(3)] == [100, 101, None]


def test_what_a_node_with_threads_has_is_never_abandoned():
    made = claims([[[1], [2], []], [[], [], []]], TWO, [0, 1])
    assert made.claim_abandoned(1) is None


@pytest.mark.parametrize("in_memory", [False, True])
def test_fewer_threads_for_as_much_is_behind_by_plan(in_memory):
    made = claims([[list(range(40)), list(range(100, 140)), []]], TWO, [0, 0, 0, 1], in_memory=in_memory)
    for _ in range(36):
        made.claim(0, 1)
    assert take_all(made, 0) == [*range(40), 136, 137]


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=1, max_size=4),
    threads=st.lists(st.none() | st.integers(0, 2), min_size=1, max_size=8),
    expected=st.lists(st.integers(0, 3), max_size=3),
    in_memory=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_everything_is_done_once_by_threads_that_go_step_by_step(sizes, threads, expected, in_memory, seed):
    """Whichever thread moves next: all items of a step are claimed when all threads have gone on from it, but for those of
    nodes whose threads did not come."""
    number, queues = 0, []
    for step in sizes:
        queues.append([])
        for size in step:
            queues[-1].append(list(range(number, number + size)))
            number += size
    distances = [[10 if a == b else 20 for b in range(3)] for a in range(3)]
    made = claims(queues, distances, threads, expected, in_memory)
    rng, at, done = random.Random(seed), [0] * len(threads), []
    while any(step < len(sizes) for step in at):
        thread = rng.choice([t for t, step in enumerate(at) if step < len(sizes)])
        item = made.claim(at[thread], threads[thread])
        if item is None:
            at[thread] += 1
        else:
            done.append(item)
    while (item := made.claim_abandoned(len(sizes))) is not None:
        done.append(item)
    assert sorted(done) == list(range(number))


def test_bad_queues_are_refused():
    with pytest.raises(ValueError, match="one for each node, and one of anyone"):
        claims([[[1], [2]]])
