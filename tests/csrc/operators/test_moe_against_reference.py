"""The MoE operator against float64, within a bound derived for each output, over everything that a node may say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.activations import ACTIVATIONS
from support.elements import ELEMENTS
from support.layouts import GATE_UP, SINGLE
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids, without_ids
from support.moe_weights import MoeSpec, make_weights

sizes = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 80, 129, 257, 300]))
kinds = st.sampled_from(ELEMENTS)
windows = st.one_of(kinds.map(lambda kind: (kind,)), st.lists(kinds, min_size=2, max_size=3).map(tuple))


@st.composite
def specs(draw) -> MoeSpec:
    activation = draw(st.sampled_from(ACTIVATIONS))
    extra = {"weight_on": draw(st.sampled_from(["output", "input"]))}
    if activation == "swiglu_oai":
        extra |= {
            "activation_alpha": draw(st.sampled_from([1.0, 1.702])),
            "activation_beta": draw(st.sampled_from([0.0, 1.0])),
            "swiglu_limit": draw(st.sampled_from([0.5, 7.0])),
        }
    gated = activation == "swiglu_oai" or draw(st.booleans())
    experts = draw(st.integers(1, 9))
    gates = None
    if extra["weight_on"] == "output":
        gates = draw(st.none() | st.frozensets(st.integers(0, experts - 1)))
    return MoeSpec(
        experts=experts,
        hidden=draw(sizes),
        intermediate=draw(sizes),
        gate_up_layout=draw(st.sampled_from(GATE_UP if gated else SINGLE)),
        down_layout=draw(st.sampled_from(SINGLE)),
        windows=draw(windows),
        down_windows=draw(st.one_of(st.none(), windows)),
        gated=gated,
        bias=draw(st.booleans()),
        missing=frozenset(draw(st.sets(st.integers(0, experts - 1), max_size=experts - 1))),
        sigmoid_gates=gates,
        sigmoid_gate_stride=draw(st.sampled_from([1, 1, 3])),
        padding=draw(st.sampled_from([0, 0, 1, 5])),
        scale=draw(st.sampled_from([0.1, 1.0, 10.0])),
        activation=activation,
        extra=extra,
    )


@every_level
@settings(max_examples=60, deadline=None)
@given(
    spec=specs(),
    tokens=st.one_of(st.integers(1, 20), st.sampled_from([33, 64, 100])),
    k=st.integers(1, 9),
    x_type=kinds,
    routing_type=kinds,
    ids_type=st.sampled_from([np.int32, np.int64]),
    repeats=st.booleans(),
    threads=st.sampled_from([1, 2, 7]),
    bf16_compute=st.booleans(),
    addend=st.booleans(),
    skip=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_node(
    isa, spec, tokens, k, x_type, routing_type, ids_type, repeats, threads, bf16_compute, addend, skip, seed
):  # fmt: skip
    present = [e for e in range(spec.experts) if skip or e not in spec.missing]
    if skip:
        spec.extra["missing_experts"] = "skip"
    k = k if repeats else min(k, len(present))
    weights = make_weights(spec, seed)
    ids = random_ids(tokens, k, present, dtype=ids_type, seed=seed, repeats=repeats)
    inputs = make_tokens(ids, spec.hidden, x_type=x_type, routing_type=routing_type, addend=addend, seed=seed)
    y = NativeMoe(weights, isa, guard=True, bf16_compute=bf16_compute).run(inputs, threads)
    assert_within(y, expected(weights, inputs, isa, bf16_compute=bf16_compute))


@every_level
@settings(max_examples=30, deadline=None)
@given(
    spec=specs(),
    tokens=st.one_of(st.integers(1, 20), st.sampled_from([33, 64, 100])),
    x_type=kinds,
    weights=st.booleans(),
    addend=st.booleans(),
    threads=st.sampled_from([1, 2, 7]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_node_without_ids(isa, spec, tokens, x_type, weights, addend, threads, seed):
    spec.extra["missing_experts"] = "skip"
    made = make_weights(spec, seed)
    inputs = without_ids(tokens, spec.experts, spec.hidden, weights=weights, x_type=x_type, addend=addend, seed=seed)
    assert_within(NativeMoe(made, isa, guard=True).run(inputs, threads), expected(made, inputs, isa))


@every_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("gate_up", GATE_UP)
@pytest.mark.parametrize("down", SINGLE)
def test_every_layout_and_type_with_biases(isa, kind, gate_up, down):
    """Few tokens and many for one expert: both the streaming kernels and those with a panel of weights."""
    spec = MoeSpec(5, 70, 45, gate_up, down, windows=(kind,), bias=True, padding=3)
    weights = make_weights(spec, seed=1)
    node = NativeMoe(weights, isa, guard=True)
    for tokens in (1, 3, 150):
        inputs = make_tokens(random_ids(tokens, 2, 5, seed=2), 70, seed=3)
        assert_within(node.run(inputs, 2), expected(weights, inputs, isa))


@every_level
@pytest.mark.parametrize(
    ("kind", "gated"),
    [(kind, gated) for kind in ACTIVATIONS for gated in (True, False) if gated or kind != "swiglu_oai"],
)
@pytest.mark.parametrize("weights_type", ["float", "bfloat16"])
def test_every_activation(isa, kind, gated, weights_type):
    """A06."""
    spec = MoeSpec(4, 50, 60, gated=gated, activation=kind, scale=5.0, bias=True, windows=(weights_type,))
    weights = make_weights(spec, seed=4)
    for tokens in (3, 60):
        inputs = make_tokens(random_ids(tokens, 2, 4, seed=5), 50, seed=6)
        assert_within(NativeMoe(weights, isa).run(inputs), expected(weights, inputs, isa))
