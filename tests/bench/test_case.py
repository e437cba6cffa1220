"""The arithmetic of a line."""

from __future__ import annotations

import numpy as np
import pytest

from ort_hina.benchmark import yardsticks
from ort_hina.benchmark.case import HEADER, MLAS, case
from ort_hina.benchmark.cliff import Neighbours
from ort_hina.benchmark.odd_sizes import beside
from ort_hina.benchmark.setting import Setting
from ort_hina.benchmark.shapes import MoeShape
from ort_hina.benchmark.workload import exact
from ort_hina.benchmark.yardsticks import Measurement, measure

SHAPE = MoeShape("s", 100, 50, 8, 2)


def _case(m: int, seconds: list[float], read_bandwidth: float, peak_flops: float):
    setting = Setting(SHAPE, SHAPE, "bfloat16", "nk", "avx2", 1)
    return case("MoE", setting, MLAS, exact(SHAPE, m), Measurement(seconds, read_bandwidth, peak_flops))


def test_where_reading_takes_longer_the_roofline_is_the_bandwidth():
    # 2 experts × 3 × 5000 elements × 2 bytes at 6e4 bytes/s: one second; the products take a tenth.
    result = _case(1, [4, 2, 3], read_bandwidth=6e4, peak_flops=6e5)
    assert result.weight_bytes == 60_000 and result.flops == 60_000
    assert (result.ms_min, result.ms_median, result.ms_max) == (2000, 3000, 4000)
    assert result.roofline_share == pytest.approx(1 / 3)
    assert result.facts()["roofline_share"] == result.roofline_share


def test_where_the_products_take_longer_the_roofline_is_the_peak():
    result = _case(64, [8], read_bandwidth=6e4, peak_flops=64 * 60_000 / 4)
    assert result.roofline_share == pytest.approx(0.5)


def test_a_row_stands_under_its_header():
    row = _case(64, [8], read_bandwidth=6e9, peak_flops=1e11).row()
    assert row.index("MLAS") == HEADER.index("kernel")


def test_yardsticks_are_measured_between_the_calls(monkeypatch):
    monkeypatch.setattr(yardsticks, "SPIN_SECONDS", 0)
    monkeypatch.setattr(yardsticks, "CASE_SECONDS", 10)
    events = []

    class Recording:
        def read_bandwidth(self):
            events.append("yardstick")
            return 1.0 + events.count("yardstick")

        def peak(self, arithmetic):
            return {"bfloat16": 7.0}[arithmetic]

    def call(step):
        events.append(step)
        return 1.0

    measured = measure(call, Recording(), "bfloat16")
    assert [event for event in events if event != "yardstick"] == list(range(12))
    assert events[:4] == [0, 1, "yardstick", 2] and events.count("yardstick") == 5
    assert measured == Measurement([1.0] * 10, 4.0, 7.0)


@pytest.mark.parametrize(("seconds", "calls"), [(100.0, 5), (1e-5, 400), (0.2, 10)])
def test_long_calls_are_repeated_less_often(seconds, calls, monkeypatch):
    monkeypatch.setattr(yardsticks, "SPIN_SECONDS", 0)

    class Constant:
        def read_bandwidth(self):
            return 1.0

        def peak(self, arithmetic):
            return 1.0

    assert len(measure(lambda step: seconds, Constant(), "float").seconds) == calls


def test_the_worst_neighbours_are_found():
    neighbours = Neighbours([1.0, 1.1, 2.2, 2.3])
    assert neighbours.worst() == 3
    assert neighbours.text().endswith("worst: 2 to 3 tokens, 2.00 times the time")


def test_beside_a_size_lie_one_more_and_one_less():
    found = {(shape.hidden, shape.intermediate) for shape in beside(SHAPE)}
    assert found == {(100, 49), (100, 51), (99, 50), (101, 50), (101, 51)}
    # The file is written for the last one.
    assert max(found, key=np.prod) == (beside(SHAPE)[-1].hidden, beside(SHAPE)[-1].intermediate)
