"""Every kernel of the table against float64, within the bound of float32 sums; nothing outside the weights is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matmul_case import available_rows, matmul_case

every_row = pytest.mark.parametrize("row", available_rows(), ids=lambda row: row["name"])
# Around the widths of vectors and tiles, and around the depths of weight panels (128, 256, 512).
DEPTHS = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 255, 256, 257, 300, 512, 513]))


@every_row
@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(1, 30),
    n=st.integers(1, 80),
    k=DEPTHS,
    pad=st.integers(0, 5),
    offset=st.integers(0, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_within_the_bound(row, m, n, k, pad, offset, seed):
    case = matmul_case(row, m, n, k, pad=pad, offset=offset, seed=seed)
    error = np.abs(case.run(row["name"]) - case.expected())
    assert (error <= case.bound()).all(), f"{np.max(error / case.bound())} bounds"


@every_row
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 1, 4099), (1, 2049, 3), (70, 1, 1), (257, 33, 17)])
def test_extreme_shapes(row, m, n, k):
    case = matmul_case(row, m, n, k, pad=1, offset=1)
    assert (np.abs(case.run(row["name"]) - case.expected()) <= case.bound()).all()


@every_row
def test_reads_nothing_before_the_operands(row):
    from support.guard import guarded

    case = matmul_case(row, 5, 37, 67)
    clean = case.run(row["name"])
    case.a, case.w = guarded(case.a, at="start"), guarded(case.w, at="start")
    np.testing.assert_array_equal(case.run(row["name"]), clean)


@every_row
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m", [2, 5, 29])
def test_nan_and_infinity_stay_in_their_row(row, m, poison):
    case = matmul_case(row, m, 40, 65)
    clean = case.run(row["name"])
    for poisoned in {0, m // 2, m - 1}:
        a = case.a.copy()
        a[poisoned, 64] = poison
        c = case.run(row["name"], a)
        others = np.arange(m) != poisoned
        np.testing.assert_array_equal(c[others], clean[others])
        np.testing.assert_array_equal(c[poisoned], poison * np.sign(case.dense[64]).astype(np.float32))


@every_row
def test_nan_weights_stay_in_their_output(row):
    case = matmul_case(row, 13, 40, 65)
    clean = case.run(row["name"])
    output, depth = 17, 33
    element = output * case.ldw + depth if row["layout"] == "nk" else depth * case.ldw + output
    size = case.w.size // (case.ldw * (40 if row["layout"] == "nk" else 65))
    case.w[element * size : (element + 1) * size] = 0xFF
    c = case.run(row["name"])
    assert np.isnan(c[:, output]).all()
    others = np.arange(40) != output
    np.testing.assert_array_equal(c[:, others], clean[:, others])
