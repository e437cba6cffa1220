"""Attention that went wrong elsewhere: small cases whose answers can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.attention_native import assert_attends, assert_inside, run_native
from support.attention_reference import attend, make_case
from support.elements import ELEMENTS
from support.levels import every_level

RNG = np.random.default_rng(0)


def uniform_case(queries: int, past: int = 0, **rest):
    """All scores equal, and values that tell which key they belong to: 32 keys at most."""
    case = make_case(RNG, queries=queries, past=past, **rest)
    one_hot = np.eye(32, dtype=np.float32)
    return replace(
        case, query=np.zeros_like(case.query), value=one_hot[past : past + queries][None, :, None],
        past_value=one_hot[:past][None, None] if past else None,
    )  # fmt: skip


def seen_by(output: np.ndarray, query: int, head: int = 0) -> list[int]:
    return np.flatnonzero(output[0, query, head]).tolist()


@every_level
def test_the_window_holds_the_query_itself(isa):
    """T01."""
    output, *_ = assert_attends(uniform_case(12, window=4), isa=isa)
    assert seen_by(output, 9) == [6, 7, 8, 9]
    assert seen_by(output, 2) == [0, 1, 2]
    np.testing.assert_allclose(output[0, 9, 0, 6:10], 0.25, rtol=1e-6)
    output, *_ = assert_attends(uniform_case(3, past=7, window=4), isa=isa)
    assert [seen_by(output, q) for q in range(3)] == [[4, 5, 6, 7], [5, 6, 7, 8], [6, 7, 8, 9]]
    output, *_ = assert_attends(uniform_case(1, past=9, window=4), isa=isa)
    assert seen_by(output, 0) == [6, 7, 8, 9]


@every_level
def test_new_tokens_see_what_came_before_them(isa):
    """T06. The diagonal ends at the last key, not at the first."""
    output, *_ = assert_attends(uniform_case(3, past=5), isa=isa)
    assert [seen_by(output, q) for q in range(3)] == [list(range(6 + q)) for q in range(3)]


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
def test_a_sink_takes_its_share(isa, kind):
    """T02. It is neither scaled nor capped."""
    case = uniform_case(4, group=2, scale=0.125, softcap=1.0, sink=np.array([0, 5], np.float32), kind=kind)
    output, *_ = assert_attends(case, isa=isa)
    keys = np.arange(1, 5)
    for head, sink in enumerate((0.0, 5.0)):
        np.testing.assert_allclose(output[0, :, head].sum(axis=1), keys / (keys + np.exp(sink)), rtol=1e-2)


@every_level
def test_a_sink_of_minus_infinity_is_none_and_smooth_softmax_is_one_of_zero(isa):
    """T02."""
    for past in (9, 4097):
        case = make_case(RNG, group=8, queries=1, past=past, window=4000)
        absent = run_native(case, isa=isa)[0]
        np.testing.assert_array_equal(run_native(replace(case, sink=np.full(8, -np.inf, np.float32)), isa=isa)[0], absent)
        smooth = run_native(replace(case, smooth=True), isa=isa)[0]
        np.testing.assert_array_equal(run_native(replace(case, sink=np.zeros(8, np.float32)), isa=isa)[0], smooth)
        assert not np.array_equal(smooth, absent)


@every_level
@pytest.mark.parametrize("sink", [None, 0.0])
def test_rows_that_see_nothing_give_zeros(isa, sink):
    """T05. Masked by the bias, or padding; the other rows stay as they are."""
    rest = {} if sink is None else {"sink": np.full(2, sink, np.float32)}
    case = make_case(RNG, batch=2, group=2, queries=6, **rest)
    bias = np.zeros((1, 1, 6, 6), np.float32)
    bias[..., 2, :] = -np.inf
    masked = replace(case, bias=bias, seqlens_k=np.array([5, 2], np.int32))
    output, *_ = assert_attends(masked, isa=isa)
    assert np.isfinite(output).all()
    assert (output[:, 2] == 0).all() and (output[1, 3:] == 0).all()
    plain = run_native(case, isa=isa)[0]
    np.testing.assert_array_equal(output[0, [0, 1, 3, 4, 5]], plain[0, [0, 1, 3, 4, 5]])


@every_level
@pytest.mark.parametrize("past", [0, 20])
def test_sequences_of_a_batch_have_lengths_of_their_own(isa, past):
    """Each query is turned by its own position and sees its own keys, whatever the other sequences have."""
    case = make_case(RNG, batch=3, kv_heads=2, group=2, queries=12, past=past, rotary=16, window=8)
    case = replace(case, seqlens_k=np.array([2, 11 + past, 6], np.int32))
    output, *_ = assert_attends(case, isa=isa)
    assert [np.abs(output[b]).max(axis=(1, 2)).astype(bool).sum() for b in range(3)] == [3, 12, 7]


@every_level
def test_a_row_masked_by_the_lowest_number_is_the_mean(isa):
    """T05. As exporters mask: the graph's softmax of equal numbers is uniform, and finite."""
    case = uniform_case(4, bias=np.full((1, 1, 4, 4), np.finfo(np.float32).min))
    output, *_ = run_native(case, isa=isa)
    np.testing.assert_allclose(output[0, 3, 0, :4], 0.25, rtol=1e-6)


def tokens_of(case, begin: int, end: int, keys, values):
    """The call that appends tokens [begin, end) of a whole prompt to caches of 128 rows, which it does in place."""
    return replace(
        case, query=case.query[:, begin:end], key=case.key[:, begin:end], value=case.value[:, begin:end],
        past_key=keys, past_value=values, total=end, seqlens_k=np.array([end - 1], np.int32),
    )  # fmt: skip


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("window", [-1, 20])
def test_appending_and_rewinding_over_stale_rows(isa, kind, window):
    """T07. What lies beyond the length is NaN at first, and later what was rewound."""
    whole = make_case(RNG, kv_heads=2, group=2, queries=117, rotary=8, kind=kind, window=window)
    keys = np.full((1, 2, 128, 32), np.nan, np.float32)
    values = keys.copy()
    for begin, end in ((0, 100), (100, 117), (60, 100), (100, 101)):
        case = tokens_of(whole, begin, end, keys, values)
        output, keys, values = assert_attends(case, isa=isa, in_place=True)
        assert np.isfinite(output).all()
        fresh = run_native(tokens_of(whole, 0, end, None, None), isa=isa)[0]
        np.testing.assert_allclose(output, fresh[:, begin:end], rtol=0, atol=2e-2 if kind == "bfloat16" else 2e-3)
    assert np.isnan(keys[:, :, 117:]).all()


@every_level
def test_a_token_that_is_not_a_number_is_seen_by_later_ones_only(isa):
    case = make_case(RNG, kv_heads=2, group=4, queries=40)
    value = case.value.copy()
    value[0, 17, 1, 3] = np.nan
    output, *_ = assert_attends(replace(case, value=value), isa=isa)
    assert np.isnan(output[0, 17:, 4:, 3]).all() and np.isnan(output).sum() == 23 * 4
    key = case.key.copy()
    key[0, 17, 0, 3] = np.nan
    output, *_ = assert_attends(replace(case, key=key), isa=isa)
    assert np.isnan(output[0, 17:, :4]).all() and np.isnan(output).sum() == 23 * 4 * 32


@every_level
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("size", "rotary"), [(128, 32), (256, 32), (64, 32)])
def test_partial_rotary(isa, size, rotary, interleaved):
    """T08. The tail of every head is as it was."""
    case = make_case(RNG, kv_heads=2, group=2, size=size, queries=5, past=8, rotary=rotary, interleaved=interleaved)
    _, keys, _ = assert_attends(case, isa=isa)
    new = case.key.swapaxes(1, 2)
    np.testing.assert_array_equal(keys[:, :, 8:, 2 * rotary :], new[..., 2 * rotary :])
    assert not np.array_equal(keys[:, :, 8:, : 2 * rotary], new[..., : 2 * rotary])


@every_level
@pytest.mark.parametrize(("queries", "batch"), [(1, 2), (64, 1)])
def test_long_caches(isa, queries, batch):
    """T10, with a small head."""
    rng = np.random.default_rng(0)
    case = make_case(rng, batch=batch, kv_heads=1, group=2, size=32, queries=queries, past=70_000, kind="bfloat16")
    assert_attends(case, isa=isa, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "batch"), [(1, 2), (256, 1)])
def test_long_caches_of_a_real_layer(queries, batch):
    """T10. 32 heads over 8 of 128. The last head of the last sequence is compared, which lies furthest."""
    rng = np.random.default_rng(0)
    case = make_case(rng, batch=batch, kv_heads=8, group=4, size=128, queries=queries, past=70_000)
    output, keys, values = run_native(case, threads=2)
    last = replace(case, kv_heads=1, query=case.query[-1:, :, 28:], seqlens_k=case.seqlens_k[-1:])
    expected = attend(last, keys[-1:, 7:], values[-1:, 7:])
    assert_inside(output[-1:, :, 28:], expected.values, expected.errors, "output")
