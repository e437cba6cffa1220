"""Rewriting: attention becomes one node ``ort_hina::GroupQueryAttention``."""

from __future__ import annotations

import onnx_ir as ir

from .attention_layer import AttentionLayer
from .domain import DOMAIN, OPSET


def is_attention_node(node: ir.Node) -> bool:
    return node.domain == DOMAIN and node.op_type == "GroupQueryAttention"


def make_attention_node(layer: AttentionLayer) -> ir.Node:
    """The node for `layer`, with outputs that are called like those it replaces. Nothing is added to a graph yet."""
    outputs = [_like(layer.output)]
    if layer.present_key is not None:
        outputs += [_like(layer.present_key), _like(layer.present_value)]
    return ir.Node(
        DOMAIN,
        "GroupQueryAttention",
        layer.inputs(),
        ir.convenience.convert_attributes(_attributes(layer)),
        outputs=outputs,
        name=f"{layer.where}/GroupQueryAttention",
    )


def put_attention_node(graph: ir.Graph, layer: AttentionLayer, node: ir.Node) -> None:
    """Lets `node` compute what `layer` computes. What it replaces is left behind without a user.

    The graph may have to be sorted afterwards (`ir.Graph.sort`): a present cache may be used before the place of the node.
    """
    place = layer.output.producer()
    graph.insert_before(place, [new for new in layer.before if new.graph is None] + [node])
    for new in layer.before:
        for value in new.inputs:
            if value is not None and value.const_value is not None and value.graph is None:
                graph.register_initializer(value)
    for old, new in zip(replaced_values(layer), node.outputs, strict=True):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        # Two values of one graph cannot share a name, and the new one has to keep it.
        old.name, new.name = f"{old.name}.unfused", old.name
    graph.opset_imports[DOMAIN] = OPSET


def replaced_values(layer: AttentionLayer) -> tuple[ir.Value, ...]:
    """What the node's outputs stand for, in their order."""
    if layer.present_key is None:
        return (layer.output,)
    return layer.output, layer.present_key, layer.present_value


def _like(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape)


def _attributes(layer: AttentionLayer) -> dict[str, int | float]:
    attributes: dict[str, int | float] = {
        "num_heads": layer.num_heads,
        "kv_num_heads": layer.kv_num_heads,
        "scale": float(layer.scale),
    }
    if layer.cos_cache is not None:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(layer.rotary_interleaved)}
    if layer.softcap:
        attributes["softcap"] = float(layer.softcap)
    if layer.local_window_size != -1:
        attributes["local_window_size"] = layer.local_window_size
    if not layer.causal:
        attributes["causal"] = 0
    if layer.smooth_softmax:
        attributes["smooth_softmax"] = 1
    if layer.q_norm_weight is not None or layer.k_norm_weight is not None:
        attributes["qk_norm_epsilon"] = float(layer.qk_norm_epsilon)
    return attributes
