"""Noise that tools put into graphs: fusing never fails, the outputs stay equal, and the report says what happened.

Field report X06: a fusion that did not know one way to normalise made loading fail instead of leaving the layer alone.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from support.graph_edit import Editor
from support.looped_graph import looped_model
from support.sessions import relative_difference, session

from ort_hina import fuse


def identity_chains(editor):
    for node in [*editor.nodes("MatMul"), *editor.nodes("Gather"), *editor.nodes("TopK"), *editor.nodes("ScatterElements")]:
        editor.after(node, "Identity")
        editor.after(node, "Identity")


def casts_to_the_same_type(editor):
    for node in [*editor.nodes("MatMul"), *editor.nodes("Sigmoid"), *editor.nodes("ScatterElements")]:
        editor.after(node, "Cast", to=onnx.TensorProto.FLOAT)
    for node in [*editor.nodes("NonZero"), *editor.nodes("Squeeze")]:
        editor.after(node, "Cast", to=onnx.TensorProto.INT64)


def swapped_operands(editor):
    for node in [*editor.nodes("Mul"), *editor.nodes("Add")]:
        node.input[:] = list(node.input)[::-1]


def reciprocal_for_division(editor):
    (division,) = editor.nodes("Div")
    place = list(editor.graph.node).index(division)
    editor.graph.node.insert(place, onnx.helper.make_node("Reciprocal", [division.input[1]], ["reciprocal"]))
    editor.replace(division, ("Mul", ["reciprocal"], {}))


def clipped_sum(editor):
    (total,) = editor.nodes("ReduceSum")
    editor.after(total, "Clip", editor.constant(1e-9, np.float32))


def sum_without_its_axis(editor):
    (total,) = editor.nodes("ReduceSum")
    for attribute in total.attribute:
        if attribute.name == "keepdims":
            attribute.i = 0
    editor.after(total, "Unsqueeze", editor.constant([1]))


def softmax_over_the_last_axis(editor):
    editor.nodes("Softmax")[0].attribute[0].i = -1


def reshape_for_squeeze(editor):
    for node in editor.nodes("Squeeze"):
        editor.replace(node, ("Reshape", [editor.constant([-1])], {}))


def flatten_as_reshape(editor):
    for node in editor.nodes("Flatten"):
        editor.replace(node, ("Reshape", [editor.constant([-1, 1])], {}))


def a_detour_through_other_ranks(editor):
    for node in editor.nodes("MatMul"):
        editor.after(node, "Squeeze", editor.constant([0]))
        editor.after(node, "Unsqueeze", editor.constant([0]))


def gather_for_split(editor):
    for node in editor.nodes("Split"):
        place = list(editor.graph.node).index(node)
        editor.graph.node.remove(node)
        for which, output in enumerate(node.output):
            index = editor.constant([which])
            editor.graph.node.insert(place, onnx.helper.make_node("Gather", [node.input[0], index], [output], axis=1))


def masks_as_numbers(editor):
    for node in editor.nodes("Cast"):
        node.attribute[0].i = onnx.TensorProto.FLOAT


def a_dead_branch(editor):
    editor.graph.node.append(onnx.helper.make_node("Relu", [editor.nodes("MatMul")[0].output[0]], ["nobody"]))


FUSABLE = [
    identity_chains,
    casts_to_the_same_type,
    swapped_operands,
    reciprocal_for_division,
    clipped_sum,
    sum_without_its_axis,
    softmax_over_the_last_axis,
    reshape_for_squeeze,
    flatten_as_reshape,
    a_detour_through_other_ranks,
    gather_for_split,
    masks_as_numbers,
    a_dead_branch,
]


def noise_in_a_cast(editor):
    """Rounds the experts' outputs to half precision."""
    for node in editor.nodes("ScatterElements"):
        product = editor.producer(editor.producer(node.input[2]).input[0])
        editor.after(product, "Cast", to=onnx.TensorProto.FLOAT)
        editor.after(product, "Cast", to=onnx.TensorProto.FLOAT16)


def scaled_experts(editor):
    for node in editor.nodes("Sigmoid"):
        editor.after(node, "Mul", editor.constant(1.5, np.float32))


def clipped_activations(editor):
    for node in editor.nodes("MatMul")[1::3]:
        editor.after(node, "Clip", editor.constant(-0.1, np.float32), editor.constant(0.1, np.float32))


def shared_tokens(editor):
    """The model also answers with the rows that expert 0 got."""
    rows = editor.nodes("MatMul")[0].input[0]
    editor.graph.output.append(onnx.helper.make_tensor_value_info(rows, onnx.TensorProto.FLOAT, ["picks", 8]))


UNFUSABLE = [noise_in_a_cast, scaled_experts, clipped_activations, shared_tokens]


def output(path):
    random = np.random.default_rng(3)
    feeds = {"x": random.standard_normal((2, 5, 8)), "logits": random.standard_normal((10, 4))}
    return session(path).run(["y"], {name: array.astype(np.float32) for name, array in feeds.items()})[0]


@pytest.mark.parametrize("mutation", [*FUSABLE, *UNFUSABLE], ids=lambda mutation: mutation.__name__)
def test_mutation(mutation, tmp_path):
    model = looped_model()
    mutation(Editor(model))
    onnx.checker.check_model(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)

    report = fuse(path)

    assert len(report.layers) == 1
    (layer,) = report.layers
    assert layer.fused == (mutation in FUSABLE), report.to_text()
    if layer.fused:
        assert layer.verification == "verified"
        assert relative_difference(output(report.output), output(path)) < 1e-5
    else:
        assert layer.verification == "not asked for"  # it was not even tried
        assert report.output is None and layer.reason and layer.reason in report.to_text()
        assert json.loads(report.to_json())["layers"][0]["reason"] == layer.reason
        output(path)  # what was not fused still loads and runs


@pytest.mark.parametrize("mutation", [identity_chains, swapped_operands, reshape_for_squeeze], ids=lambda m: m.__name__)
def test_mutation_of_a_real_export(mutation, tiny_export, tmp_path):
    model = onnx.load(tiny_export(external=False))
    mutation(Editor(model))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert [layer.verification for layer in fuse(path).layers] == ["verified", "verified"]
