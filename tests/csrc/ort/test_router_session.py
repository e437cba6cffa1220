"""The Router operator in ONNX Runtime: shapes, types, and the graphs that it stands for."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.elements import ELEMENTS, ONNX_TYPE, rounded
from support.router_native import assert_answers
from support.router_reference import select
from support.router_session import router_session, run_router

from ort_hina.graph_passes.router_spec import RouterSpec

EXPERTS = 64
RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((300, EXPERTS)).astype(np.float32)
BIAS = (RNG.standard_normal(EXPERTS) * 0.1).astype(np.float32)
SPEC = RouterSpec(8, "sigmoid", 8, 4, "top2_sum", normalize=True, normalize_epsilon=1e-20, scale=2.5)


def assert_answered(spec, logits, bias, answer):
    ids, weights = (value.reshape(-1, spec.k) for value in answer)
    assert_answers(spec, select(spec, logits, bias), ids, weights, logits.shape[-1])


@pytest.mark.parametrize("logits_type", ELEMENTS)
@pytest.mark.parametrize("bias_type", [None, *ELEMENTS])
@pytest.mark.parametrize("threads", [1, 2])
def test_types(logits_type, bias_type, threads):
    session = router_session(
        SPEC, logits_type=ONNX_TYPE[logits_type], bias_type=bias_type and ONNX_TYPE[bias_type], threads=threads
    )
    bias = None if bias_type is None else BIAS
    answer = run_router(session, LOGITS, bias, logits_type=logits_type, bias_type=bias_type or "float")
    exact_bias = None if bias is None else rounded(bias, bias_type)
    assert_answered(SPEC, rounded(LOGITS, logits_type), exact_bias, answer)


@pytest.mark.parametrize("lead", [(300,), (1, 300), (20, 15), (300, 1), (0,), (3, 0)])
def test_leading_dimensions(lead):
    logits = LOGITS[: int(np.prod(lead))].reshape(*lead, EXPERTS)
    ids, weights = run_router(router_session(SPEC), logits)
    assert ids.shape == weights.shape == (*lead, SPEC.k)
    assert_answered(SPEC, logits, None, (ids, weights))


def test_attributes_that_are_absent_have_the_default_of_the_description():
    answer = run_router(router_session(attributes={"k": 3}), LOGITS)
    assert_answered(RouterSpec(3), LOGITS, None, answer)


def test_sparse_mixer():
    spec = RouterSpec(2, "sparse_mixer", jitter=0.01)
    assert_answered(spec, LOGITS, None, run_router(router_session(spec), LOGITS))


def test_calls_on_one_session_at_once():
    import concurrent.futures

    session = router_session(SPEC, threads=2)
    expected = run_router(session, LOGITS)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for ids, weights in pool.map(lambda _: run_router(session, LOGITS), range(40)):
            np.testing.assert_array_equal(ids, expected[0])
            np.testing.assert_array_equal(weights, expected[1])


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


SOFTMAX = helper.make_node("Softmax", ["logits"], ["scores"], axis=-1)
TOP_K = helper.make_node("TopK", ["scores", "k"], ["best", "ids"])
TOP_K_OF_LOGITS = helper.make_node("TopK", ["logits", "k"], ["best", "ids"])
SPELLINGS = {
    "softmax, top-k, divide": (
        RouterSpec(8, normalize=True),
        [SOFTMAX, TOP_K, helper.make_node("ReduceSum", ["best", "axes"], ["sum"]),
         helper.make_node("Div", ["best", "sum"], ["weights"])],
    ),
    "top-k, softmax": (
        RouterSpec(8, "none", weight_function="softmax"),
        [TOP_K_OF_LOGITS, helper.make_node("Softmax", ["best"], ["weights"], axis=-1)],
    ),
    "softmax, top-k": (RouterSpec(8), [SOFTMAX, TOP_K, helper.make_node("Identity", ["best"], ["weights"])]),
}  # fmt: skip


def unfused(nodes) -> onnxruntime.InferenceSession:
    inputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["tokens", EXPERTS])]
    outputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, None),
        helper.make_tensor_value_info("weights", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "unfused", inputs, outputs, [ints("k", 8), ints("axes", -1)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_graph_that_it_stands_for(spelling):
    """R07. ONNX Runtime's own nodes on the same logits."""
    spec, nodes = SPELLINGS[spelling]
    ids, weights = unfused(nodes).run(None, {"logits": LOGITS})
    found_ids, found = run_router(router_session(spec), LOGITS)
    sure = select(spec, LOGITS).decided
    assert sure.mean() > 0.97
    np.testing.assert_array_equal(found_ids[sure], ids[sure])
    np.testing.assert_allclose(found[sure], weights[sure], rtol=2e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_one_special_logit_gives_the_numbers_of_the_graph(value):
    """R12. Where the graph says NaN, so does the operator, and where it does not, it does not."""
    logits = LOGITS[:4].copy()
    logits[1, 5], logits[2, :] = value, value
    for spec, nodes in SPELLINGS.values():
        _, weights = unfused(nodes).run(None, {"logits": logits})
        ids, found = run_router(router_session(spec), logits)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(weights))
        assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()
