"""Shapes worked out from the graph, checked against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ort_hina.graph_passes.dims import Dim
from ort_hina.graph_passes.shapes import Shapes

SIZES = {"B": 2, "S": 3}


def graph_of(build) -> tuple[onnx.ModelProto, str]:
    """`build(op, const)` returns the name of the value to look at; the input is x [B, S, 8]."""
    nodes: list[onnx.NodeProto] = []

    def op(operator, *inputs, outputs=1, **attributes):
        names = [f"v{len(nodes)}", f"v{len(nodes)}.second"][:outputs]
        nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0]

    def const(value, dtype=np.int64):
        return op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    result = build(op, const)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["B", "S", 8])
    # No type for the output: the graphs that exporters write say nothing about what lies between.
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name=result)])
    graph.initializer.append(numpy_helper.from_array(np.ones((8, 5), np.float32), "matrix"))
    graph.initializer.append(numpy_helper.from_array(np.ones(8, np.float32), "scale"))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), result


def batch_times_length(op, const):
    sizes = op("Shape", "x")
    product = op("Mul", op("Gather", sizes, const(0)), op("Gather", sizes, const(1)))
    return op("Concat", op("Unsqueeze", product, const([0])), const([8]), axis=0)


def minus_ones_as_ones(op, target, const):
    """What PyTorch's exporter writes for ``expand(-1, …)``: Expand wants 1 where a dimension stays as it is."""
    ones = op("ConstantOfShape", const([4]), value=numpy_helper.from_array(np.ones(1, np.int64)))
    return op("Where", op("Equal", target, op("Mul", ones, const(-1))), ones, target)


def second(name):
    return f"{name}.second"


CASES = {
    "flat rows": lambda op, const: op("Reshape", "x", const([-1, 8])),
    "rows by a computed width": lambda op, const: op(
        "Reshape", "x", op("Concat", const([-1]), op("Gather", op("Shape", "x"), const([2])), axis=0)
    ),
    "zero keeps a dimension": lambda op, const: op("Reshape", "x", const([0, -1])),
    "zeros of a computed shape": lambda op, const: op("ConstantOfShape", batch_times_length(op, const)),
    "unsqueeze at both ends": lambda op, const: op("Unsqueeze", "x", const([0, -1])),
    "squeeze": lambda op, const: op("Squeeze", op("Unsqueeze", "x", const([1])), const([1])),
    "flatten": lambda op, const: op("Flatten", "x", axis=2),
    "flatten from the end": lambda op, const: op("Flatten", "x", axis=-1),
    "transpose": lambda op, const: op("Transpose", "x", perm=[2, 0, 1]),
    "reverse": lambda op, const: op("Transpose", "x"),
    "expand": lambda op, const: op("Expand", op("Slice", "x", const([0]), const([1]), const([0])), op("Shape", "x")),
    "first element": lambda op, const: op("Slice", "x", const([0, 0]), const([1, 2**63 - 1]), const([0, 1])),
    "matrix product": lambda op, const: op("MatMul", "x", "matrix"),
    "scaled": lambda op, const: op("Mul", "scale", "x"),
    "two computed factors": lambda op, const: op("Mul", "x", op("Sigmoid", "x")),
    "divided by a sum": lambda op, const: op("Div", "x", op("ReduceSum", "x", const([-1]), keepdims=1)),
    "sum of an axis": lambda op, const: op("ReduceSum", "x", const([-1]), keepdims=0),
    "largest of two axes": lambda op, const: op("ReduceMax", "x", const([0, 2])),
    "place of the largest": lambda op, const: op("ArgMax", "x", axis=1, keepdims=0),
    "best three": lambda op, const: op("TopK", "x", const([3]), outputs=2),
    "best two along the tokens": lambda op, const: op("TopK", "x", const([2]), outputs=2, axis=1),
    "places of the best": lambda op, const: second(op("TopK", "x", const([3]), outputs=2)),
    "picked": lambda op, const: op("GatherElements", "x", op("ArgMax", "x", axis=-1), axis=-1),
    "scattered": lambda op, const: op("ScatterElements", "x", op("ArgMax", "x"), op("ReduceMax", "x", const([0])), axis=0),
    "masked": lambda op, const: op("Where", op("Cast", "x", to=onnx.TensorProto.BOOL), const(0, np.float32), "x"),
    "columns side by side": lambda op, const: op("Concat", "x", op("ReduceMax", "x", const([-1])), axis=-1),
    "matrix and bias": lambda op, const: op("Gemm", op("Reshape", "x", const([-1, 8])), "matrix"),
    "transposed matrix": lambda op, const: op(
        "Gemm", op("Reshape", "x", const([-1, 8])), op("Transpose", "matrix"), transB=1
    ),
    "a shape with allowzero and no zero": lambda op, const: op("Reshape", "x", const([-1, 8]), allowzero=1),
    "expand that keeps what is -1": lambda op, const: op(
        "Expand", op("Unsqueeze", "x", const([-1])), minus_ones_as_ones(op, const([-1, 1, 8, 4]), const)
    ),
    "part of a shape": lambda op, const: op("ConstantOfShape", op("Shape", "x", start=1)),
    "sliced shape": lambda op, const: op("ConstantOfShape", op("Slice", op("Shape", "x"), const([1]), const([3]))),
    "scalar to vector and back": lambda op, const: op(
        "ConstantOfShape", op("Reshape", op("Squeeze", op("Gather", op("Shape", "x"), const([1]))), const([-1]))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_shape(name):
    model, result = graph_of(CASES[name])
    graph = ir.from_proto(model).graph
    values = {value.name: value for node in graph for value in node.outputs} | {graph.inputs[0].name: graph.inputs[0]}
    shapes = Shapes()
    found = shapes.shape(values[result])
    x = shapes.shape(values["x"])
    known = {x[0].unknowns[0]: SIZES["B"], x[1].unknowns[0]: SIZES["S"]}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": np.zeros((2, 3, 8), np.float32)})
    assert found is not None and len(found) == shapes.rank(values[result]) == expected.ndim
    for axis, dim in enumerate(found):
        if all(unknown in known for unknown in dim.unknowns):
            assert dim.factor * np.prod([known[unknown] for unknown in dim.unknowns], dtype=int) == expected.shape[axis]
        else:  # an unknown of its own: only allowed where nothing could be said
            assert name == "scaled" and axis < 2


def test_what_cannot_be_known_is_not_guessed():
    model, result = graph_of(lambda op, const: op("Reshape", "x", op("Cast", op("NonZero", "x"), to=onnx.TensorProto.INT64)))
    graph = ir.from_proto(model).graph
    value = graph.outputs[0]
    assert Shapes().shape(value) is None and Shapes().rank(value) is None


def test_an_initializer_that_a_caller_can_replace_is_not_constant():
    model, result = graph_of(lambda op, const: op("Reshape", "x", "target"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 8]), "target"))
    model.graph.input.append(helper.make_tensor_value_info("target", onnx.TensorProto.INT64, [2]))
    assert Shapes().integers(ir.from_proto(model).graph.inputs[1]) is None


def test_ranks_of_a_long_chain():
    """Longer than Python's limit on recursion."""

    def build(op, const):
        value = "x"
        for _ in range(3000):
            value = op("Add", value, op("Sqrt", value))
        return value

    model, result = graph_of(build)
    assert Shapes().rank(ir.from_proto(model).graph.outputs[0]) == 3


def test_a_reshape_that_leaves_nothing_open():
    shapes = Shapes()
    assert shapes.reshaped((Dim(4), Dim(6)), (Dim(3), Dim(-1))) == (Dim(3), Dim(8))
    assert shapes.reshaped((Dim(4), Dim(6)), (Dim(5), Dim(-1))) is None
