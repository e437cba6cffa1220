"""The wheel under other releases of onnxruntime than the one that it was built and tested with (downloads them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ort_hina.library import OLDEST_ONNXRUNTIME

pytestmark = [pytest.mark.slow, pytest.mark.ort_versions]

OLDEST = ".".join(map(str, OLDEST_ONNXRUNTIME))


@pytest.mark.parametrize("requirement", [f"onnxruntime=={OLDEST}.0", "onnxruntime"], ids=["oldest", "newest"])
def test_a_model_runs(wheel: Path, new_environment, requirement: str):
    environment = new_environment("versions")
    environment.install(wheel, requirement)
    found = environment.run_tiny_moe()
    assert found["difference"] < 1e-5, found
    if "==" in requirement:
        assert found["onnxruntime"] == requirement.partition("==")[2]


def test_below_the_oldest_the_message_names_both_versions(wheel: Path, new_environment):
    environment = new_environment("versions")
    environment.install(wheel, "onnxruntime==1.22.1")
    error = environment.run_tiny_moe()["error"]
    assert OLDEST in error and "1.22.1" in error
