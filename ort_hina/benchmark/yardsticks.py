"""What the machine can do at most with the threads used, measured when asked."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import _native

BUFFER_BYTES = 512 << 20
# ONNX Runtime's workers spin for a while after a run; a yardstick measured beside them would be half of what it should be.
SPIN_SECONDS = 0.3
# Calls of one case: enough for a median of short ones, a few of long ones.
CASE_SECONDS, FEWEST, MOST = 2.0, 5, 400
YARDSTICKS_IN_A_CASE = 5


@dataclass(frozen=True)
class Measurement:
    """Seconds of each call; bytes/s and operations/s of the yardsticks measured between them."""

    seconds: list[float]
    read_bandwidth: float
    peak_flops: float


class Yardsticks:
    """Read bandwidth, and the peak of multiply-adds, of one instruction level."""

    def __init__(self, threads: int, isa: str) -> None:
        self.threads, self.isa = threads, isa

    def read_bandwidth(self) -> float:
        """Bytes/s, reading only."""
        return _native.read_bandwidth(_buffer(), self.threads)

    def peak(self, arithmetic: str) -> float:
        """Operations/s of multiply-adds on f32 (``float``) or of bf16 products summed in f32 (``bfloat16``).

        Raises:
            ValueError: the level has no such arithmetic.
        """
        return _native.multiply_add_peak(self.isa, self.threads, type=arithmetic)

    def text(self) -> str:
        """All of them, measured now, in a line for people."""
        parts = [f"{self.isa}, {self.threads} threads: reads {self.read_bandwidth() / 1e9:.1f} GB/s"]
        for arithmetic, name in (("float", "f32 multiply-adds"), ("bfloat16", "bf16 dot products")):
            try:
                parts.append(f"{name} {self.peak(arithmetic) / 1e9:.0f} GFLOP/s")
            except ValueError:
                parts.append(f"no {name}")
        return ", ".join(parts)


@functools.cache
def _buffer() -> np.ndarray:
    return np.ones(BUFFER_BYTES, np.uint8)


def measure(call: Callable[[int], float], yardsticks: Yardsticks, arithmetic: str, fewest: int = FEWEST) -> Measurement:
    """Calls `call(step)`, which says its seconds, at least `fewest` times, and measures the yardsticks in between, so that a
    share compares numbers of the same minute."""
    warm = min(call(0), call(1))
    repetitions = max(fewest, min(MOST, int(CASE_SECONDS / warm)))
    seconds, bandwidth, peak = [], [], []
    for repetition in range(repetitions):
        if repetition % max(1, repetitions // YARDSTICKS_IN_A_CASE) == 0:
            time.sleep(SPIN_SECONDS)
            bandwidth.append(yardsticks.read_bandwidth())
            peak.append(yardsticks.peak(arithmetic))
        seconds.append(call(repetition + 2))
    return Measurement(seconds, statistics.median(bandwidth), statistics.median(peak))
