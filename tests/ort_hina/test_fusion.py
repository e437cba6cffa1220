"""`fuse`: from an export to a model with one node per mixture of experts, with equal numbers."""

from __future__ import annotations

import gc
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.language_model import generate
from support.looped_graph import looped_model
from support.sessions import relative_difference, session

from ort_hina import OrtHinaError, fuse

# In float32 nothing but the order of sums differs. Half precision: the original rounds after every operator, and two
# layers, a norm and the head follow; the bound is some thirty roundings of 2^-11.
BOUNDS = {"fp32": 1e-5, "fp16": 1.5e-2}


def moe_nodes(path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "MoE"]


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("variant", ["qwen3_moe", "qwen3_moe_nonorm_dense"])
def test_fused_equals_unfused(tiny_copy, variant, dtype):
    model = tiny_copy(variant, dtype=dtype)
    before = hashlib.sha256(model.with_name("model.onnx_data").read_bytes()).hexdigest()

    report = fuse(model)

    assert Path(report.output) == model.with_name("model_hina.onnx")
    assert {layer.verification for layer in report.layers} == {"verified"} and report.warnings == []
    assert (report.fused, report.shared_fused) == ((2, 0) if variant == "qwen3_moe" else (1, 1))
    assert len(moe_nodes(report.output)) == 2
    assert hashlib.sha256(model.with_name("model.onnx_data").read_bytes()).hexdigest() == before
    original, fused = session(model), session(report.output)
    for batch, length, padding in ((1, 9, 0), (3, 11, 0), (2, 9, 4)):
        for found, expected in zip(*(generate(s, batch, length, padding) for s in (fused, original)), strict=True):
            _assert_close(found, expected, BOUNDS[dtype])


def _assert_close(found, expected, bound):
    """Row by row: in half precision a near tie may send a token to another expert, in either model."""
    scale = np.abs(expected.astype(np.float64)).max()
    rows = np.abs(found.astype(np.float64) - expected).max(axis=-1) / scale
    allowed_ties = 0 if bound < 1e-3 else max(1, rows.size // 20)
    assert (rows > bound).sum() <= allowed_ties, np.sort(rows.ravel())[-5:]


@pytest.mark.parametrize("opset", [14, 16, 17, 19, 20, 21, 23])
def test_every_opset_fuses_and_runs(tiny_copy, opset):
    model = tiny_copy(opset=opset)
    report = fuse(model, verify=1)
    assert report.fused == 2
    for found, expected in zip(generate(session(report.output), 1, 5), generate(session(model), 1, 5), strict=True):
        assert relative_difference(found, expected) < 1e-5


def test_inline_weights(tiny_copy):
    model = tiny_copy(external=False)
    report = fuse(model)
    assert [layer.windows for layer in report.layers] == [1, 1]
    for found, expected in zip(generate(session(report.output), 2, 7), generate(session(model), 2, 7), strict=True):
        assert relative_difference(found, expected) < 1e-5
    assert os.path.getsize(report.output) < os.path.getsize(model)


def test_the_report(tiny_copy):
    report = fuse(tiny_copy())
    layer = report.layers[1]
    assert (layer.experts_found, layer.num_experts, layer.k, layer.hidden_size, layer.intermediate_size) == (8, 8, 2, 64, 96)
    assert (layer.activation, layer.dtype, layer.layout) == ("silu", "float", "[K, N]")
    assert layer.bytes_referenced == 8 * 3 * 64 * 96 * 4
    assert "layers.1" in layer.where and 0 < layer.difference <= layer.tolerance
    assert report.nodes_after < report.nodes_before / 2
    text, data = report.to_text(), json.loads(report.to_json())
    assert "2 of 2 mixture-of-experts layers fused" in text and layer.where in text and "verified: difference" in text
    assert data["layers"][1]["bytes_referenced"] == layer.bytes_referenced and data["fused"] == 2
    assert report.seconds >= layer.verification_seconds > 0


def test_kept_names_and_interface(tiny_copy):
    """The tensor that the node computes keeps its name; so do inputs, outputs and metadata."""
    model = tiny_copy()
    output = fuse(model, verify="none").output
    before, after = (onnx.load(path, load_external_data=False) for path in (model, output))
    names = {name for node in before.graph.node for name in node.output}
    assert {node.output[0] for node in moe_nodes(output)} <= names
    assert before.graph.input == after.graph.input and before.graph.output == after.graph.output
    assert (before.producer_name, before.ir_version) == (after.producer_name, after.ir_version)
    assert {(o.domain, o.version) for o in after.opset_import} == {("", 18), ("ort_hina", 1), ("com.microsoft", 1)}
    used = {name for node in after.graph.node for name in node.input}
    assert {tensor.name for tensor in after.graph.initializer} <= used


def test_two_fusings_give_the_same_file(tiny_copy):
    model = tiny_copy()
    first = Path(fuse(model, verify="none").output).read_bytes()
    assert Path(fuse(model, verify="none").output).read_bytes() == first


@pytest.mark.parametrize(("verify", "states"), [("none", [0, 0]), (1, [1, 0]), (2, [1, 1]), (9, [1, 1]), ("all", [1, 1])])
def test_how_many_layers_are_verified(tiny_copy, verify, states):
    layers = fuse(tiny_copy(), verify=verify).layers
    assert [layer.verification for layer in layers] == [("not asked for", "verified")[state] for state in states]
    assert all(layer.fused for layer in layers)


@pytest.mark.parametrize("verify", ["some", 0, -1, True, None, 1.5])
def test_verify_must_make_sense(tiny_copy, verify):
    with pytest.raises(ValueError, match='must be "all", "none" or the number of layers'):
        fuse(tiny_copy(), verify=verify)


@pytest.mark.parametrize(("experts", "k"), [(1, 1), (2, 1), (6, 6), (60, 4), (160, 10), (512, 8)])
def test_any_number_of_experts(tmp_path, experts, k):
    """D07."""
    onnx.save(looped_model(experts=experts, k=k), tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert [(layer.num_experts, layer.k, layer.verification) for layer in report.layers] == [(experts, k, "verified")]


def test_the_sum_is_an_output_of_the_model(tmp_path):
    model = looped_model()
    reshape = model.graph.node.pop()
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(reshape.input[0], onnx.TensorProto.FLOAT, ["tokens", 8]))
    onnx.save(model, tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    feeds = {"x": np.ones((1, 3, 8), np.float32), "logits": np.eye(3, 4, dtype=np.float32)}
    (found,), (expected,) = (session(path).run([reshape.input[0]], feeds) for path in (report.output, tmp_path / "model.onnx"))
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("length", [0, 1])
def test_no_tokens_and_one(tmp_path, length):
    """D05."""
    onnx.save(looped_model(), tmp_path / "model.onnx")
    output = fuse(tmp_path / "model.onnx").output
    feeds = {"x": np.ones((1, length, 8), np.float32), "logits": np.ones((length, 4), np.float32)}
    (found,) = session(output).run(None, feeds)
    (expected,) = session(tmp_path / "model.onnx").run(None, feeds)
    assert found.shape == expected.shape == (1, length, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_many_layers_of_many_experts(tmp_path):
    """X10: an unrolled model of 29,000 nodes for each four layers; both the matcher and the files stay in proportion."""
    from ort_hina.models.tiny import export_tiny

    few, many = (
        fuse(export_tiny("qwen3_moe", tmp_path / str(n), overrides={"num_experts": 128, "num_hidden_layers": n}))
        for n in (1, 4)
    )
    assert (few.fused, many.fused) == (1, 4)
    assert many.nodes_before > 25_000 and many.nodes_after < 5 * few.nodes_after
    assert os.path.getsize(many.output) < 1_000_000


def test_a_model_without_moe(tmp_path):
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    path = tmp_path / "relu.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:])), path)
    before = path.read_bytes()
    report = fuse(path)
    assert (report.output, report.layers, report.fused) == (None, [], 0)
    assert "no mixture-of-experts layer found" in report.to_text() and "nothing was written" in report.to_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["relu.onnx"] and path.read_bytes() == before


def test_a_fused_model_is_left_alone(tiny_copy):
    fused = fuse(tiny_copy(), verify="none").output
    report = fuse(fused)
    assert report.output is None and "fused already" in report.to_text()


def test_a_router_of_an_unknown_kind_is_mentioned(tmp_path):
    model = looped_model()
    del model.graph.node[next(i for i, node in enumerate(model.graph.node) if node.op_type == "OneHot") :]
    ids = next(node.output[1] for node in model.graph.node if node.op_type == "TopK")
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(ids, onnx.TensorProto.INT64, ["tokens", 2]))
    onnx.save(model, tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert report.output is None and "TopK" in report.warnings[0]


def test_double_weights_are_refused(tmp_path):
    onnx.save(looped_model(dtype=np.float64), tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert report.output is None
    assert "weights of type DOUBLE are not supported (float, float16, bfloat16 are)" in report.layers[0].reason


def test_missing_experts_stay_unfused(tmp_path):
    onnx.save(looped_model(experts=6, bodies=(0, 1, 2, 4)), tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert report.output is None
    assert "chooses from 6 experts, and the graph holds 4: missing 3, 5" in report.to_text()
    assert any("missing 3, 5" in warning for warning in report.warnings)


def test_output_in_a_parent_folder(tiny_copy, tmp_path):
    model = tiny_copy()
    output = tmp_path / "above.onnx"
    assert fuse(model, output).output == str(output)
    for found, expected in zip(generate(session(output), 1, 5), generate(session(model), 1, 5), strict=True):
        assert relative_difference(found, expected) < 1e-5


def test_output_where_the_weights_cannot_be_reached(tiny_copy, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(OrtHinaError, match="only to data files in its own folder or below; write it to the same folder"):
        fuse(tiny_copy(), tmp_path / "elsewhere" / "model.onnx")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("spelling", ["same", "relative", "link"])
def test_output_equal_to_input(tiny_copy, spelling, monkeypatch):
    model = tiny_copy()
    monkeypatch.chdir(model.parent)
    link = model.with_name("link.onnx")
    link.symlink_to(model.name)
    output = {"same": model, "relative": f"../{model.parent.name}/model.onnx", "link": link}[spelling]
    before = model.read_bytes()
    with pytest.raises(OrtHinaError, match="is the model itself: expected another path"):
        fuse(model, output)
    assert model.read_bytes() == before


def test_a_failed_write_leaves_nothing(tiny_copy, monkeypatch):
    model = tiny_copy()
    before = sorted(os.listdir(model.parent))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        fuse(model, verify="none")
    assert sorted(os.listdir(model.parent)) == before


def test_garbage_collection_is_switched_on_again(tmp_path):
    with pytest.raises(OrtHinaError):
        fuse(tmp_path / "nothing.onnx")
    assert gc.isenabled()


def test_the_cache_of_the_hugging_face_hub(tiny_copy, tmp_path):
    """Model and data are links to blobs: the fused model loads from the snapshot, and the blobs are as they were."""
    source = tiny_copy()
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "1234"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "aaaa"), ("model.onnx_data", "bbbb")):
        (source.parent / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    report = fuse(snapshot / "model.onnx")
    assert report.output == str(snapshot / "model_hina.onnx")
    assert [layer.verification for layer in report.layers] == ["verified", "verified"]
    generate(session(report.output), 1, 5)
    assert fuse(snapshot / "model.onnx").output == report.output  # and again, over the first result
    assert sorted(entry.name for entry in snapshot.iterdir()) == ["model.onnx", "model.onnx_data", "model_hina.onnx"]


def test_progress_is_told_before_the_first_layer_and_after_each(tiny_copy):
    told = []
    fuse(tiny_copy("qwen3_moe"), verify="none", progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_attention_can_be_left_alone(tiny_copy):
    report = fuse(tiny_copy(), attention=False)
    assert report.fused and not report.attention and report.one_buffer is None
    nodes = onnx.load(report.output, load_external_data=False).graph.node
    assert "GroupQueryAttention" not in [node.op_type for node in nodes] and "Softmax" in [node.op_type for node in nodes]


def test_the_report_tells_of_attention(tiny_copy):
    report = fuse(tiny_copy())
    assert report.attention_fused == len(report.attention) == len(report.layers)
    text = report.to_text()
    assert "attention of 2 of 2" in text and "4 heads for 2 of 32, float, mask: causal and attention_mask, rotary (half), q/k norm" in text
    assert "caches: one buffer may be bound as past and present" in text
    found = json.loads(report.to_json())
    assert found["attention_fused"] == 2 and found["attention"][0]["verification"] == "verified"


@pytest.mark.parametrize(("verify", "verified"), [("none", 0), (1, 1), ("all", 2)])
def test_how_much_attention_is_verified(tiny_copy, verify, verified):
    report = fuse(tiny_copy(), verify=verify)
    assert sum(layer.verification == "verified" for layer in report.attention) == verified


def test_attention_that_fails_verification_stays(tiny_copy, monkeypatch):
    from ort_hina import rewriting
    from ort_hina.verify import Verdict

    monkeypatch.setattr(rewriting, "verify_attention", lambda *_, **__: Verdict("failed", 1.0, 1e-4, 0.0, "differs"))
    report = fuse(tiny_copy())
    assert report.fused == 2 and report.attention_fused == 0 and report.output is not None
    assert all(layer.reason == "verification failed: differs" for layer in report.attention)
    assert sum("attention of" in warning for warning in report.warnings) == 2


def test_attention_of_a_model_without_fused_experts_is_none_of_our_business(tiny_copy, monkeypatch):
    from ort_hina import rewriting
    from ort_hina.verify import Verdict

    monkeypatch.setattr(rewriting, "verify_layer", lambda *_, **__: Verdict("failed", 1.0, 1e-4, 0.0, "differs"))
    report = fuse(tiny_copy())
    assert report.output is None and not report.attention
