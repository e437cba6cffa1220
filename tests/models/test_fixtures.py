"""The committed exports: complete, free of the exporter's notes, and able to run."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from support import fixtures

from ort_hina.models.onnx_cases import open_session, run_block

# Small ones, to keep the test quick; the fusion tests run them all.
RUN = ["llama4_text-block_dynamo", "deepseek_v2-block_torchscript", "jamba-block_torchscript"]


def test_index_and_files_are_the_same_set():
    files = {file.name.removesuffix(".onnx.gz") for file in fixtures.FOLDER.glob("*.onnx.gz")}
    assert files == set(fixtures.index()) and len(files) > 50


def test_files_are_small():
    sizes = {file.name: file.stat().st_size for file in fixtures.FOLDER.iterdir()}
    assert max(sizes.values()) < 100_000
    assert sum(sizes.values()) < 3_000_000


@pytest.mark.parametrize("name", fixtures.index())
def test_no_path_of_the_exporting_machine_is_left(name):
    content = gzip.decompress((fixtures.FOLDER / f"{name}.onnx.gz").read_bytes())
    assert not any(word in content for word in (b"site-packages", b"/home/", b"/tmp/", b"/work/", b".py"))


def test_lost_experts_are_recorded():
    """They are what the fuser is to find by itself."""
    assert fixtures.index()["deepseek_v3_32-optimum"]["missing_experts"]["1"]
    assert fixtures.index()["deepseek_v3-optimum"]["missing_experts"] == {}


def test_names_are_chosen_by_the_index():
    chosen = fixtures.names(exporter="optimum", family="gpt_oss", dtype="fp16")
    assert chosen == ["gpt_oss-optimum-fp16"]


@pytest.mark.parametrize("name", RUN)
def test_a_fixture_runs(name, tmp_path):
    answers, errors = run_block(open_session(fixtures.write(name, tmp_path)))
    assert not errors
    for answer in answers.values():
        assert np.isfinite(answer).all() and answer.std() > 0.1


def test_weights_lie_beside_the_model(tmp_path):
    path = fixtures.write("llama4_text-block_dynamo", tmp_path)
    assert (tmp_path / "model.onnx_data").stat().st_size > 10 * path.stat().st_size


def test_no_commit_of_the_exporting_checkout_is_left():
    versions = {fixtures.load(name).producer_version for name in fixtures.names(exporter="genai")}
    assert versions and not any("+" in version for version in versions)
