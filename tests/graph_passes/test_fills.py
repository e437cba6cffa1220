"""Values that hold one number everywhere."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_hina.graph_passes.fills import fill_of


def value_of(nodes, *, inputs=(), initializers=()):
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in inputs]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "fills", inputs, [output], initializers)
    (value,) = ir.from_proto(helper.make_model(graph)).graph.outputs
    return value


def constant(value) -> dict:
    return {"value": numpy_helper.from_array(np.array(value, np.float32))}


@pytest.mark.parametrize("fill", [0.0, 1.0, -np.inf])
def test_one_number(fill):
    shaped = helper.make_node("ConstantOfShape", ["shape"], ["y"], **constant([fill]))
    assert fill_of(value_of([shaped], inputs=["shape"])) == fill
    single = helper.make_node("Constant", [], ["c"], **constant(fill))
    expanded = helper.make_node("Expand", ["c", "shape"], ["y"])
    assert fill_of(value_of([single, expanded], inputs=["shape"])) == fill
    stored = numpy_helper.from_array(np.full(8, fill, np.float32), "c")
    identity = helper.make_node("Identity", ["c"], ["y"])
    assert fill_of(value_of([identity], initializers=[stored])) == fill


def test_zero_is_the_default():
    assert fill_of(value_of([helper.make_node("ConstantOfShape", ["shape"], ["y"])], inputs=["shape"])) == 0


def test_what_is_not_one_number():
    assert fill_of(value_of([helper.make_node("Constant", [], ["y"], **constant([0, 1]))])) is None
    assert fill_of(value_of([helper.make_node("Cast", ["x"], ["y"], to=1)], inputs=["x"])) is None
    stored = numpy_helper.from_array(np.zeros(5000, np.float32), "c")
    assert fill_of(value_of([helper.make_node("Identity", ["c"], ["y"])], initializers=[stored])) is None
