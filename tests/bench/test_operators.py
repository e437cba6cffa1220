"""`ort-hina bench`, end to end."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from ort_hina import _native
from ort_hina.benchmark import models
from ort_hina.benchmark.layers import NativeLayer, OnnxRuntimeLayer
from ort_hina.benchmark.setting import Setting
from ort_hina.benchmark.shapes import MoeShape
from ort_hina.benchmark.workload import exact

TINY = MoeShape("tiny", 64, 48, 8, 2)
KEYS = {
    "operator", "shape", "dtype", "layout", "isa", "kernel", "tokens_per_expert", "threads", "ms_median", "ms_min", "ms_max",
    "weight_bytes", "flops", "read_bandwidth", "peak_flops", "roofline_share",
}  # fmt: skip


def test_every_operator_is_measured_on_the_same_work(bench, tmp_path):
    file = tmp_path / "cases.json"
    assert bench("--dtype", "float", "--tokens", "1,16", "--prefill", "32", "--peers", "--json", str(file)) == 0
    cases = json.loads(file.read_text())
    assert all(case.keys() >= KEYS for case in cases)
    labels = [(case["operator"], case["layout"]) for case in cases if case["prefill"]]
    assert labels == [
        ("MoE", "nk"), ("MoE native", "nk"), ("ORT MoE", "nk"), ("MoE", "kn"), ("MoE native", "kn"), ("ORT MatMuls", "kn")
    ]  # fmt: skip
    assert len({(case["weight_bytes"], case["flops"]) for case in cases if case["prefill"]}) == 1
    assert all(case["ms_min"] <= case["ms_median"] <= case["ms_max"] and case["roofline_share"] > 0 for case in cases)


def test_a_call_reads_the_active_experts_and_no_other(bench, tmp_path):
    file = tmp_path / "cases.json"
    assert bench("--layout", "kn", "--engine", "native", "--tokens", "1,16", "--prefill", "none", "--json", str(file)) == 0
    cases = json.loads(file.read_text())
    elements = 3 * 64 * 48
    assert [(case["dtype"], case["tokens_per_expert"]) for case in cases] == [
        ("float", 1), ("float", 16), ("bfloat16", 1), ("bfloat16", 16)
    ]  # fmt: skip
    assert [case["weight_bytes"] for case in cases] == [2 * elements * size for size in (4, 4, 2, 2)]
    assert [case["flops"] for case in cases] == [2 * tokens * 2 * elements for tokens in (1, 16, 1, 16)]


def test_each_level_on_request_is_measured_with_its_own_kernels(bench, capsys):
    levels = [level["name"] for level in _native.isa_levels() if level["available"]]
    arguments = ("--engine", "native", "--dtype", "float", "--layout", "nk", "--tokens", "1", "--prefill", "none")
    assert bench(*arguments, "--isa", ",".join(levels), "--json", "-") == 0
    out, table = capsys.readouterr()
    cases = json.loads(out)
    assert [case["isa"] for case in cases] == levels
    assert all(case["kernel"] in table for case in cases)
    assert all(case["arithmetic"] == "float" for case in cases)


def test_arithmetic_is_told_by_the_kernel(bench, capsys):
    if not any(level["name"] == "avx512_bf16" and level["available"] for level in _native.isa_levels()):
        pytest.skip("this CPU has no vdpbf16ps")
    arguments = ("--engine", "native", "--layout", "nk", "--tokens", "16", "--prefill", "none", "--json", "-")
    assert bench(*arguments, "--isa", "avx512_bf16,avx512") == 0
    found = {(case["isa"], case["dtype"]): case["arithmetic"] for case in json.loads(capsys.readouterr().out)}
    assert found == {
        ("avx512_bf16", "float"): "float", ("avx512_bf16", "bfloat16"): "bfloat16",
        ("avx512", "float"): "float", ("avx512", "bfloat16"): "float",
    }  # fmt: skip


def test_the_plot_is_drawn_from_a_run_and_from_its_json(bench, tmp_path):
    file, first, second = tmp_path / "cases.json", tmp_path / "first.svg", tmp_path / "second.svg"
    assert bench("--dtype", "float", "--tokens", "1,2", "--prefill", "8", "--json", str(file), "--plot", str(first)) == 0
    assert bench("--read", str(file), "--plot", str(second)) == 0
    assert first.read_text() == second.read_text()
    assert "tiny" in "".join(ElementTree.parse(first).getroot().itertext())


def test_the_overhead_is_said_in_microseconds(bench, capsys):
    assert bench("--overhead", "--json", "-") == 0
    out, text = capsys.readouterr()
    (result,) = json.loads(out)
    assert result["difference_microseconds"] == result["ort_microseconds"] - result["native_microseconds"]
    assert "µs more" in text


def test_neighbours_are_compared_with_one_token_less(bench, capsys):
    assert bench("--cliff", "--dtype", "float", "--layout", "nk", "--json", "-") == 0
    out, text = capsys.readouterr()
    results = json.loads(out)
    assert [result["tokens_per_expert"] for result in results] == [1, 2, 3]
    assert results[2]["ratio"] == results[2]["ms_median"] / results[1]["ms_median"]
    assert "worst: " in text


def test_odd_sizes_are_compared_with_the_round_one(bench, capsys):
    assert bench("--odd", "--dtype", "bfloat16", "--tokens", "1,3", "--json", "-") == 0
    results = json.loads(capsys.readouterr().out)
    assert len(results) == 2 * 2 * 6
    assert {result["shape"] for result in results} == {"tiny", "64x47", "64x49", "63x48", "65x48", "65x49"}
    assert all(result["relative_speed"] == 1 for result in results if result["shape"] == "tiny")


def test_bf16_compute_reaches_both_engines(bench, capsys):
    if not any(level["name"] == "avx512_bf16" and level["available"] for level in _native.isa_levels()):
        pytest.skip("this CPU has no vdpbf16ps")
    arguments = ("--compute", "bfloat16", "--isa", "avx512_bf16", "--layout", "nk", "--tokens", "16", "--prefill", "none")
    assert bench(*arguments, "--dtype", "float", "--json", "-") == 0
    cases = json.loads(capsys.readouterr().out)
    assert [(case["operator"], case["arithmetic"]) for case in cases] == [("MoE", "bfloat16"), ("MoE native", "bfloat16")]


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_both_engines_compute_the_same(layout, tmp_path):
    models.write_weights(tmp_path, TINY, "float")
    work = exact(TINY, 5)
    answers = []
    for bf16_compute in (False, True):
        setting = Setting(TINY, TINY, "float", layout, _native.chosen_isa()["name"], 1, bf16_compute)
        session = OnnxRuntimeLayer(tmp_path, setting).session
        (through_ort,) = session.run(None, {"x": work.x, "ids": work.ids[1], "weights": work.weights})
        moe = NativeLayer(tmp_path, setting).moe
        without = moe.run(work.x.view(np.uint8), "float", work.ids[1], work.weights.view(np.uint8), "float", 1)
        assert np.array_equal(through_ort.ravel(), without.view(np.float32).ravel())
        answers.append(through_ort)
    rounded = _native.pick_kernel(setting.isa, "float", layout, 5, 48, 64, bf16_compute=True).startswith("matmul_bf16")
    assert np.array_equal(*answers) != rounded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--isa", "sse9"), "--isa sse9: expected some of "),
        (("--read", "missing.json"), "missing.json"),
        (("--read", "bad.json"), "bad.json: expected the JSON of an earlier run"),
        (("--read", "empty.json", "--plot", "x.svg"), "nothing to plot"),
    ],
)
def test_a_mistake_is_one_line(bench, arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "empty.json").write_text("[]")
    assert bench(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tokens", "0"),
        ("--tokens", "1,x"),
        ("--dtype", "int3"),
        ("--layout", "kk"),
        ("--threads", "-1"),
        ("--shape", "gpt"),
    ],
)
def test_a_value_that_means_nothing_is_refused(option, value, capsys):
    from ort_hina import cli

    with pytest.raises(SystemExit) as exit_:
        cli.main(["bench", f"{option}={value}"])
    assert exit_.value.code == 2 and f"argument {option}: expected " in capsys.readouterr().err
