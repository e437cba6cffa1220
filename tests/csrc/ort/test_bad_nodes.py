"""Nodes that make no sense: no session, and an error that names the node, the attribute or input, and what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, InvalidGraph, RuntimeException
from support.elements import ONNX_TYPE
from support.moe_session import NODE_NAME, create_session, inline_windows, moe_model, node_attributes
from support.moe_weights import MoeSpec, make_weights

WEIGHTS = make_weights(MoeSpec(3, 8, 6, bias=True))
A = node_attributes(WEIGHTS)
BYTES = WEIGHTS.windows[0][0].size


def assert_refused(message: str, **model: Any) -> None:
    with pytest.raises((InvalidArgument, RuntimeException)) as error:
        create_session(moe_model(WEIGHTS, **model))
    assert f"ort_hina MoE node '{NODE_NAME}': {message}" in str(error.value)


def last(name: str, value: int) -> dict[str, list[int]]:
    """The list of that name, its last value replaced."""
    return {name: [*A[name][:-1], value]}


REQUIRED = {
    **dict.fromkeys(("num_experts", "hidden_size", "intermediate_size"), "an int"),
    "activation": "a string",
    **dict.fromkeys(
        ("window_types", "gate_offsets", "down_offsets", "gate_strides", "up_strides", "down_strides"), "ints"
    ),
}


@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_attribute_that_is_absent(name):
    attributes = {key: value for key, value in A.items() if key != name}
    assert_refused(f"attribute {name}: expected {REQUIRED[name]}, but it is absent", attributes=attributes)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_attribute_of_another_type(name):
    message = f"attribute {name}: expected {REQUIRED[name]}, but it is of another type (or empty)"
    assert_refused(message, attributes=A | {name: 0.5})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("swiglu_limit", 7, "a float"), ("swiglu_limit", "7", "a float"), ("activation_alpha", 1, "a float"),
        ("activation_beta", 0, "a float"), ("weight_on", 1, "a string"), ("missing_experts", 0, "a string"),
        ("up_offsets", 0, "ints"),
        ("up_offsets", [0.0, 1.0, 2.0], "ints"), ("gate_windows", 0, "ints"), ("up_bias_stride", 2.0, "an int"),
        ("gate_bias_offsets", [0.0, 1.0, 2.0], "ints"), ("down_bias_windows", "0", "ints"),
    ],
)  # fmt: skip
def test_an_optional_attribute_of_another_type(name, value, kind):
    """Taken for absent, it would be a silent error: no limit, no up part, no bias."""
    message = f"attribute {name}: expected {kind}, but it is of another type (or empty)"
    assert_refused(message, attributes=A | {name: value})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_experts": 0}, "attribute num_experts: expected at least 1, got 0"),
        ({"hidden_size": -8}, "attribute hidden_size: expected at least 1, got -8"),
        ({"intermediate_size": 0}, "attribute intermediate_size: expected at least 1, got 0"),
        ({"num_experts": 4}, "attribute gate_offsets: expected 4 values, got 3"),
        ({"up_offsets": [0, 0]}, "attribute up_offsets: expected 3 values, got 2"),
        ({"down_offsets": [0] * 5}, "attribute down_offsets: expected 3 values, got 5"),
        ({"down_windows": [0]}, "attribute down_windows: expected 3 values, got 1"),
        ({"gate_bias_offsets": [0]}, "attribute gate_bias_offsets: expected 3 values, got 1"),
        ({"up_bias_windows": [0] * 4}, "attribute up_bias_windows: expected 3 values, got 4"),
        ({"gate_strides": [1]}, "attribute gate_strides: expected 2 values, got 1"),
        ({"down_strides": [0, 6]}, "attribute down_strides: expected positive strides, got 0, 6"),
        ({"up_strides": [1, -8]}, "attribute up_strides: expected positive strides, got 1, -8"),
        ({"down_strides": [2, 12]},
         "attribute down_strides: expected one of the two to be 1 (or gate and up interleaved), got 2, 12"),
        ({"gate_strides": [2, 3], "up_strides": [2, 3]},
         "attribute gate_strides: expected one of the two to be 1 (or gate and up interleaved), got 2, 3"),
        ({"gate_strides": [6, 1]},
         "expert 0: expected gate and up in one element type and layout, got float [K,N] and float [N,K]"),
        ({"down_bias_stride": 0}, "attribute down_bias_stride: expected at least 1, got 0"),
        ({"activation": "mish"},
         "attribute activation: expected silu, gelu, gelu_tanh, relu, identity or swiglu_oai, got 'mish'"),
        ({"missing_experts": "ignore"}, "attribute missing_experts: expected error or skip, got 'ignore'"),
        ({"weight_on": "both"}, "attribute weight_on: expected output or input, got 'both'"),
        (last("gate_offsets", -2), "attribute gate_offsets: expert 2: expected a byte offset or -1, got -2"),
        (last("up_offsets", -1), "expert 2: some of its matrices are missing (offset -1) and some are not"),
        (last("down_bias_offsets", -1), "attribute down_bias_offsets: expert 2: expected a byte offset, got -1"),
        (last("down_windows", 1), "down matrix of expert 2: expected a window in [0, 1), got 1"),
        (last("gate_bias_windows", -1), "gate bias of expert 2: expected a window in [0, 1), got -1"),
        (last("down_offsets", BYTES - 4 * 48 + 1),
         f"down matrix of expert 2: bytes {BYTES - 191} to {BYTES + 1} lie beyond the end of window 0 ({BYTES} bytes)"),
        (last("up_bias_offsets", BYTES),
         f"up bias of expert 2: bytes {BYTES} to {BYTES + 24} lie beyond the end of window 0 ({BYTES} bytes)"),
        (last("gate_offsets", 2**63 - 1),
         f"gate matrix of expert 2: bytes {2**63 - 1} to {2**63 - 1 + 192} lie beyond the end of window 0"),
        ({"down_strides": [1, 2**62]}, "down matrix of expert 0: bytes "),
    ],
)  # fmt: skip
def test_attributes_that_contradict(changed, message):
    assert_refused(message, attributes=A | changed)


def test_swiglu_oai_without_an_up_part():
    attributes = {key: value for key, value in A.items() if not key.startswith("up_")} | {"activation": "swiglu_oai"}
    assert_refused("attribute activation: swiglu_oai needs up_offsets", attributes=attributes)


@pytest.mark.parametrize("left", [{"up_strides": [1, 8]}, {"up_windows": [0, 0, 0]}, {"up_bias_stride": 2}])
def test_attributes_of_an_up_part_without_its_offsets(left):
    attributes = {key: value for key, value in A.items() if not key.startswith("up_")} | left
    message = "attribute up_offsets: expected, since other attributes of up are there, but it is absent"
    assert_refused(message, attributes=attributes)


def test_an_offset_right_up_to_the_end_is_no_error():
    attributes = A | last("down_offsets", BYTES - 4 * 48)
    create_session(moe_model(WEIGHTS, attributes=attributes))


def test_a_window_that_is_not_constant():
    assert_refused(
        "input 4 (window 0): expected a constant initializer, got a value computed at run time", window_inputs=1
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TensorProto.FLOAT, "float"), (TensorProto.FLOAT16, "float16"), (TensorProto.BFLOAT16, "bfloat16"),
        (TensorProto.INT8, "int8"), (TensorProto.UINT16, "uint16"),
    ],
)  # fmt: skip
def test_a_window_that_is_not_bytes(kind, name):
    """Also where it is what window_types says: some runtime would convert it."""
    window = helper.make_tensor("window0", kind, [400], np.zeros(400, helper.tensor_dtype_to_np_dtype(kind)))
    message = (
        f"input 4 (window 0) is {name}, expected uint8: ONNX Runtime may convert floating-point initializers; "
        "window_types names the element type"
    )
    types = [kind if kind in ONNX_TYPE.values() else TensorProto.FLOAT]
    assert_refused(message, attributes=A | {"window_types": types}, initializers=[window])


@pytest.mark.parametrize(
    ("windows", "types", "message"),
    [
        (1, [1, 1], "expected 1 value, one for each window, got 2"),
        (2, [1], "expected 2 values, one for each window, got 1"),
        (1, [11], "window 0: expected 1 (float), 10 (float16) or 16 (bfloat16), got 11"),
        (2, [1, 0], "window 1: expected 1 (float), 10 (float16) or 16 (bfloat16), got 0"),
        (1, [2**32 + 1], f"window 0: expected 1 (float), 10 (float16) or 16 (bfloat16), got {2**32 + 1}"),
        (1, [-1], "window 0: expected 1 (float), 10 (float16) or 16 (bfloat16), got -1"),
    ],
)
def test_window_types_that_make_no_sense(windows, types, message):
    weights = make_weights(MoeSpec(3, 8, 6, windows=("float",) * windows))
    with pytest.raises((InvalidArgument, RuntimeException)) as error:
        create_session(moe_model(weights, attributes=weights.attributes | {"window_types": types}))
    assert f"ort_hina MoE node '{NODE_NAME}': attribute window_types: {message}" in str(error.value)


def test_a_matrix_beyond_the_end_in_its_own_element_type():
    """Sizes are those of window_types, not of a byte."""
    attributes = A | {"window_types": [TensorProto.FLOAT16]} | last("down_offsets", BYTES - 2 * 48)
    create_session(moe_model(WEIGHTS, attributes=attributes))
    attributes |= last("down_offsets", BYTES - 2 * 48 + 1)
    assert_refused(
        f"down matrix of expert 2: bytes {BYTES - 95} to {BYTES + 1} lie beyond the end of window 0 ({BYTES} bytes)",
        attributes=attributes,
    )


def test_a_window_in_the_place_of_the_addend():
    model = moe_model(WEIGHTS)
    node = model.graph.node[0]
    node.input[3] = node.input[4]
    with pytest.raises((InvalidArgument, RuntimeException)) as error:
        create_session(model)
    message = "input 3 (addend): expected a value computed at run time, got a constant initializer"
    assert f"ort_hina MoE node '{NODE_NAME}': {message}" in str(error.value)


GATED = make_weights(MoeSpec(3, 8, 6, sigmoid_gates=frozenset({0, 1, 2})))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sigmoid_gate_offsets": [0, 0]}, "attribute sigmoid_gate_offsets: expected 3 values, got 2"),
        ({"sigmoid_gate_windows": [0] * 4}, "attribute sigmoid_gate_windows: expected 3 values, got 4"),
        ({"sigmoid_gate_windows": [0, 1, 0]}, "sigmoid_gate matrix of expert 1: expected a window in [0, 1), got 1"),
        ({"sigmoid_gate_stride": 0}, "attribute sigmoid_gate_stride: expected at least 1, got 0"),
        ({"sigmoid_gate_stride": "1"},
         "attribute sigmoid_gate_stride: expected an int, but it is of another type (or empty)"),
        ({"sigmoid_gate_stride": 2**62}, "sigmoid_gate matrix of expert 0: bytes "),
        ({"sigmoid_gate_offsets": [0, -2, 0]},
         "attribute sigmoid_gate_offsets: expert 1: expected a byte offset or -1, got -2"),
        ({"sigmoid_gate_offsets": [0, 0, 2**40]},
         f"sigmoid_gate matrix of expert 2: bytes {2**40} to {2**40 + 32} lie beyond the end of window 0"),
        ({"sigmoid_gate_offsets": 0}, "attribute sigmoid_gate_offsets: expected ints, but it is of another type (or empty)"),
        ({"weight_on": "input"}, "attribute weight_on: expected output, since there are sigmoid_gate_offsets, got 'input'"),
    ],
)  # fmt: skip
def test_sigmoid_gates_that_make_no_sense(changed, message):
    assert_refused(message, attributes=node_attributes(GATED) | changed, initializers=inline_windows(GATED))


@pytest.mark.parametrize("left", [{"sigmoid_gate_windows": [0, 0, 0]}, {"sigmoid_gate_stride": 2}])
def test_attributes_of_sigmoid_gates_without_their_offsets(left):
    message = "attribute sigmoid_gate_offsets: expected, since other attributes of sigmoid_gate are there, but it is absent"
    assert_refused(message, attributes=A | left)


def test_no_window_at_all():
    with pytest.raises(InvalidGraph, match="MoE"):
        create_session(moe_model(WEIGHTS, initializers=[]))


def test_an_unknown_level(monkeypatch):
    monkeypatch.setenv("ORT_HINA_ISA", "sse9")
    assert_refused("ORT_HINA_ISA=sse9 is not a level of this build; expected one of: ")


@pytest.mark.parametrize("entry", ["0", "-1", "many", "3x", "1.5", "99999999", "99999999999999999999"])
def test_a_number_of_threads_that_is_none(entry):
    with pytest.raises(InvalidArgument) as error:
        create_session(moe_model(WEIGHTS), entry=entry)
    message = f"ort_hina: session config entry ort_hina.threads: expected a number of threads, got '{entry}'"
    assert message in str(error.value)
