"""The work list does everything once, and waits only for what stands before it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_hina import _native

# The limits of plan/work.h.
MOST_ITEM_ROWS = 256
MOST_ITEM_OUTPUTS = 32768
MOST_CHUNKS = 32
CHUNK_STEP = 8


@dataclass(frozen=True)
class Problem:
    rows: tuple[int, ...]  # of each active expert
    gate_up: dict = field(hash=False)
    down: dict = field(hash=False)
    tokens: int
    hidden: int
    intermediate: int
    gather: bool
    threads: int

    def items(self, threads: int | None = None) -> list[dict]:
        return _native.plan_work(
            list(self.rows), self.gate_up, self.down, self.tokens, self.hidden, self.intermediate, self.gather,
            threads or self.threads,
        )  # fmt: skip

    def begins(self) -> np.ndarray:
        """The first sorted slot of each expert."""
        return np.cumsum(self.rows) - self.rows


forms = st.one_of(
    st.builds(lambda chunk: {"cut_k": True, "n_step": 1, "k_chunk": chunk}, st.sampled_from([8, 64, 128])),
    st.builds(lambda step: {"cut_k": False, "n_step": step, "k_chunk": 0}, st.sampled_from([1, 4, 8, 32])),
    st.builds(lambda step: {"cut_k": False, "n_step": step, "k_chunk": 0, "n_most": 256}, st.sampled_from([8, 16, 32])),
)
problems = st.builds(
    Problem,
    rows=st.lists(st.one_of(st.integers(1, 9), st.integers(1, 700)), min_size=1, max_size=8).map(tuple),
    gate_up=forms,
    down=forms,
    tokens=st.integers(1, 900),
    hidden=st.one_of(st.integers(1, 100), st.integers(1, 5000)),
    intermediate=st.one_of(st.integers(1, 100), st.integers(1, 5000)),
    gather=st.booleans(),
    threads=st.sampled_from([1, 2, 7, 16, 64, 500]),
)
every_problem = settings(max_examples=80, deadline=None)


def covered_once(items: list[dict], row: int, rows: int, columns: int) -> bool:
    """Do the items' rectangles fill rows [row, row+rows) × [0, columns), each place once?"""
    seen = np.zeros((rows, columns), np.uint8)
    for item in items:
        if item["row"] < row or item["row"] + item["rows"] > row + rows or item["begin"] + item["count"] > columns:
            return False
        seen[item["row"] - row :][: item["rows"], item["begin"] :][:, : item["count"]] += 1
    return bool((seen == 1).all())


def by_step(items: list[dict]) -> dict[tuple[str, int], list[dict]]:
    groups = defaultdict(list)
    for item in items:
        groups[item["step"], item["expert"]].append(item)
    return groups


@every_problem
@given(problem=problems)
def test_everything_is_done_once(problem):
    groups = by_step(problem.items())
    slots = sum(problem.rows)
    for expert, (row, rows) in enumerate(zip(problem.begins(), problem.rows)):
        # A matmul that is cut along K covers its inputs, one that is cut along N its outputs.
        gate_up = problem.hidden if problem.gate_up["cut_k"] else problem.intermediate
        down = problem.intermediate if problem.down["cut_k"] else problem.hidden
        assert covered_once(groups.pop(("gate_up", expert)), row, rows, gate_up)
        assert covered_once(groups.pop(("down", expert)), row, rows, down)
        if problem.gate_up["cut_k"]:
            assert covered_once(groups.pop(("finish_hidden", expert)), row, rows, problem.intermediate)
    assert covered_once(groups.pop(("combine", 0)), 0, problem.tokens, problem.hidden)
    if problem.gather:
        assert covered_once(groups.pop(("gather", 0)), 0, slots, problem.hidden)
    assert not groups


@every_problem
@given(problem=problems)
def test_waits_only_for_all_of_what_it_needs(problem):
    """Items are claimed in order: a thread may wait for an earlier item only, or nobody might ever run it."""
    items = problem.items()
    signallers = defaultdict(list)
    for place, item in enumerate(items):
        if item["signal"] is not None:
            signallers[item["signal"]].append(place)
    finished = "finish_hidden" if problem.gate_up["cut_k"] else "gate_up"
    needs = {"gather": None, "gate_up": "gather" if problem.gather else None, "finish_hidden": "gate_up",
             "down": finished, "combine": "down"}  # fmt: skip
    for place, item in enumerate(items):
        step = needs[item["step"]]
        if step is None:
            assert item["wait"] is None
            continue
        event, count = item["wait"]
        of_one_expert = item["step"] in ("finish_hidden", "down")
        needed = [
            at
            for at, other in enumerate(items)
            if other["step"] == step and (not of_one_expert or other["expert"] == item["expert"])
        ]
        assert signallers[event] == needed
        assert count == len(needed)
        assert needed[-1] < place


@every_problem
@given(problem=problems)
def test_items_keep_to_their_limits(problem):
    for item in problem.items():
        if item["step"] not in ("gate_up", "down"):
            continue
        form = problem.gate_up if item["step"] == "gate_up" else problem.down
        if form["cut_k"]:
            continue
        assert item["rows"] <= MOST_ITEM_ROWS
        assert item["begin"] % form["n_step"] == 0
        assert item["count"] <= max(form["n_step"], min(form.get("n_most", 2**32), MOST_ITEM_OUTPUTS // item["rows"]))


@every_problem
@given(problem=problems)
def test_no_sum_depends_on_the_number_of_threads(problem):
    """The chunks of K, and how many tokens share a call, decide the order of summation."""

    def cuts(threads: int) -> set:
        places = set()
        for item in problem.items(threads):
            if item["step"] in ("gate_up", "down"):
                form = problem.gate_up if item["step"] == "gate_up" else problem.down
                along_k = (item["begin"], item["count"]) if form["cut_k"] else ()
                places.add((item["step"], item["expert"], item["row"], item["rows"], *along_k))
        return places

    assert cuts(1) == cuts(2) == cuts(7) == cuts(64)


@every_problem
@given(
    rows=st.integers(1, 12),
    inputs=st.integers(1, 20000),
    chunk=st.sampled_from([8, 64, 128]),
)
def test_chunks_are_few_and_whole_blocks(rows, inputs, chunk):
    form = {"cut_k": True, "n_step": 1, "k_chunk": chunk}
    problem = Problem((rows,), form, form, rows, inputs, 16, False, 4)
    chunks = [item for item in problem.items() if item["step"] == "gate_up"]
    assert len(chunks) <= MOST_CHUNKS
    assert all(item["begin"] % CHUNK_STEP == 0 and item["count"] >= 1 for item in chunks)
    assert all(item["count"] >= min(chunk, inputs) for item in chunks[:-1])


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_work_is_divided_among_threads(threads):
    """One token, one large expert: each step has several items for each thread, or one thread would do it alone."""
    form = {"cut_k": False, "n_step": 4, "k_chunk": 0}
    problem = Problem((1,), form, form, 1, 4096, 4096, False, threads)
    steps = by_step(problem.items())
    assert len(steps["gate_up", 0]) >= 8 * threads
    assert len(steps["down", 0]) >= 8 * threads
