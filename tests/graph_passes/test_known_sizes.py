"""Sizes that a graph computes from shapes and that are known become constants, and nothing else does."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ort_hina.graph_passes.cleanup import remove_unused
from ort_hina.graph_passes.known_sizes import make_constant
from ort_hina.graph_passes.shapes import Shapes


class _Graph:
    """Of one input, ``x`` (batch, length, 12)."""

    def __init__(self):
        self.nodes = []

    def op(self, operator, *inputs, **attributes):
        self.nodes.append(
            helper.make_node(operator, inputs, [f"v{len(self.nodes)}"], name=f"n{len(self.nodes)}", **attributes)
        )
        return self.nodes[-1].output[0]

    def const(self, value):
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, np.int64)))

    def size(self, axis):
        return self.op("Unsqueeze", self.op("Gather", self.op("Shape", "x"), self.const(axis)), self.const([0]))

    def vector(self, *parts):
        return self.op("Concat", *(self.const([part]) if isinstance(part, int) else part for part in parts), axis=0)

    def model(self, output):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 12])
        graph = helper.make_graph(self.nodes, "g", [x], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _half(g):
    return g.op("Div", g.size(2), g.const([2]))


@pytest.mark.parametrize(
    ("build", "constant"),
    [
        (lambda g: g.op("Reshape", "x", g.vector(g.size(0), g.size(1), 3, 4)), [0, 0, 3, 4]),
        (lambda g: g.op("Reshape", "x", g.vector(g.size(0), g.size(1), -1, 4)), [0, 0, -1, 4]),
        (lambda g: g.op("Reshape", "x", g.vector(-1, g.size(2))), [-1, 12]),
        (lambda g: g.op("Reshape", "x", g.vector(g.op("Mul", g.size(0), g.size(1)), 12)), [-1, 12]),
        (lambda g: g.op("Reshape", "x", g.vector(g.size(1), g.size(0), 12)), None),
        (lambda g: g.op("Reshape", "x", g.vector(g.size(1), -1)), None),
        (lambda g: g.op("Slice", "x", g.const([0]), _half(g), g.const([2])), [6]),
        (lambda g: g.op("Slice", "x", g.const([0]), g.size(1), g.const([1])), None),
        (
            lambda g: g.op("Expand", g.op("Unsqueeze", "x", g.const([1])), g.vector(g.size(0), 5, g.size(1), 12)),
            [1, 5, 1, 1],
        ),
        (
            lambda g: g.op("Expand", g.op("Unsqueeze", "x", g.const([0])), g.vector(g.size(1), g.size(0), g.size(1), 12)),
            None,
        ),
    ],
)
def test_known_sizes(build, constant):
    g = _Graph()
    proto = g.model(build(g))
    changed = ir.serde.deserialize_model(proto)
    count = make_constant(changed.graph, Shapes())
    remove_unused(changed.graph)
    result = ir.serde.serialize_model(changed)
    sizes = [node for node in result.graph.node if node.name.startswith("ort_hina.integers")]
    assert count == len(sizes) == (constant is not None)
    if constant is not None:
        assert numpy_helper.to_array(sizes[0].attribute[0].t).tolist() == constant
        assert "Shape" not in [node.op_type for node in result.graph.node]
    for batch, length in ((2, 3), (1, 1), (3, 3)):
        x = np.random.default_rng(0).standard_normal((batch, length, 12)).astype(np.float32)
        try:
            (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
        except ValueError:  # sizes that do not fit, as they are written
            continue
        np.testing.assert_array_equal(ReferenceEvaluator(result).run(None, {"x": x})[0], expected)


def test_a_zero_that_means_zero_stays():
    g = _Graph()
    graph = ir.serde.deserialize_model(
        g.model(g.op("Reshape", "x", g.vector(g.size(0), g.size(1), 3, 4), allowzero=1))
    ).graph
    assert make_constant(graph, Shapes()) == 0
