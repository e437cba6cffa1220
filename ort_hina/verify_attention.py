"""Verification of attention: the original nodes next to the GroupQueryAttention that replaces them, on the same input.

Both run in ONNX Runtime, each as a model of its own: a prompt, a prompt on a past, and one token on a past, for two
sequences of which one is padded on its left.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from .graph_passes.attention_layer import AttentionLayer
from .graph_passes.attention_mask import HIDES
from .graph_passes.attention_node import exit_nodes, replaced_values
from .graph_passes.domain import DOMAIN, OPSET
from .graph_passes.shapes import Shapes
from .run_alone import CannotRun, run_alone, stored_constant
from .verify import FLOAT_TOLERANCE, Verdict

# Steps at which the original rounds to its 16-bit type and the operator does not: of each query and key the norm (2), the
# rotation (3) and the scale; their product and the mask's addition; weights, sum and output. An error of a score is one of
# its exponential; scores of random input are a few units large, of which SCALE takes account. The smallest mistake (a head
# in another group, one key more or less, a rotation the other way) is of the order 0.1.
ROUNDED_STEPS = 17
ROUNDED_SCALE = 4.0


@dataclass(frozen=True)
class _Call:
    """Sizes of one call: `new` tokens of each of `batch` sequences on `past` ones; the first has `padding` on its left."""

    batch: int
    new: int
    past: int
    padding: int

    @property
    def total(self) -> int:
        return self.past + self.new


CALLS = (_Call(2, 7, 0, 2), _Call(2, 3, 9, 4), _Call(2, 1, 18, 3))


def tolerance(dtype: ir.DataType) -> float:
    """The largest accepted difference, relative to the largest value of what is compared."""
    if dtype == ir.DataType.FLOAT:
        return FLOAT_TOLERANCE
    return ROUNDED_SCALE * ROUNDED_STEPS * float(ml_dtypes.finfo(dtype.numpy()).eps) / 2


def verify_attention(
    layer: AttentionLayer, node: ir.Node, source: ir.Model, folder: Path, *, shapes: Shapes, seed: int = 0
) -> Verdict:
    """Compares `layer`, still in its graph, with `node`: outputs and present caches.

    Queries that see no key are not compared: the operator answers 0, the original whatever its mask makes of them.

    Args:
        layer: the attention.
        node: the node GroupQueryAttention, not in any graph.
        source: the model of the layer, for its opsets.
        folder: where the locations of external data are looked up (they have been checked).
        shapes: what is known of the graph's shapes.
        seed: of the random input.

    Raises:
        OrtHinaError: the operator library is missing or cannot be loaded.
    """
    began = time.perf_counter()
    limit = tolerance(layer.dtype)
    worst, state, detail = 0.0, "verified", ""
    for call in _calls(layer):
        try:
            state, difference, detail = _compare_call(_Case(layer, source, folder, shapes), node, call, limit, seed)
        except CannotRun as error:
            detail = f"ONNX Runtime cannot run the original on this machine: {error}"
            return Verdict("not run", None, limit, time.perf_counter() - began, detail)
        worst = max(worst, difference or 0.0)
        if state != "verified":
            break
    return Verdict(state, worst, limit, time.perf_counter() - began, detail)


def _calls(layer: AttentionLayer) -> list[_Call]:
    if layer.past_key is None:
        return [CALLS[0]]
    # ONNX Runtime's operator with lengths appends several tokens to one sequence only.
    return [replace(call, batch=1) if layer.seqlens_k is not None and call.past and call.new > 1 else call for call in CALLS]


@dataclass(frozen=True)
class _Case:
    layer: AttentionLayer
    source: ir.Model
    folder: Path
    shapes: Shapes


def _compare_call(case: _Case, node: ir.Node, call: _Call, limit: float, seed: int) -> tuple[str, float | None, str]:
    layer = case.layer
    feeds = _feeds(case, call, seed)
    wanted = replaced_values(layer)
    watched = [] if layer.dropped_mask is None else [layer.dropped_mask]
    expected = run_alone(_model(case, list(layer.nodes), feeds, [*wanted, *watched]), feeds)
    visible = _visible(layer, feeds, call)
    if watched and not _masks_alike(expected.pop(), visible):
        return "failed", None, f"the mask {layer.dropped_mask.name!r} does not show what it was understood to show"
    try:
        found = _answers_of_node(case, node, feeds)
    except CannotRun as error:
        return "failed", None, f"the fused node does not run: {error}"
    worst = 0.0
    for value, one, other in zip(wanted, expected, found, strict=True):
        rows = ...
        if value is layer.output:
            rows = visible.any(axis=-1)
            if layer.output_axes == "heads first" and one.ndim == other.ndim == 4:
                one, other = one.swapaxes(1, 2), other.swapaxes(1, 2)
        state, difference, detail = _compare(value, one, other, rows, limit)
        if state != "verified":
            return state, difference, f"{detail} ({call.new} new tokens on {call.past})"
        worst = max(worst, difference)
    return "verified", worst, ""


def _answers_of_node(case: _Case, node: ir.Node, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    layer = case.layer
    behind = exit_nodes(layer, node)
    results = list(node.outputs)[: len(replaced_values(layer))]
    if behind:
        behind[-1].outputs[0].name = f"{layer.output.name}.exit"
        results[0] = behind[-1].outputs[0]
    try:
        return run_alone(_model(case, [*layer.before, node, *behind], feeds, results), feeds)
    finally:
        for each in behind:  # the node is to have no users before it is in the graph
            for place in range(len(each.inputs)):
                each.replace_input_with(place, None)


def _compare(value: ir.Value, expected: np.ndarray, found: np.ndarray, rows, limit: float) -> tuple[str, float | None, str]:
    if expected.shape != found.shape:
        return (
            "failed",
            None,
            f"{value.name!r} has shape {found.shape} of the fused node and {expected.shape} of the original",
        )
    expected, found = expected[rows].astype(np.float64), found[rows].astype(np.float64)
    scale = float(np.abs(expected).max())
    if not np.isfinite(scale) or scale == 0:
        return "inconclusive", None, f"{value.name!r} of the original is zero or not finite for random input"
    difference = float(np.abs(expected - found).max()) / scale
    if difference <= limit:  # false for NaN
        return "verified", difference, ""
    return "failed", difference, f"{value.name!r} differs by {difference:.2g} of its scale, and {limit:.2g} is allowed"


def _visible(layer: AttentionLayer, feeds: dict[str, np.ndarray], call: _Call) -> np.ndarray:
    """(B, S, T): which keys a query sees, by what the node is told. A bias is left out: it hides no row entirely."""
    place, key = np.arange(call.past, call.total)[:, None], np.arange(call.total)[None]
    visible = key <= place if layer.causal else np.ones((call.new, call.total), bool)
    if layer.local_window_size != -1:
        visible = visible & (place - key < layer.local_window_size)
    mask = np.ones((call.batch, call.total), bool)
    if layer.attention_mask is not None:
        mask = feeds[layer.attention_mask.name] != 0
    return visible[None] & mask[:, None]


def _masks_alike(mask: np.ndarray, visible: np.ndarray) -> bool:
    """Whether `mask` (B or 1, heads or 1, S, T), as the graph computes it, shows exactly what is `visible` (B, S, T)."""
    shown = mask if mask.dtype == bool else mask == 0
    hidden = ~mask if mask.dtype == bool else mask <= HIDES
    return bool((shown == visible[:, None]).all() and (hidden != shown).all())


# ---- inputs


def _feeds(case: _Case, call: _Call, seed: int) -> dict[str, np.ndarray]:
    layer, random = case.layer, np.random.default_rng(seed)
    element = layer.dtype.numpy()
    feeds: dict[str, np.ndarray] = {}

    def put(value: ir.Value | None, shape: tuple[int, ...]) -> None:
        if value is not None:
            feeds[value.name] = random.standard_normal(shape).astype(element)

    for value, heads, size in (
        (layer.query, layer.num_heads + (2 * layer.kv_num_heads if layer.key is None else 0), layer.head_size),
        (layer.key, layer.kv_num_heads, layer.head_size),
        (layer.value, layer.kv_num_heads, layer.value_head_size),
    ):
        if value is not None:
            by_heads = case.shapes.rank(value) == 4
            shape = (call.batch, heads, call.new, size) if by_heads else (call.batch, call.new, heads * size)
            put(value, shape)
    # Without a present cache the past is made anew by the graph, of all tokens.
    old = call.past if layer.present_key is not None else call.total
    put(layer.past_key, (call.batch, layer.kv_num_heads, old, layer.head_size))
    put(layer.past_value, (call.batch, layer.kv_num_heads, old, layer.value_head_size))
    for value in (layer.cos_cache, layer.sin_cache):
        _put_angles(case, call, value, feeds, random)
    if layer.attention_mask is not None:
        mask = np.ones((call.batch, call.total), layer.attention_mask.dtype.numpy())
        mask[0, : call.padding] = 0
        mask[1] = random.uniform(size=call.total) < 0.7  # holes, which no tokenizer makes, show which keys are meant
        feeds[layer.attention_mask.name] = mask
    if layer.seqlens_k is not None:
        feeds[layer.seqlens_k.name] = np.full(call.batch, call.total - 1, np.int32)
    if layer.total_sequence_length is not None:
        feeds[layer.total_sequence_length.name] = np.array(call.total, np.int32)
    _put_bias(case, call, feeds, random)
    for value in _onlooked(layer.nodes, feeds):
        feeds[value.name] = np.zeros(_onlooked_shape(case, call, value), _onlooked_type(value))
    return feeds


def _source_of(layer: AttentionLayer, value: ir.Value) -> ir.Value:
    """The value of the graph that `value`, which new nodes may make, comes from."""
    node = value.producer()
    while node is not None and node in layer.before:
        value = node.inputs[0]
        node = value.producer()
    return value


def _put_angles(case: _Case, call: _Call, value: ir.Value | None, feeds: dict[str, np.ndarray], random) -> None:
    """Angles of each token, twice where only the first half is taken."""
    if value is None or value.is_initializer():
        return
    source = _source_of(case.layer, value)
    shape = case.shapes.shape(source)
    width = case.shapes.dims.simplify(shape[-1]).constant
    if width is None:
        width = case.layer.head_size
    twice = any(
        node.op_type == "Slice"
        for node in case.layer.before
        if node.inputs and _source_of(case.layer, node.outputs[0]) is source
    )
    half = random.uniform(-1, 1, (call.batch, call.new, width // 2 if twice else width))
    angles = np.concatenate([half, half], axis=-1) if twice else half
    element = (source.dtype or case.layer.dtype).numpy()
    feeds[source.name] = angles.reshape(call.batch, *(1,) * (len(shape) - 3), call.new, width).astype(element)


def _put_bias(case: _Case, call: _Call, feeds: dict[str, np.ndarray], random) -> None:
    layer = case.layer
    if layer.attention_bias is None:
        return
    source = _source_of(layer, layer.attention_bias)
    shape = _bias_shape(case, call, source)
    visible = np.tril(np.ones((shape[-2], call.total), bool), call.past) & (random.uniform(size=shape) < 0.7)
    visible[..., 0] = True
    if not any(node.op_type == "Where" and node.inputs[0] is source for node in layer.before):
        bias = np.where(visible, random.standard_normal(shape), -np.inf)
        feeds[source.name] = bias.astype((source.dtype or layer.dtype).numpy())
    else:
        feeds[source.name] = visible


def _bias_shape(case: _Case, call: _Call, source: ir.Value) -> tuple[int, ...]:
    """(B or 1, heads or 1, S or 1, T), or the last of these."""
    known = case.shapes.shape(source) or ()
    sizes = [case.shapes.dims.simplify(size).constant for size in known[:-2]] if len(known) > 1 else [None, None]
    usual = (call.batch, 1)[2 - len(sizes) :]
    rows = 1 if len(known) > 1 and known[-2].constant == 1 else call.new
    return *(size or other for size, other in zip(sizes, usual, strict=True)), rows, call.total


def _onlooked(nodes: Iterable[ir.Node], feeds: dict[str, np.ndarray]) -> list[ir.Value]:
    """The values from outside, besides `feeds`, that the nodes read."""
    made = {output for node in nodes for output in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    return [value for value in read if value not in made and not value.is_initializer() and value.name not in feeds]


def _onlooked_shape(case: _Case, call: _Call, value: ir.Value) -> tuple[int, ...]:
    """Of a value of which only the shape is read: ids (B, S), tokens (B, S, features) or a past cache (B, heads, P, size).

    Raises:
        CannotRun: more than the shape is read, or it is none of these.
    """
    readers = {user.op_type for user in value.consumers() if user in set(case.layer.nodes)}
    shape = case.shapes.shape(value)
    if readers != {"Shape"} or shape is None or not 2 <= len(shape) <= 4:
        raise CannotRun(f"the original reads {value.name!r}, which is neither an input of the node nor a shape")
    sizes = [case.shapes.dims.simplify(size).constant for size in shape]
    expected = {2: (call.batch, call.new), 3: (call.batch, call.new, 1), 4: (call.batch, 1, call.past, 1)}[len(shape)]
    if len(shape) == 4 and not value.is_graph_input():
        raise CannotRun(f"the original reads the shape of {value.name!r}, which is no cache")
    return tuple(size or other for size, other in zip(sizes, expected, strict=True))


def _onlooked_type(value: ir.Value) -> np.dtype:
    return np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()


# ---- models


def _model(case: _Case, nodes: list[ir.Node], feeds: dict[str, np.ndarray], wanted: Iterable[ir.Value]) -> onnx.ModelProto:
    helper = onnx.helper
    read = {value for node in nodes for value in node.inputs if value is not None}
    constants = [stored_constant(value, case.folder) for value in read if value.is_initializer()]
    made = {output.name for node in nodes for output in node.outputs}
    names = {value.name for value in read} - made
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
        for name, array in feeds.items()
        if name in names
    ]
    outputs = [_output(case, value) for value in wanted]
    graph = helper.make_graph([ir.serde.serialize_node(node) for node in nodes], "attention", inputs, outputs, constants)
    opsets = dict(case.source.graph.opset_imports) | {DOMAIN: OPSET}
    identifiers = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=identifiers, ir_version=case.source.ir_version)


def _output(case: _Case, value: ir.Value) -> onnx.ValueInfoProto:
    """Of a mask the type is left to ONNX Runtime."""
    layer = case.layer
    if value is layer.dropped_mask:
        return onnx.ValueInfoProto(name=value.name)
    is_output = value is layer.output or value.name == f"{layer.output.name}.exit"
    dtype = (layer.output_dtype if is_output else None) or layer.dtype
    return onnx.helper.make_tensor_value_info(value.name, int(dtype), None)
