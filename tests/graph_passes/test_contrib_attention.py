"""com.microsoft GroupQueryAttention and MultiHeadAttention beside the node of ort_hina that takes their place."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from support.attention_node_graphs import AttentionGraph, allowed, make_node

GROUPED = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens",
)  # fmt: skip
MULTI_HEAD = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value")
OUTPUTS = ["output", "present_key", "present_value"]
SIZE = 32

# Those of ONNX Runtime before 1.24 count windows in another way.
WINDOWS = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 24)


def heads_apart(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(*rows.shape[:2], heads, -1).swapaxes(1, 2)


def grouped(
    seed: int = 0, *, batch: int = 1, group: int = 2, queries: int = 3, past: int = 5, packed: bool = False, rotary: int = 0,
    bias: bool = False, sink: bool = False, kind: type = np.float32, shared: int = 0, **attributes,
) -> AttentionGraph:  # fmt: skip
    """A GroupQueryAttention of two heads of keys.

    Args:
        past: keys before the new tokens; None: there is no past input.
        shared: further rows of the past caches, of NaN.
    """
    random = np.random.default_rng(seed)
    kv_heads = 2

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(kind)

    total = queries + (past or 0)
    rows = [normal(batch, queries, heads * SIZE) for heads in (kv_heads * group, kv_heads, kv_heads)]
    if packed:
        feeds = {"query": np.concatenate(rows, axis=2)}
    else:
        feeds = dict(zip(("query", "key", "value"), rows, strict=True))
    if past is not None:
        for name in ("past_key", "past_value"):
            feeds[name] = normal(batch, kv_heads, past + shared, SIZE)
            feeds[name][:, :, past:] = np.nan
    feeds["seqlens_k"] = np.full(batch, total - 1, np.int32)
    feeds["total_sequence_length"] = np.array(total, np.int32)
    if rotary:
        angles = random.uniform(0, 6, (total + shared, rotary // 2))
        feeds |= {"cos_cache": np.cos(angles).astype(kind), "sin_cache": np.sin(angles).astype(kind)}
    if bias:
        feeds["attention_bias"] = normal(1, 1, queries, total)
    if sink:
        feeds["head_sink"] = normal(kv_heads * group)
    named = {"num_heads": kv_heads * group, "kv_num_heads": kv_heads, "do_rotary": int(rotary > 0)} | attributes
    node = make_node("GroupQueryAttention", GROUPED, feeds, OUTPUTS, "com.microsoft", **named)
    shapes = {name: array.shape for name, array in feeds.items()}
    return AttentionGraph([node], feeds, shapes, list(OUTPUTS))


def compare_grouped(graph: AttentionGraph) -> None:
    expected, found = graph.answers()
    attributes = {a.name: helper.get_attribute_value(a) for a in graph.nodes[0].attribute}
    keys = int(graph.feeds["total_sequence_length"])
    query = graph.feeds["query"].reshape(*graph.feeds["query"].shape[:2], -1, SIZE)
    key, value = (expected[name][:, :, :keys] for name in OUTPUTS[1:])
    limit = allowed(query, key, value, attributes.get("scale"))
    assert np.abs(found["output"].astype(np.float64) - expected["output"]).max() <= limit
    unit = 2.0**-11 if key.dtype == np.float16 else 2.0**-22
    for name in OUTPUTS[1:]:
        old, new = expected[name][:, :, :keys], found[name][:, :, :keys]
        assert expected[name].shape == found[name].shape
        np.testing.assert_allclose(new, old, rtol=0, atol=2 * unit * np.abs(old).max())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    batch=st.integers(1, 3),
    group=st.sampled_from([1, 2, 8]),
    step=st.sampled_from([(7, 0), (7, None), (3, 5), (1, 9), (1, 0), (1, 200)]),
    packed=st.booleans(),
    rotary=st.sampled_from([0, SIZE // 2, SIZE]),
    interleaved=st.integers(0, 1),
    bias=st.booleans(),
    sink=st.booleans(),
    scale=st.sampled_from([None, 0.25]),
    softcap=st.sampled_from([None, 2.0]),
    window=st.sampled_from([-1, 1, 4] if WINDOWS else [-1]),
)
def test_grouped_attributes(seed, batch, group, step, packed, rotary, interleaved, bias, sink, scale, softcap, window):
    queries, past = step
    batch = 1 if queries > 1 and past else batch  # ONNX Runtime continues one sequence at a time
    compare_grouped(
        grouped(
            seed, batch=batch, group=group, queries=queries, past=past, packed=packed, rotary=rotary, bias=bias, sink=sink,
            scale=scale, softcap=softcap, local_window_size=window, rotary_interleaved=interleaved,
        )  # fmt: skip
    )


@pytest.mark.parametrize("step", [(7, 0), (3, 5), (1, 9)])
def test_grouped_half(step):
    compare_grouped(grouped(queries=step[0], past=step[1], rotary=SIZE, kind=np.float16))


@pytest.mark.parametrize("step", [(1, 9), (3, 5)])
def test_grouped_long_buffers(step):
    """Past caches of the longest length, of which the rows beyond the keys mean nothing."""
    compare_grouped(grouped(queries=step[0], past=step[1], shared=6, rotary=SIZE))


def test_grouped_lengths_of_their_own():
    graph = grouped(batch=3, queries=1, past=9)
    graph.feeds["seqlens_k"] = np.array([9, 4, 0], np.int32)
    expected, found = graph.answers()
    np.testing.assert_allclose(found["output"], expected["output"], rtol=0, atol=1e-5)


def test_smooth_softmax():
    compare_grouped(grouped(smooth_softmax=1))
    with_it, without = (grouped(smooth_softmax=smooth).answers()[1]["output"] for smooth in (1, -1))
    assert np.abs(with_it - without).max() > 1e-3


@pytest.mark.skipif(not WINDOWS, reason="windows of ONNX Runtime before 1.24")
@pytest.mark.parametrize("cut", [(10,), (4, 6), (4, 3, 3), (9, 1)])
def test_what_a_window_holds(cut):
    """Field report T01: of position 9 a window of 4 holds 6 to 9, in a prompt, in chunks and in steps."""
    total = sum(cut)
    values = np.eye(total, SIZE, dtype=np.float32)
    past, seen = {}, None
    for count in cut:
        done = 0 if not past else past["past_key"].shape[2]
        graph = grouped(queries=count, past=done, local_window_size=4)
        graph.feeds |= {"value": np.tile(values[done : done + count], (1, 2))[None]} | past
        for answers in graph.answers():
            seen = np.nonzero(heads_apart(answers["output"], 4)[0, 0, -1] > 0)[0]
            assert list(seen) == list(range(max(0, done + count - 4), done + count))
        past = {name.replace("present", "past"): answers[name] for name in OUTPUTS[1:]}
    assert list(seen) == [6, 7, 8, 9]


@pytest.mark.parametrize("window", [-1, 5] if WINDOWS else [-1])
@pytest.mark.parametrize("past", [0, 4096])
def test_sinks(past, window):
    """Field report T02: a sink takes its share, neither scaled nor capped; one of -Inf takes none; also in long rows."""
    graph = grouped(group=8, queries=1, past=past, sink=True, softcap=3.0, scale=0.7, local_window_size=window)
    sinks = np.where(np.arange(16) % 2, 5.0, -np.inf).astype(np.float32)
    graph.feeds["head_sink"] = sinks
    without = grouped(group=8, queries=1, past=past, softcap=3.0, scale=0.7, local_window_size=window)
    for name in ("value", "past_value"):
        graph.feeds[name] = without.feeds[name] = np.ones_like(graph.feeds[name])
    expected, found = graph.answers()
    np.testing.assert_allclose(found["output"], expected["output"], rtol=0, atol=1e-5)
    share = heads_apart(found["output"], 16)[0, :, 0, 0]
    np.testing.assert_allclose(share[0::2], 1, rtol=1e-5)
    np.testing.assert_allclose(heads_apart(without.answers()[1]["output"], 16)[0, :, 0, 0], 1, rtol=1e-5)
    assert (share[1::2] < 0.999).all()


# ---- GroupQueryAttention that stays


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"qk_output": 1}, "'qk_output' is 1"),
        ({"sliding_window_cache": 1, "local_window_size": 4}, "a cache that keeps the window alone"),
        ({"kv_cache_bit_width": 8}, "quantised caches"),
        ({"k_quant_type": "PER_TENSOR"}, "quantised caches"),
        ({"invented": 1}, "attribute 'invented' is not known"),
        ({"scale": 1}, "'scale' is not a constant of type FLOAT"),
        ({"causal": 0, "local_window_size": 4}, "'causal' is 0"),
        ({"num_heads": 3}, "'num_heads' is 3, expected a multiple of 'kv_num_heads' (2)"),
        ({"num_heads": None}, "'num_heads' is None"),
        ({"num_heads": 6}, "the last dimension of query is 128, expected a multiple of 6"),
        ({"do_rotary": 1}, "without cos_cache and sin_cache"),
    ],
)
def test_grouped_attributes_that_stay(attributes, reason):
    assert reason in grouped(**attributes).reason()


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("position_ids", np.zeros((1, 3), np.int64), "reads only the first one"),
        ("k_scale", np.ones(1, np.float32), "quantised caches"),
        ("query_seqlens", np.ones(1, np.int32), "not supported"),
    ],
)
def test_grouped_inputs_that_stay(name, array, reason):
    graph = grouped()
    graph.feeds[name] = array
    node = graph.nodes[0]
    graph.nodes[0] = make_node(node.op_type, GROUPED, graph.feeds, OUTPUTS, "com.microsoft", num_heads=4, kv_num_heads=2)
    assert f"({name}) is given" in graph.reason() and reason in graph.reason()


def test_scores_as_an_output_stay():
    graph = grouped()
    graph.nodes[0].output.append("scores")
    graph.outputs.append("scores")
    assert "output 3 (output_qk) is used" in graph.reason()


def test_half_a_past_stays():
    graph = grouped()
    graph.nodes[0].input[4] = ""
    assert "one of past_key and past_value" in graph.reason()


def test_a_query_of_unknown_width_stays():
    graph = grouped()
    graph.shapes["query"] = [1, 3, "width"]
    assert "the last dimension of query is not known" in graph.reason()


def test_windows_of_old_versions_stay():
    assert "one key more" in grouped(local_window_size=4).reason(onnxruntime=(1, 23))


def test_norms_of_queries_and_keys():
    """What ONNX Runtime has no CPU kernel for: the inputs go to the same places."""
    graph = grouped()
    graph.feeds |= {name: np.full(SIZE, 2, np.float32) for name in ("q_norm_weight", "k_norm_weight")}
    attributes = {"num_heads": 4, "kv_num_heads": 2, "qk_norm_epsilon": 1e-3}
    graph.nodes[0] = make_node("GroupQueryAttention", GROUPED, graph.feeds, OUTPUTS, "com.microsoft", **attributes)
    (layer,) = graph.found()
    assert (layer.q_norm_weight.name, layer.k_norm_weight.name) == ("q_norm_weight", "k_norm_weight")
    assert layer.qk_norm_epsilon == pytest.approx(1e-3)
    graph.nodes[0].attribute.append(helper.make_attribute("q_norm_epsilon", 1e-2))
    assert "q_norm_epsilon and k_norm_epsilon differ" in graph.reason()


# ---- MultiHeadAttention


def multi_head(*, queries: int = 3, past: int | None = 5, bias: bool = False, keys: int | None = None, **attributes):
    random = np.random.default_rng(0)
    heads, keys = 4, keys or queries
    value_size = 8 if past is None else SIZE  # with a past the kernel wants both alike

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    feeds = {
        "query": normal(2, queries, heads * SIZE),
        "key": normal(2, keys, heads * SIZE),
        "value": normal(2, keys, heads * value_size),
    }
    if past is not None:
        feeds |= {"past_key": normal(2, heads, past, SIZE), "past_value": normal(2, heads, past, value_size)}
    if bias:
        feeds["attention_bias"] = normal(1, heads, queries, queries + (past or 0))
    node = make_node("MultiHeadAttention", MULTI_HEAD, feeds, OUTPUTS, "com.microsoft", num_heads=heads, **attributes)
    return AttentionGraph([node], feeds, {name: array.shape for name, array in feeds.items()}, list(OUTPUTS))


@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.1}, {"unidirectional": 1, "bias": True}])
@pytest.mark.parametrize("step", [(7, None), (7, 0), (3, 5), (1, 9)])
def test_multi_head(step, attributes):
    graph = multi_head(queries=step[0], past=step[1], **attributes)
    expected, found = graph.answers()
    query, key = heads_apart(graph.feeds["query"], 4), expected["present_key"]
    limit = allowed(query, key, expected["present_value"], attributes.get("scale"))
    assert np.abs(found["output"] - expected["output"]).max() <= limit
    for name in OUTPUTS[1:]:
        np.testing.assert_array_equal(found[name], expected[name])


def test_multi_head_that_stays():
    assert "cross attention" in multi_head(keys=4, past=None).reason()
    graph = multi_head()
    graph.feeds["key_padding_mask"] = np.ones((2, 8), np.int32)
    graph.nodes[0] = make_node("MultiHeadAttention", MULTI_HEAD, graph.feeds, OUTPUTS, "com.microsoft", num_heads=4)
    assert "input 4 (key_padding_mask) is given" in graph.reason()
    del graph.nodes[0].input[1:]
    assert "input 1 (key) is missing" in graph.reason()
