"""The formulas of attention's cost model, on counts that a perfect kernel would have."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench import amx_attention
from ort_hina import _native
from ort_hina.benchmark.attention_work import ATTENTION_SHAPES, AttentionShape
from support import emulator

SHAPE = AttentionShape("s", 16, 2, 64)


def _perfect(shape: AttentionShape, rows: int, keys: int) -> dict[str, float]:
    tdp = amx_attention.fewest_tdp(rows, keys, shape.head_size)
    return {"TDPBF16PS": tdp, "TILELOADD": tdp, "TILELOADDT1": 0, "TILESTORED": 0, "LDTILECFG": 0, "STTILECFG": 0}


@pytest.mark.parametrize(
    ("rows", "keys", "size", "fewest"), [(8, 32, 64, 8), (16, 128, 128, 64), (17, 128, 128, 128), (8, 33, 64, 14)]
)
def test_a_part_of_a_tile_costs_a_whole_one(rows, keys, size, fewest):
    assert amx_attention.fewest_tdp(rows, keys, size) == fewest


def test_values_are_interleaved_once_whatever_the_number_of_rows():
    of_values = 64 * (256 // 32) * (64 // 32)
    for tiles in (1, 4):
        of_rows = 10 * 256 + 130 * 256 // 32 + 32 * 4 * 2 + 64 * 2 + 8 * 16 * 2
        assert amx_attention.vector_cycles(16 * tiles, 256, 64) == of_values + tiles * of_rows


def test_eight_rows_take_half_of_the_softmax():
    assert amx_attention.softmax_cycles(8, 256) * 2 == amx_attention.softmax_cycles(9, 256) == 10 * 256


def test_shares_are_of_all_cycles():
    prediction = amx_attention.predict(SHAPE, 16, 256, _perfect)
    products = 16 * 2 + 8 * 4
    assert prediction.tdp == prediction.fewest_tdp == products and prediction.loads_per_tdp == 1
    cycles = 16 * products + amx_attention.vector_cycles(16, 256, 64)
    assert prediction.tile_cycles == 16 * products
    assert prediction.tmul_share == pytest.approx(16 * products / cycles)
    assert prediction.vector_ratio == pytest.approx((2 * 16 * 256 * 64 / 32 + 2560) / cycles)


def test_at_decode_a_perfect_kernel_hides_behind_the_memory():
    prediction = amx_attention.predict(ATTENTION_SHAPES["qwen3-30b-a3b"], 8, 4096, _perfect)
    assert max(prediction.dram_share.values()) < 0.3
    assert prediction.row().split()[:3] == ["qwen3-30b-a3b", "8", "4096"]


@pytest.mark.skipif(
    not any(level["name"] == "avx512_bf16" and level["available"] for level in _native.isa_levels()),
    reason="the emulator only stands in for tiles; this CPU lacks the vector instructions around them",
)
def test_the_operator_takes_the_fewest_products_and_reuses_each_load(tmp_path):
    emulator.install()  # skips where it cannot be built
    file = tmp_path / "predictions.json"
    command = [
        sys.executable, "-m", "bench.amx_attention", "--shape", "mixtral-8x7b,gpt-oss-120b", "--keys", "1024",
        "--json", str(file),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    predictions = {(p["shape"], p["rows"]): p for p in json.loads(file.read_text())}
    # Mixtral's group of 4 is left to vectors.
    assert list(predictions) == [("mixtral-8x7b", 64), ("gpt-oss-120b", 8), ("gpt-oss-120b", 64)]
    for (_, rows), prediction in predictions.items():
        # The keys of the new tokens are summed apart from those before, which may fill a step less.
        assert prediction["fewest_tdp"] <= prediction["tdp"] <= 1.02 * prediction["fewest_tdp"]
        assert prediction["loads_per_tdp"] <= (1.25 if rows == 8 else 1.01)
