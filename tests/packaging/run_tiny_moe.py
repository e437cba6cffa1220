"""Run by the packaging tests in another environment: one MoE node in ONNX Runtime, against NumPy. Prints JSON.

    python run_tiny_moe.py FOLDER      FOLDER: where the model is written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ort_hina

EXPERTS, HIDDEN, INTERMEDIATE, TOKENS, CHOSEN = 4, 32, 24, 5, 2


def write_model(path: Path, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> None:
    """One MoE node with an inline window. gate, up: float32 [E, I, H]; down: float32 [E, H, I] (rows are outputs)."""
    window = np.concatenate([gate.ravel(), up.ravel(), down.ravel()])
    matrix = 4 * HIDDEN * INTERMEDIATE
    gate_offsets = [matrix * expert for expert in range(EXPERTS)]
    node = helper.make_node(
        "MoE", ["X", "ids", "weights", "", "window"], ["Y"], domain="ort_hina",
        num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, activation="silu",
        window_types=[TensorProto.FLOAT],
        gate_offsets=gate_offsets, gate_strides=[1, HIDDEN],
        up_offsets=[offset + EXPERTS * matrix for offset in gate_offsets], up_strides=[1, HIDDEN],
        down_offsets=[offset + 2 * EXPERTS * matrix for offset in gate_offsets], down_strides=[1, INTERMEDIATE],
    )  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "tiny",
        [value("X", TensorProto.FLOAT, ["T", HIDDEN]), value("ids", TensorProto.INT64, ["T", CHOSEN]),
         value("weights", TensorProto.FLOAT, ["T", CHOSEN])],
        [value("Y", TensorProto.FLOAT, ["T", HIDDEN])],
        [onnx.numpy_helper.from_array(window.view(np.uint8), "window")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ort_hina", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def expected(x, ids, weights, gate, up, down) -> np.ndarray:
    y = np.zeros_like(x)
    for token in range(len(x)):
        for expert, weight in zip(ids[token], weights[token]):
            g = gate[expert] @ x[token]
            y[token] += weight * (down[expert] @ (g / (1 + np.exp(-g)) * (up[expert] @ x[token])))
    return y


def main(folder: Path) -> dict:
    rng = np.random.default_rng(7)
    gate, up = rng.standard_normal((2, EXPERTS, INTERMEDIATE, HIDDEN), dtype=np.float32)
    down = rng.standard_normal((EXPERTS, HIDDEN, INTERMEDIATE), dtype=np.float32)
    x = rng.standard_normal((TOKENS, HIDDEN), dtype=np.float32)
    ids = np.array([rng.permutation(EXPERTS)[:CHOSEN] for _ in range(TOKENS)], dtype=np.int64)
    weights = rng.random((TOKENS, CHOSEN), dtype=np.float32)
    found = {"package": ort_hina.__file__, "library": ort_hina.library_path(), "onnxruntime": onnxruntime.__version__}
    write_model(folder / "tiny.onnx", gate, up, down)
    options = onnxruntime.SessionOptions()
    try:
        ort_hina.register(options)
    except Exception as error:  # reported, so that the test sees the message
        return found | {"error": f"{type(error).__name__}: {error}"}
    session = onnxruntime.InferenceSession(folder / "tiny.onnx", options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"X": x, "ids": ids, "weights": weights})
    reference = expected(x, ids, weights, gate, up, down)
    return found | {"difference": float(np.abs(y - reference).max() / np.abs(reference).max())}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
