"""The Router operator and its reference against routers of transformers, from logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.levels import every_level
from support.router_native import run_native
from support.router_reference import select, weight_error, weights_of
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from ort_hina.graph_passes.router_spec import RouterSpec

TOKENS = 500
MIXER = RouterSpec(2, "sparse_mixer", jitter=0.01)


def mixer_logits(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((TOKENS, 16)).astype(np.float32) * 3
    if kind == "negative":
        logits -= 20
    if kind == "near ties":  # inside and outside the threshold's band of 2 %
        logits[:, 3] = logits.max(axis=1) * rng.uniform(0.95, 1.0, TOKENS).astype(np.float32)
        logits[::5, 7] = logits[::5, 3]
    if kind == "zeros":
        logits = np.zeros((3, 16), np.float32)
    return logits


@every_level
@pytest.mark.parametrize("kind", ["any", "negative", "near ties", "zeros"])
def test_sparse_mixer(isa, kind):
    """R15. Phi-3.5-MoE's own code: the same ids for every token, and both weights within the bounds of both sides."""
    logits = mixer_logits(kind)
    weights, ids = (value.numpy() for value in sparsemixer(torch.tensor(logits), 0.01, training=False))
    found_ids, found = run_native(MIXER, logits, isa=isa)
    selection = select(MIXER, logits)
    np.testing.assert_array_equal(selection.ids, ids)
    np.testing.assert_array_equal(found_ids, ids)
    exact, error = weights_of(MIXER, selection), weight_error(MIXER, selection)
    assert (np.abs(found - exact) <= error).all() and (np.abs(weights - exact) <= error).all()
    assert kind == "zeros" or (np.abs(found.sum(axis=1) - 1) > 0.01).any(), "the two weights do not sum to 1"


@every_level
@pytest.mark.parametrize(("groups", "top_groups"), [(8, 4), (1, 1)])
@pytest.mark.parametrize("normalize", [True, False])
def test_deepseek_v3(isa, groups, top_groups, normalize):
    """R04, R05."""
    experts = 64
    config = DeepseekV3Config(
        hidden_size=experts, n_routed_experts=experts, num_experts_per_tok=8, n_group=groups, topk_group=top_groups,
        norm_topk_prob=normalize, routed_scaling_factor=2.5,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((TOKENS, experts)).astype(np.float32)
    bias = (rng.standard_normal(experts) * 0.1).astype(np.float32)
    router = DeepseekV3TopkRouter(config)
    with torch.no_grad():
        router.weight.copy_(torch.eye(experts))  # hidden states are the logits
        router.e_score_correction_bias.copy_(torch.tensor(bias))
        ids, weights = (value.numpy() for value in router(torch.tensor(logits)))
    epsilon = 1e-20 if normalize else 0.0
    spec = RouterSpec(8, "sigmoid", groups, top_groups, "top2_sum", 0.0, "none", normalize, epsilon, 0.0, 2.5)
    found_ids, found = run_native(spec, logits, bias, isa=isa)
    selection = select(spec, logits, bias)
    sure = selection.decided
    assert sure.mean() > 0.98
    # transformers leaves the order of the chosen ones open.
    order, own = np.argsort(ids, axis=1), np.argsort(found_ids, axis=1)
    np.testing.assert_array_equal(np.take_along_axis(found_ids, own, 1)[sure], np.take_along_axis(ids, order, 1)[sure])
    difference = np.take_along_axis(found, own, 1) - np.take_along_axis(weights, order, 1)
    error = np.take_along_axis(weight_error(spec, selection), np.argsort(selection.ids, axis=1), 1)
    assert (np.abs(difference) <= 2 * error)[sure].all()
