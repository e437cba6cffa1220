"""The router stays in the graph: however it weighs the experts, the fused model sees the same ids and weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.looped_graph import looped_model
from support.sessions import relative_difference, session

from ort_hina import fuse

ROUTINGS = ("softmax_topk_div", "topk_softmax", "softmax_topk")


@pytest.fixture
def run_both(tmp_path):
    """``run_both(logits, **spelling)`` → outputs, ids and weights of the original, then those of the fused model."""

    def run(logits: np.ndarray, **spelling):
        path = tmp_path / "model.onnx"
        onnx.save(looped_model(experts=logits.shape[1], **spelling), path)
        report = fuse(path)
        assert report.fused == 1
        # As outputs of the fused model, so that what its MoE node reads can be looked at.
        fused = onnx.load(report.output)
        node = next(node for node in fused.graph.node if node.op_type == "MoE")
        _expose(fused, node.input[1], node.input[2])
        onnx.save(fused, report.output)
        x = np.random.default_rng(5).standard_normal((1, len(logits), 8)).astype(np.float32)
        feeds = {"x": x, "logits": logits.astype(np.float32)}
        (expected,) = session(path).run(["y"], feeds)
        return expected, *session(report.output).run(["y", node.input[1], node.input[2]], feeds)

    return run


def _expose(model: onnx.ModelProto, ids: str, weights: str) -> None:
    for name, element in ((ids, onnx.TensorProto.INT64), (weights, onnx.TensorProto.FLOAT)):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, element, None))


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_without_normalisation_the_weights_sum_to_the_largest_probabilities(run_both):
    """R06: treating it as a softmax over the chosen rescales the whole branch, and the text stays fluent."""
    logits = np.random.default_rng(1).standard_normal((6, 64))
    expected, found, _, weights = run_both(logits, routing="softmax_topk", k=8)
    largest = np.sort(_softmax(logits), axis=1)[:, -8:]
    np.testing.assert_allclose(weights.sum(axis=1), largest.sum(axis=1), rtol=1e-6)
    assert (weights.sum(axis=1) < 0.9).all()
    assert relative_difference(found, expected) < 1e-5


def test_three_spellings(run_both):
    """R07: two of them are equal, the third is not, and each is what it was before fusing."""
    logits = np.random.default_rng(2).standard_normal((5, 8))
    results = {routing: run_both(logits, routing=routing) for routing in ROUTINGS}
    for expected, found, *_ in results.values():
        assert relative_difference(found, expected) < 1e-5
    normalised, after, plain = (results[routing][3] for routing in ROUTINGS)
    np.testing.assert_allclose(normalised, after, atol=1e-6)
    np.testing.assert_allclose(normalised.sum(axis=1), 1, atol=1e-6)
    assert np.abs(normalised - plain).max() > 0.05


@pytest.mark.parametrize(
    ("logits", "chosen"),
    [
        (np.zeros(8), [0, 1]),
        (np.array([1.0, 2, 2, 2]), [1, 2]),
        (np.isin(np.arange(128), [15, 16, 17, 127]).astype(float), [15, 16]),
    ],
    ids=["all equal", "three of four", "across vector lanes"],
)
def test_ties_go_to_the_lower_index(run_both, logits, chosen):
    """R10."""
    expected, found, ids, weights = run_both(logits[None, :])
    assert sorted(ids[0]) == chosen
    np.testing.assert_allclose(weights, 0.5)
    assert relative_difference(found, expected) < 1e-5


def test_one_finite_logit(run_both):
    """R12: TopK of infinities."""
    logits = np.full((2, 32), -np.inf)
    logits[0, 7], logits[1, 31] = 0.3, -2
    expected, found, ids, weights = run_both(logits, k=4)
    assert [len(set(row)) for row in ids.tolist()] == [4, 4] and ids.min() >= 0 and ids.max() < 32
    assert weights[0][ids[0] == 7].item() == 1 and weights.sum() == 2
    assert relative_difference(found, expected) < 1e-5


def test_an_infinite_logit_is_as_unfused(run_both):
    logits = np.zeros((2, 32))
    logits[0, 3] = np.inf
    expected, found, *_ = run_both(logits, k=4)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found[:, 1], expected[:, 1], rtol=1e-4, atol=1e-5)
