"""Recognising attention as exporters write it: from the product with the values back to queries, keys and caches.

    weights = Softmax(scale * q·kᵀ [softcap] [+ mask] [beside sinks])          (`attention_scores`)
    output  = weights · v, heads joined                                        (`attention_heads`)
    k, v    = the past and what is new, each head repeated for its group       (`attention_heads`)
    new q, k = [rotated] [normalised] projections                              (`attention_source`)

Nothing is concluded from names. The mask is dropped where it is proved (`attention_mask`), and is an input of the node where
it is not; a rotation or a norm that is not understood stays in the graph, before the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from .attention_angles import NewNodes, angle_table
from .attention_cone import attention_nodes
from .attention_heads import (
    LAST_OF_FOUR,
    joined_heads,
    only_user,
    repeated,
    sizes_of_heads,
    split_heads,
    without_idle_reshape,
)
from .attention_layer import AttentionLayer, RefusedAttention
from .attention_mask import HIDES, MaskProof, hides_rows_without_keys, new_tensors, prove
from .attention_rows import last_rows, rows_for_all
from .attention_scores import Scores, read_scores
from .attention_source import Sources, read_sources, tokens_of
from .attention_weights import product_with_values
from .constants import attribute, is_standard
from .dims import Dim
from .meanings import Refusal
from .router_expressions import Reader, is_output_of, opset, refuse
from .shapes import Shapes
from .slices import where_of
from .symbolic_tensors import NotUnderstood

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def find(graph: ir.Graph, shapes: Shapes) -> list[AttentionLayer | RefusedAttention]:
    """All attention of `graph`, in order: understood, or refused with the reason."""
    matcher = Matcher(graph, shapes)
    found = (matcher.layer(node) for node in graph if node.op_type == "Softmax" and is_standard(node))
    return [layer for layer in found if layer is not None]


@dataclass(frozen=True)
class _Caches:
    """Keys or values: what the node takes, and what it hands on."""

    past: ir.Value | None
    new: ir.Value
    """(B, heads, S, size)"""
    whole: ir.Value
    heads: int
    size: int


@dataclass(frozen=True)
class _Part:
    """Fields of an `AttentionLayer`, and the new nodes that compute what they name."""

    fields: dict[str, Any]
    before: tuple[ir.Node, ...] = ()


class Matcher:
    """Reads the attention of one graph; layers share new nodes and proofs of masks."""

    def __init__(self, graph: ir.Graph, shapes: Shapes) -> None:
        self._reader = Reader(shapes)
        self._tensors = new_tensors(graph)
        self._proofs: dict[ir.Value, MaskProof | str] = {}
        self.nodes = NewNodes(graph)
        self._order = {node: place for place, node in enumerate(graph)}

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of `value`, where it is known."""
        return self._reader.dtype(value)

    def layer(self, softmax: ir.Node) -> AttentionLayer | RefusedAttention | None:
        """None: the softmax is of something else."""
        where = where_of(softmax)
        try:
            scores = read_scores(self._reader, softmax.inputs[0])
            return None if scores is None else self._layer(softmax, scores, where)
        except (Refusal, NotUnderstood) as reason:
            return RefusedAttention(where, str(reason))

    def _layer(self, softmax: ir.Node, scores: Scores, where: str) -> AttentionLayer:
        version = opset(softmax)
        if attribute(softmax, "axis", -1 if version is None or version >= 13 else 1) not in LAST_OF_FOUR:
            refuse(softmax, "does not run over the keys")
        product = product_with_values(self._reader, softmax, beside_sink=scores.sink is not None)
        return self.around(product, product.inputs[1], scores, where)

    def around(self, product: ir.Node, whole: ir.Value, scores: Scores, where: str) -> AttentionLayer:
        """The layer of which `product` computes the output, from `scores` and the `whole` of the values.

        Raises:
            Refusal: something of it is not understood.
            NotUnderstood: a mask is not.
        """
        keys, values, heads = self._caches(scores, whole)
        proof = self._proof(scores.mask)
        inputs, rows = self._inputs(scores, keys, values, proof)
        output, axes = self._output(product, proof, rows, heads[0] * values.size)
        parts = (inputs, self._mask(scores, proof, inputs.fields["query"]), self._sink(scores))
        before = dict.fromkeys(node for part in parts for node in part.before)
        layer = AttentionLayer(
            where=where,
            output=output,
            output_axes=axes,
            num_heads=heads[0],
            kv_num_heads=keys.heads,
            head_size=heads[1],
            value_head_size=values.size,
            nodes=(),
            scale=scores.scale,
            softcap=scores.softcap,
            before=tuple(before),
            **{name: value for part in parts for name, value in part.fields.items()},
        )
        return self._completed(layer, product, whole)

    def _inputs(
        self, scores: Scores, keys: _Caches, values: _Caches, proof: MaskProof | str | None
    ) -> tuple[_Part, tuple[Dim, Dim]]:
        """Queries, keys, values and caches as the node takes them; and (B, S) of the queries."""
        reader = self._reader
        sources = read_sources(reader, scores.query, keys.new)
        value = split_heads(reader, values.new)
        rows = [self._rows(found) for found in (sources.query, sources.key, value)]
        if not all(reader.shapes.dims.same(rows[0][1], length) for _, length in rows):
            return self._made_anew(scores, keys, values, proof)
        fields = {
            "query": sources.query,
            "key": sources.key,
            "value": value,
            "past_key": keys.past,
            "past_value": values.past,
            "present_key": None if keys.past is None else keys.whole,
            "present_value": None if keys.past is None else values.whole,
            "q_norm_weight": sources.query_norm,
            "k_norm_weight": sources.key_norm,
            "qk_norm_epsilon": sources.epsilon,
        }
        rotary = self._rotary(sources)
        return _Part(fields | rotary.fields, rotary.before), rows[0]

    def _made_anew(
        self, scores: Scores, keys: _Caches, values: _Caches, proof: MaskProof | str | None
    ) -> tuple[_Part, tuple[Dim, Dim]]:
        """Of keys and values that the graph makes anew of all tokens (see `attention_rows`). That they are of all tokens the
        attention mask says, which has as many columns as the scores."""
        if keys.past is not None or not isinstance(proof, MaskProof) or proof.attention_mask is None:
            refuse(
                scores.product, "has keys or values that are not the past followed by as many new ones as there are queries"
            )
        query = split_heads(self._reader, scores.query)
        axis = self._token_axis(query)
        key, first = last_rows(keys.whole, query, axis, self.nodes)
        value, second = last_rows(values.whole, query, axis, self.nodes)
        fields = {"query": query, "key": key, "value": value, "past_key": keys.whole, "past_value": values.whole}
        return _Part(fields, (*first, *second)), self._rows(query)

    def _caches(self, scores: Scores, values: ir.Value) -> tuple[_Caches, _Caches, tuple[int, int]]:
        """Keys, values, and (heads, head size) of the queries."""
        reader = self._reader
        key, copies = repeated(reader, scores.key)
        value, value_copies = repeated(reader, reader.uncast(values))
        heads, key_sizes, value_sizes = (sizes_of_heads(reader, found) for found in (scores.query, key, value))
        if None in (heads, key_sizes, value_sizes):
            refuse(scores.product, "has heads of which the number or the size is unknown")
        # ONNX's Attention shares a head of keys among neighbours itself.
        unshared = (
            heads[0] % (key_sizes[0] * copies) if scores.product.op_type == "Attention" else heads[0] - key_sizes[0] * copies
        )
        if copies != value_copies or unshared or value_sizes[0] != key_sizes[0]:
            counts = f"{heads[0]} heads of queries, {key_sizes[0]} of keys and {value_sizes[0]} of values"
            refuse(scores.product, f"has {counts}, which are not repeated in groups of neighbours")
        keys, values = (
            _Caches(*_past_and_new(reader, whole), whole, *sizes)
            for whole, sizes in ((key, key_sizes), (value, value_sizes))
        )
        if (keys.past is None) != (values.past is None):
            refuse(scores.product, "has a cache of keys or of values alone")
        return keys, values, heads

    def _rows(self, value: ir.Value) -> tuple[Dim, Dim]:
        """(B, S) of a query, key or value."""
        shape = self._reader.shapes.shape(tokens_of(self._reader, value))
        return shape[0], shape[1] if len(shape) == 3 else shape[2]

    def _proof(self, mask: ir.Value | None) -> MaskProof | str | None:
        if mask is None:
            return None
        if mask not in self._proofs:
            try:
                self._proofs[mask] = prove(self._tensors, mask)
            except NotUnderstood as reason:
                self._proofs[mask] = str(reason)
        return self._proofs[mask]

    def _output(
        self, product: ir.Node, proof: MaskProof | str | None, rows: tuple[Dim, Dim], width: int
    ) -> tuple[ir.Value, str]:
        """What the node's output stands for, and its axes; queries that see no key may have been set to 0 before."""
        value = product.outputs[0]
        guarded = only_user(value, "Where")
        if guarded is not None:
            condition, nothing, otherwise = guarded.producer().inputs
            sees_none = isinstance(proof, MaskProof) and hides_rows_without_keys(self._tensors, condition, proof)
            if otherwise is not value or self._reader.fill(nothing) != 0 or not sees_none:
                refuse(guarded.producer(), "changes the output of attention in a way that is not understood")
            value = guarded
        joined = joined_heads(self._reader, without_idle_reshape(self._reader, value), rows, width)
        return (value, "heads first") if joined is None else (joined, "joined")

    def _mask(self, scores: Scores, proof: MaskProof | str | None, query: ir.Value) -> _Part:
        if proof is None:
            return _Part({"causal": False})
        if isinstance(proof, MaskProof):
            window = -1 if proof.window is None else proof.window
            fields = {"attention_mask": proof.attention_mask, "local_window_size": window, "dropped_mask": scores.mask}
            return _Part(fields)
        if self._rank(scores.mask) != 4:
            refuse(scores.product, f"has a mask that is not understood ({proof}), without an axis for each of its scores'")
        note = f"the mask stays in the graph: {proof}"
        mask, is_boolean = self._unsliced(scores.mask, scores.mask_is_boolean)
        made = list(self.bias_of(mask) if is_boolean else ())
        bias = made[-1].outputs[0] if made else mask
        if self._is_one(mask, 2):
            made += rows_for_all(bias, query, self._token_axis(query), self.nodes)
            bias = made[-1].outputs[0]
        if self._is_one(mask, 3):
            refuse(scores.product, "has a mask with one column for all keys")
        return _Part({"attention_bias": bias, "causal": False, "notes": (note,)}, tuple(made))

    def _unsliced(self, mask: ir.Value, is_boolean: bool) -> tuple[ir.Value, bool]:
        """`mask` without a Slice down to the number of keys, which it has anyway: exporters read that number from the keys,
        which the node is to make. And whether it is of booleans (true: seen)."""
        node = mask.producer()
        if node is None or not is_standard(node):
            return mask, is_boolean
        if node.op_type == "Where" and not is_boolean and is_output_of(node.inputs[0], "Slice"):
            seen, hidden = (self._reader.fill(value) for value in node.inputs[1:])
            if seen == 0 and hidden is not None and hidden <= HIDES:
                return self._unsliced(node.inputs[0], True)
        if node.op_type != "Slice":
            return mask, is_boolean
        try:
            sizes = self._tensors.sizes(node.inputs[0]), self._tensors.sizes(mask)
        except NotUnderstood:
            return mask, is_boolean
        return self._unsliced(node.inputs[0], is_boolean) if sizes[0] == sizes[1] else (mask, is_boolean)

    def bias_of(self, mask: ir.Value) -> tuple[ir.Node, ...]:
        """Nodes of which the last gives 0 where the boolean `mask` is true, and -Inf elsewhere."""
        seen, hidden = (
            self.nodes.node("Constant", f"ort_hina.{name}", [], value=ir.tensor(number, dtype=ir.DataType.FLOAT))
            for name, number in (("seen", 0.0), ("hidden", -float("inf")))
        )
        inputs = [mask, seen.outputs[0], hidden.outputs[0]]
        return seen, hidden, self.nodes.node("Where", f"{mask.name}.bias", inputs, like=seen.outputs[0])

    def _token_axis(self, query: ir.Value) -> int:
        return 1 if self._reader.shapes.rank(query) == 3 else 2

    def _is_one(self, value: ir.Value, axis: int) -> bool:
        """Whether the size of `axis` is known to be 1."""
        shape = self._reader.shapes.shape(value)
        if shape is not None and shape[axis].constant is not None:
            return shape[axis].constant == 1
        try:
            return self._tensors.sizes(value)[axis].constant == 1
        except NotUnderstood:
            return False

    def _rank(self, value: ir.Value) -> int | None:
        found = self._reader.shapes.rank(value)
        try:
            return len(self._tensors.sizes(value)) if found is None else found
        except NotUnderstood:
            return None

    def _rotary(self, sources: Sources) -> _Part:
        rotation = sources.rotation
        if rotation is None:
            return _Part({})
        (cosine, first), (sine, second) = (
            angle_table(angles, self._reader.shapes.rank(angles.value), self.nodes)
            for angles in (rotation.cosine, rotation.sine)
        )
        fields = {"cos_cache": cosine, "sin_cache": sine, "rotary_interleaved": rotation.interleaved}
        return _Part(fields, (*first, *second))

    def _sink(self, scores: Scores) -> _Part:
        if scores.sink is None:
            return _Part({})
        if len(scores.sink.const_value.shape) == 1:
            return _Part({"head_sink": scores.sink})
        flat = self.nodes.integers(-1)
        made = self.nodes.node("Reshape", f"{scores.sink.name}.heads", [scores.sink, flat.outputs[0]], like=scores.sink)
        return _Part({"head_sink": made.outputs[0]}, (flat, made))

    def _completed(self, layer: AttentionLayer, product: ir.Node, values: ir.Value) -> AttentionLayer:
        """With types, and the nodes that it stands for.

        Raises:
            Refusal: the types differ, or an input of the node depends on what the node computes.
        """
        reader = self._reader
        cached = ("query", "past_key", "past_value") if layer.past_key is not None else ("query", "key", "value")
        types = {name: reader.dtype(getattr(layer, name)) for name in cached}
        if len(set(types.values())) != 1 or not _FLOATS >= set(types.values()):
            texts = ", ".join(f"{name} {found.name if found else 'unknown'}" for name, found in types.items())
            refuse(product, f"has inputs of types that differ or are unknown: {texts}")
        outputs = [value for value in (layer.output, layer.present_key, layer.present_value) if value is not None]
        made = {output for node in layer.before for output in node.outputs}
        inputs = [value for value in layer.inputs() if value is not None and value not in made]
        inputs += [value for node in layer.before for value in node.inputs if value.graph is not None]
        if loop := self._comes_from(inputs, outputs):
            refuse(product, f"has an input, {loop.name!r}, that depends on its own output")
        nodes = sorted(attention_nodes(outputs, inputs), key=self._order.__getitem__)
        return replace(
            layer,
            nodes=tuple(nodes),
            dtype=types["query"],
            output_dtype=reader.dtype(values) or types["query"],
        )

    def _comes_from(self, values: list[ir.Value], sources: list[ir.Value]) -> ir.Value | None:
        """The first of `values` that is computed from one of `sources`."""
        makers = {source.producer() for source in sources}
        first = min(self._order[maker] for maker in makers)
        for value in values:
            pending, seen = [value], set()
            while pending:
                node = pending.pop().producer()
                if node is None or node in seen or self._order[node] < first:
                    continue  # what comes before all makers depends on none of them
                if node in makers:
                    return value
                seen.add(node)
                pending.extend(operand for operand in node.inputs if operand is not None)
        return None


def _past_and_new(reader: Reader, value: ir.Value) -> tuple[ir.Value | None, ir.Value]:
    node = value.producer()
    if not is_output_of(value, "Concat") or len(node.inputs) != 2 or attribute(node, "axis", 0) not in (-2, 2):
        return None, value
    return tuple(node.inputs)
