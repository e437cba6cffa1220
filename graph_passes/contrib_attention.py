"""Reads the operators com.microsoft GroupQueryAttention and MultiHeadAttention as layers of attention.

What they compute is what ONNX Runtime's CPU kernels were seen to compute (``tests/graph_passes/test_contrib_attention.py``
runs them), and where these refuse, what the schema says.
"""

from __future__ import annotations

import onnx_ir as ir

from .attention_layer import AttentionLayer
from .attention_operands import (
    Attributes,
    attributes_of,
    caches_of,
    element_type,
    operands_of,
    quotient_of,
    shape_of,
    used_output,
)
from .meanings import Refusal
from .residual_shapes import same_shape
from .shapes import Shapes
from .slices import where_of

DOMAIN = "com.microsoft"

WINDOWS_AS_OURS = (1, 24)
"""The first version of ONNX Runtime in which a window of w keys counts the query's own among them; before, it took one
more."""

_INT, _FLOAT, _STRING = ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING

# ---- GroupQueryAttention

_GROUPED: Attributes = {
    "num_heads": (_INT, None),
    "kv_num_heads": (_INT, None),
    "scale": (_FLOAT, 0.0),
    "softcap": (_FLOAT, 0.0),
    "local_window_size": (_INT, -1),
    "causal": (_INT, 1),
    "do_rotary": (_INT, 0),
    "rotary_interleaved": (_INT, 0),
    "smooth_softmax": (_INT, -1),
    "qk_norm_epsilon": (_FLOAT, 1e-6),
    "q_norm_epsilon": (_FLOAT, None),
    "k_norm_epsilon": (_FLOAT, None),
    "qk_output": (_INT, 0),
    "sliding_window_cache": (_INT, 0),
    "kv_cache_bit_width": (_INT, 0),
    "k_quant_type": (_STRING, "NONE"),
    "v_quant_type": (_STRING, "NONE"),
}
_UNSUPPORTED = {
    "qk_output": "the scores as an output are not supported",
    "sliding_window_cache": "a cache that keeps the window alone is not supported",
    "kv_cache_bit_width": "quantised caches are not supported",
    "k_quant_type": "quantised caches are not supported",
    "v_quant_type": "quantised caches are not supported",
}
_GROUPED_INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens",
)  # fmt: skip
_GROUPED_REFUSED = {
    "position_ids": "of a prompt ONNX Runtime reads only the first one, so nobody can tell what the others mean",
    "k_scale": "quantised caches are not supported",
    "v_scale": "quantised caches are not supported",
    "query_seqlens": "not supported",
}


def group_query_attention(node: ir.Node, shapes: Shapes, onnxruntime: tuple[int, int]) -> AttentionLayer:
    """Raises `Refusal`."""
    values = attributes_of(node, _GROUPED)
    for name, reason in _UNSUPPORTED.items():
        if values[name] not in (_GROUPED[name][1], None):
            raise Refusal(f"attribute {name!r} is {values[name]}: {reason}")
    if values["local_window_size"] != -1 and onnxruntime < WINDOWS_AS_OURS:
        raise Refusal("attribute 'local_window_size' is set, which in this version of ONNX Runtime means one key more")
    if values["local_window_size"] != -1 and not values["causal"]:
        raise Refusal("attribute 'local_window_size' is set and 'causal' is 0, which is not supported")
    if used_output(node, 3) is not None:
        raise Refusal("output 3 (output_qk) is used, which is not supported")
    given = operands_of(node, _GROUPED_INPUTS, _GROUPED_REFUSED)
    heads, kv_heads, size = _grouped_sizes(values, given, shapes)
    if not values["do_rotary"]:
        given = {name: value for name, value in given.items() if name not in ("cos_cache", "sin_cache")}
    inputs = ("seqlens_k", "total_sequence_length", "cos_cache", "sin_cache", "attention_bias", "head_sink")
    return AttentionLayer(
        where=where_of(node),
        query=given["query"],
        key=given.get("key"),
        value=given.get("value"),
        output=node.outputs[0],
        num_heads=heads,
        kv_num_heads=kv_heads,
        head_size=size,
        value_head_size=size,
        nodes=(node,),
        **caches_of(node, given),
        **{name: given.get(name) for name in (*inputs, "q_norm_weight", "k_norm_weight")},
        scale=values["scale"],
        softcap=values["softcap"],
        local_window_size=values["local_window_size"],
        causal=bool(values["causal"]),
        rotary_interleaved=bool(values["rotary_interleaved"]),
        smooth_softmax=values["smooth_softmax"] == 1,
        qk_norm_epsilon=_norm_epsilon(values, given),
        dtype=element_type(given["query"], "query"),
        pattern="com.microsoft GroupQueryAttention",
    )


def _grouped_sizes(values: dict, given: dict[str, ir.Value], shapes: Shapes) -> tuple[int, int, int]:
    """Heads of queries, heads of keys, and the size of a head."""
    for name in ("query", "seqlens_k", "total_sequence_length"):
        if name not in given:
            raise Refusal(f"input {_GROUPED_INPUTS.index(name)} ({name}) is missing")
    if ("key" in given) != ("value" in given):
        raise Refusal("one of key and value is given without the other")
    if values["do_rotary"] and not {"cos_cache", "sin_cache"} <= given.keys():
        raise Refusal("attribute 'do_rotary' is set without cos_cache and sin_cache")
    heads, kv_heads = values["num_heads"], values["kv_num_heads"]
    if not heads or not kv_heads or heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise Refusal(f"attribute 'num_heads' is {heads}, expected a multiple of 'kv_num_heads' ({kv_heads})")
    packed = heads if "key" in given else heads + 2 * kv_heads
    return heads, kv_heads, quotient_of(shape_of(shapes, given["query"], "query", (3,))[-1], packed, "query")


def _norm_epsilon(values: dict, given: dict[str, ir.Value]) -> float:
    of_each = {
        values[f"{which}_norm_epsilon"] if values[f"{which}_norm_epsilon"] is not None else values["qk_norm_epsilon"]
        for which in "qk"
        if f"{which}_norm_weight" in given
    }
    if len(of_each) > 1:
        raise Refusal("q_norm_epsilon and k_norm_epsilon differ, which is not supported")
    return next(iter(of_each), values["qk_norm_epsilon"])


# ---- MultiHeadAttention

_MULTI_HEAD: Attributes = {
    "num_heads": (_INT, None),
    "scale": (_FLOAT, 0.0),
    "unidirectional": (_INT, 0),
    "mask_filter_value": (_FLOAT, -10000.0),  # what hidden scores get: of the causal ones, next to nothing is left
}
_MULTI_HEAD_INPUTS = (
    "query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value", "past_sequence_length",
    "cache_indirection",
)  # fmt: skip
_MULTI_HEAD_REFUSED = {
    "bias": "a bias of the projections is not supported",
    "key_padding_mask": "not supported",
    "past_sequence_length": "shared caches of this operator are not supported",
    "cache_indirection": "beam search inside the operator is not supported",
}


def multi_head_attention(node: ir.Node, shapes: Shapes) -> AttentionLayer:
    """Raises `Refusal`."""
    values = attributes_of(node, _MULTI_HEAD)
    if used_output(node, 3) is not None:
        raise Refusal("output 3 (qk) is used, which is not supported")
    given = operands_of(node, _MULTI_HEAD_INPUTS, _MULTI_HEAD_REFUSED)
    for name in ("query", "key", "value"):
        if name not in given:
            raise Refusal(f"input {_MULTI_HEAD_INPUTS.index(name)} ({name}) is missing: packed forms are not supported")
    query, key, value = (shape_of(shapes, given[name], name, (3,)) for name in ("query", "key", "value"))
    if not same_shape(query[:2], key[:2], shapes) or not same_shape(query[:2], value[:2], shapes):
        raise Refusal("key and value are not proved to be of the query's tokens (cross attention is not supported)")
    heads = values["num_heads"] or 0
    sizes = [quotient_of(shape[-1], heads, name) for name, shape in zip(("query", "value"), (query, value), strict=True)]
    return AttentionLayer(
        where=where_of(node),
        query=given["query"],
        key=given["key"],
        value=given["value"],
        output=node.outputs[0],
        num_heads=heads,
        kv_num_heads=heads,
        head_size=sizes[0],
        value_head_size=sizes[1],
        nodes=(node,),
        **caches_of(node, given),
        attention_bias=given.get("attention_bias"),
        scale=values["scale"],
        causal=bool(values["unidirectional"]),
        dtype=element_type(given["query"], "query"),
        pattern="com.microsoft MultiHeadAttention",
    )
