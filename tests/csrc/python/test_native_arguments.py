"""The module `_native` checks what it is given: it hands bare pointers to the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from support.elements import encode
from support.levels import LEVELS
from support.moe_weights import MoeSpec, make_weights

from ort_hina import _native

WEIGHTS = make_weights(MoeSpec(3, 8, 6))
X = encode(np.ones((2, 8)), "float")
IDS = np.zeros((2, 2), np.int64)
ROUTING = encode(np.ones((2, 2)), "float")


def moe(isa: str = ""):
    return _native.Moe(WEIGHTS.attributes, WEIGHTS.windows, isa)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": X[:-4]}, "x: expected tokens × hidden_size elements"),
        ({"x_type": "float16"}, "x: expected tokens × hidden_size elements"),
        ({"x_type": "double"}, "element type: expected float, float16 or bfloat16, got 'double'"),
        ({"ids": IDS[0]}, "ids: expected rank 2"),
        ({"ids": IDS.astype(np.int16)}, "ids: expected a contiguous int32 or int64 array"),
        ({"ids": np.zeros((2, 4), np.int64)[:, ::2]}, "ids: expected a contiguous int32 or int64 array"),
        ({"weights": ROUTING[:-1]}, "weights: expected as many elements as ids"),
        ({"weights_type": "int8"}, "element type: expected float, float16 or bfloat16, got 'int8'"),
        ({"ids": None, "weights": ROUTING}, "weights: expected tokens × experts elements"),
        ({"ids": None, "weights": None, "x": X[:-4]}, "x: expected tokens × hidden_size elements"),
        ({"addend": X[:-4]}, "addend: expected as many elements as x"),
        ({"threads": 0}, "threads: expected at least 1"),
    ],
)
def test_moe_run(changed, message):
    arguments = {"x": X, "x_type": "float", "ids": IDS, "weights": ROUTING, "weights_type": "float"}
    moe().run(**arguments)
    with pytest.raises(ValueError) as error:
        moe().run(**arguments | changed)
    assert message in str(error.value)


def test_moe_keeps_its_windows_alive():
    node = _native.Moe(WEIGHTS.attributes, [(WEIGHTS.windows[0][0].copy(), "float")])
    np.testing.assert_array_equal(
        node.run(X, "float", IDS, ROUTING, "float"), moe().run(X, "float", IDS, ROUTING, "float")
    )


def test_unknown_level():
    with pytest.raises(ValueError, match="unknown level 'sse9'"):
        moe("sse9")


def test_level_of_the_environment(monkeypatch):
    monkeypatch.setenv("ORT_HINA_ISA", "sse9")
    with pytest.raises(ValueError, match="ORT_HINA_ISA=sse9 is not a level of this build"):
        moe()
    moe(LEVELS[-1])  # a level by name does not ask the environment


def test_matmul():
    kernel = f"matmul_f32_f32_nk_dot_{LEVELS[-1]}"
    a, w = np.ones((2, 5), np.float32), np.zeros(4 * 15, np.uint8)
    assert _native.matmul(kernel, a, w, 0, 5, 3).shape == (2, 3)
    for arguments in [(a, w, 1, 5, 3), (a, w, 0, 6, 3), (a, w, 0, 5, 4), (a, w, 0, 5, 0)]:
        with pytest.raises(ValueError, match="w: too small"):
            _native.matmul(kernel, *arguments)
    with pytest.raises(ValueError, match="no kernel is called 'matmul'"):
        _native.matmul("matmul", a, w, 0, 5, 3)


def test_activate():
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="unknown activation 'mish'"):
        _native.activate(LEVELS[-1], "mish", x, x)
    with pytest.raises(ValueError, match="gate and up: expected one size"):
        _native.activate(LEVELS[-1], "silu", x, x[:2])
