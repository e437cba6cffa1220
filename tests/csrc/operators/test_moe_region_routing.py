"""Calls with so many choices (2048 and more) that several threads sort them, inside the region."""

from __future__ import annotations

import numpy as np
import pytest
from support.levels import every_level
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

HIDDEN, INTERMEDIATE, EXPERTS, K = 24, 12, 6, 3
# 2046 choices are one chunk on any number of threads, 2049 two; 33 000 are more chunks than there can be (16).
COUNTS = (682, 683, 1200, 11_000)
every_ids_type = pytest.mark.parametrize("ids_type", [np.int32, np.int64])


@every_level
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@every_ids_type
def test_equals_one_thread_bit_for_bit(isa, kind, ids_type):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE, windows=(kind,), bias=True))
    node = NativeMoe(weights, isa, guard=True)
    for count in COUNTS[:3]:
        inputs = make_tokens(random_ids(count, K, EXPERTS, dtype=ids_type, seed=count), HIDDEN, seed=count)
        alone = node.run(inputs, 1)
        assert_within(alone, expected(weights, inputs, isa))
        for threads in (2, 3, 16):
            np.testing.assert_array_equal(node.run(inputs, threads), alone)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("threads", [2, 5, 64])
def test_few_experts_and_repeats(count, threads):
    """All choices of one expert, and experts chosen twice by a token."""
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE))
    node = NativeMoe(weights)
    for experts in ([4], [5, 0], range(EXPERTS)):
        inputs = make_tokens(random_ids(count, K, list(experts), repeats=True), HIDDEN, routing_type="bfloat16")
        np.testing.assert_array_equal(node.run(inputs, threads), node.run(inputs, 1))


@pytest.mark.parametrize("threads", [1, 2, 7, 64])
@pytest.mark.parametrize("count", COUNTS)
@every_ids_type
class TestErrors:
    """The words of a small call, whichever thread finds it; and the node answers the next call."""

    def assert_refused(self, ids: np.ndarray, threads: int, message: str) -> None:
        weights = make_weights(MoeSpec(EXPERTS, HIDDEN, INTERMEDIATE, missing=frozenset({2})))
        node = NativeMoe(weights)
        for _ in range(2):
            with pytest.raises(ValueError) as error:
                node.run(make_tokens(ids, HIDDEN), threads)
            assert str(error.value) == message
        inputs = make_tokens(np.where(ids % 2 == 1, ids, 1).clip(0, 5), HIDDEN)
        np.testing.assert_array_equal(node.run(inputs, threads), node.run(inputs, 1))

    def good_ids(self, count: int, ids_type: type) -> np.ndarray:
        return random_ids(count, K, [0, 1, 3, 4, 5], dtype=ids_type)

    def test_an_id_out_of_range(self, ids_type, count, threads):
        for token, bad in ((0, -1), (count // 2, 6), (count - 2, -(2**31)), (count - 1, 2**31 - 1)):
            ids = self.good_ids(count, ids_type)
            ids[token, 1] = bad
            self.assert_refused(ids, threads, f"expert_ids[{token}, 1] is {bad}, expected an id in [0, 6)")

    def test_a_missing_expert(self, ids_type, count, threads):
        ids = self.good_ids(count, ids_type)
        ids[count - 1, 2] = 2
        message = f"expert_ids[{count - 1}, 2] is 2, but this model holds no weights of that expert"
        self.assert_refused(ids, threads, message)

    def test_the_first_of_several(self, ids_type, count, threads):
        """An id that is out of range is told before an expert that is missing."""
        ids = self.good_ids(count, ids_type)
        ids[3, 0], ids[count // 2, 0], ids[count - 1, 0] = 2, 9, -7
        self.assert_refused(ids, threads, f"expert_ids[{count // 2}, 0] is 9, expected an id in [0, 6)")
