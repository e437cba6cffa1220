"""GroupQueryAttention against float64, at every level, over everything that a node may say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_native import assert_attends, run_native
from support.attention_reference import AttentionCase, make_case
from support.elements import ELEMENTS
from support.levels import every_level


@st.composite
def cases(draw) -> AttentionCase:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([32, 36, 40, 64, 96, 128, 33]))
    queries, past = draw(st.sampled_from([1, 1, 2, 5, 17, 70])), draw(st.sampled_from([0, 0, 1, 7, 63, 64, 130]))
    case = make_case(
        rng, batch=draw(st.integers(1, 3)), kv_heads=draw(st.integers(1, 2)), group=draw(st.integers(1, 9)), size=size,
        value_size=draw(st.sampled_from([size, 32, 48, 35])), queries=queries, past=past,
        capacity=draw(st.sampled_from([None, past + queries, past + queries + 9])),
        rotary=draw(st.sampled_from([0, size // 2, size // 4])), width=draw(st.sampled_from([0.1, 1.0, 3.0])),
        kind=draw(st.sampled_from(ELEMENTS)), scale=draw(st.sampled_from([0.0, 0.5, -0.25])),
        softcap=draw(st.sampled_from([0.0, 0.0, 2.0, 30.0])), causal=draw(st.sampled_from([True, True, False])),
        interleaved=draw(st.booleans()),
    )  # fmt: skip
    shape = case.query.shape
    lengths = draw(st.sampled_from(["equal", "own", "absent"]))
    if lengths == "own":
        case = replace(case, seqlens_k=rng.integers(0, past + queries, shape[0]).astype(np.int32))
    if lengths == "absent":
        case = replace(case, seqlens_k=None)
    if case.causal and draw(st.booleans()):
        case = replace(case, window=draw(st.integers(1, past + queries + 2)))
    if draw(st.booleans()):
        lead = draw(st.sampled_from([1, shape[0]])), draw(st.sampled_from([1, shape[2]]))
        bias = rng.standard_normal((*lead, queries, case.total)).astype(np.float32)
        bias[rng.random(bias.shape) < 0.1] = -np.inf
        case = replace(case, bias=bias)
    extra = draw(st.sampled_from(["none", "sink", "smooth"]))
    if extra == "sink":
        case = replace(case, sink=(rng.standard_normal(shape[2]) * 3).astype(np.float32))
    if case.cos is not None:
        case = replace(case, **draw(angles(case, rng)))
    if draw(st.booleans()):
        case = replace(case, mask=draw(masks(case, rng)))
    for name, heads in (("q_norm", case.heads), ("k_norm", case.kv_heads)):
        normed = draw(st.sampled_from([0, 0, 1, heads]))
        if normed:
            case = replace(case, **{name: rng.uniform(-2, 2, normed * size).astype(np.float32)})
    case = replace(case, norm_kind=draw(st.sampled_from([None, "float"])), epsilon=draw(st.sampled_from([1e-6, 0.1])))
    return replace(case, smooth=extra == "smooth")


def angles(case: AttentionCase, rng: np.random.Generator):
    """How a node may say which angles a token has: changes of the case."""
    batch, queries = case.query.shape[:2]
    rows = [rng.uniform(-1, 1, (lead, queries, case.cos.shape[1])).astype(np.float32) for lead in (1, 1, batch, batch)]
    return st.sampled_from([
        {},
        {"position_ids": rng.integers(0, len(case.cos), (batch, queries))},
        {"cos": rows[0], "sin": rows[1], "angle_kind": "float"},
        {"cos": rows[2], "sin": rows[3]},
    ])  # fmt: skip


def masks(case: AttentionCase, rng: np.random.Generator):
    """Of every type, with few and many holes, and with runs at its ends."""
    shape = len(case.query), case.total
    keys = np.arange(case.total)
    edges = np.sort(rng.integers(0, case.total + 1, (shape[0], 2)), axis=1)
    holes = [rng.random(shape) < share for share in (0.0, 0.1, 0.9)]
    one_run = (keys >= edges[:, :1]) & (keys < edges[:, 1:])
    patterns = [*holes, one_run, keys >= edges[:, :1], ~one_run]
    return st.builds(
        lambda mask, kind: np.where(mask, -3 if kind != np.bool_ else 1, 0).astype(kind),
        st.sampled_from(patterns), st.sampled_from([np.bool_, np.int32, np.int64]),
    )  # fmt: skip


@every_level
@settings(max_examples=120, deadline=None)
@given(case=cases(), threads=st.sampled_from([1, 3]))
def test_everything(isa, case, threads):
    assert_attends(case, isa=isa, threads=threads)
    if case.past_length >= case.total:
        assert_attends(case, isa=isa, threads=threads, in_place=True)


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("queries", [1, 5, 64])
@pytest.mark.parametrize(("size", "group"), [
    (64, 8), (80, 5), (96, 7), (112, 6), (128, 8), (160, 4), (192, 2), (256, 12), (512, 16), (576, 3),
])  # fmt: skip
def test_head_sizes(isa, kind, queries, size, group):
    """D08."""
    case = make_case(np.random.default_rng(size), group=group, size=size, queries=queries, past=90, kind=kind)
    assert_attends(case, isa=isa)


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize(("size", "value_size"), [(24, 16), (192, 128), (576, 512), (64, 100)])
def test_values_of_another_size_than_keys(isa, kind, size, value_size):
    """D09."""
    rng = np.random.default_rng(0)
    for queries, past in ((7, 0), (1, 40), (3, 40)):
        case = make_case(rng, kv_heads=2, group=2, size=size, value_size=value_size, queries=queries, past=past, kind=kind)
        assert_attends(case, isa=isa)


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("keys", [511, 1024, 1025, 5000])
def test_long_sequences_are_cut_into_parts(isa, kind, keys):
    """Two sequences of different lengths, more heads in a group than the rows of a unit in one of the cases."""
    rng = np.random.default_rng(keys)
    sink = rng.standard_normal(4).astype(np.float32)
    case = make_case(rng, batch=2, kv_heads=2, group=2, queries=2, past=keys, kind=kind, sink=sink)
    case = replace(case, seqlens_k=np.array([keys + 1, keys // 2], np.int32))
    assert_attends(case, isa=isa, threads=2)
    assert_attends(replace(case, window=keys // 3), isa=isa)
    assert_attends(make_case(rng, group=70, past=keys, kind=kind), isa=isa)


@every_level
@pytest.mark.parametrize("queries", [1, 9, 130])
def test_the_number_of_threads_changes_no_bit(isa, queries):
    case = make_case(np.random.default_rng(5), batch=2, kv_heads=2, group=3, queries=queries, past=3000, kind="bfloat16")
    expected = run_native(case, isa=isa)
    for threads in (2, 5, 16):
        for found, wanted in zip(run_native(case, isa=isa, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@every_level
def test_scores_that_grow_and_scores_that_fall_by_hundreds(isa):
    """The running maximum moves in every block, or never; weights underflow."""
    keys = 400
    for slope in (1.0, -1.0):
        case = make_case(np.random.default_rng(0), group=2, queries=1, past=keys)
        case = replace(case, bias=(slope * np.arange(case.total, dtype=np.float32) * 2)[None, None, None])
        assert_attends(case, isa=isa)


@every_level
def test_a_soft_cap_of_small_scores(isa):
    """tanh of small numbers keeps their digits: the bound is relative to the score."""
    case = make_case(np.random.default_rng(0), queries=20, width=0.05, softcap=50.0, value_size=64)
    assert_attends(case, isa=isa)
