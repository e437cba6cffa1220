"""What an element of a computed tensor is: every expression is compared with what ONNX's reference computes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ort_hina.graph_passes.formulas import And, AtLeastZero, Not, Seen
from ort_hina.graph_passes.polynomials import ONE, Polynomial, number, unknown
from ort_hina.graph_passes.symbolic_tensors import Either, NotUnderstood, Tensors

SIZES = {"batch": 2, "width": 5}


class _Graph:
    """Of one input, ``mask`` (batch, width) of int64."""

    def __init__(self):
        self.nodes = []

    def op(self, operator, *inputs, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def const(self, value, dtype=np.int64):
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def size(self, axis, value="mask"):
        return self.op("Gather", self.op("Shape", value), self.const(axis))

    def model(self, output):
        mask = helper.make_tensor_value_info("mask", TensorProto.INT64, list(SIZES))
        graph = helper.make_graph(self.nodes, "g", [mask], [helper.make_empty_tensor_value_info(output)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _columns(g):
    return g.op("Range", g.const(0), g.size(1), g.const(1))


def _rows(g):
    return g.op("Unsqueeze", g.op("Range", g.const(0), g.size(0), g.const(1)), g.const([1]))


def _flat_gather(g):
    places = g.op("Add", _columns(g), g.op("Mul", _rows(g), g.size(1)))
    return g.op("Gather", g.op("Flatten", "mask", axis=2), places, axis=0)


def _gather_nd(g):
    shape = g.op("Shape", g.op("Max", _rows(g), _columns(g)))
    pairs = [g.op("Unsqueeze", g.op("Expand", x, shape), g.const([-1])) for x in (_rows(g), _columns(g))]
    return g.op("GatherND", "mask", g.op("Concat", *pairs, axis=-1))


def _scatter(g):
    other = g.op("Mul", "mask", g.const(3))
    shape = g.op("Shape", "mask")
    pairs = [g.op("Unsqueeze", g.op("Expand", x, shape), g.const([-1])) for x in (_rows(g), _columns(g))]
    return g.op("ScatterND", "mask", g.op("Concat", *pairs, axis=-1), other)


def _triangle(upper, diagonal):
    def build(g):
        square = g.op(
            "Expand",
            g.const([[1.0]], np.float32),
            g.op("Concat", *(g.op("Unsqueeze", g.size(1), g.const([0])),) * 2, axis=0),
        )
        return g.op("Trilu", square, g.const(diagonal), upper=upper)

    return build


def _compare(operator):
    return lambda g: g.op(operator, _columns(g), g.op("Add", _rows(g), g.const(1)))


def _arithmetic(operator):
    return lambda g: g.op(operator, g.op("Mul", _rows(g), g.const(2)), _columns(g))


def _sliced_to_a_size(g):
    return g.op("Slice", "mask", g.const([0]), g.op("Unsqueeze", g.size(1), g.const([0])), g.const([1]))


def _filled(g):
    return g.op("ConstantOfShape", g.op("Shape", "mask"), value=numpy_helper.from_array(np.array([4], np.int64)))


BUILDERS = {
    "input": lambda g: g.op("Identity", "mask"),
    "boolean": lambda g: g.op("Cast", "mask", to=TensorProto.BOOL),
    "not": lambda g: g.op("Not", g.op("Cast", "mask", to=TensorProto.BOOL)),
    "float": lambda g: g.op("Mul", g.op("Cast", "mask", to=TensorProto.FLOAT), g.const(-2.5, np.float32)),
    "flat gather": _flat_gather,
    "gather_nd": _gather_nd,
    "scatter": _scatter,
    "transposed": lambda g: g.op("Transpose", "mask", perm=[1, 0]),
    "squeezed": lambda g: g.op("Squeeze", g.op("Unsqueeze", "mask", g.const([0, 3])), g.const([0, 3])),
    "reshaped": lambda g: g.op("Reshape", g.op("Reshape", "mask", g.const([-1])), g.op("Shape", "mask")),
    "sliced": lambda g: g.op("Slice", "mask", g.const([1]), g.const([2**62]), g.const([1]), g.const([1])),
    "sliced to a size": _sliced_to_a_size,
    "row": lambda g: g.op("Gather", "mask", g.const([0]), axis=0),
    "last row": lambda g: g.op("Gather", "mask", g.const(-1), axis=0),
    "upper": _triangle(1, 1),
    "lower": _triangle(0, -1),
    "less": _compare("Less"),
    "less or equal": _compare("LessOrEqual"),
    "greater": _compare("Greater"),
    "greater or equal": _compare("GreaterOrEqual"),
    "equal": _compare("Equal"),
    "sum": _arithmetic("Add"),
    "difference": _arithmetic("Sub"),
    "product": _arithmetic("Mul"),
    "largest": _arithmetic("Max"),
    "smallest": _arithmetic("Min"),
    "negative": lambda g: g.op("Neg", "mask"),
    "where": lambda g: g.op("Where", _compare("Less")(g), "mask", g.const(7)),
    "and": lambda g: g.op("And", _compare("Less")(g), g.op("Cast", "mask", to=TensorProto.BOOL)),
    "or": lambda g: g.op("Or", _compare("Less")(g), g.op("Cast", "mask", to=TensorProto.BOOL)),
    "filled": _filled,
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDERS)
def test_elements_are_what_the_operators_compute(name):
    graph = _Graph()
    model = graph.model(BUILDERS[name](graph))
    mask = np.random.default_rng(0).integers(0, 2, tuple(SIZES.values()))
    (expected,) = ReferenceEvaluator(model).run(None, {"mask": mask})
    value, tensors = _output(model), Tensors()
    sizes = tensors.sizes(value)
    assert [_number(size, {}) for size in sizes] == list(expected.shape)
    index = tuple(tensors.position("i", size) for size in sizes)
    element = tensors.element(value, index)
    for place in itertools.product(*map(range, expected.shape)):
        case = {position.name: number for position, number in zip(index, place, strict=True)}
        assert _evaluated(element, case, mask) == expected[place], (place, element)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda g: g.op("CumSum", "mask", g.const(1)), "CumSum"),
        (lambda g: g.op("Slice", "mask", g.const([0]), g.const([2**62]), g.const([1]), g.const([2])), "takes steps"),
        (lambda g: g.op("Gather", "mask", g.op("Gather", "mask", g.const(0)), axis=0), "no integer"),
        (lambda g: g.op("ScatterND", "mask", g.const([[0, 0]]), g.const([5])), "of a part"),
        (lambda g: g.op("Div", _columns(g), g.const(2)), "remainder"),
    ],
)
def test_what_is_not_understood_is_said(build, reason):
    graph = _Graph()
    value, tensors = _output(graph.model(build(graph))), Tensors()
    with pytest.raises(NotUnderstood, match=reason):
        tensors.element(value, tuple(tensors.position("i", size) for size in tensors.sizes(value)))


def test_bounds():
    """What a position is below, and what a size is at least."""
    tensors = Tensors()
    length, total = unknown("length"), unknown("total")
    tensors.at_least(length, ONE)
    tensors.at_least(total, length)
    query, key = tensors.position("q", length), tensors.position("k", total)
    assert tensors.always_at_least_zero(query) and tensors.always_at_least_zero(total - ONE - key)
    assert tensors.always_at_least_zero(total - length) and tensors.always_at_least_zero(total - ONE - query)
    assert not tensors.always_at_least_zero(length - ONE - key)
    assert not tensors.always_at_least_zero(key - query) and not tensors.always_at_least_zero(length - number(2))


def test_a_sum_that_one_unknown_stands_for():
    tensors = Tensors()
    past, new = unknown("past"), unknown("new")
    total = tensors.define("total", past + new, past)
    assert tensors.simplified(past + new) == total and tensors.same(past, total - new)


def test_sizes_that_meet_are_equal():
    tensors = Tensors()
    a, b, c = unknown("a"), unknown("b"), unknown("c")
    assert tensors.broadcast((a, ONE), (ONE, b)) == (a, b)
    tensors.equate(a, b + c)
    assert tensors.same(a, b + c) and not tensors.same(a, b)


def _output(model: onnx.ModelProto) -> ir.Value:
    return ir.serde.deserialize_model(model).graph.outputs[0]


def _number(polynomial: Polynomial, case) -> int:
    values = {**SIZES, **case}
    return polynomial.with_values({name: number(values[name]) for name in polynomial.unknowns()}).constant


def _evaluated(element, case, mask):
    match element:
        case bool() | float():
            return element
        case Polynomial():
            return _number(element, case)
        case Either(condition, then, otherwise):
            return _evaluated(then if _evaluated(condition, case, mask) else otherwise, case, mask)
        case Not(operand):
            return not _evaluated(operand, case, mask)
        case And(left, right):
            return _evaluated(left, case, mask) and _evaluated(right, case, mask)
        case AtLeastZero(value):
            return _number(value, case) >= 0
        case Seen(_, row, column):
            return bool(mask[_number(row, case), _number(column, case)])
    raise AssertionError(element)
