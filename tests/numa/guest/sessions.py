"""Sessions of ONNX Runtime in the guest, with threads that are pinned node by node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import ort_hina


def read_manifest(model: str) -> dict[str, Any]:
    return json.loads((Path(model) / "manifest.json").read_text())


def read_feeds(model: str) -> dict[str, np.ndarray]:
    with np.load(Path(model) / "feeds.npz") as feeds:
        return dict(feeds)


def create(
    path: Path,
    *,
    threads: int | None = None,
    numa: str | None = None,
    log: int = 2,
    shared: dict[str, np.ndarray] | None = None,
) -> onnxruntime.InferenceSession:
    """A session with a thread on each CPU that this process may use, or with so many; they fill node after node.

    The caller is pinned to the first CPU once the session is there.

    Args:
        numa: session config entry ``ort_hina.numa``.
        log: ONNX Runtime's severity: 1 for information, 2 for warnings.
        shared: initializers that the session is to read where they lie.
    """
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = log
    options.intra_op_num_threads = len(cpus)
    # Emulated CPUs share the host's: a thread that spins takes time from one that works.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if len(cpus) > 1:
        affinities = ";".join(str(cpu + 1) for cpu in cpus[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    if numa is not None:
        options.add_session_config_entry("ort_hina.numa", numa)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(data) for name, data in (shared or {}).items()}
    for name, value in values.items():
        options.add_initializer(name, value)
    ort_hina.register(options)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    os.sched_setaffinity(0, {cpus[0]})
    return session
