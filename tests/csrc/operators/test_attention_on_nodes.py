"""GroupQueryAttention whose caches stay in place on made-up NUMA nodes: the same answers, equal bits, whoever does what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_native import assert_answers, run_native, sizes_of, tensors_of
from support.attention_reference import AttentionCase, make_case
from support.cache_nodes import CachesInPlace, all_on, anywhere, in_turn
from support.elements import ELEMENTS, size_of
from support.levels import every_level

from ort_hina import _native


def assert_attends(caches: CachesInPlace, isa: str, nodes: int, on, threads: int = 2):
    """The first call only sees the address, those after it know where keys lie."""
    node = caches.node(isa, nodes, on)
    before = caches.run(node, threads)
    assert not caches.asked
    np.testing.assert_array_equal(before[0], run_native(caches.case, isa=isa, in_place=True)[0])
    answer = caches.run(node, threads)
    assert_places(caches, node.places)
    assert_answers(caches.case, answer, isa=isa, in_place=True, cuts=caches.cuts())
    np.testing.assert_array_equal(caches.run(node, threads)[0], answer[0])
    return answer[0]


def assert_places(caches: CachesInPlace, places: list) -> None:
    """Each key is known to be on the node of its pages."""
    case = caches.case
    expected = [caches.node_of_keys(b, head) for b in range(len(case.query)) for head in range(case.kv_heads)]
    if all((nodes < 0).all() for nodes in expected):
        assert places == []
        return
    for nodes, runs in zip(expected, places, strict=True):
        found = np.full(len(nodes), -1)
        for begin, end, node in runs:
            assert (found[begin:end] == -1).all()
            found[begin:end] = node
        np.testing.assert_array_equal(found, nodes)


@st.composite
def cases(draw) -> AttentionCase:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    queries, past, batch = draw(st.sampled_from([1, 1, 3])), draw(st.sampled_from([0, 5, 60, 700])), draw(st.integers(1, 3))
    total = past + queries
    case = make_case(
        rng, batch=batch, kv_heads=draw(st.integers(1, 2)), group=draw(st.sampled_from([1, 3, 8])),
        size=draw(st.sampled_from([64, 128, 40])), value_size=draw(st.sampled_from([None, None, 64, 33])), queries=queries,
        past=past, capacity=total + draw(st.sampled_from([0, 1, 300])), rotary=draw(st.sampled_from([0, 16])),
        kind=draw(st.sampled_from(ELEMENTS)), window=draw(st.sampled_from([-1, -1, 9, 300])),
    )  # fmt: skip
    if draw(st.booleans()):
        case = replace(case, seqlens_k=rng.integers(0, total, batch).astype(np.int32))
    masked = draw(st.sampled_from(["none", "left", "holes"]))
    if masked == "left":
        case = replace(case, mask=np.arange(total) >= rng.integers(0, total, (batch, 1)))
    if masked == "holes":
        case = replace(case, mask=rng.random((batch, total)) < 0.7)
    if draw(st.booleans()):
        case = replace(case, sink=rng.standard_normal(case.heads).astype(np.float32))
    return case


@every_level
@settings(max_examples=60, deadline=None)
@given(
    case=cases(), page_bytes=st.sampled_from([64, 256, 1024, 4096]), nodes=st.integers(1, 4), seed=st.integers(0, 99),
    kind=st.sampled_from(["in turn", "anywhere", "unknown"]), threads=st.sampled_from([1, 2, 5]), data=st.data(),
)  # fmt: skip
def test_any_call_on_any_placement(isa, case, page_bytes, nodes, seed, kind, threads, data):
    pages = in_turn(nodes) if kind == "in turn" else anywhere(nodes, seed, 0.3 if kind == "unknown" else 0.0)
    on = data.draw(st.lists(st.none() | st.integers(0, nodes - 1), min_size=1, max_size=4))
    caches = CachesInPlace(case, page_bytes, pages)
    assert_attends(caches, isa, nodes, on, threads)


@every_level
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_equal_bits_whoever_does_what(isa, size, kind):
    """The nodes of the threads, their number, and who helps whom change nothing."""
    case = make_case(
        np.random.default_rng(size), kv_heads=2, group=4, size=size, past=2500, capacity=2600, kind=kind, total=2501
    )
    caches = CachesInPlace(case, 4096, in_turn(3))
    plain = run_native(case, isa=isa, in_place=True)[0]
    first = assert_attends(caches, isa, 3, [0], threads=1)
    assert (first != plain).any(), "cut as without nodes"
    for threads, on in ((2, [0, 1]), (5, [0, 1, 2]), (5, [1, 1, 2]), (3, [None, 2])):
        node = caches.node(isa, 3, on)
        caches.run(node, threads)
        np.testing.assert_array_equal(caches.run(node, threads)[0], first)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_more_heads_than_threads(threads):
    """A thread takes several units at once."""
    case = make_case(np.random.default_rng(5), batch=4, kv_heads=12, size=32, past=60, capacity=70, total=61)
    assert_attends(CachesInPlace(case, 1024, in_turn(2)), "", 2, [0, 1], threads)


@every_level
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_what_a_hidden_key_holds_is_never_read(isa, kind):
    case = make_case(np.random.default_rng(1), kv_heads=2, group=2, size=64, past=900, capacity=950, seqlens_k=None, kind=kind)
    mask = np.ones((1, 901), bool)
    mask[0, :330] = mask[0, 500:513] = mask[0, 777] = False
    case = replace(case, mask=mask)
    caches = CachesInPlace(case, 4096, in_turn(2))
    expected = assert_attends(caches, isa, 2, [0, 1])
    hidden = np.pad(~mask, ((0, 0), (0, 49)), constant_values=True)
    for name in ("past_key", "past_value"):
        getattr(case, name)[np.broadcast_to(hidden[:, None], (1, 2, 950))] = np.nan
        caches.tensors[name][:] = tensors_of(case)[name]
    node = caches.node(isa, 2, [0, 1])
    caches.run(node)
    np.testing.assert_array_equal(caches.run(node)[0], expected)


@pytest.mark.parametrize("threads", [1, 4])
def test_nodes_without_threads_are_helped(threads):
    case = make_case(np.random.default_rng(2), kv_heads=3, size=64, past=1500, capacity=1600, total=1501)
    for pages in (all_on(6), anywhere(8, 1)):
        assert_attends(CachesInPlace(case, 4096, pages), "", 8, [0], threads)


def test_calls_at_the_same_time():
    """Of one node, each on caches of its own: whoever finds the placement in use goes without."""
    case = make_case(np.random.default_rng(4), kv_heads=2, size=64, past=600, capacity=640, total=601)
    caches = [CachesInPlace(case, 4096, in_turn(2)) for _ in range(3)]
    node = caches[0].node("", 2, [0, 1])

    def calls(own: CachesInPlace):
        for _ in range(20):
            assert_answers(case, own.run(node), in_place=True, cuts=own.cuts())

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(calls, caches))


# ---- What is asked, and when


def long_case(past: int = 700, **rest) -> AttentionCase:
    return make_case(
        np.random.default_rng(3), kv_heads=2, group=2, size=64, past=past, capacity=1024, total=past + 1, kind="float16", **rest
    )


class Growing:
    """One buffer of caches, and calls with more and more keys in it."""

    def __init__(self, pages=in_turn(2), **how):
        self.caches = CachesInPlace(long_case(), 4096, pages)
        self.node = self.caches.node("", 2, [0, 1], **how)

    def call(self, past: int, queries: int = 1, in_place: bool = True) -> int:
        """The pages that are asked about."""
        caches, case = self.caches, self.caches.case
        rows = make_case(np.random.default_rng(past), kv_heads=2, group=2, size=64, queries=queries, kind="float16")
        tensors = caches.tensors | {name: tensors_of(rows)[name] for name in ("query", "key", "value")}
        tensors["seqlens_k"] = np.array([past + queries - 1], np.int32).view(np.uint8)
        sizes = sizes_of(case) | {"queries": queries, "total": past + queries}
        caches.asked.clear()
        self.node.run("float16", sizes, tensors, 2, in_place)
        return sum(count for _, count in caches.asked)

    def pages_of(self, begin: int, end: int) -> int:
        """Pages with rows [begin, end) of a head of keys or values."""
        row, total = 64 * size_of("float16"), 0
        for name in ("past_key", "past_value"):
            address = self.caches.tensors[name].ctypes.data
            for first in (address, address + 1024 * row):
                total += -(-(first + end * row) // 4096) - (first + begin * row) // 4096
        return total


def test_pages_are_asked_about_once_as_they_fill():
    growing = Growing()
    assert growing.call(700) == 0
    assert growing.call(701) == growing.pages_of(0, 701)
    asked = [growing.call(past) for past in range(702, 799)]
    assert sum(asked) == growing.pages_of(0, 798) - growing.pages_of(0, 701)
    assert asked.count(0) > 80
    assert growing.call(750) == 0, "tokens taken back"


def test_only_caches_that_stay_are_asked_about():
    growing = Growing()
    growing.call(700)
    assert growing.call(701, in_place=False) == 0
    assert growing.call(701) == 0
    assert growing.call(702) > 0
    other = CachesInPlace(long_case(), 4096, in_turn(2))
    growing.caches.tensors |= {name: other.tensors[name] for name in ("past_key", "past_value")}
    assert growing.call(703) == 0
    assert growing.call(704) == growing.pages_of(0, 704)


def test_a_new_text_is_asked_about_again():
    growing = Growing()
    growing.call(700)
    assert growing.call(701) > 0
    assert growing.call(0, queries=300) == 0
    assert growing.call(300) == growing.pages_of(0, 300)


def test_nothing_is_asked_for_a_prompt_or_for_little():
    growing = Growing()
    growing.call(700)
    assert growing.call(650, queries=33) == 0
    assert growing.call(650, queries=32) > 0
    growing = Growing(least_bytes=2 * 2 * 128 * 702)
    growing.call(700)
    assert growing.call(700) == 0
    assert growing.call(701) > 0
    least = {"nodes": 2, "threads": [0], "page_bytes": 4096, "pages": growing.caches._answer}
    node = _native.GroupQueryAttention(growing.caches.case.attributes(), "", least)
    growing.node = node
    assert growing.call(900) == growing.call(901) == 0, "less than 1 MB"


def test_a_kernel_that_refuses_is_not_asked_again():
    growing = Growing()
    questions = []
    numa = {"nodes": 2, "threads": [0], "page_bytes": 4096, "least_bytes": 0, "pages": lambda *asked: questions.append(asked)}
    growing.node = _native.GroupQueryAttention(growing.caches.case.attributes(), "", numa)
    for past in range(700, 704):
        growing.call(past)
    assert len(questions) == 1


def test_where_nothing_is_known_calls_are_as_without_nodes():
    caches = CachesInPlace(long_case(), 4096, all_on(-1))
    np.testing.assert_array_equal(
        assert_attends(caches, "", 2, [0, 1]), run_native(caches.case, in_place=True)[0]
    )
    assert caches.asked
