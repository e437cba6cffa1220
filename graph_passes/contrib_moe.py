"""Fusion: the operator com.microsoft::MoE, as the builder of onnxruntime-genai and hand-made models use it.

What it computes is what the CPU kernel of ONNX Runtime 1.32 was seen to compute (``tests/graph_passes/test_contrib_moe.py``
runs it), and where that kernel refuses, what the operator's schema says. Where the two disagree, the layer is refused.
QMoE is recognised and refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from .constants import initializer_tensor
from .meanings import Activation, Expert, Linear, Matrix, Refusal, Vector
from .moe_layer import MoELayer, Refused
from .routed_moe import WEIGHT_TYPES
from .router_spec import RouterCall, RouterSpec
from .shapes import Shapes
from .slices import where_of

DOMAIN = "com.microsoft"

# Name → type, and the schema's default. swiglu_limit has none: absent, nothing is clamped (0 is a limit).
_ATTRIBUTES: dict[str, tuple[ir.AttributeType, Any]] = {
    "activation_type": (ir.AttributeType.STRING, "relu"),
    "k": (ir.AttributeType.INT, 1),
    "normalize_routing_weights": (ir.AttributeType.INT, 0),
    "use_sparse_mixer": (ir.AttributeType.INT, 0),
    "swiglu_fusion": (ir.AttributeType.INT, 0),
    "activation_alpha": (ir.AttributeType.FLOAT, 1.0),
    "activation_beta": (ir.AttributeType.FLOAT, 0.0),
    "swiglu_limit": (ir.AttributeType.FLOAT, None),
    "swiglu_limit_after_activation": (ir.AttributeType.INT, 0),
}
_INPUTS = (
    "input",
    "router_probs",
    "fc1_experts_weights",
    "fc1_experts_bias",
    "fc2_experts_weights",
    "fc2_experts_bias",
    "fc3_experts_weights",
    "fc3_experts_bias",
)
# One matrix. The kernel's gelu is the one with tanh.
_PLAIN = {"relu": "relu", "gelu": "gelu_tanh", "silu": "silu", "identity": "identity"}
# Two, by swiglu_fusion.
_ARRANGEMENTS = {0: "separate", 1: "interleaved", 2: "concatenated"}


def find(graph: ir.Graph, shapes: Shapes | None = None) -> list[MoELayer | Refused]:
    """Every com.microsoft MoE and QMoE node of `graph`, in order. The graph is not changed.

    Args:
        shapes: what is known about the graph's shapes already.
    """
    shapes = shapes or Shapes()
    return [_read(node, shapes) for node in graph if node.domain == DOMAIN and node.op_type in ("MoE", "QMoE")]


def _read(node: ir.Node, shapes: Shapes) -> MoELayer | Refused:
    try:
        if node.op_type == "QMoE":
            raise Refusal(f"quantised weights ({_quantisation(node)}): recognised, not run yet")
        return _layer(node, shapes)
    except Refusal as refusal:
        experts = _experts_of(node)
        reason = f"{refusal} ({node.op_type} {node.name!r})"
        return Refused(where_of(node), reason, node.name or node.op_type, experts or 0, experts, _value(node, "k", 1))


def _layer(node: ir.Node, shapes: Shapes) -> MoELayer:
    settings = _settings(node)
    inputs = _inputs(node)
    tensors = {name: _tensor(name, inputs[name]) for name in _INPUTS[2:] if name in inputs}
    sizes = _sizes(tensors, settings, _width(shapes, inputs["input"], "input", (2, 3)))
    if settings.k > sizes.experts:
        raise Refusal(f"attribute 'k' is {settings.k}, and there are {sizes.experts} experts")
    scored = _width(shapes, inputs["router_probs"], "router_probs", (2,))
    if scored not in (None, sizes.experts):
        raise Refusal(f"input 1 (router_probs) has {scored} columns, and there are {sizes.experts} experts")
    stack = _stack(tensors, settings, sizes)
    # router_probs are logits, whatever the name says: the kernel takes their softmax over all experts, then the k largest.
    # Of equal scores it takes the higher id first, other kernels the lower one: the schema leaves that open.
    spec = RouterSpec(k=settings.k, score="softmax", normalize=settings.normalize)
    return MoELayer(
        where=where_of(node),
        x=inputs["input"],
        ids=None,
        weights=None,
        output=node.outputs[0],
        k=settings.k,
        experts=tuple(stack.of(expert) for expert in range(sizes.experts)),
        nodes=(node,),
        router=RouterCall(spec, inputs["router_probs"]),
        pattern="com.microsoft MoE",
    )


# ---- attributes


@dataclass(frozen=True)
class _Settings:
    k: int
    normalize: bool
    activation: Activation
    arrangement: str
    """Where the up matrix is: ``none``, ``separate`` (fc3), ``interleaved`` or ``concatenated`` (in fc1)."""


def _settings(node: ir.Node) -> _Settings:
    values = _attributes(node)
    if values["use_sparse_mixer"] != 0:
        # The CPU kernel insists on k = 2 and then ignores it; other kernels follow it.
        raise Refusal("attribute 'use_sparse_mixer' is set: ONNX Runtime's kernels disagree about what it means")
    if values["swiglu_limit_after_activation"] != 0:
        raise Refusal("attribute 'swiglu_limit_after_activation' is set, which is not supported")
    if values["normalize_routing_weights"] not in (0, 1):
        raise Refusal(f"attribute 'normalize_routing_weights' is {values['normalize_routing_weights']}, expected 0 or 1")
    if values["k"] < 1:
        raise Refusal(f"attribute 'k' is {values['k']}, expected at least 1")
    activation, arrangement = _activation(values)
    return _Settings(values["k"], values["normalize_routing_weights"] == 1, activation, arrangement)


def _attributes(node: ir.Node) -> dict[str, Any]:
    """All of them, with the defaults of those that are absent."""
    values = {name: default for name, (_, default) in _ATTRIBUTES.items()}
    for name, attribute in node.attributes.items():
        if name not in _ATTRIBUTES:
            raise Refusal(f"attribute {name!r} is not known")
        expected = _ATTRIBUTES[name][0]
        if attribute.is_ref() or attribute.type != expected:
            raise Refusal(f"attribute {name!r} is not a constant of type {expected.name}")
        values[name] = attribute.value
    return values


def _activation(values: dict[str, Any]) -> tuple[Activation, str]:
    name, fusion = values["activation_type"], values["swiglu_fusion"]
    if name in _PLAIN:
        # The CPU kernel ignores the attributes of swiglu here. Nobody sets them without meaning something by it.
        _expect_defaults(values, name, "swiglu_fusion", "activation_alpha", "activation_beta", "swiglu_limit")
        return Activation(_PLAIN[name]), "none"
    if name not in ("swiglu", "geglu"):
        raise Refusal(f"attribute 'activation_type' is {name!r}, which is not supported")
    if fusion not in _ARRANGEMENTS or (name == "geglu" and fusion == 0):
        expected = "1 or 2" if name == "geglu" else "0, 1 or 2"
        raise Refusal(f"attribute 'swiglu_fusion' is {fusion}, expected {expected} with {name!r}")
    if name == "geglu":
        _expect_defaults(values, name, "activation_alpha", "activation_beta", "swiglu_limit")
        return Activation("gelu_tanh"), _ARRANGEMENTS[fusion]
    return _swiglu(values["activation_alpha"], values["activation_beta"], values["swiglu_limit"]), _ARRANGEMENTS[fusion]


def _swiglu(alpha: float, beta: float, limit: float | None) -> Activation:
    """min(g, limit) · sigmoid(alpha · min(g, limit)) · (clamp(u, -limit, limit) + beta)"""
    for name, number in (("activation_alpha", alpha), ("activation_beta", beta)):
        if not math.isfinite(number):
            raise Refusal(f"attribute {name!r} is {number}, expected a finite number")
    if limit is not None and not limit >= 0:  # the kernel aborts the process when it meets a negative one
        raise Refusal(f"attribute 'swiglu_limit' is {limit}, expected a number that is not negative")
    if limit is None or math.isinf(limit):
        if (alpha, beta) == (1, 0):
            return Activation("silu")  # the same function, and the usual name for it
        limit = None
    return Activation("swiglu_oai", alpha, beta, limit)


def _expect_defaults(values: dict[str, Any], activation: str, *names: str) -> None:
    for name in names:
        if values[name] != _ATTRIBUTES[name][1]:
            raise Refusal(f"attribute {name!r} is {values[name]}, and {activation!r} has no use for it")


# ---- inputs


def _inputs(node: ir.Node) -> dict[str, ir.Value]:
    """Those that are given, by name."""
    for position, value in enumerate(node.inputs):
        if position >= len(_INPUTS) and value is not None:
            raise Refusal(f"input {position} is not known")
    given = {name: value for name, value in zip(_INPUTS, node.inputs, strict=False) if value is not None}
    for name in ("input", "router_probs", "fc1_experts_weights", "fc2_experts_weights"):
        if name not in given:
            raise Refusal(f"{_label(name)} is missing")
    return given


def _label(name: str) -> str:
    return f"input {_INPUTS.index(name)} ({name})"


def _tensor(name: str, value: ir.Value) -> ir.TensorProtocol:
    tensor = initializer_tensor(value)
    if tensor is None:
        producer = value.producer()
        kind = f"computed by {producer.op_type} {producer.name!r}" if producer else "an input of the model"
        raise Refusal(f"{_label(name)} is {kind}, expected a constant initializer")
    if tensor.dtype not in WEIGHT_TYPES:
        raise Refusal(f"{_label(name)} is of type {tensor.dtype.name}, expected float, float16 or bfloat16")
    return tensor


def _width(shapes: Shapes, value: ir.Value, name: str, ranks: tuple[int, ...]) -> int | None:
    """The last dimension, where it is known."""
    shape = shapes.shape(value)
    if shape is None:
        return None
    if len(shape) not in ranks:
        raise Refusal(f"{_label(name)} has rank {len(shape)}, expected {' or '.join(map(str, ranks))}")
    return shapes.dims.simplify(shape[-1]).constant


@dataclass(frozen=True)
class _Sizes:
    experts: int
    hidden: int
    inter: int


def _sizes(tensors: dict[str, ir.TensorProtocol], settings: _Settings, width: int | None) -> _Sizes:
    """Checks that all tensors fit together and to the tokens' width, if it is known."""
    first, second = (tuple(tensors[f"{fc}_experts_weights"].shape) for fc in ("fc1", "fc2"))
    if len(second) != 3 or 0 in second:
        raise Refusal(f"{_label('fc2_experts_weights')} has shape {_text(second)}, expected [experts, hidden, intermediate]")
    sizes = _Sizes(second[0], width or second[1], second[2])
    fused = 2 if settings.arrangement in ("interleaved", "concatenated") else 1
    rows = fused * sizes.inter
    _check_layout(first, second, fused, sizes.hidden)
    expected = {
        "fc1_experts_weights": (sizes.experts, rows, sizes.hidden),
        "fc1_experts_bias": (sizes.experts, rows),
        "fc2_experts_weights": (sizes.experts, sizes.hidden, sizes.inter),
        "fc2_experts_bias": (sizes.experts, sizes.hidden),
        "fc3_experts_weights": (sizes.experts, sizes.inter, sizes.hidden),
        "fc3_experts_bias": (sizes.experts, sizes.inter),
    }
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected[name]:
            raise Refusal(f"{_label(name)} has shape {_text(tensor.shape)}, expected {_text(expected[name])}")
        if tensor.dtype != tensors["fc1_experts_weights"].dtype:
            raise Refusal(f"{_label(name)} is of type {tensor.dtype.name}, unlike fc1_experts_weights")
    _check_third(tensors, settings)
    return sizes


def _check_layout(first: tuple[int, ...], second: tuple[int, ...], fused: int, hidden: int) -> None:
    """Not that of an older schema, [E, H, fused · I] and [E, I, H]. The CPU kernel accepts these shapes and reads the bytes
    as if they were of the shapes of today, so that nobody can tell which of the two the writer meant."""
    experts, inter, width = second
    today = (experts, fused * inter, hidden), (experts, hidden, inter)
    if width == hidden and first == (experts, hidden, fused * inter) and (first, second) != today:
        raise Refusal(
            f"fc1_experts_weights {_text(first)} and fc2_experts_weights {_text(second)} are in the layout of an older "
            f"schema, expected {_text(today[0])} and {_text(today[1])}"
        )


def _check_third(tensors: dict[str, ir.TensorProtocol], settings: _Settings) -> None:
    given = [name for name in ("fc3_experts_weights", "fc3_experts_bias") if name in tensors]
    if settings.arrangement == "separate" and "fc3_experts_weights" not in given:
        raise Refusal(f"{_label('fc3_experts_weights')} is missing, which swiglu with swiglu_fusion=0 reads")
    if settings.arrangement != "separate" and given:
        raise Refusal(f"{_label(given[0])} is given, and only swiglu with swiglu_fusion=0 reads it")


def _text(shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


# ---- experts


def _stack(tensors: dict[str, ir.TensorProtocol], settings: _Settings, sizes: _Sizes) -> Expert:
    """All experts at once, as views of the tensors."""
    inter, hidden = sizes.inter, sizes.hidden
    down = _linear(tensors, "fc2", inter, hidden)
    if settings.arrangement == "none":
        return Expert(settings.activation, _linear(tensors, "fc1", hidden, inter), None, down)
    if settings.arrangement == "separate":
        gate, up = (_linear(tensors, fc, hidden, inter) for fc in ("fc1", "fc3"))
    elif settings.arrangement == "interleaved":  # row 2n is gate's, row 2n + 1 up's
        gate, up = (_linear(tensors, "fc1", hidden, inter, first=part, step=2) for part in (0, 1))
    else:
        gate, up = (_linear(tensors, "fc1", hidden, inter, first=part * inter) for part in (0, 1))
    return Expert(settings.activation, gate, up, down)


def _linear(
    tensors: dict[str, ir.TensorProtocol], fc: str, inputs: int, outputs: int, first: int = 0, step: int = 1
) -> Linear:
    """The rows `first`, `first` + `step`, ... of every expert's matrix [rows, inputs], and as many elements of its bias."""
    tensor, bias = tensors[f"{fc}_experts_weights"], tensors.get(f"{fc}_experts_bias")
    experts, rows = tensor.shape[0], tensor.shape[1]
    matrix = Matrix(tensor, inputs, outputs, (1, step * inputs), first * inputs, experts, rows * inputs)
    return Linear(matrix, None if bias is None else Vector(bias, outputs, step, first, experts, rows))


# ---- for refusals


def _value(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute that may be of any type: `default` where it is absent, or not of the default's type."""
    attribute = node.attributes.get(name)
    is_usable = attribute is not None and not attribute.is_ref() and isinstance(attribute.value, type(default))
    return attribute.value if is_usable else default


def _experts_of(node: ir.Node) -> int | None:
    """How many experts a MoE or QMoE has: the first dimension of fc1, which is input 2 of both."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    shape = None if value is None else value.shape
    return shape[0] if shape is not None and len(shape) and isinstance(shape[0], int) else None


def _quantisation(node: ir.Node) -> str:
    kind, bits = _value(node, "quant_type", "int"), _value(node, "expert_weight_bits", 4)
    if kind == "int":
        widths = {_value(node, f"fc{i}_expert_weight_bits", bits) for i in (1, 2)}
        kind = " and ".join(f"int{width}" for width in sorted(widths))
    block = _value(node, "block_size", 0)
    return f"{kind}, block {block}" if block > 0 else f"{kind}, one scale for each row"
