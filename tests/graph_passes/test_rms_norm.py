"""Root-mean-square norms in every spelling, and what looks like one and is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.norm_graphs import (
    CASTS,
    EPSILON,
    FLOAT,
    HALF,
    INVERSES,
    SHAPE,
    SQUARES,
    WIDTH,
    Graph,
    add_norm,
    operators,
    tidied,
)
from support.sessions import session

@pytest.mark.parametrize("weight_first", [False, True])
@pytest.mark.parametrize("casts", CASTS)
@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("square", SQUARES)
def test_every_spelling(square, inverse, casts, weight_first, tmp_path):
    kind = HALF if casts.startswith("half") else FLOAT
    graph = Graph(kind)
    output = add_norm(graph, "x", square=square, inverse=inverse, casts=casts, weight_first=weight_first)
    model = graph.write(tmp_path, {"x": SHAPE}, [output])

    done, result = tidied(model)

    assert (done.norms, done.sums, done.warnings) == (1, 0, [])
    assert operators(result) == ["SimplifiedLayerNormalization"]
    x = np.random.default_rng(0).standard_normal((2, 3, WIDTH)) * [[[1.0]], [[3e-3]]]
    x = x.astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    (expected,), (found,) = (session(path).run([output], {"x": x}) for path in (model, result))
    wide = x.astype(np.float64)
    weight = onnx.numpy_helper.to_array(next(c for c in graph.constants if c.dims == [WIDTH])).astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPSILON) * weight
    unit = 2.0**-24 if kind == FLOAT else 2.0**-11
    # One rounding of the type, and float32 work of a few roundings and a mean of WIDTH numbers.
    allowed = (unit + (WIDTH + 8) * 2.0**-24) * np.abs(exact) + 2.0**-24
    assert found.dtype == expected.dtype == x.dtype and (np.abs(found - exact) <= allowed).all()


def edited(tmp_path: Path, edit, kind: int = FLOAT, **spelling) -> Path:
    graph = Graph(kind)
    output = add_norm(graph, "x", **spelling)
    edit(graph)
    return graph.write(tmp_path, {"x": SHAPE}, [output])


def node_of(graph: Graph, operator: str) -> onnx.NodeProto:
    return next(node for node in graph.nodes if node.op_type == operator)


def mean_of_tokens(graph):
    node_of(graph, "ReduceMean").input[1] = graph.constant([1], np.int64)


def sum_instead_of_mean(graph):
    node_of(graph, "ReduceMean").op_type = "ReduceSum"


def another_power(graph):
    node_of(graph, "Pow").input[1] = graph.constant(4.0)


def epsilon_of_each_feature(graph):
    node_of(graph, "Add").input[1] = graph.constant(np.full(WIDTH, EPSILON))


def negative_epsilon(graph):
    node_of(graph, "Add").input[1] = graph.constant(-1.0)


def no_root(graph):
    node_of(graph, "Sqrt").op_type = "Identity"


def norm_of_another(graph):
    node = next(node for node in graph.nodes if node.op_type == "Mul")
    node.input[0] = graph.weight()


def weight_of_one(graph):
    graph.nodes[-1].input[1] = graph.constant([2.0])


def weight_of_each_token(graph):
    graph.nodes[-1].input[1] = graph.constant(np.ones((1, WIDTH)))


def computed_weight(graph):
    weight = graph.add("Add", graph.weight(), graph.constant(1.0))
    graph.nodes[-2].input[1] = weight
    graph.nodes.insert(0, graph.nodes.pop())


REFUSED = (
    mean_of_tokens, sum_instead_of_mean, another_power, epsilon_of_each_feature, negative_epsilon, no_root, norm_of_another,
    weight_of_one, weight_of_each_token, computed_weight,
)  # fmt: skip


@pytest.mark.parametrize("edit", REFUSED, ids=lambda edit: edit.__name__)
def test_what_is_no_such_norm_stays(edit, tmp_path):
    model = edited(tmp_path, edit)
    before = operators(model)
    done, result = tidied(model)
    assert (done.norms, done.warnings) == (0, []) and operators(result) == before


def test_a_mean_without_its_axis_stays(tmp_path):
    def drop_axis(graph):
        node_of(graph, "ReduceMean").attribute[0].i = 0

    assert tidied(edited(tmp_path, drop_axis))[0].norms == 0


def test_a_half_norm_that_stays_in_float(tmp_path):
    """float16 in, float32 out: the node works on the float32 values between the casts."""
    graph = Graph(HALF)
    output = add_norm(graph, "x", casts="float to float")
    graph.nodes[-1].input[1] = graph.weight(FLOAT)
    done, result = tidied(graph.write(tmp_path, {"x": SHAPE}, [output]))
    assert done.norms == 1 and operators(result) == ["Cast", "SimplifiedLayerNormalization"]


def test_what_others_use_too_is_kept(tmp_path):
    graph = Graph(FLOAT)
    output = add_norm(graph, "x")
    mean = node_of(graph, "ReduceMean").output[0]
    model = graph.write(tmp_path, {"x": SHAPE}, [output, mean])
    done, result = tidied(model)
    assert done.norms == 1
    x = np.random.default_rng(0).standard_normal((1, 2, WIDTH)).astype(np.float32)
    expected, found = (session(path).run([output, mean], {"x": x}) for path in (model, result))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_array_equal(found[1], expected[1])


def test_names_of_outputs_are_kept(tmp_path):
    graph = Graph(FLOAT)
    output = add_norm(graph, "x")
    _, result = tidied(graph.write(tmp_path, {"x": SHAPE}, [output]))
    assert [value.name for value in onnx.load(result).graph.output] == [output]
