"""The drop-in for Optimum's class: the same text as PyTorch, fused or not, with and without IO binding."""

from __future__ import annotations

import json
import logging
import shutil

import onnxruntime
import pytest

from ort_hina import OrtHinaError

VARIANTS = ["qwen3_moe", "qwen3_moe_nonorm_dense"]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def fused_folder(tiny_export, tmp_path_factory):
    """``fused_folder(variant)`` → a folder with an export and its fused file."""
    import ort_hina

    done = {}

    def fused(variant):
        if variant not in done:
            folder = tmp_path_factory.mktemp(variant) / "export"
            shutil.copytree(tiny_export(variant).parent, folder, ignore=shutil.ignore_patterns("pytorch"))
            ort_hina.fuse(folder / "model.onnx", verify="none")
            done[variant] = folder
        return done[variant]

    return fused


def _load(folder, **arguments):
    from ort_hina import ORTModelForCausalLM

    return ORTModelForCausalLM.from_pretrained(folder, **arguments)


def _prompt(batch):
    """Token ids and mask: `batch` rows of 7, 4, 1, 7, … tokens, padded on the left."""
    import torch

    ids = torch.randint(3, 384, (batch, 7), generator=torch.Generator().manual_seed(batch))
    mask = torch.ones_like(ids)
    for row in range(batch):
        mask[row, : (row % 3) * 3] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def _greedy(model, batch):
    """The new tokens (batch, NEW_TOKENS), as lists."""
    tokens = model.generate(**_prompt(batch), do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS)
    return tokens[:, -NEW_TOKENS:].tolist()


@pytest.mark.parametrize("io_binding", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_text_equals_pytorch(fused_folder, tiny_pytorch, variant, io_binding):
    model = _load(fused_folder(variant), use_io_binding=io_binding)
    assert model.path.name == "model_hina.onnx"
    for batch in (1, 3):
        assert _greedy(model, batch) == _greedy(tiny_pytorch(variant), batch)


def test_unfused_text_equals_pytorch(tiny_export, tiny_pytorch):
    model = _load(tiny_export().parent)
    assert model.path.name == "model.onnx"
    assert _greedy(model, 3) == _greedy(tiny_pytorch(), 3)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("io_binding", [False, True])
def test_logits_of_prefill_and_decode_equal_pytorch(fused_folder, tiny_pytorch, io_binding, batch):
    """Prefill (with left padding where there are several rows), then two steps on the cache."""
    import torch

    model, reference = _load(fused_folder("qwen3_moe"), use_io_binding=io_binding), tiny_pytorch()
    inputs = _prompt(batch)
    mask, tokens = inputs["attention_mask"], inputs["input_ids"]
    caches = [None, None]
    for _ in range(3):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        with torch.no_grad():
            got, expected = (
                runner(tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
                for runner, cache in zip((model, reference), caches, strict=True)
            )
        caches = [got.past_key_values, expected.past_key_values]
        # What a padding position itself answers is of no use to anyone, and differs between implementations.
        real = mask[:, -tokens.shape[1] :].bool()
        gap = (got.logits - expected.logits)[real].abs().max() / expected.logits[real].abs().max()
        assert gap < 1e-4
        tokens = expected.logits[:, -1:].argmax(-1)
        mask = torch.cat([mask, torch.ones_like(tokens)], dim=1)


def test_session_options_of_the_user_are_used_and_may_be_used_again(fused_folder, tiny_pytorch):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for _ in range(2):
        model = _load(fused_folder("qwen3_moe"), session_options=options)
        assert model.session.get_session_options().intra_op_num_threads == 1
        assert _greedy(model, 1) == _greedy(tiny_pytorch(), 1)


def test_cache_shapes_come_from_the_model(tiny_export):
    """Optimum says 64 / 4 = 16."""
    model = _load(tiny_export().parent)
    assert (model.num_key_value_heads, model.embed_size_per_head) == (2, 32)


def test_cache_heads_come_from_the_model_for_a_family_that_optimum_does_not_list(tiny_copy):
    """Optimum gives Mixtral as many key/value heads as query heads: 4 instead of 2."""
    path = tiny_copy()
    config = path.parent / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "mixtral"}))
    assert _load(path.parent).num_key_value_heads == 2


def test_file_name_wins_over_the_fused_file(fused_folder):
    assert _load(fused_folder("qwen3_moe"), file_name="model.onnx").path.name == "model.onnx"


def test_a_fused_file_with_another_name_is_found(fused_folder, tmp_path):
    folder = _copy_with_names(fused_folder, tmp_path, ["my_hina.onnx"])
    assert _load(folder).path.name == "my_hina.onnx"


def test_several_fused_files_are_ambiguous_unless_one_has_the_standard_name(fused_folder, tmp_path):
    folder = _copy_with_names(fused_folder, tmp_path, ["b_hina.onnx", "a_hina.onnx"])
    with pytest.raises(OrtHinaError, match="several fused models in .*: a_hina.onnx, b_hina.onnx; choose one with"):
        _load(folder)
    shutil.copy(folder / "a_hina.onnx", folder / "model_hina.onnx")
    assert _load(folder).path.name == "model_hina.onnx"


def _copy_with_names(fused_folder, tmp_path, names):
    source, folder = fused_folder("qwen3_moe"), tmp_path / "export"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*_hina.onnx"))
    for name in names:
        shutil.copy(source / "model_hina.onnx", folder / name)
    return folder


def test_an_unfused_model_is_run_with_a_warning(tiny_export, caplog):
    with caplog.at_level(logging.WARNING, "ort_hina"):
        _load(tiny_export().parent)
    assert "no fused model (*_hina.onnx)" in caplog.text and "ort-hina fuse" in caplog.text


def test_data_files_of_a_fused_file_are_fetched_from_a_hub_by_their_own_names(fused_folder, monkeypatch):
    """A fused file has no ``model_hina.onnx_data``: it names the data of the model that it was made from."""
    from ort_hina import causal_lm

    folder, asked = fused_folder("qwen3_moe"), []

    def fetch(repository, filename, **arguments):
        asked.append((repository, filename, arguments))
        return folder / filename

    monkeypatch.setattr(causal_lm._OptimumModel, "_cached_file", staticmethod(fetch))
    path = causal_lm.ORTModelForCausalLM._cached_file("someone/model", "model_hina.onnx", subfolder="onnx")
    assert path == folder / "model_hina.onnx"
    assert asked == [("someone/model", name, {"subfolder": "onnx"}) for name in ("model_hina.onnx", "model.onnx_data")]
