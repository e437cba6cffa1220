"""The price of reading by nodes: made-up maps cover the window, and the bench runs end to end."""

from __future__ import annotations

import json

import pytest

from bench import numa_price
from ort_hina.benchmark import shapes
from ort_hina.benchmark.shapes import MoeShape


@pytest.mark.parametrize("size", [1, 4096, 10_000_000])
def test_maps_cover_the_window(size):
    for runs in numa_price.PLACEMENTS.values():
        found = runs(size)
        assert sum(length for length, _ in found) == size
        assert all(0 <= node < numa_price.NODES and length > 0 for length, node in found)


def test_granules_take_turns():
    assert numa_price.in_turn(10_000, 4096) == [(3996, 0), (4096, 1), (1908, 0)]


def test_end_to_end(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(numa_price.SHAPES, "small", MoeShape("small", 256, 128, 8, 2))
    monkeypatch.setattr(shapes, "FILE_BYTES", 1 << 20)
    monkeypatch.setattr("ort_hina.benchmark.yardsticks.BUFFER_BYTES", 1 << 20)
    numa_price.main(["--shape", "small", "--tokens", "1,3", "--threads", "2", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(price["layout"], price["tokens"]) for price in found] == [("nk", 1), ("nk", 3), ("kn", 1), ("kn", 3)]
    assert all(set(price["by_nodes"]) == set(numa_price.PLACEMENTS) and price["flat"] > 0 for price in found)
    printed = capsys.readouterr().out
    assert "asking for the page map takes" in printed and "planning takes, in ms per GB" in printed
