"""Jobs in processes of their own: what they answer, and what happens when one dies."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ort_hina.models import environment
from ort_hina.models.environment import exporters_python, run_jobs

# A worker that dies at the job "die", and answers the others with their names.
DYING = """
import json, os, sys
with open(sys.argv[2], "w") as results:
    for job in json.load(open(sys.argv[1])):
        if job["do"] == "die":
            print("first line", "out of memory", sep="\\n", file=sys.stderr, flush=True)
            os._exit(9)
        print(json.dumps({"path": job["do"]}), file=results, flush=True)
"""


def test_jobs_are_done_in_order_and_errors_are_results(tmp_path):
    jobs = [
        {"do": "block_outputs", "family": "deepseek_v2", "file": str(tmp_path / "v2.npz"), "dtype": "fp32"},
        {"do": "export", "exporter": "block_torchscript", "family": "lfm2_moe", "directory": str(tmp_path / "lfm2")},
        {"do": "versions"},
    ]
    outputs, missing, versions = run_jobs(jobs, separate=False)
    with np.load(outputs["path"]) as archive:
        assert archive["block B2S16/0"].shape == (2, 16, 64)
    assert missing["error"].startswith("ValueError: transformers 4.") and "Lfm2MoeConfig" in missing["error"]
    assert versions["versions"]["transformers"].startswith("4.")


def test_a_process_that_dies_is_the_error_of_one_job(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(DYING)
    monkeypatch.setattr(environment, "worker", SimpleNamespace(__file__=str(script)))
    results = list(run_jobs([{"do": name} for name in ("a", "die", "b", "die", "c")], separate=False))
    died = {"error": "the process ended: out of memory"}
    assert results == [{"path": "a"}, died, {"path": "b"}, died, {"path": "c"}]


def test_no_jobs_start_no_process(monkeypatch):
    monkeypatch.setattr(environment.subprocess, "run", None)
    assert list(run_jobs([], separate=False)) == []


def test_the_variable_names_the_python(monkeypatch, tmp_path):
    monkeypatch.setenv("ORT_HINA_EXPORTERS_PYTHON", sys.executable)
    assert str(exporters_python()) == sys.executable
    monkeypatch.setenv("ORT_HINA_EXPORTERS_PYTHON", str(tmp_path / "python"))
    assert exporters_python() is None


def test_missing_environment_is_an_error_that_says_how_to_make_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ORT_HINA_EXPORTERS_PYTHON", str(tmp_path / "python"))
    with pytest.raises(RuntimeError, match="make exporters"):
        list(run_jobs([{"do": "versions"}], separate=True))
