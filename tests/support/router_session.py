"""One-node Router models in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

from ort_hina.graph_passes.router_spec import RouterSpec

from .elements import ONNX_TYPE, encode
from .guard import guarded
from .moe_session import create_session
from .router_native import attributes_of

NODE_NAME = "layer 7's router"


def router_model(
    spec: RouterSpec | None = None,
    *,
    logits_type: int = TensorProto.FLOAT,
    bias_type: int | None = None,
    attributes: dict[str, Any] | None = None,
) -> ModelProto:
    """logits (and bias) → Router → ids, weights; the types are ONNX's.

    Args:
        bias_type: None: the node has no bias.
        attributes: in place of the spec's.
    """
    inputs = [helper.make_tensor_value_info("logits", logits_type, None)]
    if bias_type is not None:
        inputs.append(helper.make_tensor_value_info("bias", bias_type, None))
    node = helper.make_node(
        "Router",
        [value.name for value in inputs],
        ["ids", "weights"],
        name=NODE_NAME,
        domain="ort_hina",
        **(attributes_of(spec) if attributes is None else attributes),
    )
    outputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, None),
        helper.make_tensor_value_info("weights", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph([node], "router", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ort_hina", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def router_session(*arguments: Any, threads: int = 1, **named: Any) -> onnxruntime.InferenceSession:
    """A session of `router_model`."""
    return create_session(router_model(*arguments, **named), threads=threads)


def run_router(
    session: onnxruntime.InferenceSession,
    logits: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    logits_type: str = "float",
    bias_type: str = "float",
) -> tuple[np.ndarray, np.ndarray]:
    """expert_ids and expert_weights. Every input ends where a forbidden page begins.

    Args:
        logits: float32 [..., E], and bias: float32 [E]; both are rounded to the named types.
    """
    binding = session.io_binding()
    held = []
    for name, value, kind in (("logits", logits, logits_type), ("bias", bias, bias_type)):
        if value is None:
            continue
        held.append(guarded(encode(value, kind)))
        binding.bind_input(name, "cpu", 0, ONNX_TYPE[kind], list(value.shape), held[-1].ctypes.data)
    binding.bind_output("ids")
    binding.bind_output("weights")
    session.run_with_iobinding(binding)
    ids, weights = binding.copy_outputs_to_cpu()
    return ids, weights
