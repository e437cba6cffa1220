"""One operator or constant of an attention graph changed at a time: what is still understood is understood rightly."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.attention_graphs import Spelling, fuse, model

from ort_hina.graph_passes.attention_layer import AttentionLayer

GRAPHS = {
    "gather": Spelling(rotary="half", norm="head"),
    "gather_nd, window, sinks": Spelling(mask="gather_nd", window=3, sinks=True, rotary="interleaved", scale="scores"),
    "triangle": Spelling(mask="triangle", rotary="halves", norm="tokens", softcap=3.0, scale="divided"),
    "boolean, partial": Spelling(mask="boolean", rotary="partial", norm="after", keys="flat", scale="computed", size=16),
}
OTHERS = {
    "Add": ["Sub", "Mul"],
    "Sub": ["Add"],
    "Mul": ["Add", "Div"],
    "Div": ["Mul"],
    "And": ["Or"],
    "LessOrEqual": ["Less", "Greater", "GreaterOrEqual"],
    "Greater": ["GreaterOrEqual", "Less"],
    "Cos": ["Sin"],
    "Sin": ["Cos"],
    "Sqrt": ["Exp"],
    "Max": ["Min"],
    "ReduceMean": ["ReduceSum"],
    "ReduceMax": ["ReduceMin"],
    "Tanh": ["Sigmoid"],
    "Neg": ["Identity"],
}
SEEN_QUICKLY = 20


def _mutants(proto: onnx.ModelProto):
    """Every graph that differs from `proto` in one operator, the order of two operands, or one constant."""
    for place, node in enumerate(proto.graph.node):
        for other in OTHERS.get(node.op_type, ()):
            yield _changed(proto, place, lambda changed, other=other: setattr(changed, "op_type", other))
        if node.op_type in ("Concat", "Sub", "Where", "Div", "LessOrEqual", "Greater") and len(node.input) > 1:
            yield _changed(proto, place, _swap)
        if node.op_type == "Constant":
            yield _changed(proto, place, _nudge)
        if node.op_type == "Transpose":
            yield _changed(proto, place, _turn)


def _changed(proto, place, change):
    mutant = copy.deepcopy(proto)
    change(mutant.graph.node[place])
    return mutant


def _swap(node):
    last = list(node.input[-2:])
    node.input[-2], node.input[-1] = last[1], last[0]


def _nudge(node):
    array = numpy_helper.to_array(node.attribute[0].t)
    node.attribute[0].t.CopyFrom(numpy_helper.from_array((array + np.ones((), array.dtype)).astype(array.dtype)))


def _turn(node):
    order = list(node.attribute[0].ints)
    order[0], order[-1] = order[-1], order[0]
    node.attribute[0].ints[:] = order


def _check(proto, numbers):
    understood = 0
    for number, mutant in enumerate(_mutants(proto)):
        if number not in numbers:
            continue
        found = fuse(mutant)
        if isinstance(found.layer, AttentionLayer):
            understood += 1
            # A mutant that ONNX Runtime does not run, or that gives nothing but zeros, says nothing.
            assert found.verdict.state != "failed", (number, found.verdict, found.layer)
    return understood


@pytest.mark.parametrize("name", GRAPHS)
def test_some_mutants(name):
    proto = model(GRAPHS[name])
    count = sum(1 for _ in _mutants(proto))
    chosen = np.random.default_rng(len(name)).choice(count, SEEN_QUICKLY, replace=False)
    _check(proto, set(chosen.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_all_mutants(name):
    proto = model(GRAPHS[name])
    assert _check(proto, range(10**6)) > 10
