"""The operator over a data file of weights: through ONNX Runtime, and without it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime

from .. import _native
from ..library import register
from ..machine import FORCE_ISA_VARIABLE
from . import models
from .arguments import ENGINE_NAMES
from .setting import Setting
from .shapes import MoeShape
from .workload import Workload, exact


class Layer(Protocol):
    """Something that does a workload's calls and says how many seconds each took."""

    operator: str

    def seconds(self, workload: Workload, step: int) -> float: ...


def touch(layer: Layer, shape: MoeShape) -> None:
    """Reads every stored weight once: what is measured later is reading memory, not the kernel mapping a file."""
    workload = exact(shape, 1)
    for step in range(len(workload.ids)):
        layer.seconds(workload, step)


class OnnxRuntimeLayer:
    """One `ort_hina::MoE` node in a session."""

    operator = "MoE"

    def __init__(self, directory: Path, setting: Setting) -> None:
        with forced(setting.isa):
            self.session = session(
                models.fused_model(directory, setting.stored, setting.dtype, setting.layout),
                setting.threads,
                "bfloat16" if setting.bf16_compute else None,
            )

    def seconds(self, workload: Workload, step: int) -> float:
        ids = workload.ids[step % len(workload.ids)]
        return timed(self.session, {"x": workload.x, "ids": ids, "weights": workload.weights})


class NativeLayer:
    """The same operator without ONNX Runtime. `numa`: memory nodes that are made up (as `_native.Moe` takes them)."""

    operator = "MoE native"

    def __init__(self, directory: Path, setting: Setting, numa: dict | None = None) -> None:
        window = np.memmap(directory / models.DATA_FILE, np.uint8, "r")
        attributes = models.moe_attributes(setting.stored, setting.dtype, setting.layout)
        self.moe = _native.Moe(attributes, [(window, setting.dtype)], setting.isa, setting.bf16_compute, numa)
        self._threads = setting.threads

    def seconds(self, workload: Workload, step: int) -> float:
        x, weights = workload.x.view(np.uint8), workload.weights.view(np.uint8)
        ids = workload.ids[step % len(workload.ids)]
        start = time.perf_counter()
        self.moe.run(x, "float", ids, weights, "float", self._threads)
        return time.perf_counter() - start


ENGINES = dict(zip(ENGINE_NAMES, (OnnxRuntimeLayer, NativeLayer), strict=True))


def session(model: Path, threads: int, compute: str | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    register(options, compute=compute)
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def timed(session: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> float:
    start = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - start


@contextmanager
def forced(isa: str) -> Iterator[None]:
    """A node takes its level when its session is created."""
    before = os.environ.get(FORCE_ISA_VARIABLE)
    os.environ[FORCE_ISA_VARIABLE] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCE_ISA_VARIABLE]
        else:
            os.environ[FORCE_ISA_VARIABLE] = before
