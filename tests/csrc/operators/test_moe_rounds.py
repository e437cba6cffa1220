"""More tokens than the workspace of one round (256 MiB) holds."""

from __future__ import annotations

from support.moe_native import NativeMoe, assert_within, expected
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

WORKSPACE_BYTES = 256 << 20


def test_several_rounds():
    hidden, intermediate, k, count = 64, 2, 8, 80_003
    slot_bytes = 4 * (2 * hidden + intermediate)
    assert count * k * slot_bytes > 1.2 * WORKSPACE_BYTES
    weights = make_weights(MoeSpec(8, hidden, intermediate))
    inputs = make_tokens(random_ids(count, k, 8, dtype="int32", repeats=True), hidden, routing_type="bfloat16")
    y = NativeMoe(weights).run(inputs, 2)
    # Tokens of every round, those at its border included.
    rows = sorted({*range(0, count, 97), *range(count // 2 - 50, count // 2 + 50), count - 1})
    assert_within(y[rows], expected(weights, inputs.take(rows)))
