"""Reads ONNX's own Attention (opsets 23 to 25) as a layer of attention.

It means what the standard says: a causal query sees keys up to its own position, counted from the beginning of the past;
rows that see nothing give 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
from .constants import attribute, is_standard
from .dims import INFERRED, ONE, Dim
from .dtypes import dtype
from .meanings import Refusal
from .shapes import Shapes
from .slices import where_of

_INT, _FLOAT = ir.AttributeType.INT, ir.AttributeType.FLOAT

_ATTRIBUTES: Attributes = {
    "is_causal": (_INT, 0),
    "scale": (_FLOAT, None),
    "softcap": (_FLOAT, 0.0),
    "q_num_heads": (_INT, None),
    "kv_num_heads": (_INT, None),
    "softmax_precision": (_INT, None),
    "qk_matmul_output_mode": (_INT, 0),
    "left_window_size": (_INT, -1),
    "right_window_size": (_INT, -1),
}
_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_REFUSED = {"nonpad_kv_seqlen": "a cache that is written outside of the node is not supported"}
_BIAS_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class _Sizes:
    batch: Dim
    tokens: Dim
    total: Dim | None
    """Keys, old and new; None: not known by any name."""
    heads: int
    kv_heads: int
    head_size: int
    value_head_size: int


class StandardAttention:
    """Reads the nodes of one graph; layers with one mask share what is made of it."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._biases: dict[ir.Value, tuple[tuple[ir.Node, ...], ir.Value]] = {}

    def read(self, node: ir.Node) -> AttentionLayer:
        """Raises `Refusal`."""
        values = attributes_of(node, _ATTRIBUTES)
        given = operands_of(node, _INPUTS, _REFUSED)
        for name in ("Q", "K", "V"):
            if name not in given:
                raise Refusal(f"input {_INPUTS.index(name)} ({name}) is missing")
        if used_output(node, 3) is not None:
            raise Refusal("output 3 (qk_matmul_output) is used, which is not supported")
        if values["softmax_precision"] == ir.DataType.DOUBLE:
            raise Refusal("attribute 'softmax_precision' asks for double, which is not supported")
        if values["scale"] is not None and values["scale"] == 0:
            raise Refusal("attribute 'scale' is 0, which is not supported")
        tokens = self._new_tokens(node, given, values)
        sizes = self._sizes(given, values, tokens)
        output, behind = self._merged(node, sizes, len(self._shape(given["Q"], "Q")))
        before, mask = self._mask(given.get("attn_mask"), sizes)
        return AttentionLayer(
            where=where_of(node),
            query=given["Q"],
            output=output,
            num_heads=sizes.heads,
            kv_num_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            value_head_size=sizes.value_head_size,
            nodes=(node, *behind),
            **tokens,
            **mask,
            **_visibility(values),
            scale=values["scale"] or 0.0,
            softcap=values["softcap"],
            dtype=element_type(given["Q"], "Q"),
            before=before,
            pattern=f"ONNX Attention with {'a mask' if mask else 'no mask'}",
        )

    # ---- keys and values

    def _new_tokens(self, node: ir.Node, given: dict[str, ir.Value], values: dict[str, Any]) -> dict[str, ir.Value | None]:
        """Keys and values of the new tokens, and the caches. Exporters join old and new before the node as well."""
        caches = caches_of(node, given)
        joined = [_joined(given[name]) for name in ("K", "V")]
        if caches["past_key"] is not None or None in joined:
            return {"key": given["K"], "value": given["V"], **caches}
        if values["is_causal"]:
            raise Refusal("'is_causal' counts positions from the first key, and the keys of a past come before the new ones")
        (past_key, key), (past_value, value) = joined
        for present in (used_output(node, 1), used_output(node, 2)):
            if present is not None:
                raise Refusal("the node has present outputs, and the past is joined before it")
        return {
            "key": key,
            "value": value,
            "past_key": past_key,
            "past_value": past_value,
            "present_key": given["K"],
            "present_value": given["V"],
        }

    # ---- sizes

    def _sizes(self, given: dict[str, ir.Value], values: dict[str, Any], tokens: dict[str, ir.Value | None]) -> _Sizes:
        query = self._shape(given["Q"], "Q")
        key, value = self._shape(tokens["key"], "K"), self._shape(tokens["value"], "V")
        heads, kv_heads = self._heads(query, values["q_num_heads"]), self._heads(key, values["kv_num_heads"])
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise Refusal(f"{heads} heads of queries, expected a multiple of those of keys ({kv_heads})")
        for name, shape in (("K", key), ("V", value)):
            if not self._same(shape[0], query[0]) or not self._same(shape[-2 if len(shape) == 4 else 1], _tokens(query)):
                raise Refusal(f"{name} is not proved to be of the query's tokens (cross attention is not supported)")
        return _Sizes(
            query[0],
            _tokens(query),
            self._total(tokens, _tokens(query)),
            heads,
            kv_heads,
            quotient_of(query[-1], heads if len(query) == 3 else 1, "Q"),
            quotient_of(value[-1], kv_heads if len(value) == 3 else 1, "V"),
        )

    def _heads(self, shape: Sequence[Dim], named: int | None) -> int:
        if len(shape) == 3:
            if named is None:
                raise Refusal("the numbers of heads are missing, and the inputs have rank 3")
            return named
        if shape[1].constant is None:
            raise Refusal("the number of heads could not be worked out")
        return shape[1].constant

    def _total(self, tokens: dict[str, ir.Value | None], new: Dim) -> Dim | None:
        if tokens["past_key"] is None:
            return new
        present = tokens.get("present_key")
        shape = None if present is None else self._shapes.shape(present)
        return None if shape is None else shape[-2]

    # ---- the mask

    def _mask(self, mask: ir.Value | None, sizes: _Sizes) -> tuple[tuple[ir.Node, ...], dict[str, ir.Value]]:
        """New nodes, and the node's input for the mask."""
        if mask is None:
            return (), {}
        shape = shape_of(self._shapes, mask, "attn_mask", (2, 3, 4))
        whole = (ONE,) * (4 - len(shape)) + shape
        if sizes.total is None or not self._same(whole[3], sizes.total):
            raise Refusal("attn_mask is not proved to be as wide as there are keys")
        if not any(self._same(whole[0], size) for size in (ONE, sizes.batch)) or whole[1].constant not in (1, sizes.heads):
            raise Refusal("attn_mask is not proved to fit the batch and the heads")
        kind = dtype(mask)
        if kind == ir.DataType.BOOL and whole[1] == whole[2] == ONE != whole[0] and len(shape) == 4:
            return self._of_keys(mask)
        if not self._same(whole[2], sizes.tokens):
            raise Refusal("attn_mask is not proved to have a row for each query")
        if kind not in (*_BIAS_TYPES, ir.DataType.BOOL):
            came = kind.name if kind else "not known"
            raise Refusal(f"attn_mask is of type {came}, expected bool or a floating-point type")
        if kind != ir.DataType.BOOL and len(shape) == 4:
            return (), {"attention_bias": mask}
        nodes, bias = self._made(mask, lambda: _bias(mask, len(shape), kind == ir.DataType.BOOL))
        return nodes, {"attention_bias": bias}

    def _of_keys(self, mask: ir.Value) -> tuple[tuple[ir.Node, ...], dict[str, ir.Value]]:
        """(B, 1, 1, total): whether a key is seen, the same for all queries."""
        nodes, squeezed = self._made(mask, lambda: [_node("Squeeze", [mask, _constant([1, 2], mask)], ir.DataType.BOOL)])
        return nodes, {"attention_mask": squeezed}

    def _made(self, mask: ir.Value, make) -> tuple[tuple[ir.Node, ...], ir.Value]:
        if mask not in self._biases:
            nodes = tuple(make())
            for place, node in enumerate(nodes):
                node.outputs[0].name = f"{mask.name}.attention_{place}"
            self._biases[mask] = nodes, nodes[-1].outputs[0]
        return self._biases[mask]

    # ---- the output

    def _merged(self, node: ir.Node, sizes: _Sizes, rank: int) -> tuple[ir.Value, tuple[ir.Node, ...]]:
        """The output as (B, S, heads · size), and the nodes that bring it into that form: a Transpose and a Reshape."""
        output = node.outputs[0]
        if rank == 3:
            return output, ()
        reason = "the output is used in another way than as rows of tokens"
        turned = _only_user(output, "Transpose")
        if turned is None or list(attribute(turned, "perm", ())) != [0, 2, 1, 3]:
            raise Refusal(reason)
        reshape = _only_user(turned.outputs[0], "Reshape")
        target = None if reshape is None else self._shapes.integers(reshape.inputs[1])
        width = Dim(sizes.heads * sizes.value_head_size)
        if target is None or not self._is_target(target.items, (sizes.batch, sizes.tokens, width), reshape):
            raise Refusal(reason)
        return reshape.outputs[0], (turned, reshape)

    def _is_target(self, target: Sequence[Dim], shape: Sequence[Dim], reshape: ir.Node) -> bool:
        """Whether a Reshape of (B, S, heads, size) to `target` gives `shape`."""
        if len(target) != 3 or list(target).count(INFERRED) > 1:
            return False
        copied = Dim(0) if not attribute(reshape, "allowzero", 0) else None
        return all(
            wanted == INFERRED or self._same(wanted, size) or (wanted == copied and place < 2)
            for place, (wanted, size) in enumerate(zip(target, shape, strict=True))
        )

    def _shape(self, value: ir.Value, name: str) -> tuple[Dim, ...]:
        return shape_of(self._shapes, value, name, (3, 4))

    def _same(self, left: Dim, right: Dim) -> bool:
        return self._shapes.dims.same(left, right)


def _tokens(shape: Sequence[Dim]) -> Dim:
    return shape[1] if len(shape) == 3 else shape[2]


def _visibility(values: dict[str, Any]) -> dict[str, Any]:
    """Windows reach back from the query's own position, which they count besides; a causal query sees nothing behind it."""
    left, right = values["left_window_size"], values["right_window_size"]
    causal = bool(values["is_causal"]) or right == 0
    if not causal and (left >= 0 or right > 0):
        raise Refusal("a window that reaches beyond the query's own position is not supported")
    return {"causal": causal, "local_window_size": left + 1 if left >= 0 else -1}


def _joined(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """What two parts a cache is joined from, along the tokens of (B, heads, tokens, size)."""
    node = value.producer()
    if node is None or node.op_type != "Concat" or not is_standard(node) or len(node.inputs) != 2:
        return None
    return tuple(node.inputs) if attribute(node, "axis", 0) in (2, -2) else None


def _only_user(value: ir.Value, operator: str) -> ir.Node | None:
    users = value.consumers()
    if len(value.uses()) != 1 or value.is_graph_output() or users[0].op_type != operator or not is_standard(users[0]):
        return None
    return users[0]


def _bias(mask: ir.Value, rank: int, is_bool: bool) -> list[ir.Node]:
    """Nodes that make a bias of rank 4 of `mask`."""
    nodes = []
    if is_bool:
        seen, hidden = (_constant(number, mask) for number in (np.float32(0), np.float32(-np.inf)))
        nodes.append(_node("Where", [mask, seen, hidden], ir.DataType.FLOAT))
        mask = nodes[-1].outputs[0]
    if rank < 4:
        axes = _constant(list(range(4 - rank)), mask)
        nodes.append(_node("Unsqueeze", [mask, axes], dtype(mask)))
    return nodes


def _node(operator: str, inputs: list[ir.Value], kind: ir.DataType | None) -> ir.Node:
    node = ir.Node("", operator, inputs)
    node.outputs[0].type = None if kind is None else ir.TensorType(kind)
    return node


def _constant(content, mask: ir.Value) -> ir.Value:
    array = np.array(content, np.int64) if isinstance(content, list) else np.array(content)
    value = ir.Value(name=f"{mask.name}.{array.dtype}_{'_'.join(map(str, array.reshape(-1)))}", const_value=ir.tensor(array))
    value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(array.shape)
    return value
