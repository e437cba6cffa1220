"""The Router operator against the nodes that it stands for, both in ONNX Runtime, and against reading the logits alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ..library import register
from . import yardsticks
from .layers import forced

TOKENS, EXPERTS = (1, 16, 512), (128, 256)
CALLS, WARM_UP = 2000, 50
K, GROUPS, TOP_GROUPS = 8, 8, 4
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("ort_hina", 1)]


@dataclass(frozen=True)
class Spelling:
    """A router as exporters write it, and the attributes of the operator that computes the same.

    `nodes` makes nodes and constants from the number of experts; they lead from ``logits`` to ``ids`` and ``weights``.
    """

    name: str
    attributes: dict
    biased: bool
    nodes: Callable[[int], tuple[list[onnx.NodeProto], dict[str, np.ndarray]]]


def run(isa: str, threads: int, say: Callable[[str], None]) -> list[dict]:
    """Medians of many calls with IO binding, by spelling, number of experts and number of tokens."""
    say(f"{'router':<10}{'experts':>8}{'tokens':>8}{'nodes, µs':>12}{'Router, µs':>12}{'times':>8}{'share of reading':>18}")
    limits = yardsticks.Yardsticks(threads, isa)
    results = []
    for spelling in (SOFTMAX, DEEPSEEK_V3):
        for experts in EXPERTS:
            with forced(isa):
                sessions = [_session(model, threads) for model in (unfused(spelling, experts), fused(spelling, experts))]
            for tokens in TOKENS:
                nodes, router = (_microseconds(session, tokens, experts) for session in sessions)
                time.sleep(yardsticks.SPIN_SECONDS)
                reading = 4e6 * tokens * experts / limits.read_bandwidth()
                say(
                    f"{spelling.name:<10}{experts:>8}{tokens:>8}{nodes:>12.1f}{router:>12.1f}{nodes / router:>8.1f}"
                    f"{reading / router:>17.1%}"
                )
                results.append({
                    "study": "router", "isa": isa, "threads": threads, "router": spelling.name, "experts": experts,
                    "tokens": tokens, "nodes_microseconds": nodes, "router_microseconds": router,
                    "read_share": reading / router,
                })  # fmt: skip
    return results


def fused(spelling: Spelling, experts: int) -> onnx.ModelProto:
    """logits → Router → ids, weights."""
    inputs = ["logits", "bias"] if spelling.biased else ["logits"]
    node = helper.make_node("Router", inputs, ["ids", "weights"], domain="ort_hina", **spelling.attributes)
    return _model([node], {"bias": _bias(experts)} if spelling.biased else {}, experts)


def unfused(spelling: Spelling, experts: int) -> onnx.ModelProto:
    """The same with ONNX's own nodes."""
    nodes, constants = spelling.nodes(experts)
    return _model(nodes, constants, experts)


def logits_of(tokens: int, experts: int) -> np.ndarray:
    """float32 [T, E], N(0, 1)."""
    return np.random.default_rng(tokens).standard_normal((tokens, experts), dtype=np.float32)


def _model(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], experts: int) -> onnx.ModelProto:
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["tokens", experts])
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens", K])
    weights = helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["tokens", K])
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "router", [logits], [ids, weights], tensors)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def _bias(experts: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(experts, dtype=np.float32) * np.float32(0.1)


def _softmax_nodes(experts: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    nodes = [
        helper.make_node("Softmax", ["logits"], ["scores"], axis=-1),
        helper.make_node("TopK", ["scores", "k"], ["best", "ids"]),
        helper.make_node("ReduceSum", ["best", "last"], ["sum"]),
        helper.make_node("Div", ["best", "sum"], ["weights"]),
    ]
    return nodes, {"k": np.array([K]), "last": np.array([-1])}


def _deepseek_v3_nodes(experts: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    nodes = [
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("Add", ["scores", "bias"], ["biased"]),
        helper.make_node("Reshape", ["biased", "grouped_shape"], ["grouped"]),
        helper.make_node("TopK", ["grouped", "two"], ["two_best", "_two"]),
        helper.make_node("ReduceSum", ["two_best", "last"], ["worth"], keepdims=0),
        helper.make_node("TopK", ["worth", "top_groups"], ["_worth", "groups"]),
        helper.make_node("Shape", ["worth"], ["worth_shape"]),
        helper.make_node("ConstantOfShape", ["worth_shape"], ["none"]),
        helper.make_node("Shape", ["groups"], ["groups_shape"]),
        helper.make_node("ConstantOfShape", ["groups_shape"], ["ones"], value=helper.make_tensor("", 1, [1], [1.0])),
        helper.make_node("ScatterElements", ["none", "groups", "ones"], ["chosen"], axis=1),
        helper.make_node("Unsqueeze", ["chosen", "last"], ["chosen_column"]),
        helper.make_node("Cast", ["chosen_column"], ["inside"], to=TensorProto.BOOL),
        helper.make_node("Where", ["inside", "grouped", "zero"], ["masked_groups"]),
        helper.make_node("Reshape", ["masked_groups", "flat_shape"], ["masked"]),
        helper.make_node("TopK", ["masked", "k"], ["_best", "ids"]),
        helper.make_node("GatherElements", ["scores", "ids"], ["best"], axis=1),
        helper.make_node("ReduceSum", ["best", "last"], ["sum"]),
        helper.make_node("Add", ["sum", "epsilon"], ["divisor"]),
        helper.make_node("Div", ["best", "divisor"], ["normalized"]),
        helper.make_node("Mul", ["normalized", "scale"], ["weights"]),
    ]
    constants = {
        "bias": _bias(experts), "grouped_shape": np.array([-1, GROUPS, experts // GROUPS]), "two": np.array([2]),
        "last": np.array([-1]), "top_groups": np.array([TOP_GROUPS]), "zero": np.float32(0),
        "flat_shape": np.array([-1, experts]), "k": np.array([K]), "epsilon": np.float32(1e-20), "scale": np.float32(2.5),
    }  # fmt: skip
    return nodes, {name: np.asarray(value) for name, value in constants.items()}


SOFTMAX = Spelling("softmax", {"k": K, "normalize": 1}, False, _softmax_nodes)
DEEPSEEK_V3 = Spelling(
    "deepseek_v3",
    {
        "k": K, "score": "sigmoid", "num_groups": GROUPS, "top_groups": TOP_GROUPS, "group_score": "top2_sum",
        "normalize": 1, "normalize_epsilon": 1e-20, "scale": 2.5,
    },
    True,
    _deepseek_v3_nodes,
)  # fmt: skip


def _session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _microseconds(session: onnxruntime.InferenceSession, tokens: int, experts: int) -> float:
    binding = session.io_binding()
    values = {"ids": np.zeros((tokens, K), np.int64), "weights": np.zeros((tokens, K), np.float32)}
    binding.bind_ortvalue_input("logits", onnxruntime.OrtValue.ortvalue_from_numpy(logits_of(tokens, experts)))
    for name, value in values.items():
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    times = []
    for call in range(WARM_UP + CALLS):
        start = time.perf_counter_ns()
        session.run_with_iobinding(binding)
        if call >= WARM_UP:
            times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000
