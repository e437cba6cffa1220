"""Every family that this version of transformers has can be built, and its experts matter."""

from __future__ import annotations

import pytest
import torch

from ort_hina.models.exporters.block import moe_block
from ort_hina.models.families import VARIANTS, variant
from ort_hina.models.random_model import random_model

# Lfm2Moe and MiniMaxM2 are in transformers 5 only; Doge of transformers 4 does not run.
ONLY_5 = {"lfm2_moe", "minimax_m2", "doge"}
LARGE = {"qwen3_moe_demo"}
HERE = sorted(set(VARIANTS) - ONLY_5 - LARGE)


@pytest.mark.parametrize("name", VARIANTS)
def test_names_and_head_sizes(name):
    arguments = variant(name).arguments
    assert variant(name).name == name
    if variant(name).config_class.startswith(("Qwen3Moe", "Mixtral", "Glm4", "GptOss")):
        assert arguments["head_dim"] != arguments["hidden_size"] // arguments["num_attention_heads"]


@pytest.mark.parametrize("name", HERE)
def test_logits_differ_from_token_to_token(name):
    with torch.no_grad():
        logits = random_model(name)(torch.arange(3, 67)[None], use_cache=False).logits[0]
    assert logits.isfinite().all()
    assert logits.argmax(-1).unique().numel() > 16


@pytest.mark.parametrize("name", HERE)
def test_the_experts_matter(name):
    """A block that answers zeros changes the text; so would one with wrong experts."""
    model, ids = random_model(name), torch.arange(3, 67)[None]
    with torch.no_grad():
        right = model(ids, use_cache=False).logits[0].argmax(-1)
        for parameter_name, parameter in moe_block(model).named_parameters():
            if "expert" in parameter_name and "shared" not in parameter_name or "output_linear" in parameter_name:
                parameter.zero_()
        wrong = model(ids, use_cache=False).logits[0].argmax(-1)
    assert (right != wrong).float().mean() > 0.1


@pytest.mark.parametrize("name", HERE)
def test_weights_depend_on_the_seed_only(name):
    first, second, other = (dict(random_model(name, seed=seed).state_dict()) for seed in (7, 7, 8))
    for key in first:
        assert torch.equal(first[key], second[key]), key
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_selection_biases_are_drawn():
    """They are buffers, and zero in a new model: a fuser that forgot them would not be seen."""
    state = random_model("deepseek_v3").state_dict()
    biases = [tensor for name, tensor in state.items() if name.endswith("e_score_correction_bias")]
    assert biases and all(bias.std() > 0.02 for bias in biases)


def test_a_family_of_another_version_is_named():
    with pytest.raises(ValueError, match=r"transformers 4\.\S+ has no Lfm2MoeConfig"):
        random_model("lfm2_moe")


def test_a_dense_model_has_no_block():
    with pytest.raises(ValueError, match="Linear has no mixture-of-experts block"):
        moe_block(torch.nn.Linear(2, 2))
