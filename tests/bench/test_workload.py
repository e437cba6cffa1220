"""Which experts a call asks for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ort_hina.benchmark import peers, workload
from ort_hina.benchmark.shapes import FILE_BYTES, PAPER_SHAPES, SHAPES, MoeShape

ODD = MoeShape("odd", 8, 4, 7, 3)


@pytest.mark.parametrize("shape", [MoeShape("even", 8, 4, 8, 2), ODD])
@pytest.mark.parametrize("m", [1, 5])
def test_every_active_expert_gets_exactly_as_many_tokens(shape, m):
    work = workload.exact(shape, m)
    assert (work.tokens, work.tokens_per_expert, work.active_experts) == (m, m, shape.k)
    for ids in work.ids:
        assert ids.shape == (m, shape.k) and ids.dtype == np.int64
        assert sorted(np.bincount(ids.ravel(), minlength=shape.experts)) == [0] * (shape.experts - shape.k) + [m] * shape.k


@pytest.mark.parametrize("shape", [MoeShape("even", 8, 4, 8, 2), ODD])
def test_calls_walk_round_all_experts(shape):
    ids = workload.exact(shape, 1).ids
    assert set(np.concatenate(ids).ravel()) == set(range(shape.experts))
    for before, after in zip(ids, ids[1:] + ids[:1], strict=True):
        assert not set(before.ravel()) & set(after.ravel())


def test_prefill_lets_each_token_choose_different_experts():
    work = workload.prefill(MoeShape("wide", 8, 4, 64, 8), 50)
    (ids,) = work.ids
    assert all(len(set(row)) == 8 for row in ids)
    assert work.active_experts == len(np.unique(ids)) and work.tokens_per_expert == 400 / work.active_experts


def test_with_fewer_experts_stored_each_gets_as_many_tokens_as_in_the_model():
    model = MoeShape("model", 8, 4, 64, 2)
    work = workload.scaled_prefill(model, dataclasses.replace(model, experts=16), 512)
    assert work.tokens == 128 and work.tokens_per_expert == 512 * 2 / 64


def test_logits_leave_a_router_no_choice():
    work = workload.exact(ODD, 4)
    top = np.argsort(-peers.router_logits(work, 1), axis=1)[:, : ODD.k]
    assert np.array_equal(np.sort(top), np.sort(work.ids[1]))


def test_the_matmuls_run_every_expert():
    work = peers.over_all_experts(ODD, 5)
    assert (work.tokens, work.active_experts, work.tokens_per_expert) == (5, 7, 5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_what_is_stored_is_cold_and_fits(name, dtype):
    shape = SHAPES[name]
    stored = shape.stored(dtype)
    size = stored.experts * shape.expert_bytes(dtype)
    assert stored.experts >= 4 and (stored.experts >= 2 * shape.k or stored.experts == shape.experts)
    assert size >= 1e9 or stored.experts == shape.experts
    # Four experts of Mixtral-8x22B in f32 are more.
    assert size <= FILE_BYTES or stored.experts == max(4, 2 * shape.k)


def test_the_papers_shapes_are_those_of_its_table_3():
    assert [(SHAPES[name].hidden, SHAPES[name].intermediate, SHAPES[name].k) for name in PAPER_SHAPES] == [
        (4096, 14336, 2), (6144, 16384, 2), (7168, 2048, 8), (4096, 1536, 8)
    ]  # fmt: skip
