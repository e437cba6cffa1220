"""A matrix cut by nodes: all of it once, each byte to its own node, and the paper's segments where pages are interleaved."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.page_maps import Runs, interleaved, mixed, node_of_bytes, one_node, page_maps, scattered

from ort_hina import _native

# plan/node_partition.cc: shorter runs of bytes go with their neighbours.
FRAGMENT = 64


def cut(runs: Runs, rows: int, columns: int, element: int, begin: int = 0, stride: int | None = None, **rule) -> dict:
    return _native.node_partition(runs, begin, rows, columns, element, stride, **rule)


def owners(partition: dict, rows: int, columns: int) -> np.ndarray:
    """The node that each element was given to, -1: anyone. Asserts that none was given twice, or not at all."""
    owner = np.full((rows, columns), -2)
    for item in partition["items"]:
        for piece in item["pieces"]:
            at = np.asarray(piece["rows"])[:, None] + item["row"], slice(*(np.asarray(piece["columns"]) + item["column"]))
            block = at[0], np.arange(columns)[at[1]]
            assert (owner[block] == -2).all()
            owner[block] = -1 if item["node"] is None else item["node"]
    assert (owner != -2).all()
    return owner


def truth(runs: Runs, rows: int, columns: int, element: int, begin: int, stride: int) -> np.ndarray:
    """The node of every byte, [rows, columns, element]."""
    at = begin + np.arange(rows)[:, None, None] * stride + np.arange(columns)[None, :, None] * element
    return node_of_bytes(runs)[at + np.arange(element)]


def remote_share(partition: dict, runs: Runs, rows: int, columns: int, element: int, begin: int = 0) -> float:
    owner = owners(partition, rows, columns)
    real = truth(runs, rows, columns, element, begin, columns * element)
    return float(np.mean((real != owner[:, :, None]) & (owner != -1)[:, :, None] & (real != -1)))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=st.integers(1, 90), columns=st.integers(1, 700), element=st.sampled_from([1, 2, 4]),
       begin=st.integers(0, 300), gap=st.sampled_from([0, 0, 6]), inputs=st.booleans())  # fmt: skip
def test_every_element_once_and_only_page_ends_are_elsewhere(data, rows, columns, element, begin, gap, inputs):
    stride = columns * element + gap
    size = begin + rows * stride
    runs, _ = data.draw(page_maps(size))
    step = data.draw(st.sampled_from([1, 8, 32]))
    partition = cut(runs, rows, columns, element, begin, stride, rows_are_inputs=inputs, column_step=step)
    owner = owners(partition, rows, columns)
    real = truth(runs, rows, columns, element, begin, stride)
    # An element that was given elsewhere lies near the end of a run: within half a step, and a fragment.
    wrong = (real != owner[:, :, None]).any(2)
    reach = element * (step // 2 + 1) + FRAGMENT + step * element
    ends = np.cumsum([length for length, _ in runs])
    for row, column in np.argwhere(wrong)[:200]:
        byte = begin + row * stride + column * element
        assert np.abs(ends - byte).min() <= reach


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rows=st.integers(1, 90), columns=st.integers(1, 700), inputs=st.booleans())
def test_partial_sums_are_numbered_without_holes(data, rows, columns, inputs):
    runs, _ = data.draw(page_maps(rows * columns * 2))
    partition = cut(runs, rows, columns, 2, rows_are_inputs=inputs)
    outputs = columns if inputs else rows
    written = [set() for _ in range(outputs)]
    had = [0] * outputs  # as many as the pieces say
    for item in partition["items"]:
        assert len({piece["rank"] for piece in item["pieces"]}) == 1 or not inputs
        started = set()
        for piece in item["pieces"]:
            assert piece["rank"] < piece["ranks"] <= partition["ranks"]
            if inputs:
                of = range(item["column"] + piece["columns"][0], item["column"] + piece["columns"][1])
                part = item["part"] + piece["rank"]
            else:
                of, part = [item["row"] + row for row in piece["rows"]], piece["rank"]
                for output in of:
                    assert piece["first"] == ((output, part) not in started)
                    started.add((output, part))
            for output in of:
                written[output].add(part)
                had[output] = max(had[output], piece["ranks"])
    for output in range(outputs):
        assert max(written[output]) < partition["parts"]
        if not inputs:
            assert written[output] == set(range(had[output]))


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("columns", [768, 2048, 4096, 6144, 7168, 14336])
def test_interleaved_pages_give_the_segments_of_equations_3_to_5(nodes, columns):
    """HiNa-MoE, section 5.2, with its 2048 elements of bfloat16 in a page of 4 KB."""
    period_y = 2048 * nodes
    period_x = period_y // math.gcd(columns, period_y)
    rows = period_x * 16 * 2
    partition = cut(interleaved(rows * columns * 2, 4096, nodes), rows, columns, 2)
    segments = {(node, x): set() for node in range(nodes) for x in range(period_x)}
    for item in partition["items"]:
        for piece in item["pieces"]:
            first = item["row"] + piece["rows"][0]
            assert piece["step"] == (period_x if len(piece["rows"]) > 1 else 1)
            segments[item["node"], first % period_x].add(tuple(piece["columns"]))
    for node, x in segments:
        y = np.arange(columns)
        local = (x * columns + y) % period_y // 2048 == node  # Equations 3 and 5
        edges = np.flatnonzero(np.diff(np.r_[False, local, False]))
        assert segments[node, x] == set(zip(edges[::2].tolist(), edges[1::2].tolist()))


def test_the_example_of_figure_7():
    partition = cut(interleaved(64 * 6144 * 2, 4096, 2), 64, 6144, 2)
    of_node_0 = {(piece["rows"][0] % 2, *piece["columns"]) for item in partition["items"] if item["node"] == 0
                 for piece in item["pieces"]}  # fmt: skip
    assert of_node_0 == {(0, 0, 2048), (0, 4096, 6144), (1, 2048, 4096)}


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("element", [2, 4])
@pytest.mark.parametrize("columns", [768, 1408, 2880, 14336])
@pytest.mark.parametrize("begin", [0, 1234, 2048])
@pytest.mark.parametrize("kind", ["4k", "64k", "2m", "scattered", "mixed"])
def test_real_sizes_are_read_from_the_own_node(inputs, element, columns, begin, kind):
    """Windows that begin mid-page; the step is the coarsest that operators use (operators/moe_nodes.cc)."""
    rows = max(64, (3 << 20) // (columns * element))
    size, rng = begin + rows * columns * element, np.random.default_rng(1)
    runs = {
        "4k": lambda: interleaved(size, 4096, 4, phase=100),
        "64k": lambda: interleaved(size, 65536, 2, phase=4096),
        "2m": lambda: interleaved(size, 2 << 20, 3, phase=1 << 20),
        "scattered": lambda: scattered(size, 4096, 2, rng),
        "mixed": lambda: mixed(size, (4096, 16384, 65536, 1 << 20), 4, rng),
    }[kind]()
    partition = cut(runs, rows, columns, element, begin, rows_are_inputs=inputs, column_step=8 if inputs else 64 // element)
    assert remote_share(partition, runs, rows, columns, element, begin) <= 0.01


def test_whole_rows_on_a_node_need_no_sum():
    partition = cut(interleaved(512 * 4096, 4096, 2), 512, 2048, 2)
    assert partition["parts"] == 1
    partition = cut(interleaved(64 << 20, 2 << 20, 2), 8192, 2048, 2)
    assert partition["parts"] == 1
    assert all(len(item["pieces"]) == 1 for item in partition["items"])


@pytest.mark.parametrize("inputs", [False, True])
def test_a_tile_is_of_the_node_that_has_clearly_most_of_it(inputs):
    even = cut(interleaved(4096 * 3072 * 2, 4096, 2), 4096, 3072, 2, rows_are_inputs=inputs)
    assert {item["most"] for item in even["items"]} == {None}
    large = cut(interleaved(4096 * 4096 * 2, 8 << 20, 2), 4096, 4096, 2, rows_are_inputs=inputs)
    assert all(item["most"] == item["node"] for item in large["items"])


def test_one_node_is_one_piece_per_tile():
    partition = cut(one_node(1000 * 4096, 3), 1000, 2048, 2)
    assert partition["parts"] == 1 and {item["node"] for item in partition["items"]} == {3}
    assert sum(item["rows"] for item in partition["items"]) == 1000


def test_what_recurs_is_kept_once():
    """Ten times the rows take no more memory for pieces, apart from the ends."""
    small, large = (cut(interleaved(rows * 4096 * 2, 4096, 2), rows, 4096, 2)["pool_bytes"] for rows in (2048, 20480))
    assert large <= small * 1.5


@pytest.mark.parametrize("inputs", [False, True])
def test_work_is_balanced_by_bytes(inputs):
    """Each node's items have the bytes that lie there, and none is a large share of them."""
    runs = interleaved(2048 * 4096 * 2, 4096, 4)
    partition = cut(runs, 2048, 4096, 2, rows_are_inputs=inputs)
    loads = {node: [] for node in range(4)}
    for item in partition["items"]:
        loads[item["node"]].append(sum(len(p["rows"]) * (p["columns"][1] - p["columns"][0]) for p in item["pieces"]))
    assert {sum(load) for load in loads.values()} == {2048 * 4096 // 4}
    assert all(max(load) * 8 <= sum(load) for load in loads.values())


@pytest.mark.parametrize("inputs", [False, True])
def test_partial_sums_of_inputs_stay_few(inputs):
    for rows, columns, element in ((2048, 768, 4), (768, 2048, 4), (4096, 14336, 2), (14336, 4096, 2)):
        partition = cut(interleaved(rows * columns * element, 4096, 4), rows, columns, element, rows_are_inputs=inputs)
        assert partition["parts"] <= 32


def test_empty_matrices_have_no_items():
    assert cut([], 0, 10, 2)["items"] == [] and cut([], 10, 0, 2)["items"] == []


def test_bad_arguments():
    with pytest.raises(ValueError, match="covers the matrix"):
        cut(one_node(10), 4, 4, 2)
    with pytest.raises(ValueError, match="row_stride"):
        cut(one_node(100), 4, 4, 2, stride=4)
    with pytest.raises(ValueError, match="node is out of range"):
        cut([(100, 255)], 4, 4, 2)
