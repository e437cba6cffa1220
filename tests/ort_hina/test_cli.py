"""The command: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ort_hina import OrtHinaError, cli


def _fails_with(capsys, *arguments):
    """The one line that the command leaves on standard error, having exited with status 2."""
    assert cli.main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("ort-hina: error: ") and error.count("\n") == 1
    return error


def test_fuse_writes_the_model_beside_its_source_and_reports(tiny_copy, capsys, tmp_path):
    model, facts = tiny_copy(), tmp_path / "report.json"
    assert cli.main(["fuse", str(model), "--json", str(facts)]) == 0
    assert (model.parent / "model_hina.onnx").is_file()
    assert json.loads(facts.read_text())
    assert capsys.readouterr().out.strip()


def test_a_model_without_experts_is_said_and_changes_nothing(capsys, tmp_path):
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = tmp_path / "model.onnx"
    save(helper.make_model(graph), model)
    assert cli.main(["fuse", str(model)]) == 1
    assert "no mixture-of-experts layer found" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("verify", ["all", "none", "1"])
def test_fuse_takes_an_output_and_how_much_to_verify(tiny_copy, verify):
    model = tiny_copy()
    output = model.parent / "other.onnx"
    assert cli.main(["fuse", str(model), "-o", str(output), "--verify", verify]) == 0
    assert output.is_file() and not (model.parent / "model_hina.onnx").exists()


def test_fuse_leaves_attention_alone_if_asked_to(tiny_copy, tmp_path):
    counts = []
    for flags in ([], ["--no-attention"]):
        assert cli.main(["fuse", str(tiny_copy()), "--json", str(tmp_path / "report"), *flags]) == 0
        counts.append(json.loads((tmp_path / "report").read_text(encoding="utf-8"))["attention_fused"])
    assert counts == [2, 0]


def test_how_much_to_verify_reaches_the_fuser_as_it_was_meant(monkeypatch):
    parsed = [cli._parser().parse_args(["fuse", "m", "--verify", text]).verify for text in ("all", "none", "7")]
    assert parsed == ["all", "none", 7]


@pytest.mark.parametrize("verify", ["0", "-1", "some", "1.5", ""])
def test_fuse_refuses_another_amount_of_verification(verify, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["fuse", "model.onnx", f"--verify={verify}"])
    assert exit_.value.code == 2
    assert f"expected all, none or a number of layers, got {verify!r}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fuse", "inspect"])
def test_a_missing_model_is_one_line(command, capsys, tmp_path):
    assert str(tmp_path / "none.onnx") in _fails_with(capsys, command, str(tmp_path / "none.onnx"))


@pytest.mark.parametrize("command", ["fuse", "inspect"])
def test_a_file_that_is_no_model_is_one_line(command, capsys, tmp_path):
    text = tmp_path / "model.onnx"
    text.write_text("this is no model")
    assert str(text) in _fails_with(capsys, command, str(text))


def test_output_equal_to_the_input_is_refused(tiny_copy, capsys):
    model = tiny_copy()
    before = model.read_bytes()
    _fails_with(capsys, "fuse", str(model), "-o", str(model))
    assert model.read_bytes() == before


def test_inspect_as_json_on_standard_output_is_nothing_but_json(tiny_export, capsys):
    assert cli.main(["inspect", str(tiny_export()), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_machine_as_text_and_json(capsys, tmp_path):
    facts = tmp_path / "machine.json"
    assert cli.main(["machine", "--json", str(facts)]) == 0
    isa = json.loads(facts.read_text())["isa"]
    assert f"kernels             {isa} (" in capsys.readouterr().out


def test_json_that_cannot_be_written_is_an_error_and_leaves_nothing(capsys, tmp_path):
    assert cli.main(["machine", "--json", str(tmp_path / "no" / "folder.json")]) == 2
    assert "ort-hina: error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_package_is_one_line_and_a_bug_keeps_its_traceback(monkeypatch, capsys):
    def fail_with(error):
        def fail(options):
            raise error

        monkeypatch.setattr(cli, "_machine", fail)

    fail_with(OrtHinaError("the reason"))
    assert _fails_with(capsys, "machine") == "ort-hina: error: the reason\n"
    fail_with(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["machine"])


def test_no_command_is_refused_and_help_lists_all(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([])
    assert exit_.value.code == 2
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("fuse", "inspect", "machine", "demo"))


def test_a_quick_command_imports_no_framework():
    code = (
        "import sys; from ort_hina import cli\n"
        "try: cli.main(['--version'])\n"
        "except SystemExit: print([m for m in ('torch', 'optimum', 'onnxruntime', 'onnx') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
