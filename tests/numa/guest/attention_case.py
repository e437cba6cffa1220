"""Attention in ONNX Runtime whose caches stay in one buffer: that placed as asked for, a few counted runs."""

from __future__ import annotations

import base64
import ctypes
from pathlib import Path
from typing import Any

import counter
import memory
import numpy as np
import onnxruntime
import sessions


def run(model: str, block: int, *, thp: str = "always", numa: str | None = None, runs: int = 5) -> dict[str, Any]:
    """Runs the model and counts what is loaded from the caches.

    Args:
        model: the folder that tests/support/numa_attention.py made.
        block: the number of the counter's block for the first run; the others have the numbers after it.
        thp: transparent huge pages: "always", "madvise" or "never".
        numa: session config entry ``ort_hina.numa``.

    Returns:
        ``y`` (base64) of the first counted run, whether the others had ``equal`` bits, and the caches' ``pages`` by node.
    """
    memory.TRANSPARENT_HUGE_PAGES.write_text(thp)
    feeds = sessions.read_feeds(model)
    session = sessions.create(Path(model) / "model.onnx", numa=numa)
    caches = in_one_block([feeds["past_key"], feeds["past_value"]])
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    values |= zip(("past_key", "past_value"), map(onnxruntime.OrtValue.ortvalue_from_numpy, caches))

    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("output")
    for name in ("past_key", "past_value"):
        binding.bind_ortvalue_output(name.replace("past", "present"), values[name])

    def step() -> np.ndarray:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()

    step(), step()  # the first sees where the buffers are, the second asks where their pages lie
    ranges, outputs = [(cache.ctypes.data, cache.nbytes) for cache in caches], []
    for number in range(runs):
        with counter.counting(block + number, ranges):
            outputs.append(step())
    pages = np.concatenate([memory.page_nodes(*cache) for cache in ranges])
    numbers, counts = np.unique(pages, return_counts=True)
    return {
        "y": base64.b64encode(outputs[0].tobytes()).decode(),
        "equal": all(output.tobytes() == outputs[0].tobytes() for output in outputs),
        "pages": {str(number): int(count) for number, count in zip(numbers, counts)},
    }


def in_one_block(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Copies, whole huge pages apart: with equal sizes that are a multiple of huge pages × nodes, on the same nodes."""
    sizes = [(array.nbytes + memory.HUGE_PAGE - 1) // memory.HUGE_PAGE * memory.HUGE_PAGE for array in arrays]
    at, copies = memory.anonymous(sum(sizes)), []
    for array, size in zip(arrays, sizes):
        copy = np.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(at), array.dtype).reshape(array.shape)
        copy[...] = array
        copies.append(copy)
        at += size
    return copies
