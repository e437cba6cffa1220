"""Casts that change nothing."""

from __future__ import annotations

import pytest
from support.norm_graphs import FLOAT, HALF, SHAPE, Graph, operators
from support.sessions import session

from ort_hina.graph_passes.idle_casts import remove_idle_casts
from ort_hina.model_file import read_model, write_model


def without_idle_casts(model):
    source = read_model(model)
    count = remove_idle_casts(source.model.graph)
    write_model(source, model.with_name("without.onnx"))
    return count, model.with_name("without.onnx")


def test_casts_in_a_row(tmp_path):
    """Of each the type follows from what is before it."""
    graph = Graph(FLOAT)
    first = graph.add("Cast", graph.add("Cast", "x", to=FLOAT), to=FLOAT)
    narrow = graph.add("Cast", first, to=HALF)
    output = graph.add("Neg", graph.add("Cast", graph.add("Add", narrow, graph.add("Cast", narrow, to=HALF)), to=HALF))
    count, result = without_idle_casts(graph.write(tmp_path, {"x": SHAPE}, [output]))
    assert count == 4 and operators(result) == ["Cast", "Add", "Neg"]
    assert session(result).get_outputs()[0].type == "tensor(float16)"


@pytest.mark.parametrize("where", ["output", "unknown type", "another type"])
def test_casts_that_stay(where, tmp_path):
    graph = Graph(FLOAT)
    value = graph.add("Unheard", "x", domain="somewhere") if where == "unknown type" else "x"
    cast = graph.add("Cast", value, to=HALF if where == "another type" else FLOAT)
    output = cast if where == "output" else graph.add("Neg", cast)
    count, result = without_idle_casts(graph.write(tmp_path, {"x": SHAPE}, [output]))
    assert count == 0 and "Cast" in operators(result)
