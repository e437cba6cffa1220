"""Rewriting: a layer becomes one node ``ort_hina::MoE`` (and what chooses its experts, where the graph does not)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .domain import DOMAIN, OPSET
from .meanings import Linear, Matrix, Vector
from .moe_layer import MoELayer
from .router_node import make_router_node
from .weight_windows import Windows, build_windows


def is_moe_node(node: ir.Node) -> bool:
    return node.domain == DOMAIN and node.op_type == "MoE"


@dataclass(frozen=True)
class Replacement:
    """`nodes` in order, the last of which is the MoE node; `windows` are the initializers that hold its weights."""

    nodes: tuple[ir.Node, ...]
    windows: tuple[ir.Value, ...]

    @property
    def output(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


def make_replacement(layer: MoELayer) -> Replacement:
    """The nodes for `layer`. Nothing is added to the graph yet."""
    windows = build_windows(_tensors(layer), f"{layer.output.name}.experts")
    values = tuple(_initializer(tensor) for tensor in windows.tensors)
    before, ids, weights = _routed(layer)
    output = ir.Value(name=layer.output.name, type=layer.output.type, shape=layer.output.shape)
    node = ir.Node(
        DOMAIN,
        "MoE",
        [layer.x, ids, weights, layer.addend, *values],
        ir.convenience.convert_attributes(_attributes(layer, windows)),
        outputs=[output],
        name=f"{layer.where}/MoE",
    )
    return Replacement((*before, node), values)


def put_replacement(graph: ir.Graph, layer: MoELayer, replacement: Replacement) -> None:
    """Lets `replacement` compute the layer's output. What it replaces is left behind without a user."""
    for value in replacement.windows:
        graph.register_initializer(value)
    graph.insert_before(layer.output.producer(), replacement.nodes)
    layer.output.replace_all_uses_with(replacement.output, replace_graph_outputs=True)
    # Two values of one graph cannot share a name, and the new one has to keep it.
    layer.output.name = f"{layer.output.name}.unfused"
    replacement.output.name = layer.output.name.removesuffix(".unfused")
    graph.opset_imports[DOMAIN] = OPSET


def _routed(layer: MoELayer) -> tuple[tuple[ir.Node, ...], ir.Value | None, ir.Value | None]:
    """What has to run before the MoE node, and the ids and weights that it takes."""
    if layer.router is not None:
        names = (ir.Value(name=f"{layer.output.name}.{what}") for what in ("expert_ids", "expert_weights"))
        router = make_router_node(layer.router, f"{layer.where}/Router", *names)
        return (router,), *router.outputs
    if layer.weight_function == "none":
        return (), layer.ids, layer.weights
    operator = {"sigmoid": "Sigmoid", "softmax": "Softmax"}[layer.weight_function]
    node = ir.Node("", operator, [layer.weights], name=f"{layer.where}/{operator}")
    node.outputs[0].name = f"{layer.output.name}.weights"
    node.outputs[0].type = layer.weights.type
    return (node,), layer.ids, node.outputs[0]


def _attributes(layer: MoELayer, windows: Windows) -> dict:
    activation = layer.activation
    attributes = {
        "num_experts": layer.num_experts,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "activation": activation.name,
        "weight_on": layer.weight_on,
        "window_types": [int(dtype) for dtype in windows.types],
    }
    for name, value in (
        ("activation_alpha", activation.alpha),
        ("activation_beta", activation.beta),
        ("swiglu_limit", activation.limit),
    ):
        if value is not None:
            attributes[name] = float(value)
    if layer.missing:
        attributes["missing_experts"] = "skip"
    for role, linears in layer.roles():
        attributes |= _role_attributes(role, linears, windows)
    if layer.sigmoid_gate is not None:
        attributes |= _places("sigmoid_gate", [layer.sigmoid_gate] * layer.num_experts, windows)
        attributes["sigmoid_gate_stride"] = layer.sigmoid_gate.stride
    return attributes


def _tensors(layer: MoELayer) -> list[ir.TensorProtocol]:
    """In the order of the experts, so that what is used together lies together in an inline window."""
    experts = [expert for expert in layer.experts if expert is not None]
    parts = [linear for expert in experts for linear in (expert.gate, expert.up, expert.down) if linear is not None]
    tensors = [part.tensor for linear in parts for part in (linear.matrix, linear.bias) if part is not None]
    return tensors if layer.sigmoid_gate is None else [*tensors, layer.sigmoid_gate.tensor]


def _initializer(tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)


def _role_attributes(role: str, linears: list[Linear | None], windows: Windows) -> dict[str, int | list[int]]:
    known = next(linear for linear in linears if linear is not None)
    attributes = _places(role, [linear and linear.matrix for linear in linears], windows)
    attributes[f"{role}_strides"] = list(known.matrix.strides)
    if known.bias is not None:
        attributes |= _places(f"{role}_bias", [linear and linear.bias for linear in linears], windows)
        if role != "down":
            attributes[f"{role}_bias_stride"] = known.bias.stride
    return attributes


def _places(prefix: str, parts: list[Matrix | Vector | None], windows: Windows) -> dict[str, list[int]]:
    places = [(0, -1) if part is None else _place(part, windows) for part in parts]
    attributes = {f"{prefix}_offsets": [offset for _, offset in places]}
    if any(window for window, _ in places):
        attributes[f"{prefix}_windows"] = [window for window, _ in places]
    return attributes


def _place(part: Matrix | Vector, windows: Windows) -> tuple[int, int]:
    window, offset = windows.place(part.tensor)
    return window, offset + part.offset * np.dtype(part.dtype.numpy()).itemsize
