"""Re-placing the windows of a session: the mapping is ONNX Runtime's own, and answers keep their bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.moe_native import assert_within, expected
from support.moe_session import create_session, external_windows, model_for, run_session
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

from ort_hina import _native

NODES = [i for i, node in enumerate(_native.topology()["nodes"]) if node["memory_allowed"] and node["memory_bytes"]]


def _mapping(path):
    """Address and size of the only private, writable mapping of the file."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    ((begin, end),) = [tuple(int(x, 16) for x in line[0].split("-")) for line in lines if line[1] == "rw-p"]
    return begin, end - begin


@pytest.mark.parametrize("offset", [0, 200, 5000])
def test_windows_in_a_data_file(tmp_path, offset):
    weights = make_weights(MoeSpec(4, 96, 80), seed=1)
    tokens = make_tokens(random_ids(7, 2, 4, seed=2), 96)
    onnx.save(model_for(weights, tokens, initializers=external_windows(weights, tmp_path, offset)), tmp_path / "model.onnx")
    session = create_session(tmp_path / "model.onnx", threads=2)
    before = run_session(session, tokens)
    address, size = _mapping(tmp_path / "data0.bin")
    slices = _native.row_slices([], size, [1.0] * len(NODES))
    for replace, target in ((_native.interleave, NODES), (_native.bind, slices)):
        done = replace(address, size, target)
        if "Operation not permitted" in done["error"]:
            pytest.skip("this system does not permit mbind")
        assert done["error"] == "" and done["bytes"] == size
        assert np.array_equal(run_session(session, tokens), before)
    assert all(node is not None for _, _, node in _native.query_placement(address, size))
    assert_within(before, expected(weights, tokens))
