"""Root-mean-square norms as exporters spell them, in small graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_hina.model_file import read_model, write_model
from ort_hina.tidying import Tidied, tidy

WIDTH = 48
EPSILON = 1e-5
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16

SHAPE = ["batch", "tokens", WIDTH]

SQUARES = ("pow", "product")
INVERSES = ("one over root", "reciprocal", "power", "quotient")
CASTS = ("none", "float to float", "half, weight behind", "half, weight before")


class Graph:
    """A graph under construction."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes) -> str:
        output = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"node_{len(self.nodes)}", **attributes))
        return output

    def constant(self, array, dtype=np.float32) -> str:
        tensor = numpy_helper.from_array(np.array(array, dtype), f"constant_{len(self.constants)}")
        self.constants.append(tensor)
        return tensor.name

    def weight(self, kind: int | None = None) -> str:
        values = np.random.default_rng(1).uniform(0.5, 1.5, WIDTH)
        return self.constant(values, helper.tensor_dtype_to_np_dtype(kind or self.kind))

    def write(self, directory: Path, inputs: dict[str, list], outputs: list[str]) -> Path:
        """Writes the model.

        Args:
            inputs: name → shape.
        """
        given = [helper.make_tensor_value_info(name, self.kind, shape) for name, shape in inputs.items()]
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "norms", given, made, self.constants)
        opsets = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), directory / "model.onnx")
        return directory / "model.onnx"


def add_norm(
    graph: Graph,
    x: str,
    *,
    square: str = "pow",
    inverse: str = "reciprocal",
    casts: str = "none",
    weight_first: bool = False,
) -> str:
    """Adds a norm of `x` and returns its output."""
    wide = x if casts == "none" else graph.add("Cast", x, to=FLOAT)
    squares = graph.add("Pow", wide, graph.constant(2.0)) if square == "pow" else graph.add("Mul", wide, wide)
    mean = graph.add("ReduceMean", squares, graph.constant([-1], np.int64), keepdims=1)
    normed = _divided(graph, wide, graph.add("Add", mean, graph.constant(EPSILON)), inverse)
    weight = graph.weight()
    if casts == "half, weight before":
        weight = graph.add("Cast", weight, to=FLOAT)
    elif casts != "none":
        normed = graph.add("Cast", normed, to=FLOAT if casts == "float to float" else HALF)
    scaled = graph.add("Mul", *((weight, normed) if weight_first else (normed, weight)))
    return graph.add("Cast", scaled, to=HALF) if casts == "half, weight before" else scaled


def _divided(graph: Graph, wide: str, shifted: str, inverse: str) -> str:
    if inverse == "power":
        return graph.add("Mul", wide, graph.add("Pow", shifted, graph.constant(-0.5)))
    root = graph.add("Sqrt", shifted)
    if inverse == "quotient":
        return graph.add("Div", wide, root)
    factor = graph.add("Reciprocal", root) if inverse == "reciprocal" else graph.add("Div", graph.constant(1.0), root)
    return graph.add("Mul", wide, factor)


def tidied(model: Path) -> tuple[Tidied, Path]:
    """What `tidy` did, and the path of the result."""
    source = read_model(model)
    done = tidy(source)
    write_model(source, model.with_name("tidied.onnx"))
    return done, model.with_name("tidied.onnx")


def operators(model: Path) -> list[str]:
    return [node.op_type for node in onnx.load(model).graph.node]
