"""The table of kernels: complete, named by the grammar, picked by the number of tokens, cut without changing bits."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

import numpy as np
import pytest
from matmul_case import available_rows, case_of, matmul_case
from support.bfloat16 import as_operand
from support.elements import ELEMENTS, size_of
from support.kernel_log import Candidate, log_of_calls, questions
from support.levels import LEVELS, ORDER, every_level, product_type

from ort_hina import _native

SHORT = {"float": "f32", "float16": "f16", "bfloat16": "bf16"}
LAYOUTS = ("nk", "kn")
# The types that a node may hold, with and without bf16_compute.
TYPES = [*((kind, False) for kind in ELEMENTS), ("float", True), ("float16", True)]
every_type = pytest.mark.parametrize(("weights", "bf16_compute"), TYPES)


def test_names_say_what_the_rows_are():
    names = [row["name"] for row in _native.kernel_table()]
    assert len(set(names)) == len(names)
    grammar = re.compile(rf"matmul_(f32|bf16)_(f32|f16|bf16)_(nk|kn)_([a-z]+)_({'|'.join(ORDER)})")
    for row in _native.kernel_table():
        parts = grammar.fullmatch(row["name"])
        assert parts, row["name"]
        assert parts[1] == SHORT[row["activations"]]
        assert (parts[2], parts[3], parts[5]) == (SHORT[row["weights"]], row["layout"], row["isa"])


def test_levels_come_in_order():
    levels = [ORDER.index(row["isa"]) for row in _native.kernel_table()]
    assert levels == sorted(levels)


@every_level
@pytest.mark.parametrize("layout", LAYOUTS)
@every_type
def test_every_shape_has_a_kernel_of_its_own_kind(isa, weights, bf16_compute, layout):
    """Of this level, or where it has none for such products, of the best one below. Tiles are mostly empty with few tokens:
    there, AVX-512 may be cheaper."""
    rows = {row["name"]: row for row in available_rows()}
    products = product_type(isa, weights, bf16_compute)
    best = isa if products == "bfloat16" else min(isa, "avx512", key=ORDER.index)
    for m, n, k in itertools.product((1, 2, 3, 5, 15, 16, 17, 300), (1, 80, 176, 352, 704), (1, 33, 176, 704)):
        row = rows[_native.pick_kernel(isa, weights, layout, m, n, k, bf16_compute)]
        assert (row["weights"], row["layout"], row["activations"]) == (weights, layout, products)
        assert row["isa"] == best or (best, row["isa"]) == ("amx", "avx512_bf16") and m < 16


@every_level
@every_type
def test_few_tokens_stream_and_many_share_what_was_prepared(isa, weights, bf16_compute):
    """D02. Whatever the width. With portable vectors, transposing [N,K] into a panel does not pay."""
    few = {"nk": "_dot_", "kn": "_stream_"}
    many = {"nk": "_dot_" if isa == "portable" else "_panel_", "kn": "_panel_"}
    if product_type(isa, weights, bf16_compute) == "bfloat16":
        few["nk"] = "_tiles_amx" if isa == "amx" else "_lanes_"
        many = {"nk": few["nk"], "kn": "_tiles_amx" if isa == "amx" else "_panel_"}
    for n, layout in itertools.product((176, 192, 352, 704, 768), LAYOUTS):
        assert few[layout] in _native.pick_kernel(isa, weights, layout, 1, n, 2048, bf16_compute)
        assert many[layout] in _native.pick_kernel(isa, weights, layout, 256, n, 2048, bf16_compute)


N, K, MOST_TOKENS = 160, 96, 50


@lru_cache
def candidates(isa: str) -> dict[tuple[int, int, int, str], list[Candidate]]:
    tokens = list(range(1, MOST_TOKENS + 1))
    return questions(log_of_calls(isa, tokens, hidden=K, intermediate=N // 2))


@every_level
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("weights", "bf16_compute"), [("float", False), ("bfloat16", False), ("float", True)])
class TestEstimatedCosts:
    """As ORT_HINA_LOG=kernels tells them; gate and up: 160 outputs of 96 inputs."""

    def ask(self, isa: str, weights: str, bf16_compute: bool, layout: str) -> list[list[Candidate]]:
        """The candidates for 1, 2, … tokens."""
        products = product_type(isa, weights, bf16_compute)
        form = f"{SHORT[products]}_{SHORT[weights]}_{layout}"
        return [candidates(isa)[m, N, K, form] for m in range(1, MOST_TOKENS + 1)]

    def test_the_pick_is_the_cheapest(self, isa, weights, bf16_compute, layout):
        for m, rows in enumerate(self.ask(isa, weights, bf16_compute, layout), 1):
            (chosen,) = [row for row in rows if row.chosen]
            assert chosen.cycles == min(row.cycles for row in rows)
            assert chosen.name == _native.pick_kernel(isa, weights, layout, m, N, K, bf16_compute)

    def test_more_tokens_cost_more_and_never_leap(self, isa, weights, bf16_compute, layout):
        """One token more costs at most what a call of its own would, and hardly raises the cost for each token. An AMX tile
        holds 16 tokens or takes as long as if it did."""
        block = 16 if isa == "amx" and product_type(isa, weights, bf16_compute) == "bfloat16" else 1
        asked = self.ask(isa, weights, bf16_compute, layout)
        cycles = [next(row.cycles for row in rows if row.chosen) for rows in asked]
        for m, (before, after) in enumerate(zip(cycles, cycles[1:]), 1):
            assert before <= after <= before + cycles[0] + 1  # whole cycles are told
            if m >= 2:
                blocks, blocks_after = -(-m // block), -(-(m + 1) // block)
                assert after / blocks_after <= 1.25 * before / blocks, f"{m} tokens: {before}, {m + 1}: {after}"


@pytest.mark.parametrize("row", [row for row in available_rows() if row["cut"] == "n"], ids=lambda row: row["name"])
@pytest.mark.parametrize("m", [1, 2, 3, 7, 26])
def test_cutting_outputs_changes_no_bits(row, m):
    case = matmul_case(row, m, 150, 300)
    whole = case.run(row["name"])
    size = size_of(row["weights"])
    step = row["n_step"]
    for begin in range(0, 150, 3 * step):
        case.n = min(3 * step, 150 - begin)
        case.offset = begin * size * (case.ldw if row["layout"] == "nk" else 1)
        np.testing.assert_array_equal(case.run(row["name"]), whole[:, begin : begin + case.n])


@pytest.mark.parametrize("m", [1, 6, 40])
def test_levels_agree(m):
    """I02. Factors that no kernel has to round: two levels differ by no more than the sum of their bounds."""
    rng = np.random.default_rng(m)
    a, w = (as_operand(rng.standard_normal(shape)).astype(np.float32) for shape in ((m, 301), (301, 77)))
    for weights, layout in itertools.product(("float", "bfloat16"), LAYOUTS):
        rows = [row for row in available_rows() if (row["weights"], row["layout"]) == (weights, layout)]
        assert {row["isa"] for row in rows} == set(LEVELS)
        cases = [case_of(row, a, w if layout == "kn" else np.ascontiguousarray(w.T)) for row in rows]
        results = [(case.run(row["name"]).astype(np.float64), case.bound()) for case, row in zip(cases, rows)]
        for (one, its_bound), (other, other_bound) in itertools.combinations(results, 2):
            assert (np.abs(one - other) <= its_bound + other_bound).all()
