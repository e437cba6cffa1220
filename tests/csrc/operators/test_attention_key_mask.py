"""attention_mask: which keys are seen, and that nothing else of the answer depends on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.attention_native import assert_attends, run_native
from support.attention_reference import AttentionCase, make_case
from support.elements import ELEMENTS
from support.levels import every_level

RNG = np.random.default_rng(0)


def left_padded(lengths: list[int], width: int) -> np.ndarray:
    return (np.arange(width) >= width - np.array(lengths)[:, None]).astype(np.int64)


def positions_of(mask: np.ndarray) -> np.ndarray:
    """As transformers counts them."""
    return np.where(mask == 0, 1, np.cumsum(mask, axis=1) - 1)


def alone(case: AttentionCase, batch: int, begin: int, past: int) -> AttentionCase:
    """A sequence by itself, from its first real key on; `past` of its keys lie in the cache."""
    first = max(0, begin - past)
    cut = {} if past <= begin else {
        name: getattr(case, name)[batch : batch + 1, :, begin:past] for name in ("past_key", "past_value")
    }  # fmt: skip
    new = {name: getattr(case, name)[batch : batch + 1, first:] for name in ("query", "key", "value")}
    nothing = {"past_key": None, "past_value": None, "mask": None, "position_ids": None}
    return replace(case, **(nothing | cut | new), total=case.total - begin)


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize(("queries", "past"), [(16, 0), (1, 20), (4, 14), (1, 2100)])
@pytest.mark.parametrize("rest", [{}, {"window": 5, "sink": np.array([0, 1, 2, 3], np.float32)}])
def test_a_left_padded_batch_is_its_sequences(isa, kind, queries, past, rest):
    """T03."""
    total = past + queries
    lengths = [3, 9, total]
    case = make_case(
        RNG, batch=3, kv_heads=2, group=2, queries=queries, past=past, rotary=16, kind=kind, seqlens_k=None, **rest
    )
    mask = left_padded(lengths, total)
    case = replace(case, mask=mask, position_ids=positions_of(mask)[:, past:])
    output, keys, _ = assert_attends(case, isa=isa, threads=2)
    for b, length in enumerate(lengths):
        single = alone(case, b, total - length, past)
        expected, own_keys, _ = assert_attends(single, isa=isa)
        rows = single.query.shape[1]
        near = {"float": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}[kind]
        np.testing.assert_allclose(output[b, queries - rows :], expected[0], rtol=0, atol=near)
        np.testing.assert_array_equal(keys[b, :, total - length :], own_keys[0])
        assert (output[b, : queries - rows] == 0).all()


@every_level
@pytest.mark.parametrize("element", [np.bool_, np.int32, np.int64])
def test_ones_are_no_mask(isa, element):
    case = make_case(RNG, batch=2, kv_heads=2, group=3, queries=7, past=1100)
    masked = replace(case, mask=np.ones((2, case.total), element))
    for found, wanted in zip(run_native(masked, isa=isa), run_native(case, isa=isa), strict=True):
        np.testing.assert_array_equal(found, wanted)


@every_level
def test_a_value_is_0_only_if_all_of_its_bytes_are(isa):
    case = make_case(RNG, queries=3, past=61)
    values = np.array([1 << 31, 1 << 40, 256, -1], np.int64)
    whole = run_native(case, isa=isa)
    for element in (np.int64, np.int32):
        mask = np.resize(values, (1, 64)) if element == np.int64 else np.resize(values[[0, 2, 3]], (1, 64))
        found = run_native(replace(case, mask=mask.astype(element)), isa=isa)
        np.testing.assert_array_equal(found[0], whole[0])


@every_level
@pytest.mark.parametrize(("queries", "past"), [(1, 40), (6, 34), (40, 0), (1, 3000)])
def test_holes(isa, queries, past):
    """A hidden key is as if it were not there."""
    case = make_case(RNG, group=4, queries=queries, past=past, seqlens_k=None)
    seen = RNG.random(case.total) < 0.6
    seen[-1] = True
    output, *_ = assert_attends(replace(case, mask=seen[None]), isa=isa, threads=2)
    if queries > 1:
        return
    old = seen[:past]
    without = replace(
        case, past_key=case.past_key[:, :, old], past_value=case.past_value[:, :, old], total=int(seen.sum())
    )
    expected, *_ = run_native(without, isa=isa)
    np.testing.assert_allclose(output, expected, rtol=0, atol=2e-6)


@every_level
def test_what_a_hidden_key_holds_is_never_read(isa):
    """In the cache, where a padding token left what it had, and among new tokens."""
    case = make_case(RNG, batch=2, kv_heads=2, group=2, queries=5, past=200, capacity=230, seqlens_k=None)
    mask = np.ones((2, 205), bool)
    mask[0, :130] = mask[1, 50:60] = mask[1, 201] = False
    case = replace(case, mask=mask)
    expected, *_ = assert_attends(case, isa=isa)
    for name in ("past_key", "past_value"):
        cache = getattr(case, name)
        hidden = np.pad(~mask[:, :200], ((0, 0), (0, 30)), constant_values=True)
        cache[np.broadcast_to(hidden[:, None], cache.shape[:3])] = np.nan
    case.value[1, 1] = np.inf
    for in_place in (False, True):
        output, *_ = run_native(case, isa=isa, in_place=in_place)
        np.testing.assert_array_equal(output, expected)


@every_level
@pytest.mark.parametrize("extra", [{}, {"sink": np.zeros(4, np.float32)}, {"causal": False}])
@pytest.mark.parametrize("past", [0, 30, 2000])
def test_rows_that_see_nothing_give_zeros(isa, extra, past):
    """T05. Of a sequence that is all padding, too; its keys enter the cache all the same."""
    case = make_case(RNG, batch=3, kv_heads=2, group=2, queries=4, past=past, seqlens_k=None, **extra)
    mask = np.ones((3, case.total), np.int32)
    mask[0] = 0
    mask[1, : past + 2] = 0
    output, keys, values = assert_attends(replace(case, mask=mask), isa=isa)
    assert (output[0] == 0).all()
    if "causal" not in extra:
        assert (output[1, :2] == 0).all()
    assert np.abs(output[1, 2:]).min(axis=-1).all() and np.abs(output[2]).min(axis=-1).all()
    np.testing.assert_array_equal(keys[:, :, past:], case.key.swapaxes(1, 2))
    np.testing.assert_array_equal(values[:, :, past:], case.value.swapaxes(1, 2))


@every_level
def test_beside_lengths_windows_biases_and_sinks(isa):
    """Every condition holds: a key is seen if it belongs to the sequence, is in the window, and the mask has it."""
    case = make_case(RNG, batch=3, kv_heads=2, group=2, queries=12, past=90, window=20, rotary=8)
    bias = RNG.standard_normal((1, 4, 12, 102)).astype(np.float32)
    case = replace(
        case, bias=bias, sink=np.array([0, 1, 2, 3], np.float32), mask=RNG.random((3, 102)) < 0.7,
        seqlens_k=np.array([101, 60, 5], np.int32),
    )  # fmt: skip
    assert_attends(case, isa=isa, threads=3)


@every_level
@pytest.mark.parametrize("capacity", [None, 64])
def test_prompt_and_steps_of_a_padded_batch(isa, capacity):
    """A cache that grows by a row a step, and one of the longest length that is written in place, NaN beyond its end."""
    width, steps = 12, 8
    whole = make_case(RNG, batch=3, kv_heads=2, group=2, queries=width + steps, rotary=8, seqlens_k=None)
    mask = left_padded([width + steps - 9, width + steps - 3, width + steps], width + steps)
    whole = replace(whole, mask=mask, position_ids=positions_of(mask))
    expected, *_ = assert_attends(whole, isa=isa)
    keys = values = None
    if capacity:
        keys, values = np.full((2, 3, 2, capacity, 32), np.nan, np.float32)
    for begin, end in [(0, width), *((t, t + 1) for t in range(width, width + steps))]:
        new = {name: getattr(whole, name)[:, begin:end] for name in ("query", "key", "value", "position_ids")}
        case = replace(whole, **new, past_key=keys, past_value=values, total=end, mask=mask[:, :end])
        output, keys, values = assert_attends(case, isa=isa, in_place=capacity is not None)
        assert keys.shape[2] == (capacity or end)
        np.testing.assert_allclose(output, expected[:, begin:end], rtol=0, atol=3e-6)
    if capacity:
        assert np.isnan(keys[:, :, width + steps :]).all()


def test_many_sequences_of_many_runs_change_no_bit_with_threads():
    case = make_case(RNG, batch=4, kv_heads=2, group=3, queries=1, past=3000, seqlens_k=None)
    case = replace(case, mask=RNG.random((4, 3001)) < 0.8)
    expected = run_native(case)
    for threads in (2, 7):
        for found, wanted in zip(run_native(case, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
