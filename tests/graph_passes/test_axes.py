"""How axes are spread over other dimensions."""

from __future__ import annotations

import pytest

from ort_hina.graph_passes.axes import ONE_AXIS, atoms, joined, regrouped
from ort_hina.graph_passes.dims import ONE, Dim, DimTable, product
from ort_hina.graph_passes.meanings import Axis, Refusal

DIMS = DimTable()
B, S = DIMS.unknown("batch"), DIMS.unknown("length")
T = product((B, S))
TOKENS, SLOTS, FEATURES = Axis("token", T), Axis("slot", Dim(4)), Axis("feature", Dim(64))


def test_joined_and_taken_apart():
    (pairs, features) = regrouped(DIMS, (TOKENS, SLOTS, FEATURES), (product((T, Dim(4))), Dim(64)))
    assert (pairs.role, pairs.parts, features) == ("joined", (TOKENS, SLOTS), FEATURES)
    assert regrouped(DIMS, (pairs, features), (T, Dim(4), Dim(64))) == (TOKENS, SLOTS, FEATURES)


def test_tokens_are_split_and_put_together():
    split = regrouped(DIMS, (TOKENS, FEATURES), (B, S, Dim(64)))
    assert split == (Axis("token", B), Axis("token", S), FEATURES)
    assert regrouped(DIMS, split, (T, Dim(64))) == (TOKENS, FEATURES)


def test_a_joined_axis_is_split_inside_its_tokens():
    experts = Axis("expert", Dim(8))
    whole = (joined((experts, TOKENS)), FEATURES)
    assert regrouped(DIMS, whole, (Dim(8), B, S, Dim(64))) == (experts, Axis("token", B), Axis("token", S), FEATURES)


def test_axes_of_one_element_come_and_go():
    assert regrouped(DIMS, (ONE_AXIS, TOKENS, FEATURES), (T, ONE, Dim(64), ONE)) == (TOKENS, ONE_AXIS, FEATURES, ONE_AXIS)
    assert atoms((ONE_AXIS, joined((TOKENS, SLOTS)))) == (TOKENS, SLOTS)


@pytest.mark.parametrize(
    "shape",
    [
        (product((T, Dim(64))),)[:0],
        (Dim(4), T, Dim(64)),  # slots before tokens
        (T, Dim(2), Dim(2), Dim(64)),  # slots split
        (T, Dim(4), Dim(2), Dim(32)),  # features split
        (product((T, Dim(2))), Dim(2), Dim(64)),  # tokens with half of the slots
        (DIMS.unknown("something"), Dim(4), Dim(64)),
    ],
)
def test_everything_else_is_refused(shape):
    with pytest.raises(Refusal, match="joins or splits axes"):
        regrouped(DIMS, (TOKENS, SLOTS, FEATURES), shape)
