"""Verification: the original subgraph of a layer next to the node that replaces it, on the same input.

Each is run in ONNX Runtime as a model of its own, on random activations, with ids that reach every expert. Neither copies
the weights: both refer to the data file, so the memory needed is that of the pages of one layer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from .graph_passes.domain import DOMAIN, OPSET
from .graph_passes.moe_layer import MoELayer
from .graph_passes.moe_node import Replacement
from .run_alone import CannotRun, run_alone, stored_constant

# float: two sums of the same n ≤ 20,000 products in another order differ by about eps·√n ≈ 8e-6 of their scale, in each
# of two matrix products in a row. 1e-4 leaves room for a cancelling row; the smallest mistake, one expert of k wrong for
# one token, is of the order 1/k ≥ 0.03.
FLOAT_TOLERANCE = 1e-4

# Steps at which the original rounds to its 16-bit type and the operator does not (gate, activation (2), up, product,
# down, weight; then one addition per expert of a token). Each errs by at most half a unit in the last place, relative to
# something at most a few times as large as the largest output.
ROUNDED_STEPS = 7
ROUNDED_SCALE = 2.0

# Rows beyond those that reach every expert once: some experts then have several tokens, in several slots.
EXTRA_TOKENS = 3


@dataclass(frozen=True)
class Verdict:
    """``state`` is ``verified``, ``failed``, ``inconclusive`` (the output was zero or not finite) or ``not run``.

    ``difference`` is the largest one between the outputs, relative to the largest absolute value of the original's.
    """

    state: str
    difference: float | None
    tolerance: float
    seconds: float
    detail: str = ""

    @property
    def allows_fusing(self) -> bool:
        return self.state != "failed"


def tolerance(dtype: ir.DataType, k: int) -> float:
    """The largest accepted difference, relative to the scale of the output, for weights of `dtype` and k experts per token."""
    if dtype == ir.DataType.FLOAT:
        return FLOAT_TOLERANCE
    return ROUNDED_SCALE * (ROUNDED_STEPS + k) * float(ml_dtypes.finfo(dtype.numpy()).eps) / 2


def verify_layer(layer: MoELayer, replacement: Replacement, source: ir.Model, folder: Path, *, seed: int = 0) -> Verdict:
    """Compares `layer` with `replacement`.

    Args:
        layer: the original, still in its graph.
        replacement: the nodes that are to take its place, not in any graph.
        source: the model of the layer, for its opsets.
        folder: where the locations of external data are looked up (they have been checked).
        seed: of the random input.

    Raises:
        OrtHinaError: the operator library is missing or cannot be loaded.
    """
    began = time.perf_counter()
    limit = tolerance(layer.dtype, layer.k)
    feeds = _random_inputs(layer, seed)
    try:
        expected = _answer(_original_model(layer, feeds, source, folder), feeds)
    except CannotRun as error:
        detail = f"ONNX Runtime cannot run the original on this machine: {error}"
        return Verdict("not run", None, limit, time.perf_counter() - began, detail)
    try:
        found = _answer(_replacement_model(layer, replacement, feeds, source, folder), feeds)
    except CannotRun as error:
        return Verdict("failed", None, limit, time.perf_counter() - began, f"the fused node does not run: {error}")
    state, difference, detail = _compare(expected, found, limit)
    return Verdict(state, difference, limit, time.perf_counter() - began, detail)


def _answer(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    (output,) = run_alone(model, feeds)
    return output.astype(np.float64)


def _compare(expected: np.ndarray, found: np.ndarray, limit: float) -> tuple[str, float | None, str]:
    if expected.shape != found.shape:
        return "failed", None, f"the fused node answers with shape {found.shape}, the original with {expected.shape}"
    scale = float(np.abs(expected).max())
    if not math.isfinite(scale) or scale == 0:
        what = "zero" if scale == 0 else "not finite"
        return "inconclusive", None, f"the original's output is {what} for random input: nothing can be compared"
    difference = float(np.abs(expected - found).max()) / scale
    if difference <= limit:  # false for NaN
        return "verified", difference, ""
    return "failed", difference, f"differs by {difference:.2g} of the output's scale, and {limit:.2g} is allowed"


def _random_inputs(layer: MoELayer, seed: int) -> dict[str, np.ndarray]:
    """Activations, ids that are distinct within a token and reach every expert, and weights of the size of real ones (or
    logits that reach every expert).

    The inputs of which the original reads only the shape get that shape, for one sequence.
    """
    random = np.random.default_rng(seed)
    experts, k = layer.num_experts, layer.k
    tokens = -(-experts // k) + EXTRA_TOKENS
    # Walking in steps of k through a permutation reaches all of it, and k ≤ E neighbours are distinct.
    order = random.permutation(experts)
    ids = order[np.arange(tokens * k).reshape(tokens, k) % experts]
    ids = random.permuted(ids, axis=1).astype(np.int64)
    x = random.standard_normal((tokens, layer.hidden_size)).astype(_element(layer, 0))
    feeds = {}
    for value, rank in zip((layer.source or layer.x, layer.x), layer.ranks, strict=True):
        feeds[value.name] = x.reshape((1,) * (rank - 2) + x.shape)
    if layer.addend is not None:
        feeds[layer.addend.name] = random.standard_normal(feeds[layer.x.name].shape).astype(_element(layer, 0))
    if layer.router is not None:
        logits = random.uniform(-1, 1, (tokens, experts))
        np.put_along_axis(logits, ids, random.uniform(2, 3, ids.shape), axis=1)
        feeds[layer.router.logits.name] = logits.astype(_element(layer, 1))
    elif layer.ids is not None:
        feeds[layer.ids.name] = ids
        feeds[layer.weights.name] = random.uniform(0.05, 1.0, (tokens, k)).astype(_element(layer, 1))
    for value, shape in layer.onlooked:
        feeds[value.name] = np.zeros([size * (tokens if by_token else 1) for size, by_token in shape], layer.dtype.numpy())
    return feeds


def _element(layer: MoELayer, which: int) -> np.dtype:
    return (layer.dtypes[which] or layer.dtype).numpy()


def _original_model(layer: MoELayer, feeds: dict[str, np.ndarray], source: ir.Model, folder: Path) -> onnx.ModelProto:
    used = {value for node in layer.nodes for value in node.inputs if value is not None}
    nodes = [ir.serde.serialize_node(node) for node in layer.nodes]
    constants = [stored_constant(value, folder) for value in used if value.is_initializer()]
    return _model(layer, nodes, constants, feeds, {value.name for value in used}, source)


def _replacement_model(
    layer: MoELayer, replacement: Replacement, feeds: dict[str, np.ndarray], source: ir.Model, folder: Path
) -> onnx.ModelProto:
    constants = [stored_constant(value, folder) for value in replacement.windows]
    used = {value.name for node in replacement.nodes for value in node.inputs if value is not None}
    constants += [stored_constant(value, folder) for value in _other_constants(replacement)]
    model = _model(layer, [ir.serde.serialize_node(node) for node in replacement.nodes], constants, feeds, used, source)
    if not any(opset.domain == DOMAIN for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, OPSET))
    return model


def _other_constants(replacement: Replacement) -> list[ir.Value]:
    """Initializers besides the windows: the bias of a router."""
    operands = [value for node in replacement.nodes for value in node.inputs if value is not None]
    return [value for value in operands if value.is_initializer() and value not in replacement.windows]


def _model(
    layer: MoELayer,
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    feeds: dict[str, np.ndarray],
    used: set[str],
    source: ir.Model,
) -> onnx.ModelProto:
    onlooked = {value.name for value, _ in layer.onlooked}
    made = {name for node in nodes for name in node.output}
    inputs = [
        onnx.helper.make_tensor_value_info(
            name,
            onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
            # Without a shape the rank stays open, as it is in the whole model.
            None if name in onlooked else _open_shape(array),
        )
        for name, array in feeds.items()
        if name in used and name not in made
    ]
    output = onnx.helper.make_tensor_value_info(layer.output.name, int(_output_type(layer)), None)
    graph = onnx.helper.make_graph(nodes, "layer", inputs, [output])
    graph.initializer.extend(constants)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in source.graph.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=source.ir_version)


def _open_shape(array: np.ndarray) -> list[str | int]:
    """Only the last dimension is fixed, as in the whole model."""
    return [f"{array.shape}_{axis}" for axis in range(array.ndim - 1)] + [array.shape[-1]]


def _output_type(layer: MoELayer) -> ir.DataType:
    return layer.dtypes[0] or layer.dtype
