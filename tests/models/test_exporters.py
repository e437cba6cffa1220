"""Exports of every kind that needs no environment of its own (and, slowly, one of each that does)."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import numpy as np
import onnx
import pytest

from ort_hina.models.comparison import differences
from ort_hina.models.environment import exporters_python
from ort_hina.models.export_folder import Export, export_all
from ort_hina.models.exporters.table import EXPORTERS
from ort_hina.models.families import VARIANTS
from ort_hina.models.onnx_cases import open_session, run_block, run_model
from ort_hina.models.reference import write_block_outputs, write_logits
from ort_hina.models.reference_folder import read_reference

SEPARATE = [Export(exporter.families[0], name) for name, exporter in EXPORTERS.items() if exporter.separate]


@pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=EXPORTERS)
def test_the_table_names_what_exists(exporter):
    function = import_module(f"ort_hina.models.exporters.{exporter.module}").export
    assert {"name", "directory", "opset", "dtype", *exporter.options} <= set(inspect.signature(function).parameters)
    assert set(exporter.families) <= set(VARIANTS)
    assert len(set(exporter.families)) == len(exporter.families)


def test_custom_configuration_exports_what_optimum_does_not_know(tmp_path):
    """And the file answers what PyTorch answers."""
    path = EXPORTERS["optimum_custom"].export("dbrx", tmp_path)
    answers, errors = run_model(open_session(path))
    write_logits("dbrx", tmp_path / "pytorch.npz")
    expected = read_reference(tmp_path / "pytorch.npz")
    assert not errors and len(answers) == 21
    assert max(differences(answers, expected).values()) < 2e-5


def test_optimum_alone_refuses_what_it_does_not_know(tmp_path):
    with pytest.raises(ValueError, match="custom or unsupported architecture"):
        EXPORTERS["optimum"].export("olmoe", tmp_path)


def test_dummy_inputs_depend_on_the_seed(tmp_path):
    """Which experts an export loses depends on them, so they have to be the same each time."""
    module = import_module("ort_hina.models.exporters.optimum")
    found = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / folder).mkdir()
        model = onnx.load(module.export("deepseek_v3_32", tmp_path / folder, seed=seed), load_external_data=False)
        found.append({number for node in model.graph.node for number in re.findall(r"experts\.(\d+)/", node.name)})
    assert found[0] == found[1] != found[2]
    assert len(found[0]) < 32


def test_a_block_alone_answers_what_pytorch_answers(tmp_path):
    path = EXPORTERS["block_torchscript"].export("llama4_text", tmp_path, opset=17)
    assert onnx.load(path).opset_import[0].version == 17
    answers, errors = run_block(open_session(path))
    write_block_outputs("llama4_text", tmp_path / "pytorch.npz")
    expected = read_reference(tmp_path / "pytorch.npz")
    assert not errors and set(answers) == set(expected)
    assert max(differences(answers, expected).values()) < 2e-5


def test_genai_chooses_the_opset(tmp_path):
    with pytest.raises(ValueError, match="chooses the opset itself, 20 was asked for"):
        EXPORTERS["genai"].export("gpt_oss", tmp_path, opset=20)


def test_differences_see_one_wrong_token_and_no_padding():
    answers = {"B2S9 left-padded/0": np.zeros((2, 9, 4), np.float32)}
    expected = {"B2S9 left-padded/0": np.zeros((2, 9, 4), np.float32)}
    expected["B2S9 left-padded/0"][0, :4] = 9  # four tokens of padding on the left of row 0
    assert differences(answers, expected) == {"B2S9 left-padded": 0}
    expected["B2S9 left-padded/0"][0, 4, 1] = 0.5
    assert differences(answers, expected) == {"B2S9 left-padded": 0.5}
    answers["B2S9 left-padded/0"][1, 1, 1] = np.nan
    assert differences(answers, expected) == {"B2S9 left-padded": np.inf}


@pytest.mark.slow
@pytest.mark.parametrize("export", SEPARATE, ids=lambda export: export.name)
def test_exporters_of_the_separate_environment(export, tmp_path):
    if exporters_python() is None:
        pytest.skip("no environment of the exporters: make exporters")
    (exported,) = export_all([export], tmp_path)
    assert exported.error is None and exported.path.exists()
