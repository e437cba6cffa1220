"""A language model of two layers with fused attention, written by hand: inputs and outputs as Optimum names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from .elements import ONNX_TYPE
from .moe_session import create_session

VOCABULARY, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, LAYERS = 50, 32, 4, 2, 16, 2


def small_decoder(kind: str = "float", positions: int = 512) -> onnx.ModelProto:
    """Caches of type `kind` (float, float16 or bfloat16), everything else float; rotary tables for `positions`."""
    random = np.random.default_rng(0)
    constants = {"embedding": random.standard_normal((VOCABULARY, HIDDEN))}
    angles = np.outer(np.arange(positions), 100.0 ** -(np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2)))
    constants |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    nodes = [helper.make_node("Gather", ["embedding", "input_ids"], ["x0"])]
    for layer in range(LAYERS):
        for name, outputs in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            width = outputs * HEAD_SIZE
            constants[f"w{name}{layer}"] = random.standard_normal((HIDDEN, width)) * 0.3
            nodes += [
                helper.make_node("MatMul", [f"x{layer}", f"w{name}{layer}"], [f"{name}{layer}_float"]),
                helper.make_node("Cast", [f"{name}{layer}_float"], [f"{name}{layer}"], to=ONNX_TYPE[kind]),
            ]
        constants[f"wo{layer}"] = random.standard_normal((HEADS * HEAD_SIZE, HIDDEN)) * 0.3
        nodes += [
            _attention(layer),
            helper.make_node("Cast", [f"a{layer}"], [f"a{layer}_float"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", [f"a{layer}_float", f"wo{layer}"], [f"o{layer}"]),
            helper.make_node("Add", [f"x{layer}", f"o{layer}"], [f"x{layer + 1}"]),
        ]
    constants["head"] = random.standard_normal((HIDDEN, VOCABULARY))
    nodes.append(helper.make_node("MatMul", [f"x{LAYERS}", "head"], ["logits"]))
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "decoder", _inputs(kind), _outputs(kind), tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ort_hina", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def decoder_session(kind: str = "float", positions: int = 512) -> onnxruntime.InferenceSession:
    return create_session(small_decoder(kind, positions), threads=1)


def write_decoder(file: Path) -> Path:
    file.write_bytes(small_decoder().SerializeToString())
    return file


def _attention(layer: int) -> onnx.NodeProto:
    names = {
        0: f"q{layer}", 1: f"k{layer}", 2: f"v{layer}", 3: f"past_key_values.{layer}.key",
        4: f"past_key_values.{layer}.value", 7: "cos", 8: "sin", 9: "position_ids", 17: "attention_mask",
    }  # fmt: skip
    return helper.make_node(
        "GroupQueryAttention", [names.get(i, "") for i in range(18)],
        [f"a{layer}", f"present.{layer}.key", f"present.{layer}.value"],
        name=f"attention of layer {layer}", domain="ort_hina", num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1,
    )  # fmt: skip


def _inputs(kind: str) -> list[onnx.ValueInfoProto]:
    shapes = {"input_ids": ["batch", "S"], "attention_mask": ["batch", "T"], "position_ids": ["batch", "S"]}
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in shapes.items()]
    return ids + [_cache(f"past_key_values.{name}", kind, "past") for name in _caches()]


def _outputs(kind: str) -> list[onnx.ValueInfoProto]:
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "S", VOCABULARY])
    return [logits, *(_cache(f"present.{name}", kind, "present") for name in _caches())]


def _caches() -> list[str]:
    return [f"{layer}.{what}" for layer in range(LAYERS) for what in ("key", "value")]


def _cache(name: str, kind: str, length: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ONNX_TYPE[kind], ["batch", KV_HEADS, length, HEAD_SIZE])
