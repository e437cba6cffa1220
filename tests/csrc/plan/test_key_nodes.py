"""Keys cut by nodes: each once, with its node's, in parts that are as long as can be."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cache_nodes import nodes_of_keys
from support.page_maps import interleaved, node_of_bytes, one_node, page_maps

from ort_hina import _native

PART, PARTS = 512, 64


def plan(past: int, queries: int, heads: list, key_bytes: int, value_bytes: int, **rest):
    placement = {"heads": heads, "key_bytes": key_bytes, "value_bytes": value_bytes}
    return _native.plan_attention([(past, queries)], queries, len(heads), 8, placement=placement, **rest)


def rows_of(runs, row_bytes: int) -> np.ndarray:
    nodes = node_of_bytes(runs).astype(int)
    return nodes[: len(nodes) // row_bytes * row_bytes].reshape(-1, row_bytes)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(), past=st.integers(0, 3000), queries=st.integers(1, 8), key_bytes=st.sampled_from([16, 64, 100]),
    value_bytes=st.sampled_from([16, 64, 36]), window=st.sampled_from([0, 0, 7, 900]), asked=st.integers(-40, 3),
)  # fmt: skip
def test_each_key_once_with_its_node(data, past, queries, key_bytes, value_bytes, window, asked):
    rows = max(0, past + queries + asked)
    maps = [data.draw(page_maps(rows * size))[0] for size in (key_bytes, value_bytes)]
    units = plan(past, queries, [tuple(maps)], key_bytes, value_bytes, window=window)
    keys = past + queries
    node_of_key = nodes_of_keys(rows_of(maps[0], key_bytes), rows_of(maps[1], value_bytes), keys)
    assert [unit["part"] for unit in units] == list(range(len(units))) and {unit["parts"] for unit in units} == {len(units)}
    first = max(0, past + 1 - window) if window else 0
    if (node_of_key < 0).all():
        assert all(unit["node"] is None for unit in units)
        return
    found = np.full(keys, -1)
    for unit in units:
        for begin, end in unit["runs"]:
            assert unit["keys"][0] <= begin < end <= unit["keys"][1] and (found[begin:end] == -1).all()
            found[begin:end] = unit["node"]
    np.testing.assert_array_equal(found[first:], node_of_key[first:])
    assert (found[:first] == -1).all()
    for _, parts in groupby(units, key=lambda unit: unit["node"]):
        counts = [sum(end - begin for begin, end in unit["runs"]) for unit in parts]
        assert max(counts) - min(counts) <= 1
        assert len(counts) == 1 or (min(counts) >= PART and len(counts) == sum(counts) // PART)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("past", [100, 1023, 5000, 10**6])
def test_parts_are_bounded(nodes, past):
    row = 16
    maps = interleaved((past + 1) * row, 4096, nodes)
    units = plan(past, 1, [(maps, maps)], row, row)
    assert len(units) <= PARTS + nodes
    if past == 10**6:
        assert len(units) > PARTS - nodes


def test_keys_on_one_node_are_cut_as_without_nodes():
    runs = one_node(3000 * 64, 1)
    units = plan(2999, 1, [(runs, runs)], 64, 64)
    assert [unit["keys"] for unit in units] == [unit["keys"] for unit in _native.plan_attention([(2999, 1)], 1, 1, 8)]
    assert {unit["node"] for unit in units} == {1}


def test_a_head_of_unknown_place_is_anyones():
    runs = one_node(2000 * 64)
    units = plan(1999, 1, [(runs, runs), ([(2000 * 64, None)], runs), ([(128000, None)], [(128000, None)])], 64, 64)
    assert {unit["node"] for unit in units if unit["head"] < 2} == {0}
    assert {unit["node"] for unit in units if unit["head"] == 2} == {None}


def test_values_on_another_node_follow_the_larger_row_and_else_the_key():
    keys, values = one_node(800 * 64, 0), one_node(800 * 64, 1)
    assert {unit["node"] for unit in plan(799, 1, [(keys, values)], 64, 64)} == {0}
    assert {unit["node"] for unit in plan(399, 1, [(keys[:1], one_node(400 * 65, 1))], 64, 65)} == {1}


def test_many_queries_are_not_cut():
    runs = interleaved(5000 * 64, 4096, 2)
    assert {unit["node"] for unit in plan(4990, 9, [(runs, runs)], 64, 64)} == {None}
    assert {unit["node"] for unit in plan(4990, 8, [(runs, runs)], 64, 64)} == {0, 1}
