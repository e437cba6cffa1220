"""The table of kernels: complete, named by the grammar, picked by the number of tokens, cut without changing bits."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from matmul_case import available_rows, matmul_case
from support.elements import ELEMENTS, size_of
from support.levels import LEVELS, every_level

from ort_hina import _native

SHORT = {"float": "f32", "float16": "f16", "bfloat16": "bf16"}


def test_names_say_what_the_rows_are():
    names = [row["name"] for row in _native.kernel_table()]
    assert len(set(names)) == len(names)
    for row in _native.kernel_table():
        parts = re.fullmatch(r"matmul_f32_(f32|f16|bf16)_(nk|kn)_(\w+)_([a-z0-9]+)", row["name"])
        assert parts, row["name"]
        assert (parts[1], parts[2], parts[4]) == (SHORT[row["weights"]], row["layout"], row["isa"])


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("weights", ELEMENTS)
def test_every_shape_has_a_kernel_of_its_own_kind(isa, weights, layout):
    rows = {row["name"]: row for row in available_rows()}
    for m, n, k in itertools.product((1, 2, 3, 5, 17, 300), (1, 80, 176, 352, 704), (1, 33, 176, 704)):
        row = rows[_native.pick_kernel(isa, weights, layout, m, n, k)]
        assert (row["isa"], row["weights"], row["layout"]) == (isa, weights, layout)


@every_level
@pytest.mark.parametrize("weights", ELEMENTS)
def test_few_tokens_stream_and_many_share_a_panel(isa, weights):
    """Whatever the width. With portable vectors, transposing [N,K] into a panel does not pay."""
    for n in (176, 352, 704, 768):
        assert "_dot_" in _native.pick_kernel(isa, weights, "nk", 1, n, 2048)
        assert "_stream_" in _native.pick_kernel(isa, weights, "kn", 1, n, 2048)
        if isa != "portable":
            assert "_panel_" in _native.pick_kernel(isa, weights, "nk", 256, n, 2048)
        assert "_panel_" in _native.pick_kernel(isa, weights, "kn", 256, n, 2048)


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
    """Two levels differ by no more than the sum of their bounds."""
    for weights, layout in itertools.product(ELEMENTS, ("nk", "kn")):
        rows = [row for row in available_rows() if (row["weights"], row["layout"]) == (weights, layout)]
        assert {row["isa"] for row in rows} == set(LEVELS)
        case = matmul_case(rows[0], m, 77, 301)
        results = [case.run(row["name"]).astype(np.float64) for row in rows]
        for one, other in itertools.combinations(results, 2):
            assert (np.abs(one - other) <= 2 * case.bound()).all()
