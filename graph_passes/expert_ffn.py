"""One expert's feed-forward network: matrix products with constant matrices, an activation, and gate times up."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from .constants import attribute, initializer_tensor, is_standard, scalar
from .dims import Dim
from .meanings import Activated, Axis, Expert, Hidden, Linear, Matrix, Meaning, Partway, Refusal, Rows, Tokens
from .recogniser import Recogniser


def matrix_product(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """MatMul of rows with a constant [inputs, outputs] matrix."""
    rows = recogniser.meaning(node.inputs[0])
    if not isinstance(rows, Rows):
        return None
    return _product(recogniser, rows, _matrix(node.inputs[1], transposed=False), None)


def gemm(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Gemm of rows with a constant matrix and, possibly, a constant bias vector."""
    rows = recogniser.meaning(node.inputs[0])
    if not isinstance(rows, Rows):
        return None
    if attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1 or attribute(node, "transA", 0):
        raise Refusal("Gemm scales or transposes the tokens")
    matrix = _matrix(node.inputs[1], transposed=bool(attribute(node, "transB", 0)))
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _product(recogniser, rows, matrix, None if bias is None else _bias(bias, matrix))


def add_bias(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    for operand, other in (node.inputs, node.inputs[::-1]):
        rows = recogniser.meaning(operand)
        if isinstance(rows, Rows) and initializer_tensor(other) is not None:
            return _with_bias(rows, other)
    return None


def _with_bias(rows: Rows, bias: ir.Value) -> Rows:
    match rows.form:
        case Linear(matrix, None):
            return dataclasses.replace(rows, form=Linear(matrix, _bias(bias, matrix)))
        case Expert(down=Linear(matrix, None)) as expert:
            down = Linear(matrix, _bias(bias, matrix))
            return dataclasses.replace(rows, form=dataclasses.replace(expert, down=down))
    raise Refusal("a constant is added that is not the bias of a matrix product")


def _product(recogniser: Recogniser, rows: Rows, matrix: Matrix, bias: ir.TensorProtocol | None) -> Rows:
    if [axis.role for axis in rows.axes] != ["pick", "feature"]:
        raise Refusal(f"rows with axes {[axis.role for axis in rows.axes]} are multiplied; expected [picks, features]")
    if not recogniser.shapes.dims.require(rows.axes[1].size, matrix.inputs):
        raise Refusal(f"a matrix of {matrix.inputs} inputs does not fit the rows that it multiplies")
    linear = Linear(matrix, bias)
    match rows.form:
        case Tokens():
            form = linear
        case Hidden(activated, up):
            form = Expert(activated.name, activated.linear, up, linear)
        case Activated(name, gate):
            form = Expert(name, gate, None, linear)
        case _:
            raise Refusal("a matrix product of rows that are neither tokens nor activated")
    axes = (rows.axes[0], Axis("feature", Dim(matrix.outputs)))
    return dataclasses.replace(rows, axes=axes, form=form, dtype=matrix.dtype)


def _matrix(value: ir.Value, transposed: bool) -> Matrix:
    """The constant behind `value`, and how it is stored. `transposed`: `value` is [outputs, inputs]."""
    while (node := value.producer()) is not None and is_standard(node):
        if node.op_type == "Transpose" and list(attribute(node, "perm", (1, 0))) == [1, 0]:
            transposed = not transposed
        elif node.op_type != "Identity":
            break
        value = node.inputs[0]
    tensor = initializer_tensor(value)
    if tensor is None:
        raise Refusal(f"the matrix {value.name!r} is not a constant initializer")
    if len(tensor.shape) != 2:
        raise Refusal(f"the matrix {value.name!r} has {len(tensor.shape)} dimensions, expected 2")
    rows, columns = (int(size) for size in tensor.shape)
    return Matrix(tensor, columns, rows, (1, columns)) if transposed else Matrix(tensor, rows, columns, (columns, 1))


def _bias(value: ir.Value, matrix: Matrix) -> ir.TensorProtocol:
    tensor = initializer_tensor(value)
    if tensor is None or tensor.size != matrix.outputs or int(tensor.shape[-1]) != matrix.outputs:
        raise Refusal(f"the bias {value.name!r} is not a constant vector of {matrix.outputs} elements")
    return tensor


def _linear(recogniser: Recogniser, value: ir.Value | None) -> tuple[Rows, Linear] | None:
    rows = recogniser.meaning(value)
    return (rows, rows.form) if isinstance(rows, Rows) and isinstance(rows.form, Linear) else None


def _start(step: str):
    """A rule for an operator that, applied to a matrix product, begins an activation (or is one)."""

    def rule(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
        found = _linear(recogniser, node.inputs[0])
        if found is None:
            return None
        rows, linear = found
        form = Activated(step, linear) if step == "relu" else Partway(step, linear)
        return dataclasses.replace(rows, form=form)

    return rule


def gelu(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The Gelu operator of opset 20."""
    found = _linear(recogniser, node.inputs[0])
    if found is None:
        return None
    name = "gelu_tanh" if attribute(node, "approximate", "none") == "tanh" else "gelu"
    return dataclasses.replace(found[0], form=Activated(name, found[1]))


def divide(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """x / sqrt(2), the argument of erf in gelu."""
    found = _linear(recogniser, node.inputs[0])
    if found is None or not _is(node.inputs[1], math.sqrt(2)):
        return None
    return dataclasses.replace(found[0], form=Partway("over_root_two", found[1]))


def erf(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    return _advance(recogniser, node, {"over_root_two": "erf"})


def add_one(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    for operand, other in (node.inputs, node.inputs[::-1]):
        if _is(other, 1.0):
            return _advance_value(recogniser, operand, {"erf": "one_plus_erf"})
    return None


def multiply(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The products inside activations, and gate times up."""
    for operand, other in (node.inputs, node.inputs[::-1]):
        rows = recogniser.meaning(operand)
        if not isinstance(rows, Rows):
            continue
        if _is(other, 0.5):
            found = _advance_value(recogniser, operand, {"one_plus_erf": "half_one_plus_erf", "x_one_plus_erf": "gelu"})
            if found is not None:
                return found
        partner = recogniser.meaning(other)
        if isinstance(partner, Rows):
            form = _joined(rows, partner)
            if form is not None:
                return dataclasses.replace(rows, form=form)
    return None


# x times one of these steps of x is the activation, or the next step of it.
_TIMES_X = {"sigmoid": "silu", "half_one_plus_erf": "gelu", "one_plus_erf": "x_one_plus_erf"}
_ACTIVATIONS = frozenset({"silu", "gelu"})


def _joined(rows: Rows, partner: Rows) -> Activated | Partway | Hidden | None:
    if rows.selection != partner.selection or rows.source is not partner.source or rows.axes != partner.axes:
        return None
    match rows.form, partner.form:
        case Linear() as linear, Partway(step, inner) if step in _TIMES_X and inner is linear:
            return _step(_TIMES_X[step], linear)
        case Activated() as activated, Linear() as up:
            return Hidden(activated, up)
    return None


def _step(name: str, linear: Linear) -> Activated | Partway:
    return Activated(name, linear) if name in _ACTIVATIONS else Partway(name, linear)


def _advance(recogniser: Recogniser, node: ir.Node, steps: dict[str, str]) -> Meaning | None:
    return _advance_value(recogniser, node.inputs[0], steps)


def _advance_value(recogniser: Recogniser, value: ir.Value, steps: dict[str, str]) -> Meaning | None:
    rows = recogniser.meaning(value)
    if isinstance(rows, Rows) and isinstance(rows.form, Partway) and rows.form.step in steps:
        return dataclasses.replace(rows, form=_step(steps[rows.form.step], rows.form.linear))
    return None


def _is(value: ir.Value, expected: float) -> bool:
    """Whether `value` is that constant, to the precision of a 16-bit float."""
    found = scalar(value)
    return found is not None and math.isclose(found, expected, rel_tol=1e-3)


RULES = {
    "MatMul": [matrix_product],
    "Gemm": [gemm],
    "Add": [add_bias, add_one],
    "Sigmoid": [_start("sigmoid")],
    "Relu": [_start("relu")],
    "Gelu": [gelu],
    "Div": [divide],
    "Erf": [erf],
    "Mul": [multiply],
}
