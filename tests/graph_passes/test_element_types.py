"""Element types of values that a graph does not state."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.norm_graphs import HALF, SHAPE, Graph

from ort_hina.graph_passes.element_types import ElementTypes
from ort_hina.model_file import read_model


@pytest.fixture
def chain(tmp_path):
    """half x → Transpose → Where beside a constant; its comparison; a sum with the result of a custom operator first."""
    graph = Graph(HALF)
    turned = graph.add("Transpose", "x")
    smaller = graph.add("Less", turned, turned)
    chosen = graph.add("Where", smaller, graph.constant(0, np.float16), turned)
    other = graph.add("Unheard", "x", domain="somewhere")
    total = graph.add("Add", other, chosen)
    wide = graph.add("Cast", total, to=1)
    model = read_model(graph.write(tmp_path, {"x": SHAPE}, [wide])).model.graph
    names = dict(turned=turned, smaller=smaller, chosen=chosen, other=other, total=total, wide=wide)
    values = {value.name: value for node in model for value in node.outputs}
    return ElementTypes(model), {what: values[name] for what, name in names.items()}, model


def test_types_follow_from_operands(chain):
    types, values, graph = chain
    half = ("turned", "chosen", "total")
    assert [types.of(values[name]) for name in half] == [ir.DataType.FLOAT16] * 3
    assert types.of(values["wide"]) == ir.DataType.FLOAT
    assert types.of(graph.inputs[0]) == types.of(next(iter(graph.initializers.values()))) == ir.DataType.FLOAT16


def test_what_does_not_follow_is_unknown(chain):
    types, values, _ = chain
    assert types.of(values["other"]) is None and types.of(values["smaller"]) is None
