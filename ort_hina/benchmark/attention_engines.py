"""A GroupQueryAttention node in ONNX Runtime, ort_hina's or ONNX Runtime's own, on caches that it writes in place."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime import OrtValue

from ..library import register
from .attention_caches import Cache, Tokens, widened
from .attention_work import AttentionWork
from .models import ELEMENT_TYPES

INPUTS = ("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length")
OUTPUTS = ("output", "present_key", "present_value")


class Engine(Protocol):
    """Something that does a work's calls."""

    def seconds(self, step: int) -> float:
        """Does a call on the cache of this step, and says how long it took."""

    def answer(self) -> np.ndarray:
        """float32 [B, S, heads · D]: the output of a call on the first cache."""


class OnnxRuntimeAttention:
    """One node in a session; each cache is bound as past and as present."""

    def __init__(
        self, domain: str, work: AttentionWork, dtype: str, threads: int, tokens: Tokens, caches: list[Cache]
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        register(options)
        model = attention_model(domain, work, dtype).SerializeToString()
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._output = np.zeros_like(tokens.query)
        # An OrtValue of a NumPy array is a view of it: all that is bound here is kept.
        self._kept = [tokens, caches]
        shared = {
            "query": _value(tokens.query, dtype), "key": _value(tokens.key, dtype), "value": _value(tokens.value, dtype),
            "seqlens_k": OrtValue.ortvalue_from_numpy(np.full(work.batch, work.length - 1, np.int32)),
            "total_sequence_length": OrtValue.ortvalue_from_numpy(np.array(work.length, np.int32)),
        }  # fmt: skip
        output = _value(self._output, dtype)
        self._bindings = [self._binding(shared, output, cache, dtype) for cache in caches]

    def seconds(self, step: int) -> float:
        binding = self._bindings[step % len(self._bindings)]
        start = time.perf_counter()
        self._session.run_with_iobinding(binding)
        return time.perf_counter() - start

    def answer(self) -> np.ndarray:
        self.seconds(0)
        return widened(self._output)

    def _binding(self, shared: dict[str, OrtValue], output: OrtValue, cache: Cache, dtype: str) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        for name, value in shared.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("output", output)
        for name, array in (("key", cache.key), ("value", cache.value)):
            value = _value(array, dtype)
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)
        return binding


def attention_model(domain: str, work: AttentionWork, dtype: str) -> onnx.ModelProto:
    """One GroupQueryAttention node of this domain."""
    attributes = {"num_heads": work.shape.heads, "kv_num_heads": work.shape.kv_heads}
    if work.shape.window is not None:
        attributes["local_window_size"] = work.shape.window
    node = helper.make_node("GroupQueryAttention", INPUTS, OUTPUTS, name="attention", domain=domain, **attributes)
    types = [ELEMENT_TYPES[dtype]] * 5 + [TensorProto.INT32] * 2
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(INPUTS, types, strict=True)]
    outputs = [helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], None) for name in OUTPUTS]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _value(array: np.ndarray, dtype: str) -> OrtValue:
    if dtype == "bfloat16":
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.BFLOAT16)
    return OrtValue.ortvalue_from_numpy(array)
