"""Routers with one thing changed: either refused, or read as what the changed graph computes. Never read wrongly."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
)
from support.router_checks import SPELLINGS, assert_same_routes, matched
from support.router_graphs import built

from ort_hina.graph_passes.meanings import Refusal

INVALID = (Fail, InvalidArgument, InvalidGraph, NotImplemented)
OTHERS = {
    "Add": ("Sub", "Mul", "Max"),
    "Mul": ("Add", "Div"),
    "Div": ("Mul", "Sub"),
    "Sub": ("Add",),
    "Max": ("Min", "Add"),
    "Greater": ("Less",),
    "Softmax": ("LogSoftmax",),
    "Sigmoid": ("Tanh", "Exp"),
    "Exp": ("Neg", "Identity"),
    "Neg": ("Identity",),
    "Abs": ("Neg", "Identity"),
    "Not": ("Identity",),
    "Reciprocal": ("Sqrt",),
    "ReduceSum": ("ReduceMax", "ReduceMean", "ReduceL1"),
    "ReduceMax": ("ReduceMin", "ReduceSum"),
    "ArgMax": ("ArgMin",),
}
"""Operators with the same inputs and attributes."""
AXES_SECOND = {"ReduceSum", "ReduceMax", "Unsqueeze", "Squeeze", "Reshape", "Expand", "TopK"}


def mutants(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Each of them differs from `model` in one operator, attribute, constant or input."""
    random = np.random.default_rng(0)
    earlier = [value.name for value in (*model.graph.input, *model.graph.initializer)]
    for place, node in enumerate(model.graph.node):
        for label, change in changes(node, random.permutation(earlier)[:3]):
            mutant = copy.deepcopy(model)
            change(mutant.graph.node[place])
            yield f"{node.name}: {label}", mutant
        earlier.extend(node.output)


def changes(node: onnx.NodeProto, values) -> Iterator[tuple]:
    for operator in OTHERS.get(node.op_type, ()):
        yield operator, lambda changed, operator=operator: setattr(changed, "op_type", operator)
    for i, attribute in enumerate(node.attribute):
        if attribute.type == onnx.AttributeProto.INT and node.op_type != "Cast":
            for number in {-1, 0, 1, 2} - {attribute.i}:
                change = lambda changed, i=i, number=number: setattr(changed.attribute[i], "i", number)  # noqa: E731
                yield f"{attribute.name}={number}", change
        elif attribute.type == onnx.AttributeProto.TENSOR:
            array = numpy_helper.to_array(attribute.t)
            for other in (array + 1, array * 2, -array):
                tensor = numpy_helper.from_array(other.astype(array.dtype))
                yield f"value={other}", lambda changed, i=i, tensor=tensor: changed.attribute[i].t.CopyFrom(tensor)
    if len(node.input) == 2:
        yield "swapped", lambda changed: changed.input.__setitem__(slice(None), list(changed.input)[::-1])
    for i in range(1 if node.op_type in AXES_SECOND else len(node.input)):
        for value in values:
            yield f"input {i} = {value}", lambda changed, i=i, value=str(value): changed.input.__setitem__(i, value)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPELLINGS)
def test_no_mutant_is_read_wrongly(name):
    spelling, options, _ = SPELLINGS[name]
    read = 0
    for label, mutant in mutants(built(spelling, **options)):
        try:
            _, match = matched(mutant)
        except Refusal:
            continue
        read += 1
        try:
            assert_same_routes(mutant, match)
        except INVALID:
            pass  # no model at all: ONNX Runtime does not take it either
        except AssertionError as error:
            raise AssertionError(f"{label} was read as {match.call.spec}") from error
    assert read  # some changes change nothing
