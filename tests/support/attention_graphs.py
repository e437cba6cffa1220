"""Attention as exporters write it: one small graph for each spelling, and ways to get it wrong.

Every graph takes ``q``, ``k``, ``v`` (B, S, heads · size), ``past_key`` and ``past_value`` and, where it needs them,
``attention_mask`` and ``position_ids``; it gives ``output`` (B, S, heads · size), ``present_key`` and ``present_value``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ort_hina.graph_passes import attention_match
from ort_hina.graph_passes.attention_layer import AttentionLayer, RefusedAttention
from ort_hina.graph_passes.attention_node import make_attention_node, put_attention_node
from ort_hina.graph_passes.cleanup import remove_unused
from ort_hina.graph_passes.shapes import Shapes
from ort_hina.verify import Verdict
from ort_hina.verify_attention import verify_attention

LOWEST = float(np.finfo(np.float32).min)
_TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


@dataclass
class Spelling:
    """What a graph does, and how; the defaults are those of Optimum for Qwen3-MoE."""

    heads: int = 4
    kv_heads: int = 2
    size: int = 8
    value_size: int = 8
    element: int = TensorProto.FLOAT
    scale: str = "both"
    """``both`` (the root of it on queries and keys), ``scores``, ``query``, ``divided``, or ``computed`` from a shape."""
    factor: float = 0.25
    mask: str = "gather"
    """``gather`` (from the flattened mask), ``gather_nd``, ``triangle`` (and a scatter), ``boolean`` (Where on the scores),
    ``causal`` (without an attention mask), ``given`` (an input), ``none``."""
    mask_rows: str | int = "new"
    """Of a given mask."""
    hidden: float = -np.inf
    sliced: bool = False
    """The mask is cut down to the number of keys, which is read from the keys."""
    cleaned: bool = True
    """Weights of rows without keys are set to 0."""
    window: int | None = None
    rotary: str = ""
    """``half``, ``halves`` (multiplied apart), ``interleaved``, ``partial``."""
    switch: int = 0
    """From how many positions on the angles are others (LongRoPE)."""
    norm: str = ""
    """``head``, ``tokens``, ``after`` (the rotation)."""
    sinks: bool = False
    sink_axis: int = 1
    softcap: float = 0.0
    repeat: str = "expand"
    keys: str = "transposed"
    """or ``flat``: through three dimensions."""
    joined: str = "as rows"
    """``as rows`` (B, S, heads · size), ``split`` (B, S, heads, size), ``flat`` (B · S, heads · size)."""
    # Ways to get it wrong.
    compare: str = "LessOrEqual"
    ahead: int = 0
    """Is added to the positions of the queries."""
    shifted: int = 0
    """Is added to the columns at which the mask is read."""
    join: str = "And"
    negated: bool = True
    """The second half is negated in a rotation."""
    equal_halves: bool = True
    norm_axis: int = -1
    softmax_axis: int = -1
    extra_output: str = ""
    """``weights``: the weights are an output, too."""
    other_key_angles: bool = False
    unequal_epsilons: bool = False


@dataclass
class _Graph:
    spelling: Spelling
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def op(self, operator: str, *inputs: str, outputs: int = 1, **attributes):
        names = [f"v{len(self.nodes)}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=f"attn/{operator} {len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def const(self, value, dtype=np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def real(self, value: float) -> str:
        return self.const(value, _TYPES[self.spelling.element])

    def weight(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array.astype(_TYPES[self.spelling.element]), name))
        return name

    def input(self, name: str, element: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def size(self, value: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", value), self.const(axis), axis=0)

    def vector(self, *parts: str | int) -> str:
        axis = self.const([0])
        return self.op(
            "Concat",
            *(self.const([part]) if isinstance(part, int) else self.op("Unsqueeze", part, axis) for part in parts),
            axis=0,
        )

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, self.const(list(axes)))

    def slice(self, x: str, start: int, end: int, axis: int = -1, step: int = 1) -> str:
        return self.op("Slice", x, *(self.const([number]) for number in (start, end, axis, step)))


def model(spelling: Spelling) -> onnx.ModelProto:
    s, g = spelling, _Graph(spelling)
    rows = ["batch", "new"]
    q = g.input("q", s.element, *rows, s.heads * s.size)
    k = g.input("k", s.element, *rows, s.kv_heads * s.size)
    v = g.input("v", s.element, *rows, s.kv_heads * s.value_size)
    past_key = g.input("past_key", s.element, "batch", s.kv_heads, "past", s.size)
    past_value = g.input("past_value", s.element, "batch", s.kv_heads, "past", s.value_size)
    if s.mask not in ("causal", "given", "none"):
        g.input("attention_mask", TensorProto.INT64, "batch", "past + new")
    if s.rotary:
        g.input("position_ids", TensorProto.INT64, *rows)
    q, k = _heads(g, q, s.heads, "q"), _heads(g, k, s.kv_heads, "k")
    values = g.op("Transpose", _split(g, v, s.value_size), perm=[0, 2, 1, 3])
    if s.rotary:
        cosine, sine = _angles(g, "position_ids", 1.0)
        q = _turned(g, q, cosine, sine)
        k = _turned(g, k, *(_angles(g, "position_ids", 2.0) if s.other_key_angles else (cosine, sine)))
    if s.norm == "after":
        q, k = _normalised(g, q, "q_norm", s.size), _normalised(g, k, "k_norm", s.size)
    g.nodes.append(helper.make_node("Concat", [past_key, k], ["present_key"], name="attn/keys", axis=-2))
    g.nodes.append(helper.make_node("Concat", [past_value, values], ["present_value"], name="attn/values", axis=-2))
    keys = _repeated(g, "present_key", s.size)
    values = _repeated(g, "present_value", s.value_size)
    weights = _weights(g, q, _scores(g, q, keys))
    joined = g.op("Transpose", g.op("MatMul", weights, values), perm=[0, 2, 1, 3])
    shapes = {
        "as rows": lambda: g.vector(g.size("q", 0), g.size("q", 1), -1),
        "split": lambda: g.vector(g.size("q", 0), g.size("q", 1), 2, -1),
        "flat": lambda: g.vector(-1, s.heads * s.value_size),
    }
    g.nodes.append(helper.make_node("Reshape", [joined, shapes[s.joined]()], ["output"], name="attn/join"))
    return _model(g, weights)


def _model(g: _Graph, weights: str) -> onnx.ModelProto:
    s, kind = g.spelling, g.spelling.element
    outputs = [
        helper.make_tensor_value_info(
            "output", kind, ["batch", "new", s.heads * s.value_size] if s.joined == "as rows" else None
        ),
        helper.make_tensor_value_info("present_key", kind, ["batch", s.kv_heads, "past + new", s.size]),
        helper.make_tensor_value_info("present_value", kind, ["batch", s.kv_heads, "past + new", s.value_size]),
    ]
    if s.extra_output == "weights":
        outputs.append(helper.make_tensor_value_info(weights, kind, ["batch", s.heads, "new", "past + new"]))
    graph = helper.make_graph(g.nodes, "attention", g.inputs, outputs, g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


# ---- queries and keys


def _split(g: _Graph, x: str, size: int) -> str:
    return g.op("Reshape", x, g.vector(g.size("q", 0), g.size("q", 1), -1, size))


def _heads(g: _Graph, x: str, heads: int, name: str) -> str:
    s = g.spelling
    if s.norm == "tokens":
        x = _normalised(g, x, f"{name}_norm", heads * s.size)
    x = _split(g, x, s.size)
    if s.norm == "head":
        x = _normalised(g, x, f"{name}_norm", s.size)
    return g.op("Transpose", x, perm=[0, 2, 1, 3])


def _normalised(g: _Graph, x: str, name: str, size: int) -> str:
    epsilon = 1e-3 if g.spelling.unequal_epsilons and name == "k_norm" else 1e-5
    weight = g.weight(name, np.random.default_rng(ord(name[0]) + size).uniform(0.5, 1.5, size))
    wide = g.op("Cast", x, to=TensorProto.FLOAT)
    square = g.op("Pow", wide, g.const(2, np.float32))
    mean = g.op("ReduceMean", square, g.const([g.spelling.norm_axis]), keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.const(epsilon, np.float32)))
    scaled = g.op("Mul", wide, g.op("Div", g.const(1, np.float32), root))
    return g.op("Mul", weight, g.op("Cast", scaled, to=g.spelling.element))


def _angles(g: _Graph, positions: str, base: float) -> tuple[str, str]:
    s = g.spelling
    width = s.size // 2 if s.rotary == "partial" else s.size
    frequencies = g.weight(f"frequencies_{base:g}", 0.3 * base ** np.arange(1, width // 2 + 1) / width)
    if s.switch:
        longest = g.op("Add", g.op("ReduceMax", positions, keepdims=0), g.const(1))
        others = g.weight("long_frequencies", 0.1 * np.arange(1, width // 2 + 1) / width)
        frequencies = g.op("Where", g.op("Greater", longest, g.const(s.switch)), others, frequencies)
    angles = g.op("Mul", g.unsqueeze(g.op("Cast", positions, to=s.element), 2), frequencies)
    if s.rotary not in ("halves", "interleaved"):
        other = angles if s.equal_halves else g.op("Mul", angles, g.real(0.5))
        angles = g.op("Concat", angles, other, axis=-1)
    found = []
    for operator in ("Cos", "Sin"):
        wide = g.op("Cast", angles, to=TensorProto.FLOAT)
        turned = g.unsqueeze(g.op("Cast", g.op(operator, wide), to=s.element), 1)
        if s.rotary == "interleaved":
            pairs = g.op("Expand", g.unsqueeze(turned, 4), g.const([1, 1, 1, 1, 2]))
            turned = g.op("Reshape", pairs, g.vector(g.size("q", 0), 1, g.size("q", 1), width))
        found.append(turned)
    return tuple(found)


def _turned(g: _Graph, x: str, cosine: str, sine: str) -> str:
    s = g.spelling
    if s.rotary == "partial":
        front, rest = g.slice(x, 0, s.size // 2), g.slice(x, s.size // 2, 2**63 - 1)
        return g.op("Concat", _rotate_half(g, front, s.size // 2, cosine, sine), rest, axis=-1)
    if s.rotary == "halves":
        a, b = g.op("Split", x, g.const([s.size // 2] * 2), outputs=2, axis=-1)
        first = g.op("Sub" if s.negated else "Add", g.op("Mul", a, cosine), g.op("Mul", b, sine))
        return g.op("Concat", first, g.op("Add", g.op("Mul", b, cosine), g.op("Mul", a, sine)), axis=-1)
    if s.rotary == "interleaved":
        even, odd = (g.slice(x, start, 2**63 - 1, step=2) for start in (0, 1))
        minus = g.op("Neg", odd) if s.negated else odd
        pairs = g.op("Concat", g.unsqueeze(minus, -1), g.unsqueeze(even, -1), axis=-1)
        turned = g.op("Reshape", pairs, g.op("Shape", x))
        return g.op("Add", g.op("Mul", x, cosine), g.op("Mul", turned, sine))
    return _rotate_half(g, x, s.size, cosine, sine)


def _rotate_half(g: _Graph, x: str, size: int, cosine: str, sine: str) -> str:
    front, back = g.slice(x, 0, size // 2), g.slice(x, size // 2, 2**63 - 1)
    minus = g.op("Neg", back) if g.spelling.negated else back
    return g.op("Add", g.op("Mul", x, cosine), g.op("Mul", g.op("Concat", minus, front, axis=-1), sine))


# ---- scores and weights


def _repeated(g: _Graph, cache: str, size: int) -> str:
    s = g.spelling
    groups = s.heads // s.kv_heads
    if groups == 1:
        return cache
    if s.repeat == "tile":  # the heads one behind the other, not each beside its copy
        return g.op("Tile", cache, g.const([1, groups, 1, 1]))
    wide = g.unsqueeze(cache, 2)
    batch, total = g.size(cache, 0), g.size(cache, 2)
    grown = g.op("Expand", wide, g.vector(batch, s.kv_heads, groups, total, size))
    return g.op("Reshape", grown, g.vector(batch, s.heads, total, size))


def _scores(g: _Graph, q: str, keys: str) -> str:
    s = g.spelling
    factor = s.factor
    if s.keys == "flat":
        flat = g.op("Reshape", keys, g.vector(-1, g.size(keys, 2), s.size))
        turned = g.op("Transpose", flat, perm=[0, 2, 1])
        keys = g.op("Reshape", turned, g.vector(g.size("q", 0), s.heads, s.size, g.size(keys, 2)))
    else:
        keys = g.op("Transpose", keys, perm=[0, 1, 3, 2])
    if s.scale == "both":
        q, keys = (g.op("Mul", x, g.real(factor**0.5)) for x in (q, keys))
    if s.scale == "query":
        q = g.op("Mul", q, g.real(factor))
    if s.scale == "computed":
        size = g.op("Cast", g.op("Slice", g.op("Shape", q), g.const([-1]), g.const([2**63 - 1])), to=s.element)
        root = g.op("Sqrt", g.op("Div", g.const([1.0], _TYPES[s.element]), g.op("Sqrt", size)))
        q, keys = g.op("Mul", q, root), g.op("Mul", keys, root)
    scores = g.op("MatMul", q, keys)
    if s.scale == "scores":
        scores = g.op("Mul", scores, g.real(factor))
    if s.scale == "divided":
        scores = g.op("Div", scores, g.real(1 / factor))
    if s.softcap:
        scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, g.real(s.softcap))), g.real(s.softcap))
    return scores


def _weights(g: _Graph, q: str, scores: str) -> str:
    s = g.spelling
    if s.mask == "given":
        scores = g.op("Add", scores, g.input("bias", s.element, "batch", 1, s.mask_rows, "past + new"))
    elif s.mask == "triangle":
        scores = g.op("Add", scores, _triangle(g))
    elif s.mask != "none":
        visible = _visible(g)
        if s.sliced:
            ends = g.unsqueeze(g.size("present_key", 2), 0)
            visible = g.op("Slice", visible, g.const([0]), ends, g.const([3]), g.const([1]))
        if s.mask == "boolean":
            scores = g.op("Where", visible, scores, g.real(s.hidden))
        else:
            scores = g.op("Add", scores, g.op("Where", visible, g.real(0.0), g.real(s.hidden)))
    if s.sinks:
        sink = g.weight("sinks", np.linspace(-1, 1, s.heads).reshape([s.heads if i == s.sink_axis else 1 for i in range(4)]))
        column = g.op("Expand", sink, g.vector(g.size("q", 0), s.heads, g.size("q", 1), 1))
        scores = g.op("Concat", scores, column, axis=-1)
        scores = g.op("Sub", scores, g.op("ReduceMax", scores, g.const([-1]), keepdims=1))
    weights = g.op("Softmax", scores, axis=s.softmax_axis)
    if s.sinks:
        weights = g.slice(weights, 0, -1, axis=3)
    elif s.cleaned:
        weights = g.op("Where", g.op("IsNaN", weights), g.real(0.0), weights)
    return weights


def _positions(g: _Graph) -> tuple[str, str]:
    """Of the queries (1, 1, S, 1) and of the keys (1, 1, 1, T)."""
    past, new = g.size("past_key", 2), g.size("q", 1)
    total = g.op("Add", past, new)
    queries = g.op("Add", g.op("Range", past, total, g.const(1)), g.const(g.spelling.ahead))
    return g.unsqueeze(queries, 0, 1, 3), g.unsqueeze(g.op("Range", g.const(0), total, g.const(1)), 0, 1, 2)


def _visible(g: _Graph) -> str:
    s = g.spelling
    queries, keys = _positions(g)
    visible = g.op(s.compare, keys, queries)
    if s.window is not None:
        visible = g.op("And", visible, g.op("Greater", keys, g.op("Sub", queries, g.const(s.window))))
    if s.mask == "causal":
        return visible
    columns = g.op("Add", keys, g.const(s.shifted)) if s.shifted else keys
    batch = g.op("Range", g.const(0), g.size("q", 0), g.const(1))
    seen = g.op("Cast", "attention_mask", to=TensorProto.BOOL)
    if s.mask == "gather_nd":
        rows = g.unsqueeze(batch, 1, 2, 3)
        shape = g.op("Shape", g.op("Max", rows, columns))
        pairs = [g.unsqueeze(g.op("Expand", x, shape), -1) for x in (rows, columns)]
        return g.op(s.join, visible, g.op("GatherND", seen, g.op("Concat", *pairs, axis=-1)))
    width = g.size("attention_mask", 1)
    places = g.op("Add", columns, g.op("Mul", g.unsqueeze(batch, 1, 2, 3), width))
    flat = g.op("Flatten", seen, axis=2)
    read = g.op("Reshape", g.op("Gather", flat, places, axis=0), g.op("Shape", places))
    return g.op(s.join, visible, read)


def _triangle(g: _Graph) -> str:
    """As transformers wrote it before its masks were functions: lowest above the diagonal, times what lies ahead; then what
    the attention mask hides is scattered into it."""
    s = g.spelling
    past, new, total = g.size("past_key", 2), g.size("q", 1), g.size("attention_mask", 1)
    fill = numpy_helper.from_array(np.array([LOWEST], np.float32))
    upper = g.op("Trilu", g.op("ConstantOfShape", g.vector(new, total), value=fill), g.const(1), upper=1)
    rows = g.op("Reshape", g.op("Range", past, g.op("Add", past, new), g.const(1)), g.const([-1, 1]))
    ahead = g.op("Greater", g.op("Range", g.const(0), total, g.const(1)), g.op("Add", rows, g.const(s.ahead)))
    plain = g.op("Mul", upper, g.op("Cast", ahead, to=TensorProto.FLOAT))
    whole = g.op("Expand", g.unsqueeze(plain, 0, 1), g.vector(g.size("q", 0), 1, g.const(1) and 1, 1))
    mask = g.op("Cast", g.unsqueeze("attention_mask", 1, 2), to=TensorProto.FLOAT)
    empty = g.op("Equal", g.op("Add", whole, mask), g.const(0, np.float32))
    hidden = g.op("Where", empty, g.const(LOWEST, np.float32), whole)
    ranges = [g.op("Range", g.const(0), g.size(whole, axis), g.const(1)) for axis in range(4)]
    shaped = [g.op("Reshape", x, g.const([-1] + [1] * (3 - axis))) for axis, x in enumerate(ranges)]
    places = g.op("Concat", *(g.unsqueeze(g.op("Expand", x, g.op("Shape", whole)), -1) for x in shaped), axis=-1)
    return g.op("ScatterND", whole, places, hidden)


# ---- fusing one


@dataclass
class Fused:
    """What became of one graph: its layer, and the verdict of running both."""

    layer: AttentionLayer | RefusedAttention | None
    verdict: Verdict | None = None


def fuse(proto: onnx.ModelProto, *, seed: int = 0) -> Fused:
    """Finds the attention of `proto` and, unless it is refused, compares it with the node."""
    found = ir.serde.deserialize_model(proto)
    remove_unused(found.graph)
    shapes = Shapes()
    layers = attention_match.find(found.graph, shapes)
    if not layers or isinstance(layers[0], RefusedAttention):
        return Fused(layers[0] if layers else None)
    (layer,) = layers
    return Fused(layer, verify_attention(layer, make_attention_node(layer), found, Path(), shapes=shapes, seed=seed))


def fused_model(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with its attention, which must be understood, as one node."""
    found = ir.serde.deserialize_model(proto)
    remove_unused(found.graph)
    (layer,) = attention_match.find(found.graph, Shapes())
    put_attention_node(found.graph, layer, make_attention_node(layer))
    remove_unused(found.graph)
    found.graph.sort()
    return ir.serde.serialize_model(found)


def feeds(proto: onnx.ModelProto, *, batch: int, new: int, past: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of a graph of `model`, nothing masked."""
    random = np.random.default_rng(seed)
    sizes = {"batch": batch, "new": new, "past": past, "past + new": past + new}
    made = {}
    for value in proto.graph.input:
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        element = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        made[value.name] = random.standard_normal(shape).astype(element) if element != np.int64 else np.ones(shape, element)
    if "position_ids" in made:
        made["position_ids"] = np.tile(np.arange(past, past + new), (batch, 1))
    return made
