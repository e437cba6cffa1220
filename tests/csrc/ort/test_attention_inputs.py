"""The forms that the inputs of a GroupQueryAttention node may have in ONNX Runtime: ranks, types, and what may be left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.attention_native import assert_answers
from support.attention_reference import AttentionCase, make_case
from support.attention_session import attention_model, attention_session, feeds_of, run_session
from support.elements import ELEMENTS, NUMPY_TYPE, rounded
from support.moe_session import create_session

RNG = np.random.default_rng(0)
CASE = make_case(RNG, batch=2, kv_heads=2, group=3, size=40, value_size=24, queries=5, past=11, rotary=8)
LENGTHS = ("seqlens_k", "total_sequence_length")


def answer(case: AttentionCase, feeds: dict[str, np.ndarray] | None = None, *, shared: bool = False, **form):
    feeds = feeds_of(case, **form) if feeds is None else feeds
    output, keys, values = run_session(attention_session(case, feeds), feeds, shared=shared)
    return output.reshape(*case.query.shape[:3], case.value.shape[3]), keys, values


def assert_same(found, wanted) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize(
    "heads_first", [("query",), ("key",), ("value",), ("query", "value"), ("query", "key", "value")]
)  # fmt: skip
@pytest.mark.parametrize("queries", [1, 5])
def test_each_of_query_key_and_value_may_have_its_heads_first(kind, heads_first, queries):
    case = make_case(RNG, batch=2, kv_heads=2, group=3, size=40, value_size=24, queries=queries, past=11, rotary=8, kind=kind)
    expected = answer(case)
    assert_answers(case, expected)
    assert_same(answer(case, heads_first=heads_first), expected)


def test_the_output_of_heads_that_come_first_has_rank_3():
    feeds = feeds_of(CASE, heads_first=("query", "key", "value"))
    assert run_session(attention_session(CASE, feeds), feeds)[0].shape == (2, 5, 6 * 24)


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("angle_kind", ELEMENTS)
@pytest.mark.parametrize("batch", [1, 2])
def test_angles_of_each_token(kind, angle_kind, batch):
    """The same rows as a table with position_ids, and in another type than the query's."""
    ids = np.broadcast_to(RNG.integers(0, 16, (batch, 5)), (2, 5))
    table = replace(CASE, kind=kind, angle_kind=angle_kind, position_ids=ids)
    rows = replace(table, position_ids=None, cos=CASE.cos[ids[:batch]], sin=CASE.sin[ids[:batch]])
    found = answer(rows)
    assert_answers(rows, found)
    assert_same(found, answer(table))


def test_angles_of_padding_are_not_looked_at():
    """A first prompt that is padded at its end."""
    case = make_case(RNG, batch=2, kv_heads=2, group=2, queries=6, rotary=8)
    cos, sin = (np.repeat(table[None, :6], 2, axis=0) for table in (case.cos, case.sin))
    padded = replace(case, seqlens_k=np.array([5, 2], np.int32))
    expected = answer(padded)
    cos[1, 3:] = sin[1, 3:] = np.nan
    assert_same(answer(replace(padded, cos=cos, sin=sin)), expected)


@pytest.mark.parametrize("element", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("lengths", [True, False])
def test_the_total_length_in_every_type(element, shape, lengths):
    feeds = feeds_of(CASE, without=() if lengths else ("seqlens_k",))
    feeds["total_sequence_length"] = np.full(shape, 16, element)
    assert_same(answer(CASE, feeds), answer(CASE))


@pytest.mark.parametrize("past", [0, 11])
def test_without_lengths_every_row_of_the_past_is_a_key(past):
    case = make_case(RNG, batch=2, kv_heads=2, group=3, queries=5, past=past)
    assert_same(answer(case, without=LENGTHS), answer(case))


@pytest.mark.parametrize("element", [np.bool_, np.int32, np.int64])
@pytest.mark.parametrize(("capacity", "shared"), [(11, False), (16, False), (20, False), (16, True), (20, True)])
def test_the_width_of_the_mask_is_the_number_of_keys(element, capacity, shared):
    """Nothing else says it: new tokens go to the rows before that, in a past that grows or in one that has room."""
    case = make_case(RNG, batch=2, kv_heads=2, group=3, queries=5, past=11, capacity=capacity, rotary=8)
    case.past_key[:, :, 11:] = case.past_value[:, :, 11:] = np.nan
    case = replace(case, mask=(np.arange(16) >= np.array([[0], [6]])).astype(element))
    found = answer(case, without=LENGTHS, shared=shared)
    assert_answers(case, found, in_place=shared)
    assert_same(found, answer(case, shared=shared))
    assert found[1].shape[2] == max(capacity, 16)


def test_a_mask_beside_a_total_length_has_its_width():
    case = replace(CASE, mask=RNG.random((2, 16)) < 0.7)
    found = answer(case, without=("seqlens_k",))
    assert_answers(case, found)
    assert_same(found, answer(case))


def test_a_mask_is_a_bias_of_minus_infinity():
    mask = RNG.random((2, 16)) < 0.7
    bias = np.where(mask, 0, -np.inf).astype(np.float32)[:, None, None] * np.ones((1, 1, 5, 1), np.float32)
    with_bias = answer(replace(CASE, bias=bias))
    for found, wanted in zip(answer(replace(CASE, mask=mask)), with_bias, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ELEMENTS)
def test_padded_rows_in_float_types(kind):
    """All new forms at once."""
    case = make_case(RNG, batch=3, kv_heads=2, group=2, size=64, queries=7, past=9, kind=kind, seqlens_k=None)
    mask = (np.arange(16) >= np.array([[0], [5], [12]])).astype(np.int64)
    positions = np.where(mask == 0, 1, np.cumsum(mask, axis=1) - 1)[:, 9:]
    angles = positions[..., None] * (0.5 ** np.arange(32))
    case = replace(
        case, mask=mask, cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32), angle_kind="float"
    )
    found = answer(case, heads_first=("query", "key", "value"), without=LENGTHS)
    assert_answers(case, found)
    assert (found[0][2, :3] == 0).all()


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("norm_kind", [None, "float"])
@pytest.mark.parametrize("whole_token", [False, True])
def test_norms(kind, norm_kind, whole_token):
    case = make_case(RNG, batch=2, kv_heads=2, group=3, size=40, queries=5, past=11, rotary=8, kind=kind, norm_kind=norm_kind)
    q, k = (RNG.uniform(0.5, 2, heads * 40).astype(np.float32) for heads in ((6, 2) if whole_token else (1, 1)))
    case = replace(case, q_norm=q, k_norm=k, epsilon=1e-3)
    found = answer(case)
    assert_answers(case, found)
    assert_same(answer(case, heads_first=("query", "key")), found)
    assert_same(answer(case, packed=True), found)


def norm_before(case: AttentionCase, domain: str) -> list[np.ndarray]:
    """The case's answer where its norms are nodes of ONNX Runtime before an attention node of this domain."""
    bare = replace(case, q_norm=None, k_norm=None)
    feeds = feeds_of(bare)
    model = attention_model(bare.attributes(), feeds, case.kind, domain=domain)
    node = model.graph.node[0]
    nodes = []
    for place, (name, weight) in enumerate((("query", case.q_norm), ("key", case.k_norm))):
        heads, size = getattr(case, name).shape[2:]
        shapes = {f"{name}_split": [0, 0, heads, size], f"{name}_joined": [0, 0, heads * size]}
        for shape, values in shapes.items():
            model.graph.initializer.append(numpy_helper.from_array(np.array(values), shape))
        model.graph.initializer.append(numpy_helper.from_array(weight, f"{name}_weight"))
        nodes += [
            helper.make_node("Reshape", [name, f"{name}_split"], [f"{name}_heads"]),
            helper.make_node(
                "SimplifiedLayerNormalization", [f"{name}_heads", f"{name}_weight"], [f"{name}_normed"], axis=-1,
                epsilon=case.epsilon,
            ),
            helper.make_node("Reshape", [f"{name}_normed", f"{name}_joined"], [f"{name}_rows"]),
        ]  # fmt: skip
        node.input[place] = f"{name}_rows"
    del model.graph.node[:]
    model.graph.node.extend([*nodes, node])
    return run_session(create_session(model), feeds)


@pytest.mark.parametrize("domain", ["ort_hina", "com.microsoft"])
@pytest.mark.parametrize(("queries", "past"), [(12, 0), (1, 11)])
def test_norms_are_onnxruntimes(domain, queries, past):
    """As graphs have them, before this operator or before ONNX Runtime's, which has no norm of its own on CPUs."""
    case = make_case(RNG, batch=2, kv_heads=2, group=2, size=64, queries=queries, past=past, rotary=32, epsilon=1e-3)
    q, k = RNG.uniform(0.5, 2, (2, 64)).astype(np.float32)
    case = replace(case, q_norm=q, k_norm=k)
    if not past:
        case = replace(case, past_key=np.zeros((2, 2, 0, 64), np.float32), past_value=np.zeros((2, 2, 0, 64), np.float32))
    output, *caches = answer(case)
    expected = norm_before(case, domain)
    for found, wanted in zip([output.reshape(expected[0].shape), *caches], expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_types_of_the_feeds_are_those_of_the_case():
    """Otherwise the tests of angle types would compare a case with itself."""
    feeds = feeds_of(replace(CASE, kind="float16", angle_kind="float"))
    assert feeds["cos_cache"].dtype == np.float32 and feeds["query"].dtype == NUMPY_TYPE["float16"]
    assert not np.array_equal(rounded(CASE.cos, "float16"), CASE.cos)
