"""Rewriting: attention becomes one node ``ort_hina::GroupQueryAttention``."""

from __future__ import annotations

import onnx_ir as ir

from .attention_layer import AttentionLayer
from .domain import DOMAIN, OPSET


def is_attention_node(node: ir.Node) -> bool:
    return node.domain == DOMAIN and node.op_type == "GroupQueryAttention"


def make_attention_node(layer: AttentionLayer) -> ir.Node:
    """The node for `layer`, with outputs that are called like those it replaces. Nothing is added to a graph yet."""
    outputs = [_like(layer.output, layer.dtype)]
    for what, value in (("key", layer.present_key), ("value", layer.present_value)):
        # The operator has them whether they are used or not.
        outputs.append(_like(value or ir.Value(name=f"{layer.output.name}.present_{what}"), layer.dtype))
    return ir.Node(
        DOMAIN,
        "GroupQueryAttention",
        layer.inputs(),
        ir.convenience.convert_attributes(_attributes(layer)),
        outputs=outputs,
        name=f"{layer.where}/GroupQueryAttention",
    )


def put_attention_node(graph: ir.Graph, layer: AttentionLayer, node: ir.Node) -> tuple[ir.Value, ...]:
    """Lets `node` compute what `layer` computes. What it replaces is left behind without a user.

    The graph may have to be sorted afterwards (`ir.Graph.sort`): a present cache may be used before the place of the node.

    Returns:
        What now stands for each of `replaced_values`.
    """
    behind = exit_nodes(layer, node)
    nodes = [*(new for new in layer.before if new.graph is None), node, *behind]
    results = list(node.outputs)[: len(replaced_values(layer))]
    if behind:
        results[0] = behind[-1].outputs[0]
    graph.insert_before(layer.output.producer(), nodes)
    for old, new in zip(replaced_values(layer), results, strict=True):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        # Two values of one graph cannot share a name, and the new one has to keep it.
        old.name, new.name = f"{old.name}.unfused", old.name
    graph.opset_imports[DOMAIN] = OPSET
    return tuple(results)


def exit_nodes(layer: AttentionLayer, node: ir.Node) -> list[ir.Node]:
    """What makes of the first output of `node` what the graph takes: another type, or heads that are not joined."""
    made: list[ir.Node] = []
    value = node.outputs[0]

    def append(operator: str, *constants: list[int], **attributes) -> None:
        nonlocal value
        inputs = [value]
        for numbers in constants:
            made.append(_node("Constant", [], f"{node.name}/Constant", value=ir.tensor(numbers, dtype=ir.DataType.INT64)))
            inputs.append(made[-1].outputs[0])
        made.append(_node(operator, inputs, f"{node.name}/{operator}", **attributes))
        value = made[-1].outputs[0]
        value.type = ir.TensorType(layer.output_dtype or layer.dtype)

    if layer.output_dtype not in (None, layer.dtype):
        append("Cast", to=int(layer.output_dtype))
    if layer.output_axes == "heads first":
        append("Reshape", [0, 0, layer.num_heads, layer.value_head_size])
        append("Transpose", perm=[0, 2, 1, 3])
    if made:
        node.outputs[0].name = f"{layer.output.name}.attended"
        value.name = layer.output.name
    return made


def _node(operator: str, inputs: list[ir.Value], name: str, **attributes) -> ir.Node:
    node = ir.Node("", operator, inputs, ir.convenience.convert_attributes(attributes), name=name)
    node.outputs[0].name = name
    return node


def replaced_values(layer: AttentionLayer) -> tuple[ir.Value, ...]:
    """What the node's outputs stand for, in their order."""
    if layer.present_key is None:
        return (layer.output,)
    return layer.output, layer.present_key, layer.present_value


def _like(value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    return ir.Value(name=value.name, type=value.type if dtype is None else ir.TensorType(dtype), shape=value.shape)


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
