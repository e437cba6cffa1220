"""The demo: end to end on a tiny model, and that it tells the truth when something is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ort_hina import OrtHinaError, cli
from ort_hina.demo import build, memory
from ort_hina.demo.build import _claim
from ort_hina.demo.measurement import Measurement, Task
from ort_hina.demo.report import DemoReport
from ort_hina.demo.run import _measure
from ort_hina.demo.run import run as run_demo
from ort_hina.fusion import AttentionReport, FusionReport, LayerReport

_RUN = Measurement(
    tokens=[5, 6, 7],
    nodes=1200,
    layer_nodes=1000,
    load_seconds=0.5,
    resident_before_bytes=10**8,
    peak_bytes=3 * 10**8,
    private_bytes=10**6,
    prefill_tokens_per_second=1000.0,
    decode_tokens_per_second=50.0,
)


def _report(**changes) -> DemoReport:
    facts = dict(
        model="a model",
        layers=4,
        weights_bytes=10**7,
        prompt_tokens=4,
        new_tokens=3,
        kernels="avx2",
        threads=2,
        fusion="2 layers fused",
        pytorch=replace(_RUN, nodes=None, layer_nodes=None),
        unfused=_RUN,
        fused=replace(_RUN, nodes=40, layer_nodes=28),
    )
    return DemoReport(**{**facts, **changes})


@pytest.fixture(scope="module")
def tiny_demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, run_demo(folder, variant="qwen3_moe", prompt_tokens=9, new_tokens=6)


def test_end_to_end(tiny_demo):
    folder, report = tiny_demo
    assert report.tokens_identical
    assert len(report.pytorch.tokens) == 6
    assert report.fused.nodes < report.unfused.nodes / 2
    assert 0 < report.fused.layer_nodes < report.fused.nodes and report.fused.layer_nodes < report.unfused.layer_nodes / 2
    assert {"model.onnx", "model.onnx_data", "model_hina.onnx", "pytorch"} <= {file.name for file in folder.iterdir()}
    for measured in (report.pytorch, report.unfused, report.fused):
        assert measured.peak_bytes > measured.resident_before_bytes > 0
        assert min(measured.load_seconds, measured.prefill_tokens_per_second, measured.decode_tokens_per_second) > 0


def test_end_to_end_as_json(tiny_demo):
    facts = json.loads(tiny_demo[1].to_json())
    assert facts["tokens_identical"] is True and facts["fused"]["tokens"] == facts["pytorch"]["tokens"]


def test_table():
    lines = _report().to_text().splitlines()
    assert lines[3].split() == ["PyTorch", "ONNX", "unfused", "ONNX", "fused"]
    assert lines[5].split() == ["nodes", "–", "1,200", "40"]
    assert lines[6].split() == ["nodes", "in", "each", "layer", "–", "250", "7"]
    assert lines[-1] == "tokens identical: yes"
    assert len({len(line) for line in lines[3:14]}) == 1


@pytest.mark.parametrize(("tokens", "position"), [([9, 6, 7], 1), ([5, 6, 8], 3), ([5, 6], 3), ([5, 6, 7, 8], 4), ([], 1)])
@pytest.mark.parametrize("which", ["unfused", "fused"])
def test_another_text_is_said_and_where_it_begins(which, tokens, position):
    report = _report(**{which: replace(_RUN, tokens=tokens)})
    assert not report.tokens_identical
    assert report.to_text().splitlines()[-2:] == [
        "tokens identical: no",
        f"ONNX {which} differs from PyTorch first at new token {position}",
    ]


def test_fewer_tokens_than_asked_are_not_identical_even_if_all_agree():
    assert not _report(new_tokens=4).tokens_identical


def test_unknown_memory_is_said():
    unknown = replace(_RUN, peak_bytes=None, private_bytes=None, resident_before_bytes=None)
    assert _report(fused=unknown).to_text().count("unknown") == 3


@pytest.mark.parametrize(("tokens", "status"), [([5, 6, 7], 0), ([5, 6, 8], 1)])
def test_exit_status_is_the_answer(monkeypatch, capsys, tmp_path, tokens, status):
    monkeypatch.setattr("ort_hina.demo.run.run", lambda directory: _report(fused=replace(_RUN, tokens=tokens)))
    facts = tmp_path / "demo.json"
    assert cli.main(["demo", "--json", str(facts)]) == status
    assert json.loads(facts.read_text())["tokens_identical"] is (status == 0)
    assert f"tokens identical: {'no' if status else 'yes'}" in capsys.readouterr().out


def test_a_run_that_fails_is_named_with_its_own_words(tmp_path):
    with pytest.raises(OrtHinaError, match=r"the run of PyTorch failed \(exit status 1\):[\s\S]*nowhere"):
        _measure("PyTorch", Task("pytorch", str(tmp_path / "nowhere"), [3], 1))


_LAYER, _LOST_LAYER = (LayerReport("layer 0", not reason, reason, 8, 8, 2) for reason in (None, "a reason"))
_ATTENTION, _LOST_ATTENTION = (AttentionReport("layer 0", not reason, reason) for reason in (None, "a reason"))


@pytest.mark.parametrize(
    ("layers", "attention"),
    [
        ([_LAYER, _LOST_LAYER], [_ATTENTION]),
        ([_LAYER], [_ATTENTION, _LOST_ATTENTION]),
        ([], [_ATTENTION]),
        ([_LAYER], []),
    ],
)
def test_a_layer_that_is_not_fused_ends_the_demo(layers, attention, monkeypatch, tmp_path):
    """Otherwise the unfused model would be shown as fused."""
    report = FusionReport("model.onnx", "model_hina.onnx", layers, 10, 5, 0.1, attention=attention)
    monkeypatch.setattr(build, "fuse", lambda model, output, progress: report)
    with pytest.raises(OrtHinaError, match="not every layer was fused:") as error:
        build.build("qwen3_moe", tmp_path)
    assert "refused: a reason" in str(error.value) or not (layers and attention)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(OrtHinaError, match="holds files that the demo did not write"):
        run_demo(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_its_own_folder_may_be_used_again_and_a_file_is_no_folder(tmp_path):
    _claim(tmp_path / "new" / "folder")
    (tmp_path / "new" / "folder" / "model.onnx").touch()
    _claim(tmp_path / "new" / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(OrtHinaError, match="is not a folder"):
        _claim(tmp_path / "file")


def test_memory_is_read_in_bytes_and_unknown_elsewhere(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t     200 kB\nVmRSS:\t     150 kB\nRssAnon:\t      50 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    assert (memory.resident_peak(), memory.resident_now(), memory.private_now()) == (204800, 153600, 51200)
    status.unlink()
    assert (memory.resident_peak(), memory.resident_now(), memory.private_now()) == (None, None, None)
