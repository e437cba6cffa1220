"""Units of attention: every query once, the keys it sees, and cuts that lengths alone decide."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_hina import _native

ROWS, PART, PARTS = 64, 512, 64


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 200)), min_size=0, max_size=3),
    queries=st.integers(0, 200), kv_heads=st.integers(1, 3), group=st.integers(1, 80), causal=st.booleans(),
    window=st.integers(0, 3000), mask=st.none() | st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
)  # fmt: skip
def test_every_query_has_its_keys(lengths, queries, kv_heads, group, causal, window, mask):
    lengths = [(past, min(rows, queries)) for past, rows in lengths]
    window = window if causal else 0
    first_key, past_keys = sorted(mask) if mask else (0, 10**6)
    seen_keys = [(first_key, past_keys)] * len(lengths)
    units = _native.plan_attention(lengths, queries, kv_heads, group, causal, window, seen_keys if mask else [])
    covered = set()
    blocks = [list(parts) for _, parts in groupby(units, key=lambda unit: unit["block"])]
    assert [parts[0]["block"] for parts in blocks] == list(range(len(blocks)))
    for parts in blocks:
        first = parts[0]
        assert [unit["part"] for unit in parts] == list(range(first["parts"])) and len(parts) <= PARTS
        own = {"batch", "head", "query", "queries", "parts"}
        assert all({k: unit[k] for k in own} == {k: first[k] for k in own} for unit in parts)
        assert first["queries"] == 1 or first["queries"] * group <= ROWS
        assert all(a["keys"][1] == b["keys"][0] for a, b in zip(parts, parts[1:], strict=False))
        assert len(parts) == 1 or all(unit["keys"][1] - unit["keys"][0] >= PART for unit in parts)
        past, rows = lengths[first["batch"]]
        begin, end = parts[0]["keys"][0], parts[-1]["keys"][1]
        seen = [s for s in range(first["query"], first["query"] + first["queries"]) if s < rows]
        expected = (0, 0)
        if seen:
            expected_begin = max(0, past + seen[0] + 1 - window) if window else 0
            expected_end = past + seen[-1] + 1 if causal else past + rows
            expected = max(expected_begin, first_key), min(expected_end, past_keys)
        assert (begin, end) == (expected if expected[0] < expected[1] else (0, 0))
        for s in range(first["query"], first["query"] + first["queries"]):
            place = first["batch"], first["head"], s
            assert place not in covered
            covered.add(place)
    assert len(covered) == len(lengths) * kv_heads * queries


@pytest.mark.parametrize(("keys", "parts"), [(1, 1), (1023, 1), (1024, 2), (8192, 16), (32768, 64), (10**6, 64)])
def test_a_long_sequence_with_few_heads_has_parts(keys, parts):
    units = _native.plan_attention([(keys - 1, 1)], 1, 1, 8)
    assert len(units) == parts


def test_many_queries_are_not_cut_and_the_longest_come_first():
    units = _native.plan_attention([(0, 4096)], 4096, 2, 8)
    assert len(units) == 2 * 4096 * 8 // ROWS and all(unit["parts"] == 1 for unit in units)
    lengths = [unit["keys"][1] for unit in units]
    assert lengths == sorted(lengths, reverse=True)
