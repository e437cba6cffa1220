"""One-node MoE models in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

import ort_hina

from .elements import ONNX_TYPE, decode
from .guard import guarded
from .moe_tokens import MoeTokens
from .moe_weights import MoeWeights

NODE_NAME = "layer 7's experts"
IDS_TYPE = {np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64}


def moe_model(
    weights: MoeWeights,
    *,
    x_type: int = TensorProto.FLOAT,
    ids_type: int = TensorProto.INT64,
    routing_type: int = TensorProto.FLOAT,
    rank: int | None = 2,
    omit: Collection[str] = (),
    addend_type: int | None = None,
    attributes: dict[str, Any] | None = None,
    initializers: Sequence[TensorProto] | None = None,
    window_inputs: int = 0,
) -> ModelProto:
    """X, ids, weights, addend → MoE → Y; the types are ONNX's.

    Args:
        rank: of the inputs; None: the graph says nothing about their shapes.
        omit: which of "ids" and "weights" the node does not get.
        addend_type: None: the node does not get one.
        attributes: in place of the weights' own.
        initializers: in place of inline windows.
        window_inputs: so many windows are inputs of the graph instead.
    """
    tensors = inline_windows(weights) if initializers is None else list(initializers)
    tensors, computed = tensors[window_inputs:], tensors[:window_inputs]
    lead = {None: None, 2: ["tokens"], 3: ["batch", "sequence"]}[rank]

    def value(name: str, kind: int, last: Any):
        return helper.make_tensor_value_info(name, kind, None if lead is None else [*lead, last])

    node = helper.make_node(
        "MoE",
        [
            "X",
            "" if "ids" in omit else "ids",
            "" if "weights" in omit else "routing",
            "" if addend_type is None else "addend",
            *(tensor.name for tensor in (*computed, *tensors)),
        ],
        ["Y"],
        name=NODE_NAME,
        domain="ort_hina",
        **(node_attributes(weights) if attributes is None else attributes),
    )
    inputs = [
        value("X", x_type, weights.attributes["hidden_size"]),
        *([] if "ids" in omit else [value("ids", ids_type, "k")]),
        *([] if "weights" in omit else [value("routing", routing_type, "k")]),
        *([] if addend_type is None else [value("addend", addend_type, weights.attributes["hidden_size"])]),
        *(helper.make_tensor_value_info(tensor.name, tensor.data_type, ["n"]) for tensor in computed),
    ]
    output = helper.make_tensor_value_info("Y", x_type, None)
    graph = helper.make_graph([node], "moe", inputs, [output], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ort_hina", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def model_for(weights: MoeWeights, tokens: MoeTokens, **arguments: Any) -> ModelProto:
    """A model that takes these inputs."""
    return moe_model(
        weights,
        x_type=ONNX_TYPE[tokens.x_type],
        ids_type=IDS_TYPE[tokens.ids.dtype],
        routing_type=ONNX_TYPE[tokens.routing_type],
        omit=tokens.omit,
        addend_type=None if tokens.addend is None else ONNX_TYPE[tokens.x_type],
        **arguments,
    )


def node_attributes(weights: MoeWeights) -> dict[str, Any]:
    """With the types of the windows, which the tensors do not tell."""
    return weights.attributes | {"window_types": [ONNX_TYPE[kind] for _, kind in weights.windows]}


def inline_windows(weights: MoeWeights) -> list[TensorProto]:
    return [
        helper.make_tensor(f"window{i}", TensorProto.UINT8, [data.size], data.tobytes(), raw=True)
        for i, (data, _) in enumerate(weights.windows)
    ]


def external_windows(weights: MoeWeights, folder: Path, offset: int) -> list[TensorProto]:
    """One data file for each window, in which it begins at byte `offset` and ends the file."""
    tensors = []
    for i, (data, _) in enumerate(weights.windows):
        path = folder / f"data{i}.bin"
        path.write_bytes(b"\xff" * offset + data.tobytes())
        tensor = TensorProto(name=f"window{i}", data_type=TensorProto.UINT8, dims=[data.size])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": path.name, "offset": offset, "length": data.size}.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    return tensors


def create_session(
    model: ModelProto | Path,
    *,
    threads: int = 1,
    entry: str | None = None,
    compute: str | None = None,
    optimise: onnxruntime.GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
) -> onnxruntime.InferenceSession:
    """A session with the library.

    Args:
        threads: of its pool.
        entry, compute: the configuration entries ``ort_hina.threads`` and ``ort_hina.compute``.
        optimise: how much ONNX Runtime may change the graph.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = optimise
    options.log_severity_level = 4  # expected errors stay out of the output
    for key, value in (("ort_hina.threads", entry), ("ort_hina.compute", compute)):
        if value is not None:
            options.add_session_config_entry(key, value)
    options.register_custom_ops_library(ort_hina.library_path())
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_session(
    session: onnxruntime.InferenceSession, tokens: MoeTokens, lead: tuple[int, ...] | None = None
) -> np.ndarray:
    """Y, float64 [T, H]. Every input and the output end where a forbidden page begins.

    Args:
        lead: the inputs' shape but for the last dimension; (T,) if not given.
    """
    shape = tokens.x.shape[:1] if lead is None else lead
    x, ids, routing = guarded(tokens.x_data), guarded(tokens.ids), guarded(tokens.routing_data)
    y = guarded(np.zeros_like(tokens.x_data))
    x_shape, k_shape = [*shape, tokens.x.shape[1]], [*shape, tokens.ids.shape[1]]
    binding = session.io_binding()
    binding.bind_input("X", "cpu", 0, ONNX_TYPE[tokens.x_type], x_shape, x.ctypes.data)
    if "ids" not in tokens.omit:
        binding.bind_input("ids", "cpu", 0, IDS_TYPE[tokens.ids.dtype], k_shape, ids.ctypes.data)
    if "weights" not in tokens.omit:
        binding.bind_input("routing", "cpu", 0, ONNX_TYPE[tokens.routing_type], k_shape, routing.ctypes.data)
    if tokens.addend is not None:
        addend = guarded(tokens.addend_data)
        binding.bind_input("addend", "cpu", 0, ONNX_TYPE[tokens.x_type], x_shape, addend.ctypes.data)
    binding.bind_output("Y", "cpu", 0, ONNX_TYPE[tokens.x_type], x_shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    return decode(y, tokens.x_type).reshape(tokens.x.shape)
