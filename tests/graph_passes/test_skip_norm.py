"""Residual sums joined with the norm behind them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from support.norm_graphs import EPSILON, FLOAT, HALF, SHAPE, WIDTH, Graph, add_norm, operators, tidied
from support.sessions import session

SKIP = "SkipSimplifiedLayerNormalization"


def residual(graph: Graph, *, casts: str = "none") -> tuple[str, str]:
    """The sum of x and y, and its norm."""
    total = graph.add("Add", "x", "y")
    return total, add_norm(graph, total, casts=casts)


def rows(kind: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 3, WIDTH)).astype(helper.tensor_dtype_to_np_dtype(kind))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(("kind", "casts"), [(FLOAT, "none"), (FLOAT, "float to float"), (HALF, "half, weight behind")])
def test_sum_and_norm(kind, casts, used, tmp_path):
    """`used`: the sum has another user, behind the norm and as an output of the model."""
    graph = Graph(kind)
    total, normed = residual(graph, casts=casts)
    outputs = [graph.add("Add", total, normed), total] if used else [normed]
    model = graph.write(tmp_path, {"x": SHAPE, "y": SHAPE}, outputs)

    done, result = tidied(model)

    assert (done.norms, done.sums, done.warnings) == (1, 1, [])
    assert operators(result) == ([SKIP, "Add"] if used else [SKIP])
    assert len(onnx.load(result).graph.node[0].output) == (4 if used else 1)
    feeds = {"x": rows(kind, 0), "y": rows(kind, 1)}
    expected, found = (session(path).run(outputs, feeds) for path in (model, result))
    unit = 2.0**-24 if kind == FLOAT else 2.0**-11
    for before, after in zip(expected, found, strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=(WIDTH + 12) * unit * np.abs(before).max())
    if used:
        np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("operator", ["SimplifiedLayerNormalization", "RMSNormalization"])
def test_norms_that_are_nodes_already(operator, tmp_path):
    graph = Graph(FLOAT)
    total = graph.add("Add", "x", "y")
    normed = graph.add(operator, total, graph.weight(), epsilon=EPSILON, axis=-1)
    model = graph.write(tmp_path, {"x": SHAPE, "y": SHAPE}, [normed])
    proto = onnx.load(model)
    proto.opset_import[0].version = 23
    onnx.save(proto, model)
    done, result = tidied(model)
    assert (done.norms, done.sums, done.warnings) == (0, 1, []) and operators(result) == [SKIP]


@pytest.mark.parametrize(
    "shapes",
    [
        (SHAPE, ["batch", 1, WIDTH]),
        (SHAPE, ["batch", "other", WIDTH]),
        (SHAPE, [WIDTH]),
        (["a", "b", "c", WIDTH], ["a", "b", "c", WIDTH]),
    ],
)
def test_a_sum_that_may_broadcast_stays(shapes, tmp_path):
    """The kernel wants both alike, in two or three dimensions."""
    graph = Graph(FLOAT)
    _, normed = residual(graph)
    done, result = tidied(graph.write(tmp_path, dict(zip("xy", shapes, strict=True)), [normed]))
    assert done.sums == 0 and operators(result) == ["Add", "SimplifiedLayerNormalization"]


@pytest.mark.parametrize(("axis", "stash"), [(1, 1), (-1, 10)])
def test_another_axis_or_precision_stays(axis, stash, tmp_path):
    graph = Graph(FLOAT)
    total = graph.add("Add", "x", "y")
    normed = graph.add("SimplifiedLayerNormalization", total, graph.weight(), axis=axis, stash_type=stash)
    assert tidied(graph.write(tmp_path, {"x": SHAPE, "y": SHAPE}, [normed]))[0].sums == 0


def test_a_sum_with_two_norms(tmp_path):
    """One of them takes the sum; the other one reads it."""
    graph = Graph(FLOAT)
    total, first = residual(graph)
    second = add_norm(graph, total)
    model = graph.write(tmp_path, {"x": SHAPE, "y": SHAPE}, [first, second])
    done, result = tidied(model)
    assert (done.norms, done.sums) == (2, 1) and operators(result) == [SKIP, "SimplifiedLayerNormalization"]
    feeds = {"x": rows(FLOAT, 0), "y": rows(FLOAT, 1)}
    for before, after in zip(*(session(path).run([first, second], feeds) for path in (model, result)), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_a_stream_of_layers(tmp_path):
    """Embedding, then layers that read the norm and add to the stream: shapes are followed from its beginning."""
    graph = Graph(FLOAT)
    graph.kind = onnx.TensorProto.INT64
    random = np.random.default_rng(0)
    stream = graph.add("Gather", graph.constant(random.standard_normal((10, WIDTH))), "x")
    for _ in range(3):
        normed = add_norm_of_kind(graph, stream)
        shape = graph.add("Shape", normed)
        sizes = [graph.add("Gather", shape, graph.constant([i], np.int64)) for i in range(2)]
        rows_of_features = graph.add("MatMul", normed, graph.constant(random.standard_normal((WIDTH, 32))))
        target = graph.add("Concat", *sizes, graph.constant([-1], np.int64), axis=0)
        heads = graph.add("Reshape", rows_of_features, target)
        update = graph.add("MatMul", heads, graph.constant(random.standard_normal((32, WIDTH))))
        stream = graph.add("Add", update, stream)
    output = add_norm_of_kind(graph, stream)
    model = graph.write(tmp_path, {"x": ["batch", "tokens"]}, [output])
    done, result = tidied(model)
    assert (done.norms, done.sums) == (4, 3)
    ids = random.integers(0, 10, (2, 5))
    (expected,), (found,) = (session(path).run([output], {"x": ids}) for path in (model, result))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def add_norm_of_kind(graph: Graph, x: str) -> str:
    """A float32 norm in a graph whose input is of integers."""
    kind, graph.kind = graph.kind, FLOAT
    output = add_norm(graph, x)
    graph.kind = kind
    return output
