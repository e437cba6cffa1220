"""Which elementwise functions are activations, in which spellings; what is none is refused with its text."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from ort_hina.graph_passes.activations import function as f
from ort_hina.graph_passes.activations import named, text
from ort_hina.graph_passes.meanings import Activation, Linear, Matrix, Refusal


def linear(name: str) -> Linear:
    return Linear(Matrix(ir.Tensor(np.zeros((4, 6), np.float32), name=name), 4, 6, (6, 1)))


G, U = linear("gate"), linear("up")
SIGMOID = f("sigmoid", G)
LOGISTIC = f("add", 1.0, f("exp", f("neg", G)))
CLIPPED = f("clip", G, -math.inf, 7.0)
LIMITED = f("clip", U, -7.0, 7.0)
TANH_INNER = f("mul", math.sqrt(2 / math.pi), f("add", G, f("mul", 0.044715, f("pow", G, 3.0))))
ERF = f("add", f("erf", f("div", G, math.sqrt(2))), 1.0)

SPELLINGS = {
    "x * sigmoid(x)": (f("mul", G, SIGMOID), "silu"),
    "sigmoid(x) * x": (f("mul", SIGMOID, G), "silu"),
    "x / (1 + exp(-x))": (f("div", G, LOGISTIC), "silu"),
    "x * reciprocal": (f("mul", G, f("reciprocal", LOGISTIC)), "silu"),
    "relu": (f("relu", G), "relu"),
    "Gelu": (f("gelu", G), "gelu"),
    "Gelu, tanh": (f("gelu_tanh", G), "gelu_tanh"),
    "erf": (f("mul", f("mul", G, ERF), 0.5), "gelu"),
    "erf of a product": (f("mul", f("mul", 0.5, G), f("add", 1.0, f("erf", f("mul", G, math.sqrt(0.5))))), "gelu"),
    "tanh": (f("mul", f("mul", 0.5, G), f("add", 1.0, f("tanh", TANH_INNER))), "gelu_tanh"),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_activation(spelling, gated):
    expression, name = SPELLINGS[spelling]
    assert named(f("mul", expression, U) if gated else expression) == (Activation(name), G, U if gated else None)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f("mul", f("add", LIMITED, 1.0), f("mul", CLIPPED, f("sigmoid", f("mul", CLIPPED, 1.702)))), (1.702, 1.0, 7.0)),
        (f("mul", f("mul", CLIPPED, f("sigmoid", f("mul", 1.5, CLIPPED))), f("add", 0.5, LIMITED)), (1.5, 0.5, 7.0)),
        (f("mul", f("mul", CLIPPED, f("sigmoid", CLIPPED)), LIMITED), (1.0, 0.0, 7.0)),
        (f("mul", f("mul", G, f("sigmoid", f("mul", G, 1.702))), U), (1.702, 0.0, None)),
        (f("mul", f("mul", G, SIGMOID), f("add", U, 1.0)), (1.0, 1.0, None)),
    ],
)
def test_constants_are_carried(expression, expected):
    alpha, beta, limit = expected
    assert named(expression) == (Activation("swiglu_oai", alpha, beta, limit), G, U)


def test_two_clips_are_one():
    assert f("clip", f("clip", U, -7.0, math.inf), -math.inf, 7.0) == LIMITED


def test_bilinear():
    assert named(f("mul", G, U)) == (Activation("identity"), G, U)


@pytest.mark.parametrize(
    "expression",
    [
        f("mul", G, f("tanh", G)),
        f("mul", f("relu", G), f("relu", G)),
        f("mul", G, f("sigmoid", U)),
        f("mul", f("mul", G, SIGMOID), 2.0),
        f("mul", G, f("sigmoid", f("mul", G, 1.702))),  # QuickGelu without up
        f("mul", f("mul", G, SIGMOID), f("mul", U, U)),
        f("mul", f("mul", G, SIGMOID), f("relu", U)),
        f("add", f("mul", G, SIGMOID), U),
        f("mul", CLIPPED, f("sigmoid", G)),
        f("mul", f("mul", CLIPPED, f("sigmoid", CLIPPED)), f("clip", U, -6.0, 7.0)),
        f("mul", f("mul", CLIPPED, f("sigmoid", CLIPPED)), f("clip", U, -8.0, 8.0)),
        f("mul", f("mul", f("clip", G, -7.0, 7.0), f("sigmoid", f("clip", G, -7.0, 7.0))), LIMITED),
        f("mul", f("mul", G, f("add", f("erf", f("div", G, 1.5)), 1.0)), 0.5),
        f("mul", f("mul", G, ERF), 0.6),
        f("mul", f("mul", 0.5, G), f("add", 1.0, f("tanh", f("mul", 0.8, f("add", G, f("mul", 0.0457, f("pow", G, 3.0))))))),
        f("sigmoid", G),
        f("exp", G),
    ],
    ids=text,
)
def test_what_is_no_activation(expression):
    with pytest.raises(Refusal, match="is no activation that is known here"):
        named(expression)


def test_the_text_tells_products_apart():
    assert text(f("mul", G, f("sigmoid", U), 0.5)) == "x * sigmoid(y) * 0.5"
    assert text(f("add", f("clip", G, -math.inf, 7.0), 1.0)) == "(clip(x, -inf, 7) + 1)"
