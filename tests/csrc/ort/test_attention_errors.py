"""GroupQueryAttention nodes and calls that mean nothing, or what is not supported: refused, with node, name and reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, RuntimeException
from support.attention_reference import make_case
from support.attention_session import INPUTS, NODE_NAME, attention_model, attention_session, feeds_of
from support.moe_session import create_session

RNG = np.random.default_rng(0)
CASE = make_case(RNG, batch=2, kv_heads=2, group=2, queries=3, past=5, rotary=8)
FEEDS = feeds_of(CASE)


def assert_refused(error, message: str) -> None:
    assert f"ort_hina GroupQueryAttention node '{NODE_NAME}': {message}" in str(error.value)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_heads": None}, "attribute num_heads: expected an int, but it is absent"),
        ({"kv_num_heads": None}, "attribute kv_num_heads: expected an int, but it is absent"),
        ({"num_heads": 0}, "attribute num_heads: expected at least 1, got 0"),
        ({"kv_num_heads": -2}, "attribute kv_num_heads: expected at least 1, got -2"),
        ({"kv_num_heads": 3}, "attribute num_heads: expected a multiple of 3 (kv_num_heads), got 4"),
        ({"scale": float("nan")}, "attribute scale: expected a finite number, got nan"),
        ({"scale": 1}, "attribute scale: expected a float, but it is of another type (or empty)"),
        ({"softcap": -1.0}, "attribute softcap: expected a finite number of at least 0, got -1.000000"),
        ({"softcap": float("inf")}, "attribute softcap: expected a finite number of at least 0, got inf"),
        ({"local_window_size": 0}, "attribute local_window_size: expected -1 or at least 1, got 0"),
        ({"local_window_size": -3}, "attribute local_window_size: expected -1 or at least 1, got -3"),
        ({"local_window_size": 4, "causal": 0},
         "attribute local_window_size: expected -1, since causal is 0, got 4"),
        ({"causal": 2}, "attribute causal: expected 0 or 1, got 2"),
        ({"do_rotary": -1}, "attribute do_rotary: expected 0 or 1, got -1"),
        ({"rotary_interleaved": 2}, "attribute rotary_interleaved: expected 0 or 1, got 2"),
        ({"smooth_softmax": 2}, "attribute smooth_softmax: expected -1, 0 or 1, got 2"),
        ({"qk_norm_epsilon": 0.0}, "attribute qk_norm_epsilon: expected a finite number of more than 0, got 0.000000"),
        ({"q_norm_epsilon": -1.0}, "attribute q_norm_epsilon: expected a finite number of more than 0, got -1.000000"),
        ({"k_norm_epsilon": float("inf")}, "attribute k_norm_epsilon: expected a finite number of more than 0, got inf"),
        ({"qk_output": 1}, "attribute qk_output: expected 0, others are not supported, got 1"),
        ({"sliding_window_cache": 1}, "attribute sliding_window_cache: expected 0, others are not supported, got 1"),
        ({"kv_cache_bit_width": 8}, "attribute kv_cache_bit_width: expected 0, others are not supported, got 8"),
        ({"k_quant_type": "PER_TENSOR"},
         "attribute k_quant_type: expected NONE, others are not supported, got 'PER_TENSOR'"),
        ({"v_quant_type": "PER_CHANNEL"},
         "attribute v_quant_type: expected NONE, others are not supported, got 'PER_CHANNEL'"),
    ],
)  # fmt: skip
def test_attributes(attributes, message):
    with pytest.raises((InvalidArgument, RuntimeException)) as error:
        attention_session(CASE, FEEDS, **attributes)
    assert_refused(error, message)


def ints(*values, kind=np.int32):
    return np.array(values, kind)


WRONG_INPUTS = [
    ({"query": FEEDS["query"][0]}, "input 0 (query): expected rank 3 (batch, tokens, width) or 4 (batch, num_heads, tokens, head size), "
     "got shape (3, 128)"),
    ({"query": FEEDS["query"][..., :126]},
     "input 0 (query): expected a width that is a multiple of 4 (num_heads), got shape (2, 3, 126)"),
    ({"query": FEEDS["query"][..., :0]},
     "input 0 (query): expected a width that is a multiple of 4 (num_heads), got shape (2, 3, 0)"),
    ({"query": np.zeros((2, 3, 4, 32), np.float32)},
     "input 0 (query): expected 4 heads (num_heads) in dimension 1, got shape (2, 3, 4, 32)"),
    ({"query": np.zeros((2, 4, 3, 0), np.float32)},
     "input 0 (query): expected a head size of at least 1, got shape (2, 4, 3, 0)"),
    ({"query": np.zeros((2, 4, 3, 32), np.float32), "key": None, "value": None},
     "input 0 (query): expected rank 3 (batch, tokens, width), key being left out, got shape (2, 4, 3, 32)"),
    ({"key": np.zeros((2, 2, 4, 32), np.float32)}, "input 1 (key): expected shape (2, 2, 3, 32), got (2, 2, 4, 32)"),
    ({"key": np.zeros((2, 3, 2, 32), np.float32)}, "input 1 (key): expected shape (2, 2, 3, 32), got (2, 3, 2, 32)"),
    ({"key": np.zeros((2, 2, 3, 16), np.float32)}, "input 1 (key): expected shape (2, 2, 3, 32), got (2, 2, 3, 16)"),
    ({"value": np.zeros((2, 3, 2, 32), np.float32)},
     "input 2 (value): expected 2 heads (kv_num_heads) in dimension 1, got shape (2, 3, 2, 32)"),
    ({"value": np.zeros((2, 2, 5, 32), np.float32)},
     "input 2 (value): expected shape (2, 2, 3, 32), got (2, 2, 5, 32)"),
    ({"value": np.zeros(4, np.float32)},
     "input 2 (value): expected rank 3 (batch, tokens, width) or 4 (batch, kv_num_heads, tokens, head size), "
     "got shape (4)"),
    ({"key": FEEDS["key"][:, :2]}, "input 1 (key): expected shape (2, 3, 64), got (2, 2, 64)"),
    ({"key": FEEDS["key"][..., :32]}, "input 1 (key): expected shape (2, 3, 64), got (2, 3, 32)"),
    ({"value": FEEDS["value"][..., :63]},
     "input 2 (value): expected a width that is a multiple of 2 (kv_num_heads), got shape (2, 3, 63)"),
    ({"value": FEEDS["value"][:1]},
     "input 2 (value): expected shape (2, 3, 64), got (1, 3, 64)"),
    ({"key": None}, "input 1 (key): expected a tensor, since input 2 (value) is given, got none"),
    ({"value": None}, "input 2 (value): expected a tensor, since input 1 (key) is given, got none"),
    ({"query": FEEDS["query"][..., :126], "key": None, "value": None},
     "input 0 (query): expected a width that is a multiple of 8 (num_heads + 2 kv_num_heads, key being left out), "
     "got shape (2, 3, 126)"),
    ({"key": FEEDS["key"].astype(np.float16)}, "input 1 (key): expected float as the query, got float16"),
    ({"past_key": FEEDS["past_key"].astype(np.float16)},
     "input 3 (past_key): expected float as the query, got float16"),
    ({"past_key": None}, "input 3 (past_key): expected a tensor, since input 4 (past_value) is given, got none"),
    ({"past_key": FEEDS["past_key"][0]},
     "input 3 (past_key): expected rank 4 (batch, kv_num_heads, length, head size), got shape (2, 5, 32)"),
    ({"past_key": FEEDS["past_key"][:1]}, "input 3 (past_key): expected shape (2, 2, 5, 32), got (1, 2, 5, 32)"),
    ({"past_value": FEEDS["past_value"][:, :, :4]},
     "input 4 (past_value): expected shape (2, 2, 5, 32), got (2, 2, 4, 32)"),
    ({"seqlens_k": ints(7)}, "input 5 (seqlens_k): expected shape (2), got (1)"),
    ({"seqlens_k": ints(7, 7, kind=np.int64)}, "input 5 (seqlens_k): expected int32, got int64"),
    ({"seqlens_k": ints(7, 8)}, "input 5 (seqlens_k)[1]: expected 0 to 7 (total_sequence_length - 1), got 8"),
    ({"seqlens_k": ints(-1, 7)}, "input 5 (seqlens_k)[0]: expected 0 to 7 (total_sequence_length - 1), got -1"),
    ({"total_sequence_length": ints(9), "seqlens_k": ints(7, 8)},
     "input 5 (seqlens_k)[1]: expected at most 5 past keys, as input 3 (past_key) holds, got 6 (of 9 keys 3 are new)"),
    ({"past_key": None, "past_value": None},
     "input 5 (seqlens_k)[0]: expected at most 0 past keys, as input 3 (past_key) holds, got 5 (of 8 keys 3 are new)"),
    ({"total_sequence_length": ints(2)},
     "input 6 (total_sequence_length): expected at least 3, the new tokens, got 2"),
    ({"total_sequence_length": ints(-8)}, "input 6 (total_sequence_length): expected at least 0, got -8"),
    ({"total_sequence_length": ints(8, 8)}, "input 6 (total_sequence_length): expected shape (1), got (2)"),
    ({"total_sequence_length": np.float32([8])}, "input 6 (total_sequence_length): expected int32 or int64, got float"),
    ({"total_sequence_length": ints(2**31, kind=np.int64)},
     "input 6 (total_sequence_length): expected less than 2^31, got 2147483648"),
    ({"total_sequence_length": ints(9), "seqlens_k": None},
     "input 6 (total_sequence_length): expected at most 8 (5 past keys, as input 3 (past_key) holds, and the new ones), "
     "got 9"),
    ({"attention_mask": np.ones((2, 9), bool), "seqlens_k": None, "total_sequence_length": None},
     "input 17 (attention_mask): expected a width of at most 8 (5 past keys, as input 3 (past_key) holds, and the new "
     "ones), got 9"),
    ({"attention_mask": np.ones((2, 2), bool), "seqlens_k": None, "total_sequence_length": None},
     "input 17 (attention_mask): expected a width of at least 3, the new tokens, got 2"),
    ({"attention_mask": np.ones((2, 1, 8), bool), "total_sequence_length": None},
     "input 17 (attention_mask): expected rank 2 (batch, total_sequence_length), got shape (2, 1, 8)"),
    ({"attention_mask": np.ones((2, 7), bool)}, "input 17 (attention_mask): expected shape (2, 8), got (2, 7)"),
    ({"attention_mask": np.ones((1, 8), bool)}, "input 17 (attention_mask): expected shape (2, 8), got (1, 8)"),
    ({"attention_mask": np.ones((2, 8), np.float32)},
     "input 17 (attention_mask): expected bool, int32 or int64, got float"),
    ({"cos_cache": None}, "input 7 (cos_cache): expected a tensor, since do_rotary is 1, got none"),
    ({"sin_cache": None}, "input 8 (sin_cache): expected a tensor, since do_rotary is 1, got none"),
    ({"cos_cache": np.zeros((8, 17), np.float32)},
     "input 7 (cos_cache): expected shape (positions, 1 to 16) or (2 or 1, 3, 1 to 16), got (8, 17)"),
    ({"cos_cache": np.zeros((8, 0), np.float32)},
     "input 7 (cos_cache): expected shape (positions, 1 to 16) or (2 or 1, 3, 1 to 16), got (8, 0)"),
    ({"cos_cache": np.zeros((2, 4, 8), np.float32)},
     "input 7 (cos_cache): expected shape (positions, 1 to 16) or (2 or 1, 3, 1 to 16), got (2, 4, 8)"),
    ({"cos_cache": np.zeros((3, 3, 8), np.float32)},
     "input 7 (cos_cache): expected shape (positions, 1 to 16) or (2 or 1, 3, 1 to 16), got (3, 3, 8)"),
    ({"cos_cache": np.zeros((2, 3, 17), np.float32)},
     "input 7 (cos_cache): expected shape (positions, 1 to 16) or (2 or 1, 3, 1 to 16), got (2, 3, 17)"),
    ({"cos_cache": np.zeros((2, 3, 8), np.float32)}, "input 8 (sin_cache): expected shape (2, 3, 8), got (8, 8)"),
    ({"cos_cache": np.zeros((1, 3, 8), np.float32), "sin_cache": np.zeros((1, 3, 8), np.float32),
      "position_ids": np.zeros((2, 3), np.int64)},
     "input 9 (position_ids): expected none, since input 7 (cos_cache) has a row for each new token, got a tensor"),
    ({"sin_cache": FEEDS["sin_cache"][:7]}, "input 8 (sin_cache): expected shape (8, 8), got (7, 8)"),
    ({"sin_cache": FEEDS["sin_cache"].astype(np.float16)}, "input 8 (sin_cache): expected float, got float16"),
    ({"cos_cache": FEEDS["cos_cache"][:7], "sin_cache": FEEDS["sin_cache"][:7]},
     "position 7: expected 0 to 6, the rows of input 7 (cos_cache), got 7"),
    ({"position_ids": np.array([[0, 1, 2], [3, 8, 4]])},
     "input 9 (position_ids)[4]: expected 0 to 7, the rows of input 7 (cos_cache), got 8"),
    ({"position_ids": np.array([[0, 1, -2], [3, 7, 4]])},
     "input 9 (position_ids)[2]: expected 0 to 7, the rows of input 7 (cos_cache), got -2"),
    ({"position_ids": np.zeros((2, 4), np.int64)}, "input 9 (position_ids): expected shape (2, 3), got (2, 4)"),
    ({"position_ids": np.zeros((2, 3), np.int32)}, "input 9 (position_ids): expected int64, got int32"),
    ({"attention_bias": np.zeros((2, 4, 3, 7), np.float32)},
     "input 10 (attention_bias): expected shape (2 or 1, 4 or 1, 3, 8), got (2, 4, 3, 7)"),
    ({"attention_bias": np.zeros((2, 2, 3, 8), np.float32)},
     "input 10 (attention_bias): expected shape (2 or 1, 4 or 1, 3, 8), got (2, 2, 3, 8)"),
    ({"attention_bias": np.zeros((1, 1, 3, 8), bool)},
     "input 10 (attention_bias) is bool, expected float, float16 or bfloat16"),
    ({"head_sink": np.zeros(2, np.float32)}, "input 11 (head_sink): expected shape (4), got (2)"),
    *(
        ({name: np.ones(32, np.float32)}, f"input {place} ({name}): expected none: it is not supported, got a tensor")
        for place, name in ((12, "k_scale"), (13, "v_scale"), (16, "query_seqlens"))
    ),
    ({"q_norm_weight": np.ones(64, np.float32)},
     "input 14 (q_norm_weight): expected shape (32) or (128), got (64)"),
    ({"k_norm_weight": np.ones((2, 32), np.float32)},
     "input 15 (k_norm_weight): expected shape (32) or (64), got (2, 32)"),
    ({"k_norm_weight": np.ones(128, np.float32)},
     "input 15 (k_norm_weight): expected shape (32) or (64), got (128)"),
    ({"q_norm_weight": np.ones(32, np.float16)},
     "input 14 (q_norm_weight): expected float, got float16"),
    ({"k_norm_weight": np.ones(32, np.int64)},
     "input 15 (k_norm_weight) is int64, expected float, float16 or bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG_INPUTS)
def test_inputs(changes, message):
    feeds = {name: value for name, value in (FEEDS | changes).items() if value is not None}
    session = attention_session(CASE, feeds)
    for _ in range(2):
        with pytest.raises(InvalidArgument) as error:
            session.run(None, feeds)
        assert_refused(error, message)


@pytest.mark.parametrize("name", ["cos_cache", "sin_cache"])
def test_angles_without_rotation(name):
    feeds = {key: value for key, value in FEEDS.items() if not key.endswith("_cache") or key == name}
    with pytest.raises(InvalidArgument) as error:
        attention_session(CASE, feeds, do_rotary=0).run(None, feeds)
    place = 7 if name == "cos_cache" else 8
    assert_refused(error, f"input {place} ({name}): expected none, since do_rotary is 0, got a tensor")


def test_smooth_softmax_beside_a_sink():
    case = replace(CASE, sink=np.zeros(4, np.float32), smooth=True)
    feeds = feeds_of(case)
    with pytest.raises(InvalidArgument) as error:
        attention_session(case, feeds).run(None, feeds)
    assert_refused(error, "attribute smooth_softmax: expected 0, since input 11 (head_sink) is given, got 1")


def test_the_session_answers_the_next_call():
    session = attention_session(CASE, FEEDS)
    with pytest.raises(InvalidArgument):
        session.run(None, FEEDS | {"seqlens_k": ints(7, 8)})
    for found, wanted in zip(session.run(None, FEEDS), attention_session(CASE, FEEDS).run(None, FEEDS), strict=True):
        np.testing.assert_array_equal(found, wanted)


def run_with_buffers(case, places: dict[str, int]) -> None:
    """Binds these inputs and outputs at these elements of one memory."""
    feeds = feeds_of(case)
    session = attention_session(case, feeds)
    binding = session.io_binding()
    memory = np.zeros(1 << 14, np.float32)

    def bind(put, name, kind, shape):
        put(name, "cpu", 0, kind, shape, memory.ctypes.data + 4 * places[name])

    for name, value in feeds.items():
        if name in places:
            memory[places[name] : places[name] + value.nbytes // 4] = np.ravel(value).view(np.float32)
            bind(binding.bind_input, name, value.dtype, value.shape)
        else:
            binding.bind_cpu_input(name, value)
    cache = 2, 2, case.length, 32
    for name, shape in (("output", (2, 3, 128)), ("present_key", cache), ("present_value", cache)):
        if name in places:
            bind(binding.bind_output, name, np.float32, shape)
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)


ROOMY = make_case(RNG, batch=2, kv_heads=2, group=2, queries=3, past=5, capacity=8)
OVERLAPS = [
    (CASE, {"past_key": 0, "present_key": 0}, "key", "key", 5),
    (CASE, {"past_key": 0, "present_key": 64}, "key", "key", 5),
    (CASE, {"past_key": 64, "present_key": 0}, "key", "key", 5),
    (ROOMY, {"past_key": 0, "present_key": 32}, "key", "key", 8),
    (ROOMY, {"past_value": 0, "present_value": 32}, "value", "value", 8),
    (ROOMY, {"past_value": 0, "present_key": 0}, "key", "value", 8),
    (ROOMY, {"past_key": 0, "present_value": 0}, "value", "key", 8),
]


@pytest.mark.parametrize(("case", "places", "present", "past", "rows"), OVERLAPS)
def test_present_buffers_that_overlap_a_past_and_are_not_their_own(case, places, present, past, rows):
    output, inputs = {"key": 1, "value": 2}[present], {"key": 3, "value": 4}
    with pytest.raises(RuntimeError) as error:
        run_with_buffers(case, places)
    assert_refused(
        error,
        f"output {output} (present_{present}): expected a buffer of its own, or that of input {inputs[present]} "
        f"(past_{present}) if both have 8 rows; got one that overlaps input {inputs[past]} (past_{past}), which has "
        f"{rows} rows",
    )


def test_present_buffers_that_overlap_each_other():
    with pytest.raises(RuntimeError) as error:
        run_with_buffers(ROOMY, {"present_key": 0, "present_value": 100})
    message = "expected a buffer of its own, got one that overlaps output 1 (present_key)"
    assert_refused(error, f"output 2 (present_value): {message}")


# Everything that a node may be given, of which nothing may be written.
RICH = replace(
    ROOMY, mask=np.ones((2, 8), np.int64), sink=np.zeros(4, np.float32), bias=np.zeros((1, 1, 3, 8), np.float32),
    cos=CASE.cos, sin=CASE.sin, position_ids=np.zeros((2, 3), np.int64), q_norm=np.ones(32, np.float32),
    k_norm=np.ones(32, np.float32),
)  # fmt: skip
READ = [name for name in feeds_of(RICH) if name not in ("past_key", "past_value")]


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("output", ["output", "present_key", "present_value"])
def test_outputs_that_overlap_what_is_read(name, output):
    with pytest.raises(RuntimeError) as error:
        run_with_buffers(RICH, {name: 0, output: 0})
    past = {"present_key": "3 (past_key)", "present_value": "4 (past_value)"}.get(output)
    alternative = f"or that of input {past} if both have 8 rows; " if past else ""
    place = ["output", "present_key", "present_value"].index(output)
    assert_refused(
        error,
        f"output {place} ({output}): expected a buffer of its own, {alternative}got one that overlaps input "
        f"{INPUTS.index(name)} ({name})",
    )


@pytest.mark.parametrize(("past", "place"), [("past_key", 3), ("past_value", 4)])
def test_an_output_that_overlaps_a_past(past, place):
    with pytest.raises(RuntimeError) as error:
        run_with_buffers(ROOMY, {past: 0, "output": ROOMY.past_key.size - 1})
    assert_refused(
        error,
        f"output 0 (output): expected a buffer of its own, got one that overlaps input {place} ({past}), which has 8 rows",
    )


def test_an_output_that_overlaps_a_present_cache():
    with pytest.raises(RuntimeError) as error:
        run_with_buffers(ROOMY, {"output": 0, "present_key": 100})
    assert_refused(error, "output 1 (present_key): expected a buffer of its own, got one that overlaps output 0 (output)")


def test_buffers_beside_each_other_are_none_that_overlap():
    size = ROOMY.past_key.size
    run_with_buffers(ROOMY, {name: i * size for i, name in enumerate(("past_key", "present_key", "past_value"))})
    run_with_buffers(ROOMY, {"past_key": 0, "present_key": 0, "past_value": size, "present_value": size})
    run_with_buffers(ROOMY, {"query": 0, "output": ROOMY.query.size, "key": 2 * ROOMY.query.size})


def test_a_fourth_output_is_refused_by_onnxruntime_itself():
    model = attention_model(CASE.attributes(), FEEDS, "float")
    model.graph.node[0].output.append("output_qk")
    with pytest.raises((InvalidGraph, Fail)):
        create_session(model)


def test_a_query_of_another_type_is_refused_by_onnxruntime_itself():
    feeds = FEEDS | {"query": FEEDS["query"].astype(np.float64)}
    with pytest.raises(InvalidGraph, match="query"):
        attention_session(CASE, feeds)


@pytest.mark.parametrize("place", range(3))
def test_an_output_that_is_left_out_is_refused_by_onnxruntime_itself(place):
    model = attention_model(CASE.attributes(), FEEDS, "float")
    model.graph.node[0].output[place] = ""
    del model.graph.output[place]
    with pytest.raises(InvalidGraph):
        create_session(model)
