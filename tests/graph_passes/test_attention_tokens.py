"""Greedy text of real exports, fused and unfused, 256 tokens: windows, sinks, left padding, values of another size."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support import fixtures
from support.prompts import greedy_batch

import ort_hina
from ort_hina.models.onnx_cases import open_session

TOKENS = 256
FEW = 24
QUICK = ("qwen3_moe-optimum", "gpt_oss-optimum", "deepseek_v3-optimum")
# float16 files are compared by their logits alone: unfused they round after every operator, and near ties fall otherwise.
NAMES = [
    name
    for name, entry in fixtures.index().items()
    if entry["whole_model"] and entry["export"] == "right" and entry["dtype"] == "fp32"
]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("padding", [[0], [0, 3, 6]])
def test_some_tokens(name, padding, tmp_path):
    _compare(name, padding, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padding", [[0], [0, 3, 6]])
def test_many_tokens(name, padding, tmp_path):
    _compare(name, padding, TOKENS, tmp_path)


def _compare(name, padding, count, folder):
    model = fixtures.write(name, folder)
    report = ort_hina.fuse(model, verify="none")
    if report.output is None:
        pytest.skip("no layer of this export is fused")
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    sizes = fixtures.index()[name]["state_sizes"]
    sessions = open_session(model), open_session(report.output, options)
    expected, found = (greedy_batch(session, 9, padding, count, sizes) for session in sessions)
    assert len(np.unique(expected)) > 3
    np.testing.assert_array_equal(found, expected)
