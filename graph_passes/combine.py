"""Combination: an expert's output times its weight, put back to the rows of its tokens, and summed over experts."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .constants import attribute, is_standard
from .dims import ONE, Dim
from .dispatch import NOTHING
from .meanings import Axis, Contribution, Expert, Meaning, PartialSum, PickIndex, PickWeight, Refusal, Rows
from .recogniser import Recogniser
from .shapes import Shape


def weigh(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Output [picks, H] times weight [picks, 1]."""
    for operand, other in (node.inputs, node.inputs[::-1]):
        rows, weight = recogniser.meaning(operand), recogniser.meaning(other)
        if isinstance(rows, Rows) and isinstance(weight, PickWeight):
            return _weighed(rows, weight)
    return None


def _weighed(rows: Rows, weight: PickWeight) -> Contribution:
    if not isinstance(rows.form, Expert):
        raise Refusal("routing weights multiply something that is not the output of an expert")
    if rows.selection != weight.selection:
        raise Refusal("the output of one expert is multiplied by the routing weights of another")
    if [axis.role for axis in weight.axes] != ["pick", "one"] or [axis.role for axis in rows.axes] != ["pick", "feature"]:
        raise Refusal("the output of an expert and its routing weights do not line up as [picks, H] and [picks, 1]")
    return Contribution(
        rows.routing, rows.axes, rows.selection, rows.source, weight.weights, rows.form, rows.form.down.matrix.dtype
    )


def scatter_elements(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Into zeros without reduction, since a token chooses an expert at most once; or added to the sum so far."""
    contribution = recogniser.meaning(node.inputs[2])
    if not isinstance(contribution, Contribution):
        return None
    index = recogniser.meaning(node.inputs[1])
    if attribute(node, "axis", 0) % 2 or not _is_token_of(index, contribution):
        raise Refusal("the output of an expert is not scattered to the rows of its own tokens")
    whole_rows = [axis.role for axis in index.axes] == ["pick", "repeat"]
    if not whole_rows or not recogniser.shapes.dims.same(index.axes[1].size, contribution.axes[1].size):
        raise Refusal("the output of an expert is scattered to a part of a row")
    return _scattered(recogniser, node, contribution)


def scatter_nd(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The same with whole rows: index_add as newer exporters write it."""
    contribution = recogniser.meaning(node.inputs[2])
    if not isinstance(contribution, Contribution):
        return None
    index = recogniser.meaning(node.inputs[1])
    if not _is_token_of(index, contribution) or [axis.role for axis in index.axes] != ["pick", "one"]:
        raise Refusal("the output of an expert is not scattered to the rows of its own tokens")
    return _scattered(recogniser, node, contribution)


def _is_token_of(index: Meaning | None, contribution: Contribution) -> bool:
    return (
        isinstance(index, PickIndex)
        and index.selection == contribution.selection
        and (index.token_factor, index.slot_factor) == (ONE, NOTHING)
    )


def _scattered(recogniser: Recogniser, node: ir.Node, contribution: Contribution) -> PartialSum:
    base = node.inputs[0]
    reduction = attribute(node, "reduction", "none")
    before = recogniser.meaning(base)
    if reduction == "add" and isinstance(before, PartialSum):
        _fits(recogniser, before, contribution.axes[1].size)
        return _sum(recogniser, before, contribution, before.axes)
    if reduction not in ("none", "add"):
        raise Refusal(f"expert outputs are combined with reduction {reduction!r}, expected a sum")
    shape = zeros_shape(recogniser, base)
    if shape is None or len(shape) != 2:
        raise Refusal("the output of an expert is scattered into something that is neither zeros nor the sum so far")
    axes = (Axis("token", shape[0]), Axis("feature", shape[1]))
    single = PartialSum(contribution.routing, axes, (contribution,), 1, contribution.dtype)
    return _fits(recogniser, single, contribution.axes[1].size)


def add(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The sum so far plus another expert's, or plus zeros."""
    left, right = (recogniser.meaning(operand) for operand in node.inputs)
    if isinstance(left, PartialSum) and isinstance(right, PartialSum):
        return _sum(recogniser, left, right, left.axes)
    for known, operand in ((left, node.inputs[1]), (right, node.inputs[0])):
        if isinstance(known, PartialSum):
            zeros = zeros_shape(recogniser, operand)
            if zeros is None:
                raise Refusal("something is added to the sum of experts that is neither zeros nor an expert")
            if len(zeros) != len(known.axes) or not all(map(recogniser.shapes.dims.same, zeros, _sizes(known))):
                raise Refusal("the zeros that start the sum of experts are not proved to have its shape")
            return known
    return None


def _sum(recogniser: Recogniser, left: PartialSum, right: PartialSum | Contribution, axes: tuple[Axis, ...]) -> PartialSum:
    if left.routing is not right.routing:
        raise Refusal("experts of different routers are added")
    added = 1
    if isinstance(right, PartialSum):
        added = right.count
        if len(left.axes) != len(right.axes) or not all(map(recogniser.shapes.dims.same, _sizes(left), _sizes(right))):
            raise Refusal("sums of experts with different shapes are added")
    return PartialSum(left.routing, axes, (left, right), left.count + added, left.dtype)


def _sizes(meaning: Meaning) -> Shape:
    return tuple(axis.size for axis in meaning.axes)


def _fits(recogniser: Recogniser, single: PartialSum, features: Dim) -> PartialSum:
    if not recogniser.shapes.dims.same(single.axes[1].size, features):
        raise Refusal("the output of an expert is scattered into rows of another size")
    return dataclasses.replace(single, axes=(single.axes[0], Axis("feature", features)))


def zeros_shape(recogniser: Recogniser, value: ir.Value) -> Shape | None:
    """The shape of `value`, if it is zeros (ConstantOfShape, or a constant 0 expanded); otherwise None."""
    node = value.producer()
    while node is not None and is_standard(node) and node.op_type in ("Identity", "Expand"):
        node = node.inputs[0].producer()
    if node is None or not is_standard(node):
        return None
    if node.op_type not in ("ConstantOfShape", "Constant"):
        return None
    content = node.attributes.get("value")
    if content is None:
        return recogniser.shapes.shape(value) if node.op_type == "ConstantOfShape" else None
    tensor = content.value
    return recogniser.shapes.shape(value) if tensor.size == 1 and not tensor.numpy().any() else None


RULES = {
    "Mul": [weigh],
    "ScatterElements": [scatter_elements],
    "ScatterND": [scatter_nd],
    "Add": [add],
}
