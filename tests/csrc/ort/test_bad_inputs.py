"""Inputs that a node cannot answer: an error that names the node, the input, what was expected and what came."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, InvalidGraph
from support.moe_native import assert_within, expected
from support.moe_session import NODE_NAME, create_session, moe_model, run_session
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

HIDDEN, EXPERTS = 8, 4
WEIGHTS = make_weights(MoeSpec(EXPERTS, HIDDEN, 6, missing=frozenset({2})))
X = np.ones((2, 3, HIDDEN), np.float32)
IDS = np.zeros((2, 3, 2), np.int64)
ROUTING = np.ones((2, 3, 2), np.float32)


@pytest.fixture(scope="module")
def session():
    return create_session(moe_model(WEIGHTS, rank=None))


def with_id(value: int) -> np.ndarray:
    ids = IDS.copy()
    ids[1, 0, 1] = value  # the fourth token's second choice
    return ids


@pytest.mark.parametrize(
    ("x", "ids", "routing", "message"),
    [
        (X, with_id(4), ROUTING, "expert_ids[3, 1] is 4, expected an id in [0, 4)"),
        (X, with_id(-1), ROUTING, "expert_ids[3, 1] is -1, expected an id in [0, 4)"),
        (X, with_id(2**32), ROUTING, "expert_ids[3, 1] is 4294967296, expected an id in [0, 4)"),
        (X, with_id(2), ROUTING, "expert_ids[3, 1] is 2, but this model holds no weights of that expert"),
        (X[..., :7], IDS, ROUTING, "input 0 (X): expected a last dimension of 8 (hidden_size), got shape (2, 3, 7)"),
        (X[0, 0], IDS, ROUTING, "input 0 (X): expected rank 2 or 3, got shape (8)"),
        (X[None], IDS, ROUTING, "input 0 (X): expected rank 2 or 3, got shape (1, 2, 3, 8)"),
        (X, IDS[0, 0], ROUTING, "input 1 (expert_ids): expected rank 2 or 3, got shape (2)"),
        (X, IDS[:1], ROUTING[:1], "input 1 (expert_ids): expected 6 rows as in X (2, 3, 8), got shape (1, 3, 2)"),
        (X, IDS, ROUTING[..., :1],
         "input 2 (expert_weights): expected 6 rows of 2 weights (as many as expert_ids), got shape (2, 3, 1)"),
        (X, IDS, ROUTING[:1],
         "input 2 (expert_weights): expected 6 rows of 2 weights (as many as expert_ids), got shape (1, 3, 2)"),
        (X, IDS, ROUTING[0, 0], "input 2 (expert_weights): expected rank 2 or 3, got shape (2)"),
        (X, IDS[..., :0], ROUTING[..., :0], "expert_ids has no choices (k = 0)"),
    ],
)  # fmt: skip
def test_names_the_node_and_the_input(session, x, ids, routing, message):
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"X": x, "ids": ids, "routing": routing})
    assert f"ort_hina MoE node '{NODE_NAME}': {message}" in str(error.value)


@pytest.mark.parametrize("weights", [np.ones((6, 3), np.float32), np.ones((2, 2, 4), np.float32)])
def test_without_ids_there_is_a_weight_for_each_expert(weights):
    session = create_session(moe_model(make_weights(MoeSpec(EXPERTS, HIDDEN, 6)), rank=None, omit=["ids"]))
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"X": X, "routing": weights})
    shape = str(weights.shape)
    message = "input 2 (expert_weights): expected 6 rows of 4 weights (one for each expert, since expert_ids is absent), got"
    assert f"ort_hina MoE node '{NODE_NAME}': {message} shape {shape}" in str(error.value)


@pytest.mark.parametrize("count", [1, 5, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_without_ids_no_expert_may_be_missing(count, threads):
    session = create_session(moe_model(WEIGHTS, omit=["ids", "weights"]), threads=threads)
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"X": np.ones((count, HIDDEN), np.float32)})
    message = "expert_ids is absent, so every token goes to expert 2, but this model holds no weights of that expert"
    assert f"ort_hina MoE node '{NODE_NAME}': {message}" in str(error.value)


@pytest.mark.parametrize(
    ("addend", "message"),
    [
        (X[:1], "input 3 (addend): expected the shape of X (2, 3, 8), got (1, 3, 8)"),
        (X.reshape(6, 8), "input 3 (addend): expected the shape of X (2, 3, 8), got (6, 8)"),
        (X[..., :1], "input 3 (addend): expected the shape of X (2, 3, 8), got (2, 3, 1)"),
        (np.array(1, np.float32), "input 3 (addend): expected the shape of X (2, 3, 8), got ()"),
        (X.astype(np.float16), "input 3 (addend) is float16, expected float as X"),
        (X.astype(np.int32), "input 3 (addend) is int32, expected float as X"),
    ],
)
def test_an_addend_unlike_x(addend, message):
    kind = helper.np_dtype_to_tensor_dtype(addend.dtype)
    session = create_session(moe_model(WEIGHTS, rank=None, addend_type=kind))
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"X": X, "ids": IDS, "routing": ROUTING, "addend": addend})
    assert f"ort_hina MoE node '{NODE_NAME}': {message}" in str(error.value)


@pytest.mark.parametrize("threads", [1, 2])
def test_in_calls_that_several_threads_sort(threads):
    """2400 choices: the words are those of a small call, and the session answers the next one."""
    session = create_session(moe_model(WEIGHTS, rank=None), threads=threads)
    good = random_ids(1200, 2, [0, 1, 3])
    x, routing = np.ones((1200, HIDDEN), np.float32), np.ones((1200, 2), np.float32)
    for token, value, message in [
        (700, 4, "is 4, expected an id in [0, 4)"),
        (1199, -1, "is -1, expected an id in [0, 4)"),
        (0, 2, "is 2, but this model holds no weights of that expert"),
    ]:
        ids = good.copy()
        ids[token, 1] = value
        with pytest.raises(InvalidArgument) as error:
            session.run(None, {"X": x, "ids": ids, "routing": routing})
        assert f"ort_hina MoE node '{NODE_NAME}': expert_ids[{token}, 1] {message}" in str(error.value)
    inputs = make_tokens(good, HIDDEN)
    assert_within(run_session(session, inputs), expected(WEIGHTS, inputs))


def test_int32_ids_out_of_range():
    session = create_session(moe_model(WEIGHTS, rank=None, ids_type=TensorProto.INT32))
    with pytest.raises(InvalidArgument, match=r"expert_ids\[3, 1\] is -2147483648, expected an id in \[0, 4\)"):
        session.run(None, {"X": X, "ids": with_id(-(2**31)).astype(np.int32), "routing": ROUTING})


def test_the_session_answers_the_next_call(session):
    inputs = make_tokens(random_ids(5, 2, [0, 1, 3]), HIDDEN)
    for _ in range(3):
        with pytest.raises(InvalidArgument):
            session.run(None, {"X": X, "ids": with_id(-1), "routing": ROUTING})
        assert_within(run_session(session, inputs), expected(WEIGHTS, inputs))


@pytest.mark.parametrize(
    ("kind", "numpy_type", "name"),
    [
        (TensorProto.FLOAT, np.float32, "float"),
        (TensorProto.INT8, np.int8, "int8"),
        (TensorProto.BOOL, np.bool_, "bool"),
    ],
)
def test_ids_of_another_type(kind, numpy_type, name):
    session = create_session(moe_model(WEIGHTS, rank=None, ids_type=kind))
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"X": X, "ids": IDS.astype(numpy_type), "routing": ROUTING})
    assert f"'{NODE_NAME}': input 1 (expert_ids) is {name}, expected int32 or int64" in str(error.value)


def test_routing_weights_of_another_type():
    session = create_session(moe_model(WEIGHTS, rank=None, routing_type=TensorProto.DOUBLE))
    with pytest.raises(InvalidArgument) as error:
        session.run(None, {"X": X, "ids": IDS, "routing": ROUTING.astype(np.float64)})
    message = "input 2 (expert_weights) is double, expected float, float16 or bfloat16"
    assert f"'{NODE_NAME}': {message}" in str(error.value)


@pytest.mark.parametrize(("kind", "name"), [(TensorProto.DOUBLE, "double"), (TensorProto.INT32, "int32")])
def test_x_of_another_type_is_refused_by_onnxruntime_itself(kind, name):
    with pytest.raises(InvalidGraph) as error:
        create_session(moe_model(WEIGHTS, x_type=kind))
    expected_text = rf"Type 'tensor({name})' of input parameter (X) of operator (MoE) in node ({NODE_NAME}) is invalid."
    assert expected_text in str(error.value)
