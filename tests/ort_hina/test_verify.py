"""Verification: it passes what is right, and stops what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.external_data import save_external
from support.looped_graph import SPELLINGS, looped_model, spelling_name

from ort_hina import OrtHinaError, fuse, verify
from ort_hina.graph_passes import routed_moe
from ort_hina.graph_passes.moe_node import make_replacement


def verdict(model: onnx.ModelProto, change=lambda node: None, folder: Path = Path()) -> verify.Verdict:
    """Verifies the layer of `model` against its replacement, after `change` has spoilt that."""
    source = ir.from_proto(model)
    (layer,) = routed_moe.find(source.graph)
    replacement = make_replacement(layer)
    change(replacement.nodes[-1])
    return verify.verify_layer(layer, replacement, source, folder)


def rotate(name: str):
    """Every expert gets the matrix of its neighbour."""

    def change(node: ir.Node) -> None:
        values = list(node.attributes[name].value)
        node.attributes[name] = ir.AttrInt64s(name, values[1:] + values[:1])

    return change


def swap_one(name: str):
    """Of many experts, only two are exchanged."""

    def change(node: ir.Node) -> None:
        values = list(node.attributes[name].value)
        values[-1], values[-2] = values[-2], values[-1]
        node.attributes[name] = ir.AttrInt64s(name, values)

    return change


def gate_for_up(node: ir.Node) -> None:
    for one, other in (("gate_offsets", "up_offsets"),):
        node.attributes[one], node.attributes[other] = (
            ir.AttrInt64s(one, list(node.attributes[other].value)),
            ir.AttrInt64s(other, list(node.attributes[one].value)),
        )


def other_activation(node: ir.Node) -> None:
    node.attributes["activation"] = ir.AttrString("activation", "gelu")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("experts", "k"), [(4, 2), (4, 4), (5, 3), (32, 4)])
def test_right_layers_pass(dtype, experts, k):
    found = verdict(looped_model(dtype=dtype, experts=experts, k=k))
    assert found.state == "verified" and found.allows_fusing
    assert 0 < found.difference < found.tolerance / 2


@pytest.mark.parametrize("spelling", SPELLINGS, ids=spelling_name)
def test_every_spelling_passes(spelling):
    """X04's looped form, however its stages are written."""
    found = verdict(looped_model(**spelling))
    assert found.state == "verified", found.detail


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "change",
    [rotate("gate_offsets"), rotate("down_offsets"), swap_one("up_offsets"), gate_for_up, other_activation],
    ids=["gates", "downs", "two of 32 ups", "gate for up", "activation"],
)
def test_wrong_layers_fail(dtype, change):
    found = verdict(looped_model(dtype=dtype, experts=32, k=4), change)
    assert found.state == "failed" and not found.allows_fusing
    assert found.difference > found.tolerance and "of the output's scale" in found.detail


def test_a_node_that_does_not_run_fails():
    def change(node: ir.Node) -> None:
        node.attributes["activation"] = ir.AttrString("activation", "nonsense")

    found = verdict(looped_model(), change)
    assert found.state == "failed" and "the fused node does not run" in found.detail and "nonsense" in found.detail


@pytest.mark.parametrize(("content", "what"), [(0.0, "zero"), (np.inf, "not finite"), (np.nan, "not finite")])
def test_weights_that_prove_nothing(content, what):
    model = looped_model()
    for tensor in model.graph.initializer:
        tensor.raw_data = np.full(tuple(tensor.dims), content, np.float32).tobytes()
    found = verdict(model)
    assert (found.state, found.difference) == ("inconclusive", None) and f"the original's output is {what}" in found.detail
    assert found.allows_fusing


def test_every_expert_is_reached():
    """The last of 200 experts is wrong: random ids would probably miss it."""
    assert verdict(looped_model(experts=200, k=3), swap_one("down_offsets")).state == "failed"


def test_external_weights_are_read_from_their_folder(tmp_path):
    model = looped_model()
    save_external(model, tmp_path / "model.onnx", gap=lambda i: 3)
    source = ir.load(tmp_path / "model.onnx")
    (layer,) = routed_moe.find(source.graph)
    assert verify.verify_layer(layer, make_replacement(layer), source, tmp_path).state == "verified"


def test_a_layer_that_fails_stays_unfused(tmp_path, monkeypatch):
    """The other layers of the model are fused, and the report and a warning say what happened."""

    def spoilt(layer):
        replacement = make_replacement(layer)
        rotate("gate_offsets")(replacement.nodes[-1])
        return replacement

    onnx.save(looped_model(), tmp_path / "model.onnx")
    monkeypatch.setattr("ort_hina.rewriting.make_replacement", spoilt)
    report = fuse(tmp_path / "model.onnx")
    (layer,) = report.layers
    assert (report.output, layer.fused, layer.verification) == (None, False, "failed")
    assert "verification failed: differs by" in layer.reason and layer.reason in report.warnings[0]


def test_inconclusive_is_a_warning(tmp_path):
    model = looped_model()
    for tensor in model.graph.initializer:
        tensor.raw_data = bytes(len(tensor.raw_data))
    onnx.save(model, tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert report.fused == 1 and "was fused without proof by running" in report.warnings[0]


def test_an_original_that_cannot_run(tmp_path, monkeypatch):
    """ONNX Runtime has no kernel for some models on CPUs: they are fused by proof alone, with a warning."""
    from ml_dtypes import bfloat16

    onnx.save(looped_model(dtype=bfloat16), tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert (report.fused, report.layers[0].verification) == (1, "not run")
    assert "cannot run the original on this machine" in report.warnings[0]


def test_without_the_library(tmp_path, monkeypatch):
    def missing(*_):
        raise OrtHinaError("libort_hina.so was not found")

    onnx.save(looped_model(), tmp_path / "model.onnx")
    monkeypatch.setattr("ort_hina.library.register", missing)
    with pytest.raises(OrtHinaError, match=r"libort_hina\.so was not found"):
        fuse(tmp_path / "model.onnx")
    assert fuse(tmp_path / "model.onnx", verify="none").fused == 1
