"""Running ONNX models in tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from ort_hina import register


def session(model: str | Path | onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session with the operators of ort_hina, of a file or of a model in memory."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    register(options)
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(model: str | Path | onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    """The only output of `model`."""
    (output,) = session(model).run(None, feeds)
    return output


def relative_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest absolute value expected."""
    return float(np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max())
