"""One buffer of the largest length, bound as past and present of every layer, instead of caches that grow."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support import fixtures
from support.prompts import padded_prompt

import ort_hina
from ort_hina.models.cases import Step
from ort_hina.models.onnx_cases import open_session, run_step

LENGTH, STEPS = 40, 12
# gpt-oss reads its positions, and its rotation, from the length of the past; so did the others' masks.
NAMES = [
    "qwen3_moe-optimum",
    "gpt_oss-optimum",
    "deepseek_v3-optimum",
    "qwen3_moe-torch_dynamo",
    "mixtral-transformers_onnx",
]


@pytest.mark.parametrize("name", NAMES)
def test_one_buffer_answers_as_growing_caches_do(name, tmp_path):
    session, report = _fused(name, tmp_path)
    assert report.one_buffer is None, report.to_text()
    buffers = _buffers(session, batch=2)
    for array in buffers.values():
        array[:] = np.nan  # what lies beyond the tokens so far is never read
    steps, state = padded_prompt(batch=2, length=7, padding=3), None
    for number in range(STEPS):
        step = next(steps)
        expected, state = run_step(session, step, state, {})
        found = _run_bound(session, step, buffers)
        real = step.real
        # A step is one token after the first: both compute the same sums in the same order.
        np.testing.assert_allclose(
            found[real], expected[real], rtol=0, atol=5e-6 * np.abs(expected).max(), err_msg=str(number)
        )


def test_what_stands_in_the_way_is_said(tmp_path):
    """Without an attention mask nothing says how much of a buffer is used."""
    _, report = _fused("lfm2_moe-transformers_onnx", tmp_path)
    assert report.attention_fused == 1
    assert "may be bound" in report.to_text() or report.one_buffer


def _fused(name, folder):
    report = ort_hina.fuse(fixtures.write(name, folder), verify="none")
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    return open_session(report.output, options), report


def _buffers(session, batch):
    """By the names of past inputs: (B, heads, LENGTH, size)."""
    caches = [value for value in session.get_inputs() if len(value.shape) == 4]
    return {value.name: np.empty((batch, int(value.shape[1]), LENGTH, int(value.shape[3])), np.float32) for value in caches}


def _run_bound(session, step: Step, buffers) -> np.ndarray:
    binding = session.io_binding()
    names = {value.name for value in session.get_inputs()}
    for name, array in (("input_ids", step.ids), ("attention_mask", step.mask), ("position_ids", step.positions)):
        if name in names:
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in buffers.items()}
    presents = [value.name for value in session.get_outputs()[1:]]
    for (name, value), present in zip(values.items(), presents, strict=True):
        binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(present, value)
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding)
    for name, value in values.items():
        buffers[name][:] = value.numpy()
    return binding.get_outputs()[-1].numpy()
