"""An expert's feed-forward network: matrix products with constants, what lies between them elementwise, and gate times up."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from .activations import Expression, function, named
from .axes import atoms, sizes
from .constant_views import ConstantView, slice_cuts, split_sizes
from .constants import attribute, scalar
from .dims import ONE, Dim
from .meanings import (
    Axes,
    Axis,
    ChosenConstant,
    Every,
    EveryExpert,
    Expert,
    Function,
    Gated,
    Linear,
    Matrix,
    Meaning,
    Pairs,
    Refusal,
    Rows,
    Selection,
    SeparateExperts,
    Tokens,
    Vector,
)
from .recogniser import Recogniser

# ---- matrix products


def matrix_product(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """MatMul of rows with a constant [inputs, outputs] matrix, or with a stack of them [experts, inputs, outputs]."""
    view = recogniser.constant(node.inputs[1])
    if view is None:
        rows = recogniser.meaning(node.inputs[0])
        if isinstance(rows, Rows) and not isinstance(recogniser.meaning(node.inputs[1]), ChosenConstant):
            raise Refusal(f"the matrix {node.inputs[1].name!r} is not a constant initializer")
        return None
    rows = recogniser.rows(node.inputs[0])
    if rows is None:
        return None
    lead = [size for size in view.shape[:-2] if size != 1]
    if len(view.shape) < 2 or len(lead) > 1:
        raise Refusal(f"the matrix {node.inputs[1].name!r} has the shape {list(view.shape)}, expected [inputs, outputs]")
    if lead:
        return _stack_product(recogniser, rows, view)
    return _product(recogniser, node.inputs[0], rows, _matrix(view), None)


def gemm(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Gemm of rows with a constant matrix and, possibly, a constant bias vector."""
    view = recogniser.constant(node.inputs[1])
    rows = None if view is None else recogniser.rows(node.inputs[0])
    if rows is None:
        return None
    if attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1 or attribute(node, "transA", 0):
        raise Refusal("Gemm scales or transposes the tokens")
    if attribute(node, "transB", 0):
        view = dataclasses.replace(view, shape=view.shape[::-1], strides=view.strides[::-1])
    matrix = _matrix(view)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _product(recogniser, node.inputs[0], rows, matrix, None if bias is None else _bias(recogniser, bias, matrix))


def _matrix(view: ConstantView) -> Matrix:
    return Matrix(view.tensor, view.shape[-2], view.shape[-1], view.strides[-2:], view.offset)


def _product(recogniser: Recogniser, value: ir.Value, rows: Rows, matrix: Matrix, bias: Vector | None) -> Rows:
    """Rows `value`, of which the last axis are the features, times one matrix."""
    _check_inputs(recogniser, rows, rows.axes[-1], matrix)
    if isinstance(rows.selection, EveryExpert):
        raise Refusal("the rows of every expert are multiplied by one matrix for all of them")
    axes = (*rows.axes[:-1], Axis("feature", Dim(matrix.outputs)))
    linear = Linear(matrix, bias)
    if isinstance(rows.selection, Every) and not isinstance(rows.form, Tokens | Function):
        return _of_new_tokens(recogniser, value, rows, axes, linear)
    try:
        return _multiplied(recogniser, rows, rows.selection, axes, linear)
    except Refusal:
        if not isinstance(rows.selection, Every):
            raise
        return _of_new_tokens(recogniser, value, rows, axes, linear)


def _of_new_tokens(recogniser: Recogniser, value: ir.Value, rows: Rows, axes: Axes, linear: Linear) -> Rows:
    """Outside of any expert a product of something unknown begins anew: `value` are the tokens."""
    recogniser.token_views.setdefault(value, []).append(value)
    return Rows(None, axes, rows.selection, value, linear, linear.matrix.dtype)


def _stack_product(recogniser: Recogniser, rows: Rows, view: ConstantView) -> Rows:
    """Each token's rows times every matrix of a stack: experts become an axis, if they are none yet."""
    place = next(axis for axis, size in enumerate(view.shape) if size != 1) - len(view.shape)
    experts = view.shape[place]
    matrix = dataclasses.replace(_matrix(view), experts=experts, expert_stride=view.strides[place])
    _check_inputs(recogniser, rows, rows.axes[-1], matrix)
    axes = [Axis("one", ONE)] * (-place - len(rows.axes)) + list(rows.axes)
    if axes[place].role not in ("one", "repeat", "expert") or not (
        axes[place].role == "one" or recogniser.shapes.dims.same(axes[place].size, Dim(experts))
    ):
        raise Refusal(f"a stack of {experts} matrices does not line up with the rows that it multiplies")
    if not isinstance(rows.selection, Every | EveryExpert):
        raise Refusal("rows that belong to one expert are multiplied by the matrices of all")
    axes[place] = Axis("expert", Dim(experts))
    axes[-1] = Axis("feature", Dim(matrix.outputs))
    if any(axis.role == "repeat" for axis in atoms(tuple(axes))):
        raise Refusal("rows are repeated more often than there are matrices")
    return _multiplied(recogniser, rows, EveryExpert(), tuple(axes), Linear(matrix))


def chosen_product(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Each pair's row times the matrix that was gathered for it, on either side of the MatMul."""
    left, right = (recogniser.meaning(operand) for operand in node.inputs)
    if isinstance(right, ChosenConstant):
        rows, chosen, row_axis = recogniser.rows(node.inputs[0]), right, -1
        inputs, outputs = right.axes[-2:]
    elif isinstance(left, ChosenConstant):
        rows, chosen, row_axis = recogniser.rows(node.inputs[1]), left, -2
        outputs, inputs = left.axes[-2:]
    else:
        return None
    if rows is None or len(rows.axes) != len(chosen.axes) or not {inputs.role, outputs.role} == {"stored1", "stored2"}:
        raise Refusal("rows are multiplied by matrices of chosen experts that do not line up with them")
    lead = _lined_up(recogniser, rows, chosen)
    matrix = _chosen_matrix(chosen, inputs, outputs)
    if rows.axes[-3 - row_axis].size != ONE:
        raise Refusal("several rows are multiplied by the matrix of one choice")
    _check_inputs(recogniser, rows, rows.axes[row_axis], matrix)
    pair = [Axis("one", ONE), Axis("one", ONE)]
    pair[row_axis] = Axis("feature", Dim(matrix.outputs))
    return _multiplied(recogniser, rows, chosen.selection, (*lead, *pair), Linear(matrix))


def _chosen_matrix(chosen: ChosenConstant, inputs: Axis, outputs: Axis) -> Matrix:
    view = chosen.view
    k, n = int(inputs.role[-1]), int(outputs.role[-1])
    strides = view.strides[k], view.strides[n]
    return Matrix(view.tensor, view.shape[k], view.shape[n], strides, view.offset, view.shape[0], view.strides[0])


def _lined_up(recogniser: Recogniser, rows: Rows, chosen: ChosenConstant) -> Axes:
    """The axes before the last two, if each row stands where its own choice does."""
    dims = recogniser.shapes.dims
    lead = chosen.axes[:-2]
    if isinstance(rows.selection, Every):
        for mine, theirs in zip(rows.axes[:-2], lead, strict=True):
            if mine.role == "one" and all(part.role == "slot" for part in atoms((theirs,))):
                continue  # broadcast over the slots
            pairs = list(zip(atoms((mine,)), atoms((theirs,)), strict=False))
            partners = {"token": "token", "repeat": "slot"}
            if len(atoms((mine,))) != len(atoms((theirs,))) or not all(
                partners.get(a.role) == b.role and dims.same(a.size, b.size) for a, b in pairs
            ):
                raise Refusal("tokens are not repeated once for each of their experts, in order")
        return lead
    if rows.selection != chosen.selection or not all(map(dims.same, sizes(rows.axes[:-2]), sizes(lead))):
        raise Refusal("rows of one choice of experts are multiplied by matrices of another")
    return lead


def _check_inputs(recogniser: Recogniser, rows: Rows, features: Axis, matrix: Matrix) -> None:
    if features.role not in ("feature", "one") or not recogniser.shapes.dims.require(features.size, matrix.inputs):
        raise Refusal(f"a matrix of {matrix.inputs} inputs does not fit the rows that it multiplies")


def _multiplied(recogniser: Recogniser, rows: Rows, selection: Selection, axes: Axes, linear: Linear) -> Rows:
    if isinstance(rows.form, Tokens):
        form = linear
    elif isinstance(rows.form, Linear | Function):
        form = Expert(*named(rows.form), linear)
    else:
        raise Refusal("a matrix product of rows that are neither tokens nor activated")
    routing = selection.routing if isinstance(selection, Pairs) else rows.routing
    return dataclasses.replace(rows, routing=routing, selection=selection, axes=axes, form=form, dtype=linear.matrix.dtype)


# ---- biases


def add_bias(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    for operand, other in (node.inputs, node.inputs[::-1]):
        rows = recogniser.meaning(operand)
        if not isinstance(rows, Rows):
            continue
        chosen = recogniser.meaning(other)
        if isinstance(chosen, ChosenConstant):
            return _with_bias(rows, lambda matrix: _chosen_bias(recogniser, rows, chosen, matrix))  # noqa: B023
        if recogniser.constant(other) is not None and scalar(other) is None:
            return _with_bias(rows, lambda matrix: _bias(recogniser, other, matrix))  # noqa: B023
    return None


def _with_bias(rows: Rows, bias) -> Rows:
    match rows.form:
        case Linear(matrix, None):
            return dataclasses.replace(rows, form=Linear(matrix, bias(matrix)))
        case SeparateExperts():
            pass
        case Expert(down=Linear(matrix, None)) as expert:
            down = Linear(matrix, bias(matrix))
            return dataclasses.replace(rows, form=dataclasses.replace(expert, down=down))
    raise Refusal("a constant is added that is not the bias of a matrix product")


def _bias(recogniser: Recogniser, value: ir.Value, matrix: Matrix) -> Vector:
    """A vector; of a stack, one for each expert."""
    view = recogniser.constant(value)
    if view is None or not view.shape or view.shape[-1] != matrix.outputs:
        raise Refusal(f"the bias {value.name!r} is not a constant vector of {matrix.outputs} elements")
    lead = [(size, stride) for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True) if size != 1]
    if matrix.experts is None and not lead:
        return Vector(view.tensor, matrix.outputs, view.strides[-1], view.offset)
    if matrix.experts is not None and [size for size, _ in lead] in ([], [matrix.experts]):
        stride = lead[0][1] if lead else 0
        return Vector(view.tensor, matrix.outputs, view.strides[-1], view.offset, matrix.experts, stride)
    raise Refusal(f"the bias {value.name!r} has the shape {list(view.shape)}, which is not one vector for each matrix")


def _chosen_bias(recogniser: Recogniser, rows: Rows, chosen: ChosenConstant, matrix: Matrix) -> Vector:
    view = chosen.view
    lead = [axis for axis in chosen.axes if axis.role not in ("one", "stored1")]
    mine = [axis for axis in rows.axes if axis.role not in ("one", "feature")]
    fits = len(view.shape) == 2 and view.shape[1] == matrix.outputs and view.shape[0] == matrix.experts
    if rows.selection != chosen.selection or atoms(tuple(lead)) != atoms(tuple(mine)) or not fits:
        raise Refusal("biases of another choice of experts, or of another size, are added")
    return Vector(view.tensor, matrix.outputs, view.strides[1], view.offset, view.shape[0], view.strides[0])


# ---- parts of a product: gate and up in one matrix


def split_features(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning, ...] | None:
    rows = recogniser.meaning(node.inputs[0])
    if not isinstance(rows, Rows):
        return None
    place = attribute(node, "axis", 0) % len(rows.axes)
    if rows.axes[place].role == "place" and len(node.inputs) > 1:
        raise Refusal(
            "how many tokens each expert gets was fixed when the file was exported (the sizes of this Split are those of the "
            "example input): the file is wrong for other inputs"
        )
    total = rows.axes[place].size.constant
    cuts = None if total is None else split_sizes(node, total)
    if cuts is None or rows.axes[place].role != "feature":
        raise Refusal("rows are split along something that is not their features, or at places that are not constant")
    starts = [sum(cuts[:i]) for i in range(len(cuts))]
    return tuple(_part(rows, place, range(start, start + size)) for start, size in zip(starts, cuts, strict=True))


def slice_features(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    rows = recogniser.meaning(node.inputs[0])
    if not isinstance(rows, Rows):
        return None
    cuts = slice_cuts(node, [axis.size.constant for axis in rows.axes], lambda bound: _numbers(recogniser, bound))
    if cuts is None or len(cuts) != 1:
        return None
    ((place, kept),) = cuts.items()
    if rows.axes[place].role != "feature":
        raise Refusal("rows are sliced along something that is not their features")
    return _part(rows, place, kept)


def _numbers(recogniser: Recogniser, value: ir.Value) -> list[int] | None:
    found = recogniser.shapes.integers(value)
    if found is None or any(item.constant is None for item in found.items):
        return None
    return [item.constant for item in found.items]


def _part(rows: Rows, place: int, kept: range) -> Rows:
    if not isinstance(rows.form, Linear):
        raise Refusal("rows are taken apart that are not a matrix product")
    matrix, bias = rows.form.matrix, rows.form.bias
    k_stride, n_stride = matrix.strides
    matrix = dataclasses.replace(
        matrix, outputs=len(kept), strides=(k_stride, n_stride * kept.step), offset=matrix.offset + n_stride * kept.start
    )
    if bias is not None:
        start = bias.offset + bias.stride * kept.start
        bias = dataclasses.replace(bias, size=len(kept), stride=bias.stride * kept.step, offset=start)
    axes = (*rows.axes[:place], Axis("feature", Dim(len(kept))), *rows.axes[place + 1 :])
    return dataclasses.replace(rows, axes=axes, form=Linear(matrix, bias))


# ---- elementwise functions


def elementwise(name: str):
    """A rule for an operator of one or two operands, each of them rows or one number."""

    def rule(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
        return _applied(recogniser, name, node.inputs)

    return rule


def _applied(recogniser: Recogniser, name: str, operands) -> Rows | None:
    rows = [meaning for meaning in map(recogniser.meaning, operands) if isinstance(meaning, Rows)]
    if not rows or not all(isinstance(row.form, Linear | Function) for row in rows):
        return None
    if len(rows) == 2 and not _alike(recogniser, *rows):
        raise Refusal("rows of different tokens or experts are combined")
    values = [_operand(recogniser, operand) for operand in operands]
    return None if None in values else dataclasses.replace(rows[0], form=function(name, *values))


def _operand(recogniser: Recogniser, value: ir.Value) -> Expression | None:
    rows = recogniser.meaning(value)
    if isinstance(rows, Rows):
        return rows.form
    number = scalar(value)
    return None if number is None else float(number)


def _alike(recogniser: Recogniser, left: Rows, right: Rows) -> bool:
    return (
        left.selection == right.selection
        and left.source is right.source
        and left.scaled == right.scaled
        and len(left.axes) == len(right.axes)
        and all(map(recogniser.shapes.dims.same, sizes(left.axes), sizes(right.axes)))
    )


def gate_expert(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """``sigmoid(x · g) * expert(x)``, one number for each token: the gate of a shared expert."""
    for operand, other in (node.inputs, node.inputs[::-1]):
        rows, gate = recogniser.meaning(operand), recogniser.meaning(other)
        match rows, gate:
            case Rows(form=Expert() as expert, selection=Every()), Rows(form=Function("sigmoid", (Linear() as linear,))):
                tokens_agree = [*map(recogniser.shapes.dims.same, sizes(rows.axes[:-1]), sizes(gate.axes[:-1]))]
                if rows.source is gate.source and all(tokens_agree) and linear.matrix.outputs == 1 and linear.bias is None:
                    return dataclasses.replace(rows, form=Gated(linear, expert))
    return None


def gelu(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The Gelu operator of opset 20."""
    name = "gelu_tanh" if attribute(node, "approximate", "none") == "tanh" else "gelu"
    return _applied(recogniser, name, node.inputs)


def clip(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    rows = recogniser.meaning(node.inputs[0])
    if not isinstance(rows, Rows) or not isinstance(rows.form, Linear | Function):
        return None
    bounds = [-math.inf, math.inf]
    for place, default in ((1, "min"), (2, "max")):
        stated = attribute(node, default, None)
        value = node.inputs[place] if len(node.inputs) > place else None
        if value is not None:
            stated = scalar(value)
            if stated is None:
                raise Refusal("rows are clipped to something that is not constant")
        bounds[place - 1] = bounds[place - 1] if stated is None else float(stated)
    return dataclasses.replace(rows, form=function("clip", rows.form, *bounds))


def bound(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Min or Max with a number."""
    for operand, other in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
        rows, number = recogniser.meaning(operand), scalar(other)
        if isinstance(rows, Rows) and isinstance(rows.form, Linear | Function) and number is not None:
            bounds = (-math.inf, float(number)) if node.op_type == "Min" else (float(number), math.inf)
            return dataclasses.replace(rows, form=function("clip", rows.form, *bounds))
    return None


RULES = {
    "Min": [bound],
    "Max": [bound],
    "MatMul": [matrix_product, chosen_product],
    "Gemm": [gemm],
    "Split": [split_features],
    "Slice": [slice_features],
    "Add": [add_bias, elementwise("add")],
    "Sub": [elementwise("sub")],
    "Mul": [gate_expert, elementwise("mul")],
    "Div": [elementwise("div")],
    "Pow": [elementwise("pow")],
    "Neg": [elementwise("neg")],
    "Exp": [elementwise("exp")],
    "Reciprocal": [elementwise("reciprocal")],
    "Sigmoid": [elementwise("sigmoid")],
    "Tanh": [elementwise("tanh")],
    "Erf": [elementwise("erf")],
    "Relu": [elementwise("relu")],
    "Gelu": [gelu],
    "Clip": [clip],
}
