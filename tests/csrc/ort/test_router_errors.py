"""Router nodes and inputs that make no sense: an error that names the node, the attribute or input, and what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, InvalidGraph, RuntimeException
from support.router_session import NODE_NAME, router_session

MIXER = {"k": 2, "score": "sparse_mixer"}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "attribute k: expected an int, but it is absent"),
        ({"k": 2.0}, "attribute k: expected an int, but it is of another type (or empty)"),
        ({"k": 0}, "attribute k: expected at least 1, got 0"),
        ({"k": -1}, "attribute k: expected at least 1, got -1"),
        ({"k": 2, "score": 1}, "attribute score: expected a string, but it is of another type (or empty)"),
        ({"k": 2, "score": "Softmax"},
         "attribute score: expected softmax, sigmoid, none or sparse_mixer, got 'Softmax'"),
        ({"k": 2, "num_groups": 0}, "attribute num_groups: expected at least 1, got 0"),
        ({"k": 2, "num_groups": 4, "top_groups": 0}, "attribute top_groups: expected at least 1, got 0"),
        ({"k": 2, "num_groups": 4, "top_groups": 5},
         "attribute top_groups: expected at most 4 (num_groups), got 5"),
        ({"k": 2, "group_score": "mean"}, "attribute group_score: expected max or top2_sum, got 'mean'"),
        ({"k": 2, "masked_score": -1.0}, "attribute masked_score: expected 0 or -inf, got -1.000000"),
        ({"k": 2, "masked_score": float("nan")}, "attribute masked_score: expected 0 or -inf, got nan"),
        ({"k": 2, "masked_score": 0}, "attribute masked_score: expected a float, but it is of another type (or empty)"),
        ({"k": 2, "weight_function": "relu"},
         "attribute weight_function: expected none, softmax or sigmoid, got 'relu'"),
        ({"k": 2, "normalize": 2}, "attribute normalize: expected 0 or 1, got 2"),
        ({"k": 2, "normalize_epsilon": -1.0},
         "attribute normalize_epsilon: expected a finite number of at least 0, got -1.000000"),
        ({"k": 2, "normalize_min": float("inf")},
         "attribute normalize_min: expected a finite number of at least 0, got inf"),
        ({"k": 2, "scale": float("nan")}, "attribute scale: expected a finite number, got nan"),
        ({"k": 2, "scale": 2}, "attribute scale: expected a float, but it is of another type (or empty)"),
        ({"k": 2, "jitter": -0.5}, "attribute jitter: expected a finite number of at least 0, got -0.500000"),
        (MIXER | {"k": 3}, "attribute k: expected 2, since score is sparse_mixer, got 3"),
        (MIXER | {"num_groups": 2}, "attribute num_groups: expected 1, since score is sparse_mixer, got 2"),
    ],
)  # fmt: skip
def test_attributes(attributes, message):
    with pytest.raises((InvalidArgument, RuntimeException)) as error:
        router_session(attributes=attributes)
    assert f"ort_hina Router node '{NODE_NAME}': {message}" in str(error.value)


LOGITS, BIAS = np.zeros((2, 3, 8), np.float32), np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("attributes", "logits", "bias", "message"),
    [
        ({"k": 2}, LOGITS[0, 0], BIAS, "input 0 (logits): expected rank 2 or 3, got shape (8)"),
        ({"k": 2}, LOGITS[None], BIAS, "input 0 (logits): expected rank 2 or 3, got shape (1, 2, 3, 8)"),
        ({"k": 9}, LOGITS, BIAS, "attribute k: expected at most 8, the number of experts, got 9"),
        ({"k": 2}, LOGITS[..., :0], BIAS[:0], "attribute k: expected at most 0, the number of experts, got 2"),
        ({"k": 2, "num_groups": 3}, LOGITS, BIAS,
         "attribute num_groups: expected a divisor of 8, the number of experts, got 3"),
        ({"k": 2, "num_groups": 8, "group_score": "top2_sum"}, LOGITS, BIAS,
         "attribute group_score: expected max, since a group has a single expert, got 'top2_sum'"),
        ({"k": 2}, LOGITS, BIAS[:7],
         "input 1 (selection_bias): expected shape (8) as the last dimension of logits, got (7)"),
        ({"k": 2}, LOGITS, BIAS[None],
         "input 1 (selection_bias): expected shape (8) as the last dimension of logits, got (1, 8)"),
        (MIXER, LOGITS, BIAS, "input 1 (selection_bias): expected none, since score is sparse_mixer"),
    ],
)  # fmt: skip
def test_inputs(attributes, logits, bias, message):
    session = router_session(attributes=attributes, bias_type=TensorProto.FLOAT)
    for _ in range(2):
        with pytest.raises(InvalidArgument) as error:
            session.run(None, {"logits": logits, "bias": bias})
        assert f"ort_hina Router node '{NODE_NAME}': {message}" in str(error.value)


def test_the_session_answers_the_next_call():
    session = router_session(attributes={"k": 2}, bias_type=TensorProto.FLOAT)
    with pytest.raises(InvalidArgument):
        session.run(None, {"logits": LOGITS, "bias": BIAS[:7]})
    assert session.run(None, {"logits": LOGITS, "bias": BIAS})[0].tolist() == [[[0, 1]] * 3] * 2


@pytest.mark.parametrize(("kind", "numpy_type", "name"), [
    (TensorProto.DOUBLE, np.float64, "double"), (TensorProto.INT64, np.int64, "int64")
])  # fmt: skip
def test_a_bias_of_another_type(kind, numpy_type, name):
    session = router_session(attributes={"k": 2}, bias_type=kind)
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"logits": LOGITS, "bias": BIAS.astype(numpy_type)})
    message = f"input 1 (selection_bias) is {name}, expected float, float16 or bfloat16"
    assert f"'{NODE_NAME}': {message}" in str(error.value)


def test_logits_of_another_type_are_refused_by_onnxruntime_itself():
    with pytest.raises(InvalidGraph, match="logits"):
        router_session(attributes={"k": 2}, logits_type=TensorProto.DOUBLE)


@pytest.mark.parametrize(("arguments", "message"), [
    (({"k": 2}, "mmx"), "unknown level 'mmx'"), (({"k": 0}, ""), "attribute k: expected at least 1, got 0")
])  # fmt: skip
def test_without_onnxruntime(arguments, message):
    from ort_hina import _native

    with pytest.raises(ValueError, match=message):
        _native.Router(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experts": 3}, "logits: expected whole rows"), ({"experts": 0}, "logits: expected whole rows"),
        ({"bias": np.zeros(5, np.uint8)}, "bias: expected `experts` elements"), ({"threads": 0}, "threads"),
        ({"type": "int8"}, "element type: expected float"), ({"experts": 1}, "attribute k: expected at most 1"),
    ],
)  # fmt: skip
def test_arguments_without_onnxruntime(arguments, message):
    from ort_hina import _native

    with pytest.raises(ValueError, match=message):
        _native.Router({"k": 2}).run(**{"logits": np.zeros(32, np.uint8), "type": "float", "experts": 8} | arguments)
