"""`ort-hina bench --attention`, end to end."""

from __future__ import annotations

import argparse
import json

import pytest

from ort_hina import _native
from ort_hina.benchmark import attention, attention_caches, attention_torch
from ort_hina.benchmark.arguments import add_arguments, complete
from ort_hina.benchmark.attention_torch import TorchProcess
from ort_hina.benchmark.attention_work import AttentionShape, AttentionWork

TINY = AttentionShape("tiny", 6, 2, 32)
QUICK = ("--threads", "1", "--attention", "tiny,tiny-window", "--lengths", "40", "--batch", "1,2", "--prefill", "17")
KEYS = {
    "study", "operator", "shape", "heads", "kv_heads", "head_size", "window", "dtype", "isa", "arithmetic", "phase", "batch",
    "new_tokens", "length", "threads", "caches", "cold", "ms_median", "ms_min", "ms_max", "cache_bytes", "flops",
    "read_bandwidth", "peak_flops", "roofline_share", "times_faster", "difference",
}  # fmt: skip


def _options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(arguments)
    complete(options)
    return options


def test_every_case_stands_beside_its_peers(bench, tmp_path, capsys):
    pytest.importorskip("torch")
    file = tmp_path / "cases.json"
    assert bench(*QUICK, "--peers", "--dtype", "float,bfloat16", "--json", str(file)) == 0
    cases = json.loads(file.read_text())
    assert all(case.keys() == KEYS for case in cases)
    of_a_work = [
        ("GroupQueryAttention", "float"), ("ORT GroupQueryAttention", "float"), ("torch SDPA", "float"),
        ("GroupQueryAttention", "bfloat16"), ("torch SDPA", "bfloat16"),
    ]  # fmt: skip
    assert [(case["operator"], case["dtype"]) for case in cases] == 2 * 3 * of_a_work
    assert [(case["shape"], case["phase"], case["batch"], case["length"]) for case in cases[::5]] == [
        (shape, *work)
        for shape in ("tiny", "tiny-window")
        for work in (("decode", 1, 40), ("decode", 2, 40), ("prefill", 1, 17))
    ]
    for case in cases:
        assert 0 < case["ms_min"] <= case["ms_median"] <= case["ms_max"] and case["roofline_share"] > 0
        assert case["caches"] >= 1 and case["threads"] == 1
    for own in cases[::5]:
        assert list(own["times_faster"]) == [f"{operator} {dtype}" for operator, dtype in of_a_work if operator[0] in "Ot"]
        assert list(own["difference"]) == ["ORT GroupQueryAttention", "torch SDPA"]
    assert capsys.readouterr().out.count("times faster than: ") == 2 * 2 * 3


def test_each_level_on_request_is_measured_and_bf16_has_the_peak_of_its_products(bench, capsys):
    levels = [level["name"] for level in _native.isa_levels() if level["available"]]
    arguments = (*QUICK, "--prefill", "none", "--batch", "1", "--dtype", "bfloat16", "--json", "-")
    assert bench(*arguments, "--isa", ",".join(levels), "--attention", "tiny") == 0
    cases = json.loads(capsys.readouterr().out)
    assert [case["isa"] for case in cases] == levels
    assert {case["isa"]: case["arithmetic"] for case in cases} == {
        isa: "bfloat16" if isa in ("amx", "avx512_bf16") else "float" for isa in levels
    }


def test_an_absent_peer_is_said(bench, monkeypatch, capsys):
    monkeypatch.setattr(attention_torch, "installed", lambda: False)
    assert bench(*QUICK, "--peers", "torch", "--dtype", "float", "--json", "-") == 0
    out, text = capsys.readouterr()
    assert {case["operator"] for case in json.loads(out)} == {"GroupQueryAttention"}
    assert "torch SDPA: left out, torch is not installed" in text


def test_a_peer_that_dies_is_said_and_started_again(bench, monkeypatch, capsys):
    pytest.importorskip("torch")
    ask = TorchProcess.prepare

    def prepare(self, work, dtype, count):
        if work.batch == 2:
            self._process.kill()
        ask(self, work, dtype, count)

    monkeypatch.setattr(TorchProcess, "prepare", prepare)
    assert bench(*QUICK, "--attention", "tiny", "--peers", "torch", "--dtype", "float", "--json", "-") == 0
    out, text = capsys.readouterr()
    found = [(case["operator"], case["batch"], case["phase"]) for case in json.loads(out)]
    assert found == [
        ("GroupQueryAttention", 1, "decode"), ("torch SDPA", 1, "decode"), ("GroupQueryAttention", 2, "decode"),
        ("GroupQueryAttention", 1, "prefill"), ("torch SDPA", 1, "prefill"),
    ]  # fmt: skip
    assert "torch SDPA float: left out, its process ended with exit status -9" in text


def test_what_does_not_fit_into_memory_is_left_out(bench, monkeypatch, capsys):
    monkeypatch.setattr(attention_caches, "free_memory", lambda: 3 * 2 * 40 * 512 - 1)
    assert bench(*QUICK, "--attention", "tiny", "--peers", "ort", "--dtype", "float,float16", "--json", "-") == 0
    out, text = capsys.readouterr()
    assert "decode 2 × 40 float: left out, a cache does not fit into memory" in text
    found = [(case["batch"], case["dtype"]) for case in json.loads(out) if case["operator"] == attention.OWN]
    assert found == [(1, "float"), (1, "float16"), (2, "float16"), (1, "float"), (1, "float16")]


def test_a_peer_whose_scores_fill_the_memory_is_left_out(bench, monkeypatch, capsys):
    work = AttentionWork(TINY, 1, 17, 17)
    monkeypatch.setattr(attention_caches, "free_memory", lambda: 2 * attention._scores_bytes(work, "float16") - 1)
    arguments = ("--attention", "tiny", "--lengths", "none", "--prefill", "17", "--dtype", "float16", "--peers", "ort")
    monkeypatch.setattr(attention_caches, "MEMORY_SHARE", 100)
    assert bench(*arguments, "--json", "-") == 0
    out, text = capsys.readouterr()
    assert [case["operator"] for case in json.loads(out)] == ["GroupQueryAttention"]
    assert "ORT GroupQueryAttention float16: left out, its scores take 0 GB" in text


def test_there_is_nothing_to_plot(bench, tmp_path, capsys):
    arguments = ("--attention", "tiny", "--lengths", "40", "--batch", "1", "--prefill", "none", "--dtype", "float")
    assert bench(*arguments, "--plot", str(tmp_path / "x.svg")) == 2
    assert "nothing to plot" in capsys.readouterr().err


def test_defaults_depend_on_the_study():
    layers, full = _options(), _options("--attention")
    assert (layers.dtype, layers.prefill, layers.peers) == (["float", "bfloat16"], [512, 2048], [])
    assert full.attention == ["qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b"]
    assert full.dtype == ["float", "float16", "bfloat16"] and full.batch == [1, 4]
    assert full.lengths == [1024, 8192, 32768, 131072] and full.prefill == [512, 1024, 2048, 4096, 8192]
    assert _options("--peers").peers == ["ort", "torch"] and _options("--peers", "ort").peers == ["ort"]


def test_quick_is_small_but_what_is_said_stays():
    quick = _options("--attention", "--quick", "--lengths", "99")
    assert quick.lengths == [99] and quick.batch == [1] and quick.prefill == [64] and quick.rotation_bytes == 16 << 20
    works = list(attention.works(quick, "mixtral-8x7b"))
    assert [(work.phase, work.batch, work.length) for work in works] == [("decode", 1, 99), ("prefill", 1, 64)]
