"""Greedy text of real exports, fused and unfused, 256 tokens: windows, sinks, left padding, values of another size."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support import fixtures
from support.prompts import greedy_batch

import ort_hina
from ort_hina.models.cases import Step
from ort_hina.models.onnx_cases import open_session, run_step

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


def _fused_session(name, folder):
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    return open_session(ort_hina.fuse(fixtures.write(name, folder), verify="none").output, options)


def _answers(session, ids, mask, count):
    """Logits of the last token of a prompt and of `count` tokens behind it, the same ones for every row."""
    positions, state, found = np.where(mask == 0, 1, mask.cumsum(-1) - 1), None, []
    for step in range(count + 1):
        logits, state = run_step(session, Step(ids, mask, positions), state, {})
        found.append(logits[:, -1])
        ids, mask = np.full((len(mask), 1), 5 + step), np.concatenate([mask, np.ones((len(mask), 1), np.int64)], axis=1)
        positions = mask.sum(-1, keepdims=True) - 1
    return np.stack(found, axis=1)


@pytest.mark.parametrize("name", ["qwen3_moe-optimum", "deepseek_v3-optimum", "qwen3_moe-torch_dynamo"])
def test_a_padded_batch_answers_as_its_prompts_alone(name, tmp_path):
    """Field report T03. (gpt-oss as exported counts positions from the beginning of the padding, fused or not.)"""
    session, random = _fused_session(name, tmp_path), np.random.default_rng(0)
    prompts = [random.integers(3, 384, length) for length in (3, 9, 16)]
    longest = max(map(len, prompts))
    padded = np.stack([np.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    mask = np.stack([np.pad(np.ones_like(prompt), (longest - len(prompt), 0)) for prompt in prompts])
    together = _answers(session, padded, mask, 20)
    for row, prompt in zip(together, prompts, strict=True):
        alone = _answers(session, prompt[None], np.ones_like(prompt)[None], 20)[0]
        np.testing.assert_allclose(row, alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3_moe-optimum", "gpt_oss-optimum"])
def test_a_row_of_padding_alone_is_finite_and_reaches_no_other(name, tmp_path):
    """Field report T05."""
    session = _fused_session(name, tmp_path)
    ids = np.random.default_rng(0).integers(3, 384, (2, 6))
    mask = np.ones_like(ids)
    expected = _answers(session, ids, mask, 2)
    mask[0] = 0
    found = _answers(session, ids, mask, 2)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[1], expected[1])
