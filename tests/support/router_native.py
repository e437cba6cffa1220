"""A Router node without ONNX Runtime, and what it must answer."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from ort_hina import _native
from ort_hina.graph_passes.router_spec import RouterSpec

from .elements import encode, rounded
from .guard import guarded
from .router_reference import Selection, select, weight_error, weights_of


def attributes_of(spec: RouterSpec) -> dict[str, object]:
    """The node's attributes."""
    return asdict(spec) | {"normalize": int(spec.normalize)}


def run_native(
    spec: RouterSpec,
    logits: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    isa: str = "",
    logits_type: str = "float",
    bias_type: str = "float",
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """expert_ids and expert_weights, [T, k]. Every input ends where a forbidden page begins.

    Args:
        logits: float32 [T, E], and bias: float32 [E]; both are rounded to the named types.
    """
    router = _native.Router(attributes_of(spec), isa)
    biased = encode(np.zeros(0) if bias is None else bias, bias_type)
    return router.run(
        guarded(encode(logits, logits_type)), logits_type, logits.shape[-1], guarded(biased), bias_type, threads
    )


def assert_routes(spec: RouterSpec, logits: np.ndarray, bias: np.ndarray | None = None, **how) -> Selection:
    """Compares the operator with the reference: ids where no rounding can change them, and all weights of these tokens.

    Args:
        how: as for `run_native`.

    Returns:
        what the reference chose.
    """
    ids, weights = run_native(spec, logits, bias, **how)
    logits = rounded(logits, how.get("logits_type", "float"))
    bias = None if bias is None else rounded(bias, how.get("bias_type", "float"))
    selection = select(spec, logits, bias)
    assert_answers(spec, selection, ids, weights, logits.shape[-1])
    return selection


def assert_answers(
    spec: RouterSpec, selection: Selection, ids: np.ndarray, weights: np.ndarray, experts: int
) -> None:
    """`ids` and `weights`, [T, k], are those of the reference."""
    assert ids.dtype == np.int64 and weights.dtype == np.float32 and ids.shape == weights.shape == selection.ids.shape
    assert ((ids >= 0) & (ids < experts)).all()
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all(), "an expert was chosen twice"
    sure = selection.decided
    np.testing.assert_array_equal(ids[sure], selection.ids[sure])
    expected, error = weights_of(spec, selection)[sure], weight_error(spec, selection)[sure]
    found = weights[sure].astype(np.float64)
    with np.errstate(invalid="ignore"):
        close = np.abs(found - expected) <= error
    inside = close | (np.isnan(found) & np.isnan(expected)) | (found == expected) | np.isposinf(error)
    assert inside.all(), f"{(~inside).sum()} weights outside their bounds: {found[~inside]} for {expected[~inside]}"
