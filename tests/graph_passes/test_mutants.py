"""Every node of a mixture of experts changed in turn: whatever is still fused computes what the changed graph computes.

Nothing is verified by `fuse` here, so that a wrong fusion would be seen. Attention stays as it is: fused, rows of padding
become 0, and every one of them would be a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from support import fixtures
from support.looped_graph import Spelling, looped_model
from support.sessions import relative_difference, session
from support.stacked_graph import StackedGraph

from ort_hina import fuse
from ort_hina.graph_passes import pipeline
from ort_hina.graph_passes.moe_layer import MoELayer
from ort_hina.models.onnx_cases import run_model

# Sums in another order. What a mutation does is at least 3 times as much, or it is not counted as one.
TOLERANCE = 1e-5

# Operators of the same inputs and output shape.
REPLACEMENTS = {
    "ReduceSum": ("ReduceMean", "ReduceMax"),
    "Mul": ("Add", "Sub"),
    "Add": ("Sub", "Mul"),
    "Sub": ("Add",),
    "Div": ("Mul",),
    "Sigmoid": ("Tanh", "Relu"),
    "Softmax": ("LogSoftmax",),
}

# After a value of this type.
INSERTED = {
    TensorProto.FLOAT: (("Neg", None), ("Mul", np.float32(1.25)), ("Relu", None)),
    TensorProto.BOOL: (("Not", None),),
}


def stacked(**form) -> Callable[[], onnx.ModelProto]:
    return lambda: StackedGraph(Spelling(), **form).model()


GRAPHS = {
    "batched": stacked(),
    "clamped": stacked(clamped=True),
    "dense": stacked(form="dense", clamped=True),
    "grouped": stacked(form="grouped"),
    "shared": stacked(shared=True),
    "looped": lambda: looped_model(experts=3),
    "looped, other spellings": lambda: looped_model(experts=3, mask="equal", order="token_slot", combine="scatter_nd_add"),
}
QUICK = ("batched", "clamped", "dense")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in GRAPHS if name not in QUICK]

EXPORTS = (
    "deepseek_v3-torch_dynamo",
    "gpt_oss-optimum",
    "gpt_oss-torch_dynamo",
    "mixtral-torch_dynamo",
    "qwen2_moe-torch_dynamo",
    "qwen3_moe-transformers_onnx",
)
# Several layers, norms and a head follow. An expert that is wrong makes a thousandth and more.
TOLERANCE_OF_EXPORTS = 1e-4


def mutants(model: onnx.ModelProto, within: set[str] | None = None) -> Iterator[tuple[str, onnx.ModelProto]]:
    """A description and the changed model, for every change that keeps shapes and types.

    Args:
        within: the first outputs of the nodes to change. None: of all.
    """
    types = element_types(model)
    for place, node in enumerate(model.graph.node):
        if within is not None and node.output[0] not in within:
            continue
        for operator in REPLACEMENTS.get(node.op_type, ()):
            mutant = copy(model)
            mutant.graph.node[place].op_type = operator
            yield f"{node.name}: {operator} for {node.op_type}", mutant
        for which, output in enumerate(node.output):
            for operator, constant in INSERTED.get(types.get(output), ()):
                mutant = copy(model)
                insert(mutant, place, which, operator, constant)
                yield f"{node.name}: {operator} after {node.op_type}, output {which}", mutant


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def insert(model: onnx.ModelProto, place: int, which: int, operator: str, constant: np.ndarray | None) -> None:
    """Puts an operator between an output of a node and all that use it."""
    node = model.graph.node[place]
    output, node.output[which] = node.output[which], "mutated"
    inputs = ["mutated"]
    if constant is not None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(constant), "mutation"))
        inputs.append("mutation")
    model.graph.node.insert(place + 1, helper.make_node(operator, inputs, [output], "mutant"))


def outputs(model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    running = session(model)
    return running.run(["y"], {value.name: feeds[value.name] for value in running.get_inputs()})[0]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_what_is_fused_is_right(name, tmp_path):
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((2, 4, 8)), "logits": random.standard_normal((8, 3))}
    feeds = {name: (2 * values).astype(np.float32) for name, values in feeds.items()}
    model = GRAPHS[name]()
    before = outputs(model, feeds)
    path = tmp_path / "model.onnx"
    changed = {"fused": 0, "left": 0}
    for what, mutant in mutants(model):
        try:
            expected = outputs(mutant, feeds)
        except (Fail, InvalidArgument):  # an index out of range, a size that does not fit: not a model any more
            continue
        if not np.isfinite(expected).all():
            continue
        onnx.save(onnx.shape_inference.infer_shapes(mutant), path)
        report = fuse(path, verify="none", attention=False)
        is_other = relative_difference(expected, before) > 3 * TOLERANCE
        changed["left" if report.output is None else "fused"] += is_other
        if report.output is not None:
            assert relative_difference(outputs(report.output, feeds), expected) < TOLERANCE, what
    # Neither is everything refused nor everything fused.
    assert changed["fused"] >= 5 and changed["left"] >= 20, changed


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTS)
def test_exports(name, tmp_path):
    """The last layer of real exports; every fourth mutant, since there are hundreds."""
    model = fixtures.load(name)
    layers = [layer for layer in pipeline.find(ir.from_proto(model).graph).routed if isinstance(layer, MoELayer)]
    inside = {node.outputs[0].name for node in layers[-1].nodes}
    path = tmp_path / "model.onnx"
    counts = {"fused": 0, "left": 0}
    for what, mutant in list(mutants(model, inside))[::4]:
        expected, errors = run_model(session(mutant))
        if errors or not all(np.isfinite(answer).all() for answer in expected.values()):
            continue
        onnx.save(mutant, path)
        report = fuse(path, verify="none", attention=False)
        counts["fused" if report.fused == len(layers) else "left"] += 1
        if report.output is None:
            continue
        found, errors = run_model(session(report.output))
        assert not errors, (what, errors)
        for step, answer in expected.items():
            assert relative_difference(found[step], answer) < TOLERANCE_OF_EXPORTS, (what, step)
    assert counts["left"] >= 5, counts
