"""Rewriting: a layer becomes one node ``ort_hina::MoE``."""

from __future__ import annotations

import onnx_ir as ir

from .meanings import Linear
from .moe_layer import MoELayer
from .weight_windows import Windows, build_windows

DOMAIN = "ort_hina"
OPSET = 1


def is_moe_node(node: ir.Node) -> bool:
    return node.domain == DOMAIN and node.op_type == "MoE"


def make_moe_node(layer: MoELayer) -> tuple[ir.Node, list[ir.Value]]:
    """The node for `layer`, and the initializers that hold its windows. Nothing is added to the graph yet.

    Raises:
        Refusal: the weights cannot be put into windows.
    """
    windows = build_windows(_tensors(layer), f"{layer.output.name}.experts")
    values = [_initializer(tensor) for tensor in windows.tensors]
    attributes = {
        "num_experts": layer.num_experts,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "activation": layer.activation,
        "weight_on": "output",
    }
    for role, linears in layer.roles():
        attributes |= _role_attributes(role, linears, windows)
    output = ir.Value(name=layer.output.name, type=layer.output.type, shape=layer.output.shape)
    node = ir.Node(
        DOMAIN,
        "MoE",
        [layer.x, layer.ids, layer.weights, None, *values],
        ir.convenience.convert_attributes(attributes),
        outputs=[output],
        name=f"{layer.where}/MoE",
    )
    return node, values


def put_moe_node(graph: ir.Graph, layer: MoELayer, node: ir.Node, windows: list[ir.Value]) -> None:
    """Lets `node` compute the layer's output. What it replaces is left behind without a user."""
    for value in windows:
        graph.register_initializer(value)
    graph.insert_before(layer.output.producer(), node)
    layer.output.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
    # Two values of one graph cannot share a name, and the new one has to keep it.
    layer.output.name = f"{layer.output.name}.unfused"
    node.outputs[0].name = layer.output.name.removesuffix(".unfused")
    graph.opset_imports[DOMAIN] = OPSET


def _tensors(layer: MoELayer) -> list[ir.TensorProtocol]:
    """In the order of the experts, so that what is used together lies together in an inline window."""
    parts = [linear for expert in layer.experts for linear in (expert.gate, expert.up, expert.down) if linear is not None]
    return [tensor for part in parts for tensor in (part.matrix.tensor, part.bias) if tensor is not None]


def _initializer(tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)


def _role_attributes(role: str, linears: list[Linear], windows: Windows) -> dict[str, list[int]]:
    attributes = _places(role, [linear.matrix.tensor for linear in linears], windows)
    attributes[f"{role}_strides"] = list(linears[0].matrix.strides)
    if linears[0].bias is not None:
        attributes |= _places(f"{role}_bias", [linear.bias for linear in linears], windows)
    return attributes


def _places(prefix: str, tensors: list[ir.TensorProtocol], windows: Windows) -> dict[str, list[int]]:
    places = [windows.place(tensor) for tensor in tensors]
    attributes = {f"{prefix}_offsets": [offset for _, offset in places]}
    if any(window for window, _ in places):
        attributes[f"{prefix}_windows"] = [window for window, _ in places]
    return attributes
