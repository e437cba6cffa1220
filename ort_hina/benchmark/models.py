"""One-layer models over one data file: the fused operator, and ONNX Runtime's own ways to do the same work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from .shapes import ELEMENT_BYTES, MoeShape

DATA_FILE = "weights.bin"
ELEMENT_TYPES = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def write_weights(directory: Path, shape: MoeShape, dtype: str) -> int:
    """Writes a layer's worth of weights, N(0, 0.03²), and returns its bytes. No two matrices are equal: ONNX Runtime would
    keep one prepacked copy for all."""
    random = np.random.default_rng(0)
    left = shape.experts * 3 * shape.matrix_elements()
    size = left * ELEMENT_BYTES[dtype]
    with open(directory / DATA_FILE, "wb") as file:
        while left:
            values = random.standard_normal(min(left, 1 << 22), dtype=np.float32) * np.float32(0.03)
            left -= values.size
            if dtype == "float16":
                values = values.astype(np.float16)
            elif dtype == "bfloat16":
                values = (values.view(np.uint32) >> 16).astype(np.uint16)
            file.write(values.tobytes())
    return size


def moe_attributes(shape: MoeShape, dtype: str, layout: str) -> dict:
    """Attributes of an `ort_hina::MoE` node over the data file: expert after expert, gate, up, down; layout nk or kn."""
    h, i = shape.hidden, shape.intermediate
    matrix = shape.matrix_elements() * ELEMENT_BYTES[dtype]
    offsets = [[(3 * e + role) * matrix for e in range(shape.experts)] for role in range(3)]
    strides = ([1, h], [1, i]) if layout == "nk" else ([i, 1], [h, 1])
    return {
        "num_experts": shape.experts, "hidden_size": h, "intermediate_size": i, "activation": "silu",
        "gate_offsets": offsets[0], "up_offsets": offsets[1], "down_offsets": offsets[2],
        "gate_strides": strides[0], "up_strides": strides[0], "down_strides": strides[1],
    }  # fmt: skip


def fused_model(directory: Path, shape: MoeShape, dtype: str, layout: str) -> Path:
    """One `ort_hina::MoE` node; layout nk or kn."""
    node = helper.make_node(
        "MoE", ["x", "ids", "weights", "", "window"], ["y"], name="moe", domain="ort_hina",
        window_types=[ELEMENT_TYPES[dtype]], **moe_attributes(shape, dtype, layout),
    )  # fmt: skip
    size = shape.experts * 3 * shape.matrix_elements() * ELEMENT_BYTES[dtype]
    window = _external("window", TensorProto.UINT8, [size], 0, size)
    graph = helper.make_graph(
        [node], "fused",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", shape.hidden]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["T", shape.k]),
            helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["T", shape.k]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", shape.hidden])],
        [window],
    )  # fmt: skip
    return _save(directory, f"fused-{shape.name}-{dtype}-{layout}.onnx", graph, {"ort_hina": 1})


def matmul_model(directory: Path, shape: MoeShape) -> Path:
    """ONNX Runtime's own MatMuls of every expert, f32 `[K, N]`, nothing else: x [m, hidden] times gate and up, hidden
    [m, intermediate] times down."""
    h, i = shape.hidden, shape.intermediate
    nodes, initializers, outputs = [], [], []
    for e in range(shape.experts):
        for role, (source, k, n) in enumerate((("x", h, i), ("x", h, i), ("hidden", i, h))):
            name = f"w{e}_{role}"
            initializers.append(_external_float(name, [k, n], (3 * e + role) * shape.matrix_elements() * 4))
            nodes.append(helper.make_node("MatMul", [source, name], [f"y{e}_{role}"]))
            outputs.append(helper.make_tensor_value_info(f"y{e}_{role}", TensorProto.FLOAT, ["m", n]))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", h]),
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["m", i]),
    ]
    graph = helper.make_graph(nodes, "matmuls", inputs, outputs, initializers)
    return _save(directory, "matmuls.onnx", graph, {})


def contrib_model(directory: Path, shape: MoeShape) -> Path:
    """ONNX Runtime's own fused operator, com.microsoft MoE, f32 (gate and up interleaved in `[N, K]`)."""
    h, i, e = shape.hidden, shape.intermediate, shape.experts
    node = helper.make_node(
        "MoE", ["x", "router_logits", "fc1", "", "fc2"], ["y"], name="moe", domain="com.microsoft",
        k=shape.k, activation_type="swiglu", swiglu_fusion=1, normalize_routing_weights=1,
    )  # fmt: skip
    initializers = [_external_float("fc1", [e, 2 * i, h], 0), _external_float("fc2", [e, h, i], e * 2 * i * h * 4)]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", h]),
        helper.make_tensor_value_info("router_logits", TensorProto.FLOAT, ["T", e]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", h])]
    graph = helper.make_graph([node], "contrib", inputs, outputs, initializers)
    return _save(directory, "contrib.onnx", graph, {"com.microsoft": 1})


def _external_float(name: str, dims: list[int], offset: int) -> TensorProto:
    return _external(name, TensorProto.FLOAT, dims, offset, int(np.prod(dims)) * ELEMENT_BYTES["float"])


def _external(name: str, data_type: int, dims: list[int], offset: int, length: int) -> TensorProto:
    """An initializer over `length` bytes of the data file from `offset` on."""
    tensor = TensorProto(name=name, data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", DATA_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _save(directory: Path, name: str, graph: onnx.GraphProto, domains: dict[str, int]) -> Path:
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": 18, **domains}.items()]
    path = directory / name
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    return path
