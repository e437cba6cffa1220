"""Where queries and keys come from: how far back the operator can take over from the graph."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .attention_heads import before_heads, features, sizes_of_heads, split_heads
from .attention_norm import Norm, read_norm
from .attention_rotary import Rotation, read_rotation
from .constants import attribute
from .router_expressions import Reader, is_output_of


@dataclass(frozen=True)
class Sources:
    """Query and key as the node takes them, (B, S, heads · D) or (B, heads, S, D), and what it does to them."""

    query: ir.Value
    key: ir.Value
    query_norm: ir.Value | None = None
    key_norm: ir.Value | None = None
    epsilon: float = 1e-6
    rotation: Rotation | None = None


def read_sources(reader: Reader, query: ir.Value, key: ir.Value) -> Sources:
    """Of `query` and new `key`, (B, heads, S, D) as they meet: a rotation is taken over if both are turned alike, and norms
    before that if they have one epsilon."""
    query, key = (_without_idle_casts(reader, value) for value in (query, key))
    rotation = _shared(read_rotation(reader, query), read_rotation(reader, key))
    if rotation is not None:
        query, key = (found.inner for found in rotation)
    norms = [_read_norm(reader, value) for value in (query, key)]
    epsilons = {norm.epsilon for norm in norms if norm is not None}
    if len(epsilons) != 1:
        norms = [None, None]
    query, key = (
        split_heads(reader, value) if norm is None else norm.x for value, norm in zip((query, key), norms, strict=True)
    )
    return Sources(
        query,
        key,
        *(norm and norm.weight for norm in norms),
        *(epsilons if len(epsilons) == 1 else (1e-6,)),
        rotation and rotation[0],
    )


def _shared(query: Rotation | None, key: Rotation | None) -> tuple[Rotation, Rotation] | None:
    if query is None or key is None:
        return None
    alike = (query.cosine, query.sine, query.interleaved) == (key.cosine, key.sine, key.interleaved)
    return (query, key) if alike else None


def _read_norm(reader: Reader, value: ir.Value) -> Norm | None:
    """The norm that `value` (B, heads, S, D) is the result of, with `x` as the node takes it."""
    split = before_heads(reader, value)
    flat = None if split is None else features(reader, split)
    if flat is not None:
        return read_norm(reader, flat)  # over all features of a token
    if split is not None:
        norm = read_norm(reader, split)
        x = None if norm is None else features(reader, norm.x)
        return None if x is None else Norm(x, norm.weight, norm.epsilon)
    norm = read_norm(reader, value)
    if norm is None or sizes_of_heads(reader, norm.x) is None:
        return None
    return Norm(split_heads(reader, norm.x), norm.weight, norm.epsilon)


def tokens_of(reader: Reader, value: ir.Value) -> ir.Value:
    """`value`, or what it is a rotation of: of that, the shape is known. Turning changes no size."""
    rotation = read_rotation(reader, value) if reader.shapes.rank(value) == 4 else None
    return value if rotation is None else split_heads(reader, rotation.inner)


def _without_idle_casts(reader: Reader, value: ir.Value) -> ir.Value:
    node = value.producer()
    while is_output_of(value, "Cast") and reader.dtype(node.inputs[0]) == ir.DataType(attribute(node, "to", 0)):
        value = node.inputs[0]
        node = value.producer()
    return value
