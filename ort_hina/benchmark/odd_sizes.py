"""Are sizes that no vector divides as fast, for each operation, as the round ones beside them?"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from . import models
from .layers import NativeLayer, touch
from .setting import Setting
from .shapes import MoeShape
from .workload import exact

# gpt-oss-20b's and DeepSeek-V2-Lite's.
ROUND_SHAPES = (MoeShape("2880x2880", 2880, 2880, 32, 4), MoeShape("2048x1408", 2048, 1408, 64, 6))
FILE_BYTES = 1_000_000_000
ROUNDS = 15


def beside(shape: MoeShape) -> list[MoeShape]:
    """One more and one less of the hidden and of the intermediate size, and one more of both."""
    steps = ((0, -1), (0, 1), (-1, 0), (1, 0), (1, 1))
    sizes = [(shape.hidden + h, shape.intermediate + i) for h, i in steps]
    return [replace(shape, name=f"{h}x{i}", hidden=h, intermediate=i) for h, i in sizes]


def run(options: argparse.Namespace, isas: list[str], directory: Path, say: Callable[[str], None]) -> list[dict]:
    """Each element type, layout and level of the options, without ONNX Runtime: the workers of one session would still spin
    while another's turn is measured."""
    results = []
    for shape in ROUND_SHAPES:
        for dtype in options.dtype:
            stored = shape.stored(dtype, FILE_BYTES)
            # All variants read the same file, which holds the largest.
            models.write_weights(directory, beside(stored)[-1], dtype)
            for isa in isas:
                for layout in options.layout:
                    setting = Setting(shape, stored, dtype, layout, isa, options.threads, options.compute == "bfloat16")
                    results += _compare(setting, options, directory, say)
    return results


def _compare(setting: Setting, options: argparse.Namespace, directory: Path, say: Callable[[str], None]) -> Iterator[dict]:
    shapes = [setting.stored, *beside(setting.stored)]
    layers = [NativeLayer(directory, replace(setting, stored=shape)) for shape in shapes]
    for layer, shape in zip(layers, shapes, strict=True):
        touch(layer, shape)
    say(
        f"\n{layers[0].operator} {setting.layout} {setting.dtype} {setting.isa}, {setting.threads} threads; "
        f"operations a second against those of {shapes[0].name}"
    )
    for m in options.tokens:
        speeds = _relative_speeds(layers, shapes, m)
        say(f"m {m:>3}  " + "  ".join(f"{shape.name} {speed:.2f}" for shape, speed in zip(shapes, speeds, strict=True)))
        for shape, speed in zip(shapes, speeds, strict=True):
            yield {
                "study": "odd", "operator": layers[0].operator, "shape": shape.name, "beside": shapes[0].name,
                "dtype": setting.dtype, "layout": setting.layout, "isa": setting.isa, "threads": setting.threads,
                "bf16_compute": setting.bf16_compute,
                "tokens_per_expert": m, "relative_speed": speed,
            }  # fmt: skip


def _relative_speeds(layers: list[NativeLayer], shapes: list[MoeShape], m: int) -> list[float]:
    """Operations a second against those of the first; medians of rounds in which each has its turn."""
    workloads = [exact(shape, m) for shape in shapes]
    seconds: list[list[float]] = [[] for _ in workloads]
    step = 0
    for _ in range(ROUNDS):
        for times, layer, workload in zip(seconds, layers, workloads, strict=True):
            times.append(layer.seconds(workload, step))
            step += 1
    speeds = [workload.flops / statistics.median(times) for workload, times in zip(workloads, seconds, strict=True)]
    return [speed / speeds[0] for speed in speeds]
