"""The work list does everything once, waits only for what stands before it, and is as even as it is short."""

from __future__ import annotations

import heapq
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


row_steps = st.sampled_from([1, 16])
forms = st.one_of(
    st.builds(
        lambda chunk, rows: {"cut_k": True, "n_step": 1, "k_chunk": chunk, "row_step": rows},
        st.sampled_from([8, 64, 128]), row_steps,
    ),
    st.builds(
        lambda step, rows: {"cut_k": False, "n_step": step, "k_chunk": 0, "row_step": rows},
        st.sampled_from([1, 4, 12, 32]), row_steps,
    ),
    st.builds(
        lambda step, rows: {"cut_k": False, "n_step": step, "k_chunk": 0, "n_most": 256, "row_step": rows},
        st.sampled_from([8, 16, 32]), row_steps,
    ),
)  # fmt: skip
problems = st.builds(
    Problem,
    rows=st.lists(st.one_of(st.integers(1, 9), st.integers(1, 700)), min_size=0, max_size=8).map(tuple),
    gate_up=forms,
    down=forms,
    tokens=st.integers(1, 900),
    hidden=st.one_of(st.integers(1, 100), st.integers(1, 5000)),
    intermediate=st.one_of(st.integers(1, 100), st.integers(1, 5000)),
    gather=st.booleans(),
    threads=st.sampled_from([1, 2, 7, 16, 64, 500]),
)
every_problem = settings(max_examples=80, deadline=None)


def covered_once(items: list[dict], rows: int, columns: int) -> bool:
    """Do the items' rectangles fill [0, rows) × [0, columns), each place once?"""
    seen = np.zeros((rows, columns), np.uint8)
    for item in items:
        if item["row"] + item["rows"] > rows or item["begin"] + item["count"] > columns:
            return False
        seen[item["row"] :][: item["rows"], item["begin"] :][:, : item["count"]] += 1
    return bool((seen == 1).all())


def by_step(items: list[dict]) -> dict[tuple[str, int], list[dict]]:
    groups = defaultdict(list)
    for item in items:
        groups[item["step"], item["expert"]].append(item)
    return groups


@every_problem
@given(problem=problems)
def test_everything_is_done_once(problem):
    """Rows count from the expert's first slot; those of the weighted sum are tokens."""
    groups = by_step(problem.items())
    for expert, rows in enumerate(problem.rows):
        # A matmul that is cut along K covers its inputs, one that is cut along N its outputs.
        gate_up = problem.hidden if problem.gate_up["cut_k"] else problem.intermediate
        down = problem.intermediate if problem.down["cut_k"] else problem.hidden
        assert covered_once(groups.pop(("gate_up", expert)), rows, gate_up)
        assert covered_once(groups.pop(("down", expert)), rows, down)
        if problem.gate_up["cut_k"]:
            assert covered_once(groups.pop(("finish_hidden", expert)), rows, problem.intermediate)
        if problem.gather:
            assert covered_once(groups.pop(("gather", expert)), rows, problem.hidden)
    assert covered_once(groups.pop(("combine", 0)), problem.tokens, problem.hidden)
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
    places = defaultdict(list)
    for place, item in enumerate(items):
        places[item["step"], item["expert"]].append(place)
        places[item["step"]].append(place)
    finished = "finish_hidden" if problem.gate_up["cut_k"] else "gate_up"
    needs = {"gather": None, "gate_up": "gather" if problem.gather else None, "finish_hidden": "gate_up",
             "down": finished, "combine": "down"}  # fmt: skip
    for place, item in enumerate(items):
        step = needs[item["step"]]
        needed = [] if step is None else places[step] if item["step"] == "combine" else places[step, item["expert"]]
        if not needed:
            assert item["wait"] is None
            continue
        event, count = item["wait"]
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
        assert item["row"] % form["row_step"] == 0
        assert item["begin"] % form["n_step"] == 0
        assert item["count"] <= max(form["n_step"], min(form.get("n_most", 2**32), MOST_ITEM_OUTPUTS // item["rows"]))


@every_problem
@given(problem=problems)
def test_gathered_rows_come_in_whole_blocks(problem):
    """Of bf16: 16 tokens lie together in lanes, and one thread writes all of them."""
    for item in problem.items():
        if item["step"] == "gather":
            assert item["row"] % problem.gate_up["row_step"] == 0


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
    form = {"cut_k": True, "n_step": 1, "k_chunk": chunk, "row_step": 1}
    problem = Problem((rows,), form, form, rows, inputs, 16, False, 4)
    chunks = [item for item in problem.items() if item["step"] == "gate_up"]
    assert len(chunks) <= MOST_CHUNKS
    assert all(item["begin"] % CHUNK_STEP == 0 and item["count"] >= 1 for item in chunks)
    assert all(item["count"] >= min(chunk, inputs) for item in chunks[:-1])


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_work_is_divided_among_threads(threads):
    """One token, one large expert: each step has several items for each thread, or one thread would do it alone."""
    form = {"cut_k": False, "n_step": 4, "k_chunk": 0, "row_step": 1}
    problem = Problem((1,), form, form, 1, 4096, 4096, False, threads)
    steps = by_step(problem.items())
    assert len(steps["gate_up", 0]) >= 8 * threads
    assert len(steps["down", 0]) >= 8 * threads


# Hidden and intermediate size, experts, choices.
QWEN3_30B, MIXTRAL_8X7B, DEEPSEEK_V3 = (2048, 768, 128, 8), (4096, 14336, 8, 2), (7168, 2048, 256, 8)
LANES = {"cut_k": False, "n_step": 12, "k_chunk": 0, "row_step": 16}
TILES = {"cut_k": False, "n_step": 32, "k_chunk": 0, "row_step": 16}
PANELS = {"cut_k": False, "n_step": 32, "k_chunk": 0, "row_step": 16, "n_most": 512}
STREAM = {"cut_k": True, "n_step": 1, "k_chunk": 128, "row_step": 16}


def routed(shape: tuple[int, int, int, int], tokens: int, form: dict, threads: int) -> Problem:
    """A problem as random routing makes it."""
    hidden, intermediate, experts, k = shape
    order = np.argsort(np.random.default_rng(0).random((tokens, experts)), axis=1)
    rows = np.bincount(order[:, :k].reshape(-1))
    rows = tuple(int(count) for count in rows[rows > 0])
    return Problem(rows, form, form, tokens, hidden, intermediate, tokens > 1, threads)


def multiply_adds(problem: Problem, item: dict) -> int:
    """Of gate and up together, or of down; 0 for other steps."""
    if item["step"] not in ("gate_up", "down"):
        return 0
    gate_up = item["step"] == "gate_up"
    form = problem.gate_up if gate_up else problem.down
    inputs_or_outputs = problem.hidden if gate_up != form["cut_k"] else problem.intermediate
    return item["rows"] * item["count"] * inputs_or_outputs * (2 if gate_up else 1)


def loads(problem: Problem) -> list[int]:
    """Each thread's work if whoever is free takes the next item."""
    threads = [0] * problem.threads
    for item in problem.items():
        heapq.heapreplace(threads, threads[0] + multiply_adds(problem, item))
    return threads


@pytest.mark.parametrize("shape", [QWEN3_30B, MIXTRAL_8X7B, DEEPSEEK_V3], ids=["qwen3_30b", "mixtral_8x7b", "deepseek_v3"])
@pytest.mark.parametrize("form", [LANES, TILES, PANELS], ids=["lanes", "tiles", "panels"])
@pytest.mark.parametrize("tokens", [1, 4, 16, 128, 512, 2048])
class TestRealSizes:
    @pytest.mark.parametrize("threads", [2, 16, 32, 64])
    def test_threads_get_equal_shares(self, shape, form, tokens, threads):
        work = loads(routed(shape, tokens, form, threads))
        assert max(work) - min(work) <= max(work) / 16

    @pytest.mark.parametrize("threads", [2, 64])
    def test_items_are_not_too_many(self, shape, form, tokens, threads):
        """What the threads need (32 for each in each of two steps, four times as many of the experts that reach into the last
        quarter), what the limits of an item ask for, and one for what is left over in each block of rows."""
        problem = routed(shape, tokens, form, threads)
        items = [item for item in problem.items() if item["step"] in ("gate_up", "down")]
        blocks = sum(-(-rows // MOST_ITEM_ROWS) for rows in problem.rows)
        outputs = problem.intermediate + problem.hidden
        fine = min(1, 1 / 4 + max(problem.rows) / sum(problem.rows))
        for_threads = 2 * 32 * threads * (1 - fine + 4 * fine)
        for_limits = sum(problem.rows) * outputs / MOST_ITEM_OUTPUTS + blocks * outputs / form.get("n_most", 2**32)
        assert len(items) <= 1.5 * (for_threads + for_limits) + 4 * blocks
        gathers = [item for item in problem.items() if item["step"] == "gather"]
        assert len(gathers) <= sum(problem.rows) * problem.hidden / 4096 + len(problem.rows)


@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_streams_of_weight_rows_get_equal_shares_on_two_threads(tokens):
    work = loads(routed(QWEN3_30B, tokens, STREAM, 2))
    assert max(work) - min(work) <= max(work) / 16


@pytest.mark.parametrize("form", [LANES, TILES])
def test_the_last_items_are_finer(form):
    """So that threads finish together: whoever claims the last one works no longer than a quarter of an item on."""
    problem = Problem((16,) * 64, form, form, 128, 2048, 1024, True, 4)
    down = [item for item in problem.items() if item["step"] == "down"]
    sizes = [multiply_adds(problem, item) for item in down]
    last_quarter = [size for size, item in zip(sizes, down) if item["expert"] >= 48]
    step = form["n_step"] * 16 * problem.intermediate
    assert max(last_quarter) <= max(sizes) / 4 + step
    assert min(size for size, item in zip(sizes, down) if item["expert"] < 48) > max(last_quarter)


def test_wide_items_are_few_and_their_last_ones_finer():
    """Few tokens on [K,N]: long runs of a weight row, until the threads have to finish together."""
    wide = LANES | {"wide": True}
    sizes = {}
    for name, form in (("wide", wide), ("plain", LANES)):
        problem = Problem((16,) * 8, form, form, 128, 2048, 1024, True, 4)
        sizes[name] = [(item["expert"], item["count"]) for item in problem.items() if item["step"] == "down"]
    assert max(count for _, count in sizes["wide"]) >= 4 * max(count for _, count in sizes["plain"])
    early = min(count for expert, count in sizes["wide"] if expert < 6)
    assert max(count for expert, count in sizes["wide"] if expert >= 6) <= early / 4
