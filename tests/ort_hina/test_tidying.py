"""Tidying: verification, and what `fuse` reports."""

from __future__ import annotations

import dataclasses

import onnx
import onnx_ir as ir
import pytest
from support import fixtures
from support.norm_graphs import FLOAT, HALF, SHAPE, Graph, add_norm

import ort_hina
from ort_hina import tidying
from ort_hina.graph_passes import rms_norm, skip_norm
from ort_hina.model_file import read_model


def residual_model(directory, kind):
    graph = Graph(kind)
    output = add_norm(graph, graph.add("Add", "x", "y"), casts="half, weight behind" if kind == HALF else "none")
    return graph.write(directory, {"x": SHAPE, "y": SHAPE}, [output])


@pytest.mark.parametrize("kind", [FLOAT, HALF])
@pytest.mark.parametrize("fusion", [rms_norm, skip_norm])
def test_a_wrong_epsilon_is_noticed(fusion, kind, tmp_path, monkeypatch):
    """The smallest mistake: the difference shows in tokens as small as epsilon's root alone."""
    make = fusion.make_node

    def wrong(match):
        node = make(match)
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1.5 * match.epsilon)
        return node

    monkeypatch.setattr(fusion, "make_node", wrong)
    source = read_model(residual_model(tmp_path, kind))
    done = tidying.tidy(source)
    assert (done.norms, done.sums) == ((0, 0) if fusion is rms_norm else (1, 0))
    assert len(done.warnings) == 1 and "verification failed: a difference of" in done.warnings[0]


def test_a_wrong_weight_is_noticed(tmp_path, monkeypatch):
    make = rms_norm.make_node
    monkeypatch.setattr(rms_norm, "make_node", lambda norm: make(dataclasses.replace(norm, weight=norm.x)))
    done = tidying.tidy(read_model(residual_model(tmp_path, FLOAT)))
    assert done.norms == 0 and "stay as they are" in done.warnings[0]


def test_one_spelling_is_run_once(tmp_path, monkeypatch):
    runs = []
    run = tidying.run_alone
    monkeypatch.setattr(tidying, "run_alone", lambda model, feeds: runs.append(model) or run(model, feeds))
    graph = Graph(FLOAT)
    outputs = [add_norm(graph, "x") for _ in range(3)] + [add_norm(graph, "x", inverse="power")]
    done = tidying.tidy(read_model(graph.write(tmp_path, {"x": SHAPE}, outputs)))
    assert done.norms == 4 and len(runs) == 4  # two spellings, each before and after


def test_fuse_tidies_and_reports(tmp_path):
    model = fixtures.write("qwen3_moe-optimum", tmp_path)
    report = ort_hina.fuse(model)
    graph = onnx.load(report.output, load_external_data=False).graph
    operators = [node.op_type for node in graph.node]
    assert (report.norms, report.residual_sums) == (operators.count("SimplifiedLayerNormalization") + 4, 4)
    assert operators.count("SkipSimplifiedLayerNormalization") == 4 and "ReduceMean" not in operators
    assert "4 joined with the sum before them" in report.to_text()


def test_a_model_without_experts_is_not_touched(tmp_path):
    model = residual_model(tmp_path, FLOAT)
    assert ort_hina.fuse(model).output is None
