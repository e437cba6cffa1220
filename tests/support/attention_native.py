"""A GroupQueryAttention node without ONNX Runtime, and what it must answer."""

from __future__ import annotations

import numpy as np

from ort_hina import _native

from .attention_reference import AttentionCase, attend, present_caches
from .elements import decode, encode
from .guard import guarded
from .levels import product_type

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]


def sizes_of(case: AttentionCase) -> dict[str, int]:
    """The sizes that the binding wants."""
    sizes = {
        "batch": case.query.shape[0], "queries": case.query.shape[1], "key_size": case.query.shape[3],
        "value_size": case.value.shape[3], "past": case.past_length, "total": case.total,
    }  # fmt: skip
    if case.cos is not None:
        sizes |= {"rotary_positions": case.cos.shape[-2], "rotary_width": case.cos.shape[-1]}
        sizes |= {"rotary_batch": case.cos.shape[0] if case.cos.ndim == 3 else 0}
    if case.bias is not None:
        sizes |= {"bias_batch": case.bias.shape[0], "bias_heads": case.bias.shape[1]}
    if case.mask is not None:
        sizes["mask_bytes"] = case.mask.itemsize
    for name, weight in (("q_norm_heads", case.q_norm), ("k_norm_heads", case.k_norm)):
        if weight is not None:
            sizes[name] = weight.size // case.query.shape[3]
    return sizes


def types_of(case: AttentionCase) -> dict[str, str]:
    """Element types of tensors that have another than the query."""
    kinds = {
        "cos_cache": case.angle_kind, "sin_cache": case.angle_kind, "q_norm_weight": case.norm_kind,
        "k_norm_weight": case.norm_kind,
    }  # fmt: skip
    return {name: kind for name, kind in kinds.items() if kind is not None}


def tensors_of(case: AttentionCase) -> dict[str, np.ndarray]:
    """Each as its bytes, before a forbidden page."""
    floats = {
        "query": case.query, "key": case.key, "value": case.value, "past_key": case.past_key,
        "past_value": case.past_value, "cos_cache": case.cos, "sin_cache": case.sin, "attention_bias": case.bias,
        "head_sink": case.sink, "q_norm_weight": case.q_norm, "k_norm_weight": case.k_norm,
    }  # fmt: skip
    types = types_of(case)
    tensors = {name: encode(x, types.get(name, case.kind)) for name, x in floats.items() if x is not None}
    if case.seqlens_k is not None:
        tensors["seqlens_k"] = case.seqlens_k.astype(np.int32)
    if case.position_ids is not None:
        tensors["position_ids"] = case.position_ids.astype(np.int64)
    if case.mask is not None:
        tensors["attention_mask"] = case.mask
    return {name: guarded(np.ascontiguousarray(x).reshape(-1).view(np.uint8)) for name, x in tensors.items()}


def run_native(
    case: AttentionCase, *, isa: str = "", threads: int = 1, in_place: bool = False, attributes: dict | None = None
) -> Answer:
    """output [B, S, H, Dv] and present caches [B, kv_heads, length, size], float64. `attributes`: instead of the case's."""
    node = _native.GroupQueryAttention(attributes or case.attributes(), isa)
    return decoded(case, node.run(case.kind, sizes_of(case), tensors_of(case), threads, in_place, types_of(case)))


def decoded(case: AttentionCase, answer: tuple[np.ndarray, ...]) -> Answer:
    """The binding's answer as `run_native` gives it."""
    output, keys, values = answer
    lead = (case.query.shape[0], case.kv_heads, case.length)
    return (
        decode(output, case.kind).reshape(*case.query.shape[:3], case.value.shape[3]),
        decode(keys, case.kind).reshape(*lead, case.query.shape[3]),
        decode(values, case.kind).reshape(*lead, case.value.shape[3]),
    )


def assert_answers(case: AttentionCase, answer: Answer, *, isa: str = "", in_place: bool = False, cuts: int = 0) -> None:
    """Output and caches are those of the reference. In place, rows that belong to no key are as they were. `cuts`: of the
    reference's `attend`."""
    output, keys, values = answer
    expected_keys, expected_values = present_caches(case)
    for b in range(len(output)):
        length = case.keys_of(b) if in_place else case.length
        own = (b, slice(None), slice(length))
        np.testing.assert_array_equal(values[own], expected_values[own])
        assert_inside(keys[own], expected_keys.values[own], expected_keys.errors[own], "present_key")
    expected = attend(case, keys, values, product_type(isa, case.kind), cuts)
    assert_inside(output, expected.values, expected.errors, "output")


def assert_inside(found: np.ndarray, expected: np.ndarray, errors: np.ndarray, what: str) -> None:
    """Every value is within its bound, or NaN where NaN is expected."""
    with np.errstate(invalid="ignore"):
        inside = (np.abs(found - expected) <= errors) | (np.isnan(found) & np.isnan(expected)) | (found == expected)
    if not inside.all():
        worst = np.argwhere(~inside)[0]
        place = tuple(worst)
        raise AssertionError(
            f"{what}: {(~inside).sum()} of {inside.size} outside their bounds, first at {worst}: "
            f"{found[place]!r} for {expected[place]!r} ± {errors[place]!r}"
        )


def assert_attends(case: AttentionCase, **how) -> Answer:
    """Runs the operator and compares it with the reference; arguments as for `run_native`."""
    answer = run_native(case, **how)
    assert_answers(case, answer, isa=how.get("isa", ""), in_place=how.get("in_place", False))
    return answer
