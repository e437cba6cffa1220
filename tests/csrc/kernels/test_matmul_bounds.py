"""Every kernel of the table against float64, within the bound of float32 sums; nothing outside the weights is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matmul_case import available_rows, case_of, matmul_case
from support.float32 import SMALLEST_NORMAL
from support.guard import guarded

every_row = pytest.mark.parametrize("row", available_rows(), ids=lambda row: row["name"])
every_bf16_row = pytest.mark.parametrize(
    "row", [row for row in available_rows() if row["activations"] == "bfloat16"], ids=lambda row: row["name"]
)
# Around the widths of vectors and tiles, and around the depths of weight panels (128, 256, 512).
DEPTHS = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 255, 256, 257, 300, 512, 513]))


def assert_within(case, kernel: str) -> None:
    errors = case.errors(kernel)
    assert (errors <= 1).all(), f"{np.nanmax(errors)} bounds, {np.isnan(errors).sum()} NaN"


@every_row
@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 80),
    k=DEPTHS,
    pad=st.integers(0, 5),
    offset=st.integers(0, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_within_the_bound(row, m, n, k, pad, offset, seed):
    assert_within(matmul_case(row, m, n, k, pad=pad, offset=offset, seed=seed), row["name"])


@every_row
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 1, 4099), (17, 2, 2051), (1, 2049, 3), (70, 1, 1), (257, 33, 17)]
)
def test_extreme_shapes(row, m, n, k):
    assert_within(matmul_case(row, m, n, k, pad=1, offset=1), row["name"])


def normal_case(row: dict, m: int, n: int, k: int):
    """Operands of one magnitude."""
    rng = np.random.default_rng(m)
    stored = rng.standard_normal((n, k) if row["layout"] == "nk" else (k, n)).astype(np.float32)
    return case_of(row, rng.standard_normal((m, k)).astype(np.float32), stored)


@every_row
@pytest.mark.parametrize("m", [1, 5, 21])
def test_one_wrong_input_of_300_leaves_the_bound(row, m):
    """Left out, or off by a quarter: else the bound would be so wide that a wrong kernel passes."""
    case = normal_case(row, m, 40, 300)
    case.a[:, 299] = 1
    for factor in (0, 3 / 4):
        a = case.a.copy()
        a[:, 299] *= np.float32(factor)
        found = np.abs(case.run(row["name"], a) - case.expected()) > case.bound()
        assert found.mean() > 0.9


@every_row
@pytest.mark.parametrize("m", [1, 5, 21])
def test_the_bound_is_near_what_happens(row, m):
    errors = normal_case(row, m, 40, 70).errors(row["name"])
    assert errors.mean() > 2e-4


@every_bf16_row
def test_factors_are_rounded_to_nearest_even(row):
    """Half-way cases of either parity, their neighbours, and both signs: C = one product, and so exact."""
    kept = np.float32([1.0, 1.0 + 2**-7, 1.5, -1.0, -1.0 - 2**-7])
    half = np.float32(2.0**-8)
    middle = kept + half
    values = np.concatenate([middle, np.nextafter(middle, np.float32(-9)), np.nextafter(middle, np.float32(9))])
    for a, w in ((values[:, None], np.float32([[1.0]])), (np.float32([[1.0]]), values[:, None])):
        stored = w if row["layout"] == "nk" else w.T
        case = case_of(row, a.astype(np.float32), np.ascontiguousarray(stored))
        np.testing.assert_array_equal(case.run(row["name"]), case.expected())


@every_bf16_row
@pytest.mark.parametrize("m", [1, 6, 40])
def test_what_is_below_the_normal_numbers_may_be_lost_and_nothing_else(row, m):
    """Factors, products and sums around 2^-126. Each may become 0; all that is larger survives."""
    rng = np.random.default_rng(m)
    for scale_a, scale_w in ((SMALLEST_NORMAL, 1.0), (1.0, SMALLEST_NORMAL), (2.0**-63, 2.0**-63), (2.0**-70, 2.0**-60)):
        a = (rng.standard_normal((m, 33)) * scale_a).astype(np.float32)
        w = (rng.standard_normal((33, 20)) * scale_w).astype(np.float32)
        assert_within(case_of(row, a, np.ascontiguousarray(w.T) if row["layout"] == "nk" else w), row["name"])


@every_row
@pytest.mark.parametrize("m", [5, 21])
def test_reads_nothing_before_the_operands(row, m):
    case = matmul_case(row, m, 37, 67)
    clean = case.run(row["name"])
    case.a, case.w = guarded(case.a, at="start"), guarded(case.w, at="start")
    np.testing.assert_array_equal(case.run(row["name"]), clean)


@every_row
@pytest.mark.parametrize("m", [1, 9, 33])
def test_equal_bits_on_a_repeat(row, m):
    case = matmul_case(row, m, 37, 300)
    first = case.run(row["name"])
    for _ in range(3):
        np.testing.assert_array_equal(case.run(row["name"]), first)


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
@pytest.mark.parametrize("m", [1, 13, 20])
def test_nan_weights_stay_in_their_output(row, m):
    case = matmul_case(row, m, 40, 65)
    clean = case.run(row["name"])
    output, depth = 17, 33
    element = output * case.ldw + depth if row["layout"] == "nk" else depth * case.ldw + output
    size = case.w.size // (case.ldw * (40 if row["layout"] == "nk" else 65))
    case.w[element * size : (element + 1) * size] = 0xFF
    c = case.run(row["name"])
    assert np.isnan(c[:, output]).all()
    others = np.arange(40) != output
    np.testing.assert_array_equal(c[:, others], clean[:, others])
