"""config.json against the graph."""

from __future__ import annotations

import json

import onnx
import pytest
from support.looped_graph import looped_model

from ort_hina import fuse
from ort_hina.config_check import experts_of_config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_experts": 8}, 8),
        ({"num_local_experts": 32}, 32),
        ({"n_routed_experts": 256}, 256),
        ({"moe_num_experts": 64}, 64),
        ({"text_config": {"num_local_experts": 16}}, 16),
        ({"ffn_config": {"moe_num_experts": 8}}, 8),
        ({"num_experts": [1, 64, 64]}, 64),
        ({"num_experts": []}, None),
        ({"num_experts": None, "num_local_experts": 4}, 4),
        ({"hidden_size": 64}, None),
        ([], None),
    ],
)
def test_names_of_the_number_of_experts(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert experts_of_config(tmp_path / "config.json") == expected


def test_no_file_and_no_json(tmp_path):
    assert experts_of_config(tmp_path / "config.json") is None
    (tmp_path / "config.json").write_text("{")
    assert experts_of_config(tmp_path / "config.json") is None


def warnings_of(tmp_path, model, experts):
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"num_experts": experts}))
    return fuse(tmp_path / "model.onnx").warnings


def test_the_graph_agrees(tmp_path):
    assert warnings_of(tmp_path, looped_model(experts=4), 4) == []


def test_another_number(tmp_path):
    (warning,) = warnings_of(tmp_path, looped_model(experts=4), 8)
    assert warning == "config.json says that the model has 8 experts, and routers of the graph choose from 4"


def test_no_experts_in_the_graph(tmp_path):
    model = looped_model(experts=4)
    del model.graph.node[:]
    model.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["y"]))
    (warning,) = warnings_of(tmp_path, model, 8)
    assert "has 8 experts, and no mixture of experts was found" in warning
