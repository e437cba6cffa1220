"""The matrix: which cells it has, how it judges one, and that it says so when a fused file is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import fixtures

from ort_hina.cli import main
from ort_hina.errors import OrtHinaError
from ort_hina.matrix import cell as cell_module
from ort_hina.matrix.cell import Cell, judge
from ort_hina.matrix.cells import QUICK, cells
from ort_hina.matrix.report import Matrix, line
from ort_hina.models.export_folder import NO_ENVIRONMENT, Export, Exported, export_all
from ort_hina.models.onnx_cases import open_session, run_block
from ort_hina.models.reference_folder import (
    Reference,
    compute_references,
    read_reference,
)


def _exported(fixture: str, directory: Path) -> Exported:
    entry = fixtures.index()[fixture]
    export = Export(entry["family"], entry["exporter"], None, entry["dtype"])
    return Exported(export, fixtures.write(fixture, directory))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Folder and JSON of one quick run by the command itself."""
    directory = tmp_path_factory.mktemp("matrix")
    status = main(["matrix", "--quick", "--exports", str(directory), "--json", str(directory / "matrix.json")])
    return status, directory, json.loads((directory / "matrix.json").read_text())


def test_quick_run_finds_what_is_known(quick):
    status, _, result = quick
    states = {(cell["family"], cell["exporter"]): cell["state"] for cell in result["cells"]}
    assert states == {
        ("qwen3_moe", "optimum"): "right",
        ("deepseek_v3_32", "optimum"): "export wrong",
        ("gpt_oss", "optimum"): "right",
        ("olmoe", "optimum_custom"): "right",
        ("mixtral", "optimum_custom"): "export wrong",
        ("deepseek_v2", "block_torchscript"): "right",
    }
    assert status == 0 and result["wrong"] == 0


def test_right_cells_were_fused_and_compared(quick):
    for cell in quick[2]["cells"]:
        if cell["state"] == "right":
            assert cell["layers_fused"] > 0 and cell["nodes_after"] < cell["nodes_before"]
            for number in ("fused_against_export", "fused_against_pytorch", "export_against_pytorch"):
                assert 0 < cell[number] < 2e-5, (cell["family"], number)


def test_lost_experts_are_named(quick):
    (cell,) = (cell for cell in quick[2]["cells"] if cell["family"] == "deepseek_v3_32")
    assert cell["detail"].startswith("experts lost; /model/layers.1/mlp: the router chooses from 32 experts")
    assert cell["layers_fused"] == 0


def test_no_fused_file_is_left(quick):
    assert not list(quick[1].rglob("*hina*"))


def test_exports_that_are_there_are_taken(quick):
    (directory,) = (path for path in quick[1].iterdir() if path.name == "olmoe-optimum_custom")
    before = (directory / "model.onnx").stat().st_mtime_ns
    (found,) = export_all([Export("olmoe", "optimum_custom")], quick[1])
    assert found.path == directory / "model.onnx" and found.path.stat().st_mtime_ns == before


def test_a_wrong_fused_file_is_called_wrong(tmp_path, monkeypatch):
    """The fuser is right, so it is made wrong here: two weights of the fused file change places."""
    fuse = cell_module.fuse

    def spoiling_fuse(model, output):
        report = fuse(model, output)
        fused = onnx.load(output, load_external_data=False)
        (node,) = (node for node in fused.graph.node if node.op_type == "MoE" and len(node.input) > 1 and node.input[1])
        offsets = next(attribute for attribute in node.attribute if attribute.name == "down_offsets")
        offsets.ints[0], offsets.ints[1] = offsets.ints[1], offsets.ints[0]
        onnx.save(fused, output)
        return report

    monkeypatch.setattr(cell_module, "fuse", spoiling_fuse)
    cell = judge(_exported("qwen3_moe_nonorm_dense-optimum", tmp_path), None)
    assert cell.state == "WRONG"
    assert "differs from the file as exported" in cell.detail and cell.fused_against_export > 0.01


def test_a_fused_file_that_does_not_run_is_called_wrong(tmp_path, monkeypatch):
    fuse = cell_module.fuse

    def spoiling_fuse(model, output):
        report = fuse(model, output)
        fused = onnx.load(output, load_external_data=False)
        node = next(node for node in fused.graph.node if node.op_type == "MoE" and len(node.input) > 1 and node.input[1])
        next(attribute for attribute in node.attribute if attribute.name == "down_offsets").ints[0] = -1
        onnx.save(fused, output)
        return report

    monkeypatch.setattr(cell_module, "fuse", spoiling_fuse)
    cell = judge(_exported("qwen3_moe_nonorm_dense-optimum", tmp_path), None)
    assert cell.state == "WRONG"


def test_an_error_of_the_fuser_is_called_wrong(tmp_path, monkeypatch):
    def failing_fuse(model, output):
        raise KeyError("a fault of the fuser")

    monkeypatch.setattr(cell_module, "fuse", failing_fuse)
    cell = judge(_exported("llama4_text-block_torchscript", tmp_path), None)
    assert (cell.state, cell.detail) == ("WRONG", "KeyError: 'a fault of the fuser'")


def test_where_only_the_fused_file_runs_pytorch_decides(tmp_path, monkeypatch):
    exported = _exported("llama4_text-block_torchscript", tmp_path)
    answers, _ = run_block(open_session(exported.path))
    for reference, state in ((None, "WRONG"), (answers, "export wrong")):
        runs = iter([({}, {"block B1S1": "Split"}), (answers, {})])
        monkeypatch.setattr(cell_module, "run_block", lambda session, runs=runs: next(runs))
        assert judge(exported, reference).state == state


def test_where_neither_file_runs_the_export_is_wrong(tmp_path, monkeypatch):
    exported = _exported("llama4_text-block_torchscript", tmp_path)
    monkeypatch.setattr(cell_module, "run_block", lambda session: ({}, {"block B1S1": "Split"}))
    cell = judge(exported, None)
    assert cell.state == "export wrong" and "it does not run in block B1S1 (Split)" in cell.detail


def test_layers_fused_with_lost_experts_are_called_wrong(tmp_path, monkeypatch):
    fuse = cell_module.fuse
    monkeypatch.setattr(cell_module, "fuse", lambda model, output: fuse(model, output, allow_lost_experts=True))
    cell = judge(_exported("deepseek_v3_32-optimum", tmp_path), None)
    assert cell.state == "WRONG" and "was fused with 20 of 32 experts" in cell.detail


def test_an_export_that_differs_from_pytorch_is_called_wrong(tmp_path):
    exported = _exported("deepseek_v2-block_torchscript", tmp_path)
    answers, _ = run_block(open_session(exported.path))
    assert judge(exported, answers).state == "right"
    off = {step: answer + np.float32(0.1) for step, answer in answers.items()}
    cell = judge(exported, off)
    assert cell.state == "export wrong" and "its answers differ from PyTorch's by up to" in cell.detail
    assert cell.cases_that_differ == sorted({step.rpartition("/")[0] for step in answers})


def test_a_failed_export_is_a_cell():
    cell = judge(Exported(Export("jamba", "optimum_custom"), None, "RuntimeError: sizes differ"), None)
    assert (cell.state, cell.detail) == ("not exported", "RuntimeError: sizes differ")


def test_a_file_that_is_no_model_is_a_cell(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    cell = judge(Exported(Export("qwen3_moe", "optimum"), tmp_path / "model.onnx"), None)
    assert cell.state == "export wrong" and cell.detail.startswith("ONNX Runtime does not load it: ")


def test_missing_environment_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("ORT_HINA_EXPORTERS_PYTHON", str(tmp_path / "python"))
    export = Export("qwen3_moe", "torch_dynamo")
    (exported,) = export_all([export], tmp_path)
    assert exported.path is None and exported.error == NO_ENVIRONMENT
    assert compute_references([Reference.of(export)], tmp_path)[Reference.of(export)] == NO_ENVIRONMENT


def test_every_cell_of_the_full_matrix_is_asked_once():
    every = cells()
    assert len(every) == len({export.name for export in every}) > 100
    assert set(QUICK) <= set(every)
    exporters = [export.exporter for export in every]
    assert exporters == sorted(exporters, key=exporters.index), "one process serves an exporter's cells in a row"


def test_cells_are_chosen_by_family_and_exporter():
    chosen = cells(["gpt_oss"], ["optimum", "genai"])
    assert {export.exporter for export in chosen} == {"optimum", "genai"}
    assert {export.family for export in chosen} == {"gpt_oss"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--families", "mixtrel"], "unknown family 'mixtrel'; known: qwen3_moe, "),
        (["--exporters", "optimal"], "unknown exporter 'optimal'; known: optimum, "),
        (["--families", "olmoe", "--exporters", "genai"], "no cell of the matrix has these families and exporters together"),
    ],
)
def test_unknown_names_are_errors(arguments, message, capsys):
    assert main(["matrix", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch):
    from ort_hina.matrix import command

    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "optimum" else object())
    with pytest.raises(OrtHinaError, match="optimum is not installed"):
        command._check_packages()


def test_one_wrong_cell_makes_the_exit_status_bad(monkeypatch, capsys):
    from ort_hina.matrix import command

    wrong = Cell("mixtral", "optimum", None, "fp32", "WRONG", "differs")
    monkeypatch.setattr(command, "_compute", lambda wanted, directory, show: Matrix([wrong]))
    assert main(["matrix", "--quick"]) == 1
    assert "1 cells: 1 WRONG" in capsys.readouterr().out


def test_text_is_a_grid_and_a_line_a_cell():
    matrix = Matrix(
        [
            Cell("olmoe", "optimum_custom", None, "fp32", "right", "max difference 1e-07"),
            Cell("olmoe", "genai", None, "fp32", "not exported", "unknown"),
            Cell("gpt_oss", "genai", 20, "fp16", "refused", "because"),
        ]
    )
    rows = matrix.to_text().splitlines()
    assert rows[0].split() == ["optimum_custom", "genai"]
    assert rows[1].split() == ["olmoe", "right", "-"]
    assert rows[-1] == "3 cells: 1 right, 1 refused, 1 not exported"
    assert line(matrix.cells[2]).split() == ["gpt_oss", "genai", "20", "fp16", "refused:", "because"]


def test_references_are_kept(quick):
    reference = Reference.of(Export("olmoe", "optimum_custom"))
    answers = read_reference(compute_references([reference], quick[1] / "references")[reference])
    assert len(answers) == 21 and answers["B2S16/0"].shape == (2, 16, 384)


def _answers(**changes: float) -> dict[str, np.ndarray]:
    """Of two cases; `changes` by step, in sequence 1, behind its second token."""
    answers = {}
    for case, batch, length in (("B2S16", 2, 16), ("B2S9 left-padded", 2, 9)):
        answers[f"{case}/0"] = np.ones((batch, length, 4), np.float32)
    for step, change in changes.items():
        answers[step][1, 2:] += change
    return answers


@pytest.mark.parametrize(("dtype", "strays"), [("fp16", True), ("fp32", False)])
def test_a_sequence_may_stray_in_half_precision_alone(dtype, strays):
    cell = Cell("qwen3_moe", "optimum", None, dtype, "right", "")
    apart, strayed = cell_module._against_export(cell, _answers(**{"B2S16/0": 0.5}), _answers())
    assert (apart, strayed) == ((0.0, ["B2S16, sequence 1"]) if strays else (0.5, []))


def test_many_sequences_do_not_stray():
    cell = Cell("qwen3_moe", "optimum", None, "fp16", "right", "")
    wrong = _answers()
    for answer in wrong.values():
        answer += 0.5
    assert cell_module._against_export(cell, wrong, _answers()) == (0.5, [])


@pytest.mark.parametrize(("exporter", "difference"), [("genai", 0.0), ("optimum", 0.5)])
def test_left_padding_of_graphs_that_do_not_take_it(exporter, difference):
    cell = Cell("lfm2_moe", exporter, None, "fp32", "right", "")
    found, _ = cell_module._against_export(cell, _answers(**{"B2S9 left-padded/0": 0.5}), _answers())
    assert found == difference
