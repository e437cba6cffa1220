"""Files that lack experts: reported, refused, and fused as they are if that is asked for (field report X01)."""

from __future__ import annotations

import onnxruntime
import pytest
from support import fixtures
from support.looped_graph import looped_model
from support.sessions import relative_difference

import ort_hina
from ort_hina import fuse
from ort_hina.models.onnx_cases import open_session, run_model

LOST = {"deepseek_v3_32-optimum": [3, 4, 6, 9, 10, 13, 16, 19, 21, 22, 23, 28], "glm4_moe-optimum_custom": [7]}


@pytest.mark.parametrize("name", LOST)
def test_refused_with_the_list(name, tmp_path):
    report = fuse(fixtures.write(name, tmp_path))
    (layer,) = report.layers
    assert (report.output, layer.fused, layer.missing_experts) == (None, False, LOST[name])
    missing = ", ".join(map(str, LOST[name]))
    assert f"missing {missing} (the export dropped experts that its example input did not reach" in layer.reason
    assert layer.where in report.warnings[0] and missing in report.warnings[0]
    assert layer.experts_found == layer.num_experts - len(LOST[name])


@pytest.mark.parametrize("name", LOST)
def test_the_flag_keeps_what_the_file_does(name, tmp_path):
    model = fixtures.write(name, tmp_path)
    report = fuse(model, allow_lost_experts=True)
    (layer,) = report.layers
    assert (layer.fused, layer.verification, layer.missing_experts) == (True, "verified", LOST[name])
    (warning,) = report.warnings
    assert "was fused although" in warning and "as wrong as the file" in warning
    assert "LOST experts" in report.to_text()
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    (expected, _), (found, errors) = run_model(open_session(model)), run_model(open_session(report.output, options))
    assert not errors
    assert max(relative_difference(found[key], expected[key]) for key in expected) < 5e-6


def test_a_lost_expert_gives_nothing(tmp_path):
    """Every expert is chosen by somebody, the lost ones, too."""
    import numpy as np
    import onnx
    from support.sessions import session

    onnx.save(looped_model(experts=6, bodies=(0, 2, 5)), tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx", allow_lost_experts=True)
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((3, 8, 8), np.float32), "logits": random.standard_normal((24, 6), np.float32)}
    (expected,), (found,) = (session(path).run(None, feeds) for path in (tmp_path / "model.onnx", report.output))
    assert relative_difference(found, expected) < 1e-5
    assert (np.abs(found).max(axis=-1) == 0).any()  # somebody chose lost experts alone
