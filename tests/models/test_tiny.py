"""The exported tiny models answer what PyTorch answers: the ground on which every other test stands."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_hina.models.random_model import random_model
from ort_hina.models.tiny import export_tiny

TINY = ["qwen3_moe", "qwen3_moe_nonorm_dense"]


def _feeds(session: onnxruntime.InferenceSession, ids: np.ndarray, dtype: type) -> dict[str, np.ndarray]:
    """Inputs of a prefill of `ids` (batch, length) on an empty past."""
    batch, length = ids.shape
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.broadcast_to(np.arange(length), ids.shape).copy(),
    }
    for entry in session.get_inputs():
        if entry.name.startswith("past_key_values"):
            feeds[entry.name] = np.zeros((batch, entry.shape[1], 0, entry.shape[3]), dtype)
    return feeds


def _logits_gap(path, pytorch, dtype: type) -> float:
    """Largest difference between the logits of the file and of PyTorch, relative to their size."""
    import torch

    session = onnxruntime.InferenceSession(path)
    ids = np.random.default_rng(0).integers(3, 384, (2, 9))
    (got,) = session.run(["logits"], _feeds(session, ids, dtype))
    with torch.no_grad():
        expected = pytorch(torch.from_numpy(ids)).logits.numpy()
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", TINY)
def test_float32_export_equals_pytorch(tiny_export, tiny_pytorch, name):
    assert _logits_gap(tiny_export(name), tiny_pytorch(name), np.float32) < 1e-5


def test_float16_export_is_close_to_pytorch(tiny_export, tiny_pytorch):
    assert _logits_gap(tiny_export(dtype="fp16"), tiny_pytorch(), np.float16) < 2e-2


def test_opset_and_storage_are_what_was_asked(tiny_export):
    default, inline = tiny_export(), tiny_export("qwen3_moe_nonorm_dense", opset=20, external=False)
    assert (default.parent / "model.onnx_data").stat().st_size > default.stat().st_size
    assert not (inline.parent / "model.onnx_data").exists()
    opsets = [onnx.load(path, load_external_data=False).opset_import[0].version for path in (default, inline)]
    assert opsets == [18, 20]


def test_weights_depend_on_the_seed_only():
    import torch

    first, second, other = (random_model("qwen3_moe", seed=seed) for seed in (7, 7, 8))
    for (name, a), (_, b), (_, c) in zip(*(model.named_parameters() for model in (first, second, other)), strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c), name


def test_logits_differ_from_token_to_token():
    """Otherwise "the same greedy tokens" would prove nothing."""
    import torch

    with torch.no_grad():
        logits = random_model("qwen3_moe")(torch.arange(3, 67)[None]).logits[0]
    assert logits.argmax(-1).unique().numel() > 16
    assert logits.std() > 0.5


def test_a_wrong_expert_changes_the_text():
    """Otherwise a fusion that mixes experts up could pass every comparison of tokens."""
    import torch

    model, ids = random_model("qwen3_moe"), torch.arange(3, 67)[None]
    experts = model.model.layers[1].mlp.experts
    with torch.no_grad():
        right = model(ids).logits[0].argmax(-1)
        experts[0], experts[1] = experts[1], experts[0]
        wrong = model(ids).logits[0].argmax(-1)
    assert (right != wrong).float().mean() > 0.1


def test_overrides_reach_the_exported_model(tmp_path):
    path = export_tiny("qwen3_moe", tmp_path, overrides={"num_hidden_layers": 1, "num_experts": 4})
    assert json.loads((tmp_path / "config.json").read_text())["num_experts"] == 4
    names = {entry.name for entry in onnx.load(path, load_external_data=False).graph.output}
    assert "present.0.key" in names and "present.1.key" not in names


def test_exporting_again_replaces_the_files(tmp_path):
    """The exporter appends to a data file that it finds."""
    sizes = []
    for _ in range(2):
        path = export_tiny("qwen3_moe", tmp_path, overrides={"num_hidden_layers": 1, "num_experts": 4})
        sizes.append((tmp_path / "model.onnx_data").stat().st_size)
    assert sizes[0] == sizes[1] > path.stat().st_size


def test_unknown_variant_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown model variant 'mixtral_9'; known: qwen3_moe, "):
        random_model("mixtral_9")


def test_environment_is_left_as_it_was(tiny_export, monkeypatch, tmp_path):
    import os

    monkeypatch.setenv("FORCE_ONNX_EXTERNAL_DATA", "0")
    path = export_tiny("qwen3_moe", tmp_path, overrides={"num_hidden_layers": 1})
    assert os.environ["FORCE_ONNX_EXTERNAL_DATA"] == "0"
    assert (path.parent / "model.onnx_data").exists()
