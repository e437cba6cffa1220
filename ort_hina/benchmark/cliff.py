"""Does one token more ever cost much more?"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from .layers import ENGINES, Layer, touch
from .operators import stored_weights
from .setting import Setting
from .workload import exact

MOST_TOKENS = 64
ROUNDS = 15


@dataclass(frozen=True)
class Neighbours:
    """Milliseconds of a call with 1, 2, ... tokens for each expert."""

    ms: list[float]

    def ratio(self, m: int) -> float:
        """The time for m tokens over that for one less."""
        return self.ms[m - 1] / self.ms[m - 2]

    def worst(self) -> int:
        """The m with the largest ratio."""
        return max(range(2, len(self.ms) + 1), key=self.ratio)

    def text(self) -> str:
        lines = [f"{'m':>4}{'ms':>9}{'to m-1':>8}", f"{1:>4}{self.ms[0]:>9.3f}"]
        lines += [f"{m:>4}{self.ms[m - 1]:>9.3f}{self.ratio(m):>8.2f}" for m in range(2, len(self.ms) + 1)]
        worst = self.worst()
        return "\n".join([*lines, f"worst: {worst - 1} to {worst} tokens, {self.ratio(worst):.2f} times the time"])


def run(options: argparse.Namespace, isas: list[str], directory: Path, say: Callable[[str], None]) -> list[dict]:
    """Every setting of the options, through the first engine."""
    results = []
    for setting in chain.from_iterable(stored_weights(options, isas, directory, say)):
        layer = ENGINES[options.engine[0]](directory, setting)
        touch(layer, setting.stored)
        neighbours = measure(layer, setting)
        say(f"{layer.operator} {setting.layout} {setting.dtype} {setting.isa}\n{neighbours.text()}")
        results += facts(neighbours, layer, setting)
    return results


def measure(layer: Layer, setting: Setting) -> Neighbours:
    """Medians. All sizes by turns, round after round: a slow minute of the machine is slow for all of them."""
    workloads = [exact(setting.stored, m) for m in range(1, MOST_TOKENS + 1)]
    seconds: list[list[float]] = [[] for _ in workloads]
    step = 0
    for _ in range(ROUNDS):
        for times, workload in zip(seconds, workloads, strict=True):
            times.append(layer.seconds(workload, step))
            step += 1
    return Neighbours([statistics.median(times) * 1000 for times in seconds])


def facts(neighbours: Neighbours, layer: Layer, setting: Setting) -> list[dict]:
    return [
        {
            "study": "cliff", "operator": layer.operator, "shape": setting.model.name, "dtype": setting.dtype,
            "layout": setting.layout, "isa": setting.isa, "threads": setting.threads,
            "bf16_compute": setting.bf16_compute, "tokens_per_expert": m,
            "ms_median": neighbours.ms[m - 1], "ratio": neighbours.ratio(m) if m > 1 else None,
        }
        for m in range(1, len(neighbours.ms) + 1)
    ]  # fmt: skip
