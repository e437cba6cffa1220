"""What a call through ONNX Runtime costs more than the same operator without it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from .layers import NativeLayer, OnnxRuntimeLayer
from .models import write_weights
from .setting import Setting
from .shapes import MoeShape
from .workload import exact

# So little work that the call is what is measured.
TINY = MoeShape("tiny", 64, 64, 8, 2)
CALLS, BLOCK, WARM_UP = 10_000, 250, 500


def run(isa: str, directory: Path, say: Callable[[str], None]) -> list[dict]:
    """Thousands of one-token calls of each kind on one thread, in blocks by turns; ONNX Runtime with IO binding."""
    write_weights(directory, TINY, "float")
    setting = Setting(TINY, TINY, "float", "nk", isa, threads=1)
    calls = {"ort": _bound(OnnxRuntimeLayer(directory, setting)), "native": _native_call(NativeLayer(directory, setting))}
    for call in calls.values():
        _times(call, WARM_UP)
    nanoseconds: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(CALLS // BLOCK):
        for name, call in calls.items():
            nanoseconds[name] += _times(call, BLOCK)
    microseconds = {name: statistics.median(times) / 1000 for name, times in nanoseconds.items()}
    more = microseconds["ort"] - microseconds["native"]
    say(
        f"a call of hidden {TINY.hidden}, intermediate {TINY.intermediate}, {TINY.k} experts, 1 token, 1 thread, {isa}: "
        f"{microseconds['ort']:.1f} µs through ONNX Runtime (IO binding), {microseconds['native']:.1f} µs without it, "
        f"{more:.1f} µs more (medians of {CALLS})"
    )
    return [{
        "study": "overhead", "isa": isa, "calls": CALLS, "ort_microseconds": microseconds["ort"],
        "native_microseconds": microseconds["native"], "difference_microseconds": more,
    }]  # fmt: skip


def _bound(layer: OnnxRuntimeLayer) -> Callable[[], object]:
    workload = exact(TINY, 1)
    binding = layer.session.io_binding()
    for name, value in (("x", workload.x), ("ids", workload.ids[0]), ("weights", workload.weights)):
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(workload.x)))
    return lambda: layer.session.run_with_iobinding(binding)


def _native_call(layer: NativeLayer) -> Callable[[], object]:
    workload = exact(TINY, 1)
    x, weights, ids = workload.x.view(np.uint8), workload.weights.view(np.uint8), workload.ids[0]
    return lambda: layer.moe.run(x, "float", ids, weights, "float", 1)


def _times(call: Callable[[], object], count: int) -> list[int]:
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return times
