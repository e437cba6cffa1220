"""Constants behind operators that move nothing: the strided view gives the elements that the operators give."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from ort_hina.graph_passes.constant_views import constant_view

STACK = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)


def model(*steps: tuple[str, list, dict], output: int = 0, outputs: int = 1) -> onnx.ModelProto:
    """The constant "w" through `steps` (operator, other inputs as integers, attributes), of the last the `output`th."""
    nodes, constants, value = [], [numpy_helper.from_array(STACK, "w")], "w"
    for number, (operator, others, attributes) in enumerate(steps):
        names = []
        for place, other in enumerate(others):
            names.append(f"c{number}_{place}")
            constants.append(numpy_helper.from_array(np.array(other, np.int64), names[-1]))
        made = [f"v{number}_{i}" for i in range(outputs if number == len(steps) - 1 else 1)]
        nodes.append(helper.make_node(operator, [value, *names], made, **attributes))
        value = made[output if number == len(steps) - 1 else 0]
    result = helper.make_tensor_value_info(value, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "constants", [], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def check(proto: onnx.ModelProto) -> None:
    (value,) = ir.from_proto(proto).graph.outputs
    view = constant_view(value, {})
    assert view is not None
    assert view.tensor.name == "w"
    strides = [stride * STACK.itemsize for stride in view.strides]
    found = np.lib.stride_tricks.as_strided(STACK.reshape(-1)[view.offset :], view.shape, strides)
    expected = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {})[0]
    np.testing.assert_array_equal(found, expected)


TRANSPOSED = ("Transpose", [], {"perm": [0, 2, 1]})


@pytest.mark.parametrize(
    "steps",
    [
        [("Identity", [], {})],
        [("Cast", [], {"to": TensorProto.FLOAT})],
        [TRANSPOSED],
        [("Transpose", [], {})],
        [("Gather", [1], {"axis": 0})],
        [("Gather", [[-1]], {"axis": 1})],
        [("Gather", [2], {"axis": 2}), ("Transpose", [], {"perm": [1, 0]})],
        [TRANSPOSED, ("Gather", [1], {"axis": 0})],
        [("Slice", [[1], [4], [2], [2]], {})],
        [("Slice", [[0, 1], [1, 2**63 - 1], [0, 1]], {})],
        [("Unsqueeze", [[0, 2]], {}), ("Squeeze", [[2]], {})],
        [("Reshape", [[6, -1]], {})],
        [("Reshape", [[0, -1]], {})],
        [("Gather", [1], {"axis": 0}), ("Reshape", [[2, 6]], {})],
    ],
)
def test_one_operator_after_the_other(steps):
    check(model(*steps))


@pytest.mark.parametrize("output", [0, 1, 2])
@pytest.mark.parametrize("sizes", [[[1, 1, 1]], []])
def test_split(sizes, output):
    check(model(("Split", sizes, {"axis": 1} if sizes else {"axis": 1, "num_outputs": 3}), output=output, outputs=3))


def test_uneven_split():
    check(model(TRANSPOSED, ("Split", [], {"axis": 2, "num_outputs": 2}), output=1, outputs=2))
    check(model(("Split", [[1, 3]], {"axis": 2}), output=1, outputs=2))


@given(
    st.lists(st.sampled_from(["Transpose", "Slice", "Gather", "Unsqueeze"]), max_size=5), st.randoms(use_true_random=False)
)
@settings(max_examples=60, deadline=None)
def test_any_chain(operators, random):
    shape, steps = list(STACK.shape), []
    for operator in operators:
        axis = random.randrange(len(shape))
        if operator == "Transpose":
            order = random.sample(range(len(shape)), len(shape))
            steps.append((operator, [], {"perm": order}))
            shape = [shape[i] for i in order]
        elif operator == "Slice":
            start, step = random.randrange(shape[axis]), random.randint(1, 2)
            steps.append((operator, [[start], [shape[axis]], [axis], [step]], {}))
            shape[axis] = len(range(start, shape[axis], step))
        elif operator == "Gather" and len(shape) > 1:
            steps.append((operator, [random.randrange(shape[axis])], {"axis": axis}))
            del shape[axis]
        elif operator == "Unsqueeze":
            steps.append((operator, [[axis]], {}))
            shape.insert(axis, 1)
    check(model(*steps, ("Identity", [], {})))


@pytest.mark.parametrize(
    "steps",
    [
        [("Cast", [], {"to": TensorProto.FLOAT16}), ("Cast", [], {"to": TensorProto.FLOAT})],
        [TRANSPOSED, ("Reshape", [[-1]], {})],  # the elements are no longer in the order of memory
        [("Slice", [[3], [0], [2], [-1]], {})],
        [("Neg", [], {})],
        [("Gather", [[0, 1]], {"axis": 0})],
    ],
)
def test_what_is_no_view(steps):
    (value,) = ir.from_proto(model(*steps)).graph.outputs
    assert constant_view(value, {}) is None


def test_a_graph_input_may_be_replaced():
    proto = model(("Identity", [], {}))
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, STACK.shape))
    (value,) = ir.from_proto(proto).graph.outputs
    assert constant_view(value, {}) is None
