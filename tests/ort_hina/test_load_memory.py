"""Loading a fused export: the experts stay in their file, mapped once."""

from __future__ import annotations

import onnxruntime
import pytest

import ort_hina
from ort_hina.demo import memory
from ort_hina.models.tiny import export_tiny

# 100 MB of experts, beside which the rest is nothing.
OVERRIDES = {"num_experts": 32, "moe_intermediate_size": 2048, "num_hidden_layers": 2}


@pytest.mark.slow
@pytest.mark.skipif(memory.private_now() is None, reason="the system does not count private memory")
def test_experts_are_not_copied(tmp_path):
    """Field report L04. What ONNX Runtime does with the same weights as MatMuls shows that the test can fail."""
    unfused = export_tiny("qwen3_moe", tmp_path, overrides=OVERRIDES)
    report = ort_hina.fuse(unfused, verify="none")
    size = (tmp_path / "model.onnx_data").stat().st_size
    assert report.attention_fused == 2 and size > 90e6
    assert _private_memory_of_session(report.output) < 0.15 * size
    assert _private_memory_of_session(unfused) > 0.9 * size


def _private_memory_of_session(model) -> int:
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    before = memory.private_now()
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    grew = memory.private_now() - before
    del session
    return grew
