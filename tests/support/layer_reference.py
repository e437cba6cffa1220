"""What a recognised layer computes, in float64, from nothing but its description and the tensors that it names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ort_hina.graph_passes.meanings import Activation, Linear, Matrix, Vector
from ort_hina.graph_passes.moe_layer import MoELayer

from .moe_reference import Bounded, reference
from .moe_weights import MoeWeights
from .router_reference import select, weight_error, weights_of


def layer_reference(layer: MoELayer, x: np.ndarray, logits: np.ndarray) -> tuple[Bounded, np.ndarray]:
    """The output of a `layer` that has a router, and how far float32 may be from it.

    Args:
        x: [..., H]; logits: [..., E], as many rows as x.

    Returns:
        Output and error [T, H], T rows in all; and bool [T], the tokens whose choice of experts is the same under any
        rounding of float32 (of the others nothing is said).
    """
    assert layer.router is not None and layer.router.bias is None and layer.weight_on == "output"
    assert layer.weight_function == "none" and layer.sigmoid_gate is None
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    selection = select(layer.router.spec, logits)
    routing, doubt = weights_of(layer.router.spec, selection), weight_error(layer.router.spec, selection)
    weights = layer_weights(layer)
    y_type = {"float32": "float", "float16": "float16"}[str(x.dtype)]
    found = reference(weights, rows, selection.ids, routing, y_type)
    # What the doubt about its weight makes of each expert's answer.
    error = found.error
    for j in range(layer.k):
        alone = reference(weights, rows, selection.ids[:, [j]], np.ones_like(routing[:, [j]]), "float")
        error = error + doubt[:, [j]] * alone.most()
    return Bounded(found.value, error), selection.decided


def layer_weights(layer: MoELayer) -> MoeWeights:
    """The numbers behind the layer's views; NaN for experts that it lacks."""
    matrices, biases = {}, {}
    for role, linears in layer.roles():
        known = next(linear for linear in linears if linear is not None)
        matrices[role] = np.stack([_matrix(linear, known) for linear in linears])
        if known.bias is not None:
            biases[role] = np.stack([_bias(linear, known) for linear in linears])
    return MoeWeights(_attributes(layer.activation), [(np.zeros(0, np.uint8), "float")], matrices, biases)


def _attributes(activation: Activation) -> dict[str, Any]:
    """As the operator MoE names them; the operator's defaults are not those of the layer, so all are given."""
    attributes: dict[str, Any] = {"activation": activation.name}
    if activation.name == "swiglu_oai":
        attributes |= {"activation_alpha": activation.alpha, "activation_beta": activation.beta}
        if activation.limit is not None:
            attributes["swiglu_limit"] = activation.limit
    return attributes


def _matrix(linear: Linear | None, known: Linear) -> np.ndarray:
    m: Matrix = known.matrix
    if linear is None:
        return np.full((m.inputs, m.outputs), np.nan)
    m = linear.matrix
    along_k, along_n = m.strides
    return _elements(m.tensor)[m.offset + along_k * np.arange(m.inputs)[:, None] + along_n * np.arange(m.outputs)]


def _bias(linear: Linear | None, known: Linear) -> np.ndarray:
    v: Vector = known.bias
    if linear is None:
        return np.full(v.size, np.nan)
    v = linear.bias
    return _elements(v.tensor)[v.offset + v.stride * np.arange(v.size)]


def _elements(tensor: ir.TensorProtocol) -> np.ndarray:
    return tensor.numpy().reshape(-1).astype(np.float64)
