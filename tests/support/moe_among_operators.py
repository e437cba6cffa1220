"""A MoE node between two operators of ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto, helper

from .moe_reference import Bounded
from .moe_tokens import MoeTokens


def doubled(model: ModelProto) -> ModelProto:
    """X → Mul by 2 → MoE → Mul by 2 → Y, both exact, from a `model` X → MoE → Y. `with_doubled` says what it answers."""
    (node,) = model.graph.node
    kind = model.graph.input[0].type.tensor_type.elem_type
    two = helper.make_tensor("two", kind, [], np.array([2], helper.tensor_dtype_to_np_dtype(kind)).tobytes(), raw=True)
    before = helper.make_node("Mul", ["X", "two"], ["X_doubled"])
    after = helper.make_node("Mul", ["Y_halved", "two"], ["Y"])
    node.input[0], node.output[0] = before.output[0], after.input[0]
    model.graph.node.insert(0, before)
    model.graph.node.append(after)
    model.graph.initializer.append(two)
    return model


def with_doubled(tokens: MoeTokens) -> MoeTokens:
    """What the node is given where the model gets `tokens`; only for the reference, the bytes stay."""
    return replace(tokens, x=2 * tokens.x)


def twice(y: Bounded) -> Bounded:
    """What the model answers where the node answers `y`."""
    return Bounded(2 * y.value, 2 * y.error)
