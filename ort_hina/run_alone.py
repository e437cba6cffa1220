"""Runs a part of a model as a model of its own, as it is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from .graph_passes.domain import DOMAIN


class CannotRun(Exception):
    """What ONNX Runtime says about a model that it cannot create a session for, or run."""


def stored_constant(value: ir.Value, folder: Path) -> onnx.TensorProto:
    """The initializer `value`. External data by its real path, from the root: ONNX Runtime refuses links that lead out of a
    model's folder, and whether these may has been judged when the model was read."""
    proto = ir.serde.serialize_tensor(value.const_value)
    proto.name = value.name
    for entry in proto.external_data:
        if entry.key == "location":
            entry.value = os.path.relpath((folder / entry.value).resolve(), os.sep)
    return proto


def run_alone(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of `model` (whose constants are `stored_constant`s) for those of `feeds` that it has as inputs.

    Raises:
        CannotRun: with ONNX Runtime's own words.
        OrtHinaError: the operator library is missing or cannot be loaded.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # The graph as it is: optimising thousands of nodes takes longer than running them once, and prepacking would copy
    # the weights.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.sep)
    if any(node.domain == DOMAIN for node in model.graph.node):
        from .library import register

        register(options)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        wanted = {value.name for value in session.get_inputs()}
        return session.run(None, {name: array for name, array in feeds.items() if name in wanted})
    except Exception as error:  # onnxruntime's own exception types have no public common base
        raise CannotRun(str(error)) from error
