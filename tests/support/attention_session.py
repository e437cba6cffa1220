"""One-node GroupQueryAttention models in ONNX Runtime, of ort_hina and of com.microsoft."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

from .attention_native import types_of
from .attention_reference import AttentionCase
from .elements import NUMPY_TYPE, ONNX_TYPE, decode, rounded
from .moe_session import create_session

NODE_NAME = "layer 3's attention"
INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens",
    "attention_mask",
)  # fmt: skip
OUTPUTS = ("output", "present_key", "present_value")


def feeds_of(
    case: AttentionCase, *, packed: bool = False, heads_first: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """What the node is given, in its types (bfloat16 as ml_dtypes has it).

    Args:
        packed: query, key and value in one tensor.
        heads_first: which of query, key and value have rank 4, (batch, heads, tokens, size).
        without: inputs that are left out.
    """
    batch, queries = case.query.shape[:2]
    rows = {
        name: x.swapaxes(1, 2) if name in heads_first else x.reshape(batch, queries, x.shape[2] * x.shape[3])
        for name, x in (("query", case.query), ("key", case.key), ("value", case.value))
    }
    if packed:
        rows = {"query": np.concatenate([rows["query"], rows["key"], rows["value"]], axis=2)}
    types = types_of(case)
    floats = rows | {
        "past_key": case.past_key, "past_value": case.past_value, "cos_cache": case.cos, "sin_cache": case.sin,
        "attention_bias": case.bias, "head_sink": case.sink, "q_norm_weight": case.q_norm, "k_norm_weight": case.k_norm,
    }  # fmt: skip
    feeds = {
        name: rounded(x, types.get(name, case.kind)).astype(NUMPY_TYPE[types.get(name, case.kind)])
        for name, x in floats.items()
        if x is not None
    }
    if case.seqlens_k is not None:
        feeds["seqlens_k"] = case.seqlens_k.astype(np.int32)
    feeds["total_sequence_length"] = np.array(case.total, np.int32)
    if case.position_ids is not None:
        feeds["position_ids"] = case.position_ids.astype(np.int64)
    if case.mask is not None:
        feeds["attention_mask"] = case.mask
    return {name: value for name, value in feeds.items() if name not in without}


def attention_model(
    attributes: dict[str, Any], feeds: dict[str, np.ndarray], kind: str, *, domain: str = "ort_hina"
) -> ModelProto:
    """A node with these attributes and an input for each of the feeds; the others are left out."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feeds[name].dtype), None)
        for name in INPUTS
        if name in feeds
    ]
    last = max(INPUTS.index(name) for name in feeds)
    names = [name if name in feeds else "" for name in INPUTS[: last + 1]]
    node = helper.make_node("GroupQueryAttention", names, OUTPUTS, name=NODE_NAME, domain=domain, **attributes)
    outputs = [helper.make_tensor_value_info(name, ONNX_TYPE[kind], None) for name in OUTPUTS]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def attention_session(
    case: AttentionCase, feeds: dict[str, np.ndarray], *, threads: int = 1, domain: str = "ort_hina", **attributes: Any
) -> onnxruntime.InferenceSession:
    """A session of the case's node. `attributes` are set beside its own; one that is None is left out."""
    named = {name: value for name, value in (case.attributes() | attributes).items() if value is not None}
    return create_session(attention_model(named, feeds, case.kind, domain=domain), threads=threads)


def run_session(
    session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray], *, shared: bool | tuple[str, ...] = False
) -> list[np.ndarray]:
    """output, present_key and present_value as float64.

    Args:
        shared: the past caches' buffers are bound as those of the present ones; or the names of those that are.
    """
    if isinstance(shared, bool):
        shared = ("past_key", "past_value") if shared else ()
    binding = session.io_binding()
    values = {name: _value(array) for name, array in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in OUTPUTS:
        past = name.replace("present", "past")
        if past in shared and past in values:
            binding.bind_ortvalue_output(name, values[past])
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    return [_array(value) for value in binding.get_outputs()]


def _value(array: np.ndarray) -> onnxruntime.OrtValue:
    if array.dtype == NUMPY_TYPE["bfloat16"]:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16).copy(), TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array.copy())


def _array(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.element_type() != TensorProto.BFLOAT16:
        return value.numpy().astype(np.float64)
    # NumPy has no such type, so ONNX Runtime does not hand it out.
    size = 2 * int(np.prod(value.shape()))
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8) if size else np.zeros(0, np.uint8)
    return decode(data, "bfloat16").reshape(value.shape())
