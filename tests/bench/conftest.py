"""Benchmarks of a layer so small that they take seconds."""

from __future__ import annotations

import pytest

from ort_hina import cli
from ort_hina.benchmark import attention_caches, attention_work, cliff, odd_sizes, overhead, router, shapes, yardsticks

TINY = shapes.MoeShape("tiny", 64, 48, 8, 2)
TINY_ATTENTION = (
    attention_work.AttentionShape("tiny", 6, 2, 32),
    attention_work.AttentionShape("tiny-window", 6, 2, 32, window=8),
)


@pytest.fixture
def bench(monkeypatch):
    """``bench(*arguments)`` → exit status of ``ort-hina bench`` for the layer ``tiny``; fewer and shorter measurements."""
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    for shape in TINY_ATTENTION:
        monkeypatch.setitem(attention_work.ATTENTION_SHAPES, shape.name, shape)
    monkeypatch.setattr(attention_caches, "ROTATION_BYTES", 1 << 20)
    monkeypatch.setattr(attention_caches, "l3_bytes", lambda: None)
    monkeypatch.setattr(yardsticks, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(yardsticks, "SPIN_SECONDS", 0)
    monkeypatch.setattr(yardsticks, "CASE_SECONDS", 0)
    monkeypatch.setattr(cliff, "MOST_TOKENS", 3)
    monkeypatch.setattr(cliff, "ROUNDS", 1)
    monkeypatch.setattr(odd_sizes, "ROUND_SHAPES", (TINY,))
    monkeypatch.setattr(odd_sizes, "ROUNDS", 1)
    monkeypatch.setattr(overhead, "CALLS", overhead.BLOCK)
    monkeypatch.setattr(router, "CALLS", 3)
    yardsticks._buffer.cache_clear()
    yield lambda *arguments: cli.main(["bench", "--shape", "tiny", "--threads", "2", *arguments])
    yardsticks._buffer.cache_clear()
