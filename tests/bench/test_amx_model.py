"""The formulas of the cost model, on counts that a perfect kernel would have."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench import amx_model
from ort_hina import _native
from ort_hina.benchmark.shapes import SHAPES, MoeShape
from support import emulator

SHAPE = MoeShape("s", 1024, 512, 8, 2)


def _perfect(layout: str, m: int, n: int, k: int) -> dict[str, float]:
    tdp = amx_model.fewest_tdp(m, n, k)
    stored = -(-m // 16) * (n // 16)
    return {"TDPBF16PS": tdp, "TILELOADD": tdp, "TILELOADDT1": 0, "TILESTORED": stored, "LDTILECFG": 1, "STTILECFG": 0}


def test_multiplications_hide_loads_until_there_are_more_than_two_each():
    counts = {"TDPBF16PS": 10, "TILELOADD": 20, "TILELOADDT1": 0, "TILESTORED": 3, "LDTILECFG": 1, "STTILECFG": 1}
    assert amx_model.tile_cycles(counts) == 160 + 48 + 204 + 19
    assert amx_model.tile_cycles(counts | {"TILELOADD": 30}) == 240 + 48 + 204 + 19
    assert amx_model.tile_cycles(counts | {"TILELOADDT1": 4}) == 160 + 4 * 33 + 48 + 204 + 19


@pytest.mark.parametrize(("m", "n", "k", "fewest"), [(1, 16, 32, 1), (17, 17, 33, 8), (32, 64, 96, 24)])
def test_a_part_of_a_tile_costs_a_whole_one(m, n, k, fewest):
    assert amx_model.fewest_tdp(m, n, k) == fewest


def test_the_weights_are_interleaved_once_whatever_the_number_of_tokens():
    of_weights = 64 * 3 * (1024 // 32) * (512 // 32)
    for m in (16, 512):
        of_tokens = m // 16 * (32 * 32 + 32 * (2 * 32 + 64) + 384 * 32)
        assert amx_model.vector_cycles(SHAPE, "kn", m) == of_weights + of_tokens
        assert amx_model.vector_cycles(SHAPE, "nk", m) == m // 16 * (64 * 32 + 64 * 64 + 384 * 32)


def test_counts_of_a_part_of_the_outputs_stand_for_all():
    prediction = amx_model.predict(SHAPE, "nk", 32, _perfect)
    assert prediction.tdp == prediction.fewest_tdp == 3 * 2 * 32 * 32
    assert prediction.loads_per_tdp == 1
    cycles = prediction.tile_cycles + prediction.vector_cycles
    # Each part of 128 outputs configures its tiles.
    configurations = 2 * 512 / 128 + 1024 / 128
    assert prediction.tile_cycles == 16 * 6144 + 16 * 2 * (2 * 32 + 64) + 204 * configurations
    assert prediction.tmul_share == pytest.approx(16 * 6144 / cycles)


def test_a_block_of_weights_takes_588_cycles_from_the_memory_of_a_6430():
    xeon_6430, xeon_6448h = amx_model.MACHINES
    assert 2048 / xeon_6430.bytes_per_cycle() == pytest.approx(588, abs=1)
    assert 2048 / xeon_6448h.bytes_per_cycle() == pytest.approx(995, abs=1)


def test_at_decode_a_perfect_kernel_hides_behind_the_memory():
    for layout in ("nk", "kn"):
        prediction = amx_model.predict(SHAPES["deepseek-v3"], layout, 1, _perfect)
        shares = list(prediction.dram_share.values())
        assert shares[1] < shares[0] < 0.3
        assert prediction.row().split()[:3] == ["deepseek-v3", layout, "1"]


def test_where_a_kernel_of_a_lower_level_is_picked_the_amx_kernel_is_counted():
    class Native:
        picked = "vectors"

        def kernel_table(self):
            rows = (
                ("vectors", "avx512_bf16", "nk"),
                ("columns", "amx", "kn"),
                ("tiles", "amx", "nk"),
                ("more", "amx", "nk"),
            )
            return [{"name": name, "isa": isa, "weights": "bfloat16", "layout": layout} for name, isa, layout in rows]

        def pick_kernel(self, *arguments):
            return self.picked

    native = Native()
    assert amx_model.amx_kernel(native, "nk", 1, 64, 64) == "tiles"
    native.picked = "more"
    assert amx_model.amx_kernel(native, "nk", 1, 64, 64) == "more"


@pytest.mark.skipif(
    not any(level["name"] == "avx512_bf16" and level["available"] for level in _native.isa_levels()),
    reason="the emulator only stands in for tiles; this CPU lacks the vector instructions around them",
)
def test_the_kernels_multiply_no_tile_twice_and_reuse_each_load(tmp_path):
    emulator.install()  # skips where it cannot be built
    file = tmp_path / "predictions.json"
    command = [
        sys.executable,
        "-m",
        "bench.amx_model",
        "--shape",
        "qwen3-30b-a3b",
        "--tokens",
        "32,128",
        "--json",
        str(file),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    predictions = json.loads(file.read_text())
    assert [(p["layout"], p["tokens"]) for p in predictions] == [("nk", 32), ("nk", 128), ("kn", 32), ("kn", 128)]
    assert all(p["tdp"] == p["fewest_tdp"] and p["loads_per_tdp"] <= 1.05 for p in predictions)
