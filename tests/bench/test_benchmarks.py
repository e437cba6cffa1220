"""The measurements from the source tree run, and say what they promise; how fast is not a test's business."""

from __future__ import annotations

import pytest

from bench import figure, scale
from bench.session import measured_elsewhere
from ort_hina.benchmark import models
from ort_hina.benchmark.shapes import MoeShape


def test_a_session_is_measured_in_its_own_process(tmp_path):
    shape = MoeShape("tiny", 64, 48, 8, 2)
    models.write_weights(tmp_path, shape, "float")
    cost = measured_elsewhere(models.fused_model(tmp_path, shape, "float", "nk"))
    assert cost.nodes == 1 and cost.data_mappings == 1


@pytest.mark.parametrize(
    ("tiny", "large"), [([64, 32], [2048, 768]), ([32, 64], [768, 2048]), ([64, 128], [2048, 128]), ([32], [32])]
)
def test_only_hidden_and_intermediate_sizes_grow(tiny, large):
    assert scale.widen(tiny) == large


def test_the_figure_names_every_column():
    run = {"load_seconds": 1.0, "private_bytes": 1, "prefill_tokens_per_second": 1, "decode_tokens_per_second": 0}
    report = {
        "pytorch": run, "unfused": run, "fused": run, "model": "m", "weights_bytes": 1, "threads": 2, "kernels": "avx2",
        "prompt_tokens": 1, "new_tokens": 1,
    }  # fmt: skip
    svg = figure.figure(report)
    assert svg.startswith("<svg") and all(label in svg for _, label, _ in figure.COLUMNS)
