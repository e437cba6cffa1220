"""The benchmarks run, and say what they promise; how fast is not a test's business."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from bench import figure, models, moe, scale
from bench.session import measured_elsewhere
from bench.shapes import MoeShape

SHAPE = MoeShape("tiny", 64, 48, 8, 2)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(moe, "YARDSTICK_BYTES", 1 << 20)
    monkeypatch.setattr(moe, "SPIN_SECONDS", 0)
    models.write_weights(tmp_path, SHAPE, "float")
    isa = moe._native.chosen_isa()["name"]
    return moe.Bench(tmp_path, SHAPE, "float", 2, isa, moe.Yardsticks(2, isa))


def test_every_operator_is_measured_on_the_same_work(bench):
    cases = [*bench.fused("nk", [1, 16]), *bench.fused("kn", [16]), *bench.contrib([16]), *bench.matmuls([1, 16])]
    assert [(case.operator, case.tokens) for case in cases] == [
        ("ort_hina MoE", 1), ("ort_hina MoE", 16), ("ort_hina MoE", 16), ("ORT MoE", 16), ("ORT MatMuls", 16)
    ]  # fmt: skip
    assert len({(case.weight_bytes, case.flops) for case in cases[1:]}) == 1
    assert cases[1].weight_bytes == 8 * 3 * 64 * 48 * 4 and cases[1].flops == 2 * 16 * 2 * 3 * 64 * 48
    assert all(case.ms_min <= case.ms_median <= case.ms_max and case.roofline_share > 0 for case in cases)
    assert {"operator", "shape", "dtype", "layout", "isa", "tokens_per_expert", "threads"} <= asdict(cases[0]).keys()


def test_decode_walks_through_all_experts():
    rng = np.random.default_rng(0)
    steps = [moe.choose_experts(SHAPE, 1, step, rng) for step in range(4)]
    assert sorted(np.concatenate(steps).ravel()) == list(range(8))


def test_a_session_is_measured_in_its_own_process(bench):
    cost = measured_elsewhere(models.fused_model(bench.directory, SHAPE, "float", "nk"))
    assert cost.nodes == 1 and cost.data_mappings == 1


@pytest.mark.parametrize(
    ("tiny", "large"), [([64, 32], [2048, 768]), ([32, 64], [768, 2048]), ([64, 128], [2048, 128]), ([32], [32])]
)
def test_only_hidden_and_intermediate_sizes_grow(tiny, large):
    assert scale.widen(tiny) == large


def test_the_figure_names_every_column():
    run = {"load_seconds": 1.0, "private_bytes": 1, "prefill_tokens_per_second": 1, "decode_tokens_per_second": 0}
    report = {
        "pytorch": run, "unfused": run, "fused": run, "model": "m", "weights_bytes": 1, "threads": 2, "kernels": "avx2",
        "prompt_tokens": 1, "new_tokens": 1,
    }  # fmt: skip
    svg = figure.figure(report)
    assert svg.startswith("<svg") and all(label in svg for _, label, _ in figure.COLUMNS)
