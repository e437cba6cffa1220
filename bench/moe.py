"""The MoE operator through ONNX Runtime, on cold weights, next to ONNX Runtime's own operators.

Every step of decode asks for other experts than the steps before it, round and round a file much larger than L3. The
yardsticks (read bandwidth, f32 multiply-add peak) are measured between the repetitions of each case, so that a share
compares numbers of the same minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime

import ort_hina
from bench import models
from bench.shapes import SHAPES, MoeShape
from ort_hina import _native

YARDSTICK_BYTES = 512 << 20
# ONNX Runtime's workers spin for a while after a run; a yardstick measured beside them would be half of what it should be.
SPIN_SECONDS = 0.3


@dataclass
class Case:
    """One measured case; times in milliseconds, bandwidth in bytes/s, peak in operations/s."""

    operator: str
    shape: str
    dtype: str
    layout: str
    isa: str
    tokens: int
    tokens_per_expert: float
    threads: int
    ms_median: float
    ms_min: float
    ms_max: float
    weight_bytes: int
    flops: int
    read_bandwidth: float
    peak_flops: float

    @property
    def roofline_share(self) -> float:
        limit = max(self.weight_bytes / self.read_bandwidth, self.flops / self.peak_flops)
        return limit / (self.ms_median / 1000)

    def row(self) -> str:
        seconds = self.ms_median / 1000
        return (
            f"{self.operator:<18}{self.layout:<4}{self.dtype:<9}{self.tokens:>6}{self.tokens_per_expert:>8.1f}"
            f"{self.ms_median:>10.2f}{self.weight_bytes / seconds / 1e9:>8.1f}{self.read_bandwidth / 1e9:>7.1f}"
            f"{self.flops / seconds / 1e9:>9.0f}{self.peak_flops / 1e9:>7.0f}{self.roofline_share:>9.2f}"
        )


HEADER = (
    f"{'operator':<18}{'':<4}{'weights':<9}{'tokens':>6}{'m':>8}{'ms':>10}{'GB/s':>8}{'read':>7}{'GFLOP/s':>9}{'peak':>7}"
    f"{'roofline':>9}"
)


class Yardsticks:
    """The machine's limits with the threads used, measured when asked."""

    def __init__(self, threads: int, isa: str) -> None:
        self.threads, self.isa = threads, isa
        self.buffer = np.ones(YARDSTICK_BYTES, np.uint8)

    def read_bandwidth(self) -> float:
        return _native.read_bandwidth(self.buffer, self.threads)

    def peak(self) -> float:
        return _native.multiply_add_peak(self.isa, self.threads)


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ort_hina.register(options)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def choose_experts(shape: MoeShape, tokens: int, step: int, rng: np.random.Generator) -> np.ndarray:
    """Ids [tokens, k]: decode walks through all experts, prefill spreads evenly over them."""
    if tokens * shape.k <= shape.experts:
        first = step * tokens * shape.k
        return (first + np.arange(tokens * shape.k).reshape(tokens, shape.k)) % shape.experts
    rows = [rng.permutation(shape.experts)[: shape.k] for _ in range(tokens)]
    return np.stack(rows)


def measure(
    run: Callable[[int], float], warm_up: int, repetitions: int, yardsticks: Yardsticks
) -> tuple[list[float], float, float]:
    """Seconds of each repetition after the warm-ups, and the medians of the yardsticks measured in between.

    The warm-ups touch every page of the weights once: what is measured is reading memory, not the kernel mapping a file.
    """
    for step in range(warm_up):
        run(step)
    seconds, bandwidth, peak = [], [], []
    for step in range(repetitions):
        if step % max(1, repetitions // 5) == 0:
            time.sleep(SPIN_SECONDS)
            bandwidth.append(yardsticks.read_bandwidth())
            peak.append(yardsticks.peak())
        seconds.append(run(step + warm_up))
    return seconds, statistics.median(bandwidth), statistics.median(peak)


def timed(s: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> float:
    start = time.perf_counter()
    s.run(None, feed)
    return time.perf_counter() - start


@dataclass
class Bench:
    directory: Path
    shape: MoeShape
    dtype: str
    threads: int
    isa: str
    yardsticks: Yardsticks

    def case(self, operator: str, layout: str, tokens: int, active: int, run: Callable[[int], float]) -> Case:
        repetitions = 32 if tokens * self.shape.k < self.shape.experts else 7
        warm_up = self.shape.experts // active + 1
        seconds, bandwidth, peak = measure(run, warm_up, repetitions, self.yardsticks)
        slots = tokens * self.shape.k
        case = Case(
            operator, self.shape.name, self.dtype, layout, self.isa, tokens, slots / active, self.threads,
            statistics.median(seconds) * 1000, min(seconds) * 1000, max(seconds) * 1000,
            active * self.shape.expert_bytes(models.ELEMENT_TYPES[self.dtype][1]),
            2 * slots * 3 * self.shape.matrix_elements(), bandwidth, peak,
        )  # fmt: skip
        print(case.row(), flush=True)
        return case

    def fused(self, layout: str, tokens: list[int]) -> list[Case]:
        s = session(models.fused_model(self.directory, self.shape, self.dtype, layout), self.threads)
        return [self._fused_case(s, layout, t) for t in tokens]

    def _fused_case(self, s: onnxruntime.InferenceSession, layout: str, tokens: int) -> Case:
        rng = np.random.default_rng(tokens)
        x = rng.standard_normal((tokens, self.shape.hidden), dtype=np.float32)
        weights = np.full((tokens, self.shape.k), 1 / self.shape.k, np.float32)
        ids = [choose_experts(self.shape, tokens, step, rng) for step in range(32)]
        active = len(np.unique(ids[0]))
        return self.case(
            "ort_hina MoE", layout, tokens, active,
            lambda step: timed(s, {"x": x, "ids": ids[step % 32], "weights": weights}),
        )  # fmt: skip

    def contrib(self, tokens: list[int]) -> list[Case]:
        s = session(models.contrib_model(self.directory, self.shape), self.threads)
        return [self._contrib_case(s, t) for t in tokens]

    def _contrib_case(self, s: onnxruntime.InferenceSession, tokens: int) -> Case:
        rng = np.random.default_rng(tokens)
        x = rng.standard_normal((tokens, self.shape.hidden), dtype=np.float32)
        logits = []
        for step in range(32):
            row = np.full((tokens, self.shape.experts), -10, np.float32)
            np.put_along_axis(row, choose_experts(self.shape, tokens, step, rng), 10, axis=1)
            logits.append(row)
        active = int((logits[0] > 0).any(axis=0).sum())
        return self.case(
            "ORT MoE", "nk", tokens, active, lambda step: timed(s, {"x": x, "router_logits": logits[step % 32]})
        )

    def matmuls(self, tokens: list[int]) -> list[Case]:
        """ONNX Runtime's MatMuls over every expert with tokens·k/E rows each, prepacked as it does by default."""
        s = session(models.matmul_model(self.directory, self.shape), self.threads)
        return [self._matmul_case(s, t) for t in tokens if t * self.shape.k >= self.shape.experts]

    def _matmul_case(self, s: onnxruntime.InferenceSession, tokens: int) -> Case:
        rng = np.random.default_rng(tokens)
        m = tokens * self.shape.k // self.shape.experts
        feed = {
            "x": rng.standard_normal((m, self.shape.hidden), dtype=np.float32),
            "hidden": rng.standard_normal((m, self.shape.intermediate), dtype=np.float32),
        }
        return self.case("ORT MatMuls", "kn", tokens, self.shape.experts, lambda step: timed(s, feed))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.moe", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-30b-a3b")
    parser.add_argument("--dtype", choices=models.ELEMENT_TYPES, default="float")
    parser.add_argument("--layout", choices=("nk", "kn", "both"), default="both")
    parser.add_argument("--tokens", default="1,16,512,2048", help="comma-separated")
    parser.add_argument("--threads", type=int, default=_native.usable_threads())
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="one object for each case")
    parser.add_argument("--directory", help="where the weights are written (default: a temporary folder)")
    return parser.parse_args()


def run(arguments: argparse.Namespace, directory: Path) -> list[Case]:
    shape, tokens = SHAPES[arguments.shape], [int(t) for t in arguments.tokens.split(",")]
    isa = _native.chosen_isa()["name"]
    size = models.write_weights(directory, shape, arguments.dtype)
    print(
        f"{shape.name}: hidden {shape.hidden}, intermediate {shape.intermediate}, {shape.experts} experts, k {shape.k}; "
        f"{size / 1e9:.1f} GB of {arguments.dtype} weights; {arguments.threads} threads, {isa}, "
        f"onnxruntime {onnxruntime.__version__}\n{HEADER}"
    )
    bench = Bench(directory, shape, arguments.dtype, arguments.threads, isa, Yardsticks(arguments.threads, isa))
    cases = []
    for layout in ("nk", "kn") if arguments.layout == "both" else (arguments.layout,):
        cases += bench.fused(layout, tokens)
    if not arguments.no_peers and arguments.dtype == "float":
        cases += bench.contrib(tokens) + bench.matmuls(tokens)
    return cases


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="ort-hina-bench-") as temporary:
        directory = Path(arguments.directory or temporary)
        directory.mkdir(parents=True, exist_ok=True)
        cases = run(arguments, directory)
    if arguments.json:
        objects = [{**asdict(case), "roofline_share": case.roofline_share} for case in cases]
        Path(arguments.json).write_text(json.dumps(objects, indent=1))


if __name__ == "__main__":
    main()
