"""Routers as exporters write them: one small graph for each spelling, and ways to get them wrong.

Every graph has one input, ``logits`` (or ``whole``, which they are a view of), and the outputs ``ids`` and ``weights``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

EXPERTS = 12
TINY = 1e-20
BIAS = np.linspace(0.0, 0.4, EXPERTS)[np.random.default_rng(3).permutation(EXPERTS)].astype(np.float32)


@dataclass
class RouterGraph:
    """Plumbing: operators by name, in the form that `opset` has them."""

    opset: int = 18
    experts: int = EXPERTS
    element: int = TensorProto.FLOAT
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def op(self, operator: str, *inputs: str, outputs: int = 1, **attributes):
        names = [f"v{len(self.nodes)}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=f"{operator} {len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def const(self, value, dtype=np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def real(self, value: float) -> str:
        return self.const(value, np.float32)

    def initializer(self, array: np.ndarray, name: str = "bias") -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, *shape: int | str, element: int | None = None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, self.element if element is None else element, shape))
        return name

    def logits(self) -> str:
        return self.input("logits", "tokens", self.experts)

    def reduce(self, operator: str, x: str, axis: int = -1, keepdims: int = 1) -> str:
        if self.opset >= (13 if operator == "ReduceSum" else 18):
            return self.op(operator, x, self.const([axis]), keepdims=keepdims)
        return self.op(operator, x, axes=[axis], keepdims=keepdims)

    def unsqueeze(self, x: str, axis: int) -> str:
        return self.op("Unsqueeze", x, self.const([axis])) if self.opset >= 13 else self.op("Unsqueeze", x, axes=[axis])

    def top_k(self, x: str, k: int, **attributes) -> list[str]:
        return self.op("TopK", x, self.const([k]), outputs=2, **attributes)

    def cast(self, x: str, to: int = TensorProto.FLOAT) -> str:
        return self.op("Cast", x, to=to)

    def model(self, ids: str, weights: str, weight_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [ids], ["ids"], name="out ids"))
        self.nodes.append(helper.make_node("Identity", [weights], ["weights"], name="out weights"))
        outputs = [
            helper.make_tensor_value_info("ids", TensorProto.INT64, None),
            helper.make_tensor_value_info("weights", weight_type, None),
        ]
        graph = helper.make_graph(self.nodes, "router", self.inputs, outputs, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


# ---- softmax over all experts


def softmax_topk(
    g: RouterGraph, *, k=3, norm="div", scale=None, epsilon=None, minimum=None, axis=None, scale_first=False, sum_axis=-1
):
    """Qwen3-MoE, Mixtral, OLMoE, DBRX (`norm`: how the weights are divided by their sum, or None)."""
    scores = g.cast(g.op("Softmax", g.logits(), axis=1 if axis is None else axis))
    values, ids = g.top_k(scores, k, axis=-1)
    return ids, normalized(g, values, norm, scale, epsilon, minimum, scale_first, sum_axis)


def normalized(
    g: RouterGraph, values, norm="div", scale=None, epsilon=None, minimum=None, scale_first=False, sum_axis=-1
) -> str:
    if scale_first:
        values = g.op("Mul", values, g.real(scale))
    weights = values
    if norm is not None:
        total = g.reduce("ReduceL1" if norm == "l1" else "ReduceL2" if norm == "l2" else "ReduceSum", values, sum_axis)
        total = total if minimum is None else g.op("Clip", total, g.real(minimum))
        total = total if epsilon is None else g.op("Add", total, g.real(epsilon))
        weights = (
            g.op("Mul", g.op("Reciprocal", total), values) if norm == "reciprocal" else g.op("Div", values, total)
        )
    return weights if scale is None or scale_first else g.op("Mul", weights, g.real(scale))


def softmax_dynamo(g: RouterGraph):
    """What torch.export writes: no casts, views with allowzero."""
    logits = g.op("Reshape", g.logits(), g.const([-1, g.experts]), allowzero=1)
    values, ids = g.top_k(g.op("Softmax", logits, axis=-1), 3, axis=-1)
    weights = g.op("Div", values, g.reduce("ReduceSum", values))
    return g.op("Reshape", ids, g.const([-1, 3])), weights


def softmax_half_logits(g: RouterGraph):
    """Mixtral in float16 with the softmax in float32."""
    values, ids = g.top_k(g.op("Softmax", g.cast(g.logits()), axis=-1), 2)
    return ids, normalized(g, values)


def ernie(g: RouterGraph, *, k=3):
    """Softmax, the bias for the choice alone (stored as [1, E]), and a sum that is bounded from below."""
    scores = g.op("Softmax", g.logits(), axis=-1)
    bias = g.op("Squeeze", g.initializer(BIAS[None]), g.const([0])) if g.opset >= 13 else g.initializer(BIAS[None])
    _, ids = g.top_k(g.op("Add", scores, bias), k)
    return ids, normalized(g, g.op("GatherElements", scores, ids, axis=-1), minimum=1e-12)


# ---- the best logits


def topk_softmax(g: RouterGraph, *, axis=1):
    """gpt-oss, Granite-MoE."""
    values, ids = g.top_k(g.logits(), 4, axis=-1, sorted=1)
    return ids, g.op("Softmax", values, axis=axis)


def topk_sigmoid(g: RouterGraph):
    """Llama-4."""
    values, ids = g.top_k(g.logits(), 1, axis=-1)
    return ids, g.op("Sigmoid", values)


def topk_softmax_of_picked(g: RouterGraph):
    """As `topk_softmax`, with the values fetched by their ids."""
    logits = g.logits()
    _, ids = g.top_k(logits, 4)
    return ids, g.op("Softmax", g.op("GatherElements", logits, ids, axis=1), axis=-1)


# ---- sigmoid


def sigmoid_bias(g: RouterGraph, *, sigmoid="operator", norm="div", scale=None, epsilon=1e-6, k=3, biased_weights=False):
    """LFM2, MiniMax-M2; `sigmoid` written as an operator, or spelled out."""
    logits = g.logits()
    if sigmoid == "operator":
        scores = g.op("Sigmoid", logits)
    else:
        total = g.op("Add", g.op("Exp", g.op("Neg", logits)), g.real(1.0))
        scores = g.op("Reciprocal", total) if sigmoid == "reciprocal" else g.op("Div", g.real(1.0), total)
    selection = g.op("Add", scores, g.initializer(BIAS))
    _, ids = g.top_k(selection, k)
    picked = g.op("GatherElements", selection if biased_weights else scores, ids, axis=-1)
    return ids, normalized(g, picked, norm, scale, epsilon)


# ---- groups


def deepseek_v3(
    g: RouterGraph,
    *,
    groups=4,
    top=2,
    k=3,
    filled=0.0,
    scale=2.5,
    group_from="biased",
    inverted=False,
    ones=1.0,
    best=2,
    interleaved=False,
    largest=1,
    weights_from="scores",
    ids_from="masked",
    masked_from="biased",
):
    """DeepSeek-V3, GLM-4.5, dots.llm1, as TorchScript writes it; the options after `scale` get it wrong."""
    size = g.experts // groups
    scores = g.op("Sigmoid", g.logits())
    biased = g.op("Add", g.op("Reshape", scores, g.const([-1, g.experts])), g.initializer(BIAS[None]))
    grouped = g.op("Reshape", biased if group_from == "biased" else scores, g.const([-1, groups, size]))
    two, _ = g.top_k(grouped, best, axis=-1)
    chosen = g.top_k(g.reduce("ReduceSum", two, keepdims=0), top, axis=-1, largest=largest, sorted=0)[1]
    mask = spread(g, marked(g, chosen, groups, ones), groups, size, interleaved)
    condition = g.cast(mask, TensorProto.BOOL)
    condition = condition if inverted else g.cast(g.op("Not", condition), TensorProto.BOOL)
    masked = g.op("Where", condition, g.real(filled), {"biased": biased, "scores": scores}[masked_from])
    tables = {"masked": masked, "biased": biased, "scores": scores}
    _, ids = g.top_k(tables[ids_from], k, axis=-1, sorted=0)
    picked = g.op("GatherElements", tables[weights_from], ids, axis=1)
    return ids, normalized(g, picked, scale=scale, epsilon=TINY)


def marked(g: RouterGraph, chosen: str, groups: int, ones: float = 1.0) -> str:
    """Ones at the chosen groups."""
    sizes = g.op("Concat", g.op("Slice", g.op("Shape", chosen), g.const([0]), g.const([1])), g.const([groups]), axis=0)
    zeros = g.op("ConstantOfShape", sizes, value=numpy_helper.from_array(np.zeros(1, np.float32)))
    updates = g.op("Expand", g.real(ones), g.op("Shape", chosen))
    return g.op("ScatterElements", zeros, chosen, updates, axis=1)


def spread(g: RouterGraph, mask: str, groups: int, size: int, interleaved: bool = False) -> str:
    """Each group's mark for each of its experts, with the shape computed as ``expand(-1, …)`` is."""
    wide = [-1, size, groups] if interleaved else [-1, groups, size]
    ones = g.op("ConstantOfShape", g.const([3]), value=numpy_helper.from_array(np.ones(1, np.int64)))
    target = g.const(wide)
    shape = g.op("Where", g.op("Equal", target, g.op("Mul", ones, g.const(-1))), ones, target)
    expanded = g.op("Expand", g.unsqueeze(mask, 1 if interleaved else -1), shape)
    return g.op("Reshape", expanded, g.const([-1, groups * size]))


def deepseek_v3_dynamo(g: RouterGraph, *, groups=3, top=1, k=4):
    """As torch.export and transformers 5 write it: -inf, zeros by Expand, ones by ConstantOfShape."""
    size = g.experts // groups
    scores = g.op("Sigmoid", g.logits())
    biased = g.op("Add", scores, g.initializer(BIAS))
    two, _ = g.top_k(g.op("Reshape", biased, g.const([-1, groups, size]), allowzero=1), 2)
    worth = g.reduce("ReduceSum", two, keepdims=0)
    chosen = g.top_k(worth, top, sorted=0)[1]
    zeros = g.op("Expand", g.real(0.0), g.op("Shape", worth, start=0))
    one = numpy_helper.from_array(np.ones(1, np.float32))
    mask = g.op("ScatterElements", zeros, chosen, g.op("ConstantOfShape", g.op("Shape", chosen), value=one), axis=1)
    wide = g.op("Expand", g.unsqueeze(mask, -1), g.const([1, groups, size]))
    member = g.cast(g.op("Reshape", wide, g.const([-1, g.experts]), allowzero=1), TensorProto.BOOL)
    masked = g.op("Where", g.op("Not", member), g.real(-np.inf), biased)
    _, ids = g.top_k(masked, k, sorted=0)
    return ids, normalized(g, g.op("GatherElements", scores, ids, axis=1), scale=2.5)


def deepseek_v2(g: RouterGraph, *, groups=4, top=2, k=3, by="max"):
    """The largest score of each group; the weights are the masked scores. The rows are counted on what comes before the
    logits: here they are a view of [batch, length, experts]."""
    size = g.experts // groups
    whole = g.input("whole", "batch", "length", g.experts)
    scores = g.op("Softmax", g.op("Reshape", whole, g.const([-1, g.experts])), axis=-1)
    sizes = g.op("Shape", whole)
    rows = g.op("Mul", *(g.op("Gather", sizes, g.const(axis), axis=0) for axis in (0, 1)))
    rows = g.unsqueeze(rows, 0)
    logits_rows = g.op("Reshape", scores, g.op("Concat", rows, g.const([-1]), axis=0))
    grouped = g.op("Reshape", logits_rows, g.op("Concat", rows, g.const([groups, size]), axis=0))
    worth = g.reduce("ReduceMax", grouped, keepdims=0)
    if by == "top1":
        worth = g.reduce("ReduceSum", g.top_k(grouped, 1)[0], keepdims=0)
    mask = spread(g, marked(g, g.top_k(worth, top, sorted=0)[1], groups), groups, size)
    kept = g.cast(g.op("Reshape", mask, g.op("Concat", rows, g.const([-1]), axis=0)), TensorProto.BOOL)
    masked = g.op("Where", g.op("Not", kept), g.real(0.0), logits_rows)
    values, ids = g.top_k(masked, k, sorted=0)
    return ids, g.op("Mul", values, g.real(16.0))


# ---- sparse mixer


def sparse_mixer(
    g: RouterGraph, *, jitters=(0.01, 0.01), removed=-np.inf, absolute=True, second_from="left", subtracted="logits"
):
    """Phi-3.5-MoE; the options after `jitters` get it wrong."""
    logits = g.logits()
    places, weights = [], []
    left = logits
    for jitter in jitters:
        largest, place = g.reduce("ReduceMax", left), g.op("ArgMax", left, axis=-1, keepdims=1)
        factor = g.op("Max", g.op("Abs", logits) if absolute else logits, g.cast(g.cast(largest)))
        other = logits if subtracted == "logits" else left
        far = g.op("Greater", g.op("Div", g.op("Sub", largest, other), factor), g.real(np.float32(2 * jitter)))
        near = g.op("Where", g.cast(far, TensorProto.BOOL), g.real(-np.inf), left)
        weights.append(g.op("GatherElements", g.op("Softmax", near, axis=-1), place, axis=-1))
        places.append(place)
        if second_from == "left" and len(places) == 1:
            gone = g.op("Expand", g.real(removed), g.op("Shape", place))
            left = g.op("ScatterElements", logits, place, gone, axis=-1)
    return g.op("Concat", *places, axis=-1), g.op("Concat", *weights, axis=-1)


def sparse_mixer_logits(random: np.random.Generator, tokens: int, experts: int = EXPERTS) -> np.ndarray:
    """Logits with near ties inside of the band of 2 %, negative ones among them."""
    base = random.standard_normal((tokens, 1)) * 3
    near = base * (1 + random.uniform(-0.03, 0.03, (tokens, experts)))
    far = random.standard_normal((tokens, experts)) * 3
    return np.where(random.random((tokens, experts)) < 0.5, near, far).astype(np.float32)


# ---- running


def built(spelling, graph: RouterGraph | None = None, **options) -> onnx.ModelProto:
    graph = graph or RouterGraph()
    return graph.model(*spelling(graph, **options))


def values_of(model: onnx.ModelProto) -> tuple[ir.Model, ir.Value, ir.Value]:
    """The model, and what its outputs ``ids`` and ``weights`` are."""
    read = ir.from_proto(model)
    ids, weights = (next(value for value in read.graph.outputs if value.name == name) for name in ("ids", "weights"))
    return read, ids, weights


def run_router(model: onnx.ModelProto, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ids and weights of the graph as it is, by ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"logits": logits, "whole": logits[None]}
    return tuple(session.run(["ids", "weights"], {value.name: feeds[value.name] for value in session.get_inputs()}))
