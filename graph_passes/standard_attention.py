"""Reads ONNX's own Attention (opsets 23 to 25) as a layer of attention.

It means what the standard says: a causal query sees keys up to its own position, counted from the beginning of the past;
rows that see nothing give 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from .attention_cone import attention_nodes
from .attention_layer import AttentionLayer
from .attention_match import Matcher
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
from .attention_scores import Scores
from .meanings import Refusal
from .shapes import Shapes
from .slices import where_of
from .symbolic_tensors import NotUnderstood

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

    def __init__(self, graph: ir.Graph, shapes: Shapes) -> None:
        self._shapes = shapes
        self._order = {node: place for place, node in enumerate(graph)}
        self._matcher = Matcher(graph, shapes)

    def read(self, node: ir.Node) -> AttentionLayer:
        """Raises `Refusal`."""
        values = attributes_of(node, _ATTRIBUTES)
        given = operands_of(node, _INPUTS, _REFUSED)
        _check(node, values, given)
        ways = [self._with_surroundings, self._alone] if self._is_core(given, values) else [self._alone]
        reasons = []
        for way in ways:
            try:
                return way(node, given, values)
            except (Refusal, NotUnderstood) as reason:
                reasons.append(str(reason))
        raise Refusal("; ".join(reasons))

    def _is_core(self, given: dict[str, ir.Value], values: dict[str, Any]) -> bool:
        """Whether the node computes no more than the softmax of the masked scores, and its product with the values."""
        plain = not values["is_causal"] and values["left_window_size"] == values["right_window_size"] == -1
        return plain and "past_key" not in given and self._shapes.rank(given["Q"]) == 4

    def _with_surroundings(self, node: ir.Node, given: dict[str, ir.Value], values: dict[str, Any]) -> AttentionLayer:
        """The node as the core of what PyTorch's exporter writes around it: a past that is joined before it, heads that are
        repeated, a mask that may be proved, rotation and norms."""
        mask = given.get("attn_mask")
        is_bool = mask is not None and self._matcher.dtype(mask) == ir.DataType.BOOL
        scores = Scores(given["Q"], given["K"], values["scale"] or 0.0, node, values["softcap"], mask, is_bool)
        layer = self._matcher.around(node, given["V"], scores, where_of(node))
        return dataclasses.replace(layer, pattern="ONNX Attention")

    def _alone(self, node: ir.Node, given: dict[str, ir.Value], values: dict[str, Any]) -> AttentionLayer:
        """The node as the standard has it, nothing around it but what joins the heads of its output."""
        caches = caches_of(node, given)
        sizes = self._sizes(given, values, caches)
        output = self._merged(node, sizes, len(self._shape(given["Q"], "Q")))
        before, mask = self._mask(given.get("attn_mask"), sizes)
        layer = AttentionLayer(
            where=where_of(node),
            query=given["Q"],
            key=given["K"],
            value=given["V"],
            output=output,
            num_heads=sizes.heads,
            kv_num_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            value_head_size=sizes.value_head_size,
            nodes=(),
            **caches,
            **mask,
            **_visibility(values),
            scale=values["scale"] or 0.0,
            softcap=values["softcap"],
            dtype=element_type(given["Q"], "Q"),
            before=before,
            pattern="ONNX Attention",
        )
        return dataclasses.replace(layer, nodes=self._nodes(layer))

    def _nodes(self, layer: AttentionLayer) -> tuple[ir.Node, ...]:
        outputs = [value for value in (layer.output, layer.present_key, layer.present_value) if value is not None]
        made = {output for node in layer.before for output in node.outputs}
        inputs = {value for value in layer.inputs() if value is not None} - made
        inputs |= {value for node in layer.before for value in node.inputs if value.graph is not None}
        return tuple(sorted(attention_nodes(outputs, inputs), key=self._order.__getitem__))

    # ---- sizes

    def _sizes(self, given: dict[str, ir.Value], values: dict[str, Any], caches: dict[str, ir.Value | None]) -> _Sizes:
        query, key, value = (self._shape(given[name], name) for name in "QKV")
        heads, kv_heads = self._heads(query, values["q_num_heads"]), self._heads(key, values["kv_num_heads"])
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise Refusal(f"{heads} heads of queries, expected a multiple of those of keys ({kv_heads})")
        for name, shape in (("K", key), ("V", value)):
            if not self._same(shape[0], query[0]) or not self._same(shape[-2 if len(shape) == 4 else 1], _tokens(query)):
                raise Refusal(f"{name} is not proved to be of the query's tokens (cross attention is not supported)")
        return _Sizes(
            query[0],
            _tokens(query),
            self._total(caches, _tokens(query)),
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

    def _total(self, caches: dict[str, ir.Value | None], new: Dim) -> Dim | None:
        if caches["past_key"] is None:
            return new
        present = caches.get("present_key")
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
        kind = self._matcher.dtype(mask)
        if not self._same(whole[2], sizes.tokens):
            raise Refusal("attn_mask is not proved to have a row for each query")
        if kind not in (*_BIAS_TYPES, ir.DataType.BOOL):
            came = kind.name if kind else "not known"
            raise Refusal(f"attn_mask is of type {came}, expected bool or a floating-point type")
        if kind != ir.DataType.BOOL and len(shape) == 4:
            return (), {"attention_bias": mask}
        nodes, bias = self._bias(mask, len(shape))
        return nodes, {"attention_bias": bias}

    def _bias(self, mask: ir.Value, rank: int) -> tuple[tuple[ir.Node, ...], ir.Value]:
        """New nodes that make a bias of rank 4 of `mask`."""
        made = self._matcher.bias_of(mask) if self._matcher.dtype(mask) == ir.DataType.BOOL else ()
        value = made[-1].outputs[0] if made else mask
        if rank < 4:
            nodes = self._matcher.nodes
            axes = nodes.integers(*range(4 - rank))
            made = (*made, axes, nodes.node("Unsqueeze", f"{value.name}.rank_4", [value, axes.outputs[0]], like=value))
        return made, made[-1].outputs[0]

    # ---- the output

    def _merged(self, node: ir.Node, sizes: _Sizes, rank: int) -> ir.Value:
        """The output as (B, S, heads · size): of rank 4, a Transpose and a Reshape bring it into that form."""
        output = node.outputs[0]
        if rank == 3:
            return output
        reason = "the output is used in another way than as rows of tokens"
        turned = _only_user(output, "Transpose")
        if turned is None or list(attribute(turned, "perm", ())) != [0, 2, 1, 3]:
            raise Refusal(reason)
        reshape = _only_user(turned.outputs[0], "Reshape")
        target = None if reshape is None else self._shapes.integers(reshape.inputs[1])
        width = Dim(sizes.heads * sizes.value_head_size)
        if target is None or not self._is_target(target.items, (sizes.batch, sizes.tokens, width), reshape):
            raise Refusal(reason)
        return reshape.outputs[0]

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


def _check(node: ir.Node, values: dict[str, Any], given: dict[str, ir.Value]) -> None:
    for name in ("Q", "K", "V"):
        if name not in given:
            raise Refusal(f"input {_INPUTS.index(name)} ({name}) is missing")
    if used_output(node, 3) is not None:
        raise Refusal("output 3 (qk_matmul_output) is used, which is not supported")
    if values["softmax_precision"] == ir.DataType.DOUBLE:
        raise Refusal("attribute 'softmax_precision' asks for double, which is not supported")
    if values["scale"] is not None and values["scale"] == 0:
        raise Refusal("attribute 'scale' is 0, which is not supported")


def _tokens(shape: Sequence[Dim]) -> Dim:
    return shape[1] if len(shape) == 3 else shape[2]


def _visibility(values: dict[str, Any]) -> dict[str, Any]:
    """Windows reach back from the query's own position, which they count besides; a causal query sees nothing behind it."""
    left, right = values["left_window_size"], values["right_window_size"]
    causal = bool(values["is_causal"]) or right == 0
    if not causal and (left >= 0 or right > 0):
        raise Refusal("a window that reaches beyond the query's own position is not supported")
    return {"causal": causal, "local_window_size": left + 1 if left >= 0 else -1}


def _only_user(value: ir.Value, operator: str) -> ir.Node | None:
    users = value.consumers()
    if len(value.uses()) != 1 or value.is_graph_output() or users[0].op_type != operator or not is_standard(users[0]):
        return None
    return users[0]
