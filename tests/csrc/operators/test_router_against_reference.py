"""The Router operator against float64, at every level, over everything that a node may say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.elements import ELEMENTS
from support.levels import every_level
from support.router_native import assert_routes, run_native

from ort_hina.graph_passes.router_spec import RouterSpec

kinds = st.sampled_from(ELEMENTS)
SOFTMAX_ALL = RouterSpec(8, normalize=True)
DEEPSEEK_V3 = RouterSpec(8, "sigmoid", 8, 4, "top2_sum", normalize=True, normalize_epsilon=1e-20, scale=2.5)
TOP_K_SOFTMAX = RouterSpec(4, "none", weight_function="softmax")
SPARSE_MIXER = RouterSpec(2, "sparse_mixer", jitter=0.01)
FAMILIES = {
    "softmax, normalised": SOFTMAX_ALL,
    "softmax": RouterSpec(8),
    "deepseek v2": RouterSpec(6, "softmax", 8, 3, "max", scale=16.0),
    "deepseek v3": DEEPSEEK_V3,
    "one group": RouterSpec(8, "sigmoid", normalize=True, normalize_epsilon=1e-20, scale=2.827),
    "ernie": RouterSpec(6, "softmax", normalize=True, normalize_min=1e-12),
    "gpt-oss": TOP_K_SOFTMAX,
    "llama 4": RouterSpec(1, "none", weight_function="sigmoid"),
    "sparse mixer": SPARSE_MIXER,
}


@st.composite
def routers(draw) -> tuple[RouterSpec, int]:
    """A spec and its number of experts."""
    groups = draw(st.sampled_from([1, 1, 2, 4, 8]))
    size = draw(st.one_of(st.integers(1, 70), st.sampled_from([128, 250])))
    experts = groups * size
    spec = RouterSpec(
        k=draw(st.one_of(st.integers(1, min(experts, 10)), st.integers(1, experts))),
        score=draw(st.sampled_from(["softmax", "sigmoid", "none"])),
        num_groups=groups,
        top_groups=draw(st.integers(1, groups)),
        group_score=draw(st.sampled_from(["max", "top2_sum"] if size > 1 else ["max"])),
        masked_score=draw(st.sampled_from([0.0, -np.inf])),
        weight_function=draw(st.sampled_from(["none", "softmax", "sigmoid"])),
        normalize=draw(st.booleans()),
        normalize_epsilon=draw(st.sampled_from([0.0, 1e-20, 1e-6])),
        normalize_min=draw(st.sampled_from([0.0, 1e-12])),
        scale=draw(st.sampled_from([1.0, 2.5, 16.0])),
    )
    return spec, experts


@every_level
@settings(max_examples=150, deadline=None)
@given(
    router=routers(),
    tokens=st.sampled_from([0, 1, 2, 5, 40]),
    width=st.sampled_from([0.01, 1.0, 10.0]),
    steps=st.booleans(),
    special=st.sampled_from([None, None, np.nan, np.inf, -np.inf, -1e4, 1e30, -120.0]),
    biased=st.booleans(),
    logits_type=kinds,
    bias_type=kinds,
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_node(isa, router, tokens, width, steps, special, biased, logits_type, bias_type, threads, seed):
    spec, experts = router
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((tokens, experts)) * width
    if steps:  # many exact ties
        logits = np.round(logits * 2) / 2
    if special is not None:
        logits[rng.random(logits.shape) < rng.choice([0.02, 0.5, 1.0])] = special
    bias = (rng.standard_normal(experts) * 0.1).astype(np.float32) if biased else None
    how = {"isa": isa, "logits_type": logits_type, "bias_type": bias_type, "threads": threads}
    assert_routes(spec, logits.astype(np.float32), bias, **how)


@every_level
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("experts", [16, 64, 128, 256])
def test_random_tokens_of_every_family(isa, family, experts):
    """R04, R05, R06. Tokens whose choice hangs on a rounding are few; all others choose as float64 does."""
    rng = np.random.default_rng(experts)
    logits = rng.standard_normal((1000, experts)).astype(np.float32)
    bias = (rng.standard_normal(experts) * 0.05).astype(np.float32) if FAMILIES[family].score == "sigmoid" else None
    selection = assert_routes(FAMILIES[family], logits, bias, isa=isa)
    assert selection.decided.mean() > 0.97


@every_level
@pytest.mark.parametrize("group_score", ["max", "top2_sum"])
@pytest.mark.parametrize(("groups", "top_groups"), [(8, 4), (1, 1), (8, 8), (4, 1)])
@pytest.mark.parametrize("masked_score", [0.0, -np.inf])
def test_groups(isa, group_score, groups, top_groups, masked_score):
    """R04. The logits themselves are the scores, so that no choice hangs on a rounding: the ids of all tokens are exact.
    Negative scores lie below a masked score of 0, so masked experts are chosen, too."""
    rng = np.random.default_rng(5)
    spec = RouterSpec(8, "none", groups, top_groups, group_score, masked_score)
    logits, bias = rng.standard_normal((1000, 64)).astype(np.float32), rng.standard_normal(64).astype(np.float32)
    assert assert_routes(spec, logits, bias, isa=isa).decided.all()


@every_level
@pytest.mark.parametrize("experts", [1, 2, 3, 8, 15, 16, 17, 31, 33, 60, 160, 384, 512, 1000, 1024, 1025, 3000])
def test_sizes(isa, experts):
    """D07. Every number of experts, and of chosen ones up to all of them; scratch on the stack and elsewhere."""
    rng = np.random.default_rng(experts)
    logits, bias = rng.standard_normal((3, experts)).astype(np.float32), rng.standard_normal(experts).astype(np.float32)
    for k in sorted({1, min(8, experts), min(16, experts), min(17, experts), min(33, experts), experts}):
        spec = RouterSpec(k, "none", weight_function="softmax", normalize=True)
        assert assert_routes(spec, logits, bias, isa=isa).decided.all()


@every_level
def test_equal_bits_in_any_company_and_on_any_threads(isa):
    rng = np.random.default_rng(0)
    logits, bias = rng.standard_normal((301, 256)).astype(np.float32), rng.standard_normal(256).astype(np.float32)
    ids, weights = run_native(DEEPSEEK_V3, logits, bias, isa=isa)
    for threads in (2, 7):
        again = run_native(DEEPSEEK_V3, logits, bias, isa=isa, threads=threads)
        np.testing.assert_array_equal(again[0], ids)
        np.testing.assert_array_equal(again[1].view(np.int32), weights.view(np.int32))
    for t in (0, 150, 300):
        alone = run_native(DEEPSEEK_V3, logits[t : t + 1], bias, isa=isa)
        np.testing.assert_array_equal(alone[0][0], ids[t])
        np.testing.assert_array_equal(alone[1][0].view(np.int32), weights[t].view(np.int32))


@every_level
def test_more_threads_than_tokens_and_scratch_of_every_item(isa):
    rng = np.random.default_rng(1)
    assert_routes(SOFTMAX_ALL, rng.standard_normal((20, 5000)).astype(np.float32), isa=isa, threads=7)
    assert_routes(SOFTMAX_ALL, rng.standard_normal((2, 30000)).astype(np.float32), isa=isa, threads=7)


@every_level
def test_weights_that_all_underflow_have_no_sum(isa):
    """As in a graph of float32: 0 / 0."""
    spec = RouterSpec(1, "none", weight_function="sigmoid", normalize=True)
    logits = np.full((2, 4), -120, np.float32)
    logits[1, 2] = 0.0
    ids, weights = run_native(spec, logits, None, isa=isa)
    np.testing.assert_array_equal(weights, [[np.nan], [1.0]])
    assert_routes(spec, logits, None, isa=isa)
