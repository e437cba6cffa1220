"""The set-up scripts: what they say when they cannot do their work, and that they do not do it twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build_tree import ROOT

HEADER = "onnxruntime_cxx_api.h"
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def script(name: str, *arguments: str | Path, path: Path) -> subprocess.CompletedProcess:
    """Runs a script of the project with the folder `path` before the others on PATH."""
    variables = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "ORT_HINA_DEBIAN_MIRROR": "file:///nonexistent"}
    command = ["bash", str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def stub(folder: Path, name: str, body: str) -> Path:
    """A program of that name, in a folder of its own, which is returned."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_archive(tmp_path: Path) -> Path:
    """A PATH folder in which apt-get reaches nothing."""
    return stub(tmp_path / "bin", "apt-get", "echo 'E: no network' >&2; exit 100")


def test_headers_that_cannot_be_fetched_name_both_ways(tmp_path: Path, no_archive: Path):
    result = script("fetch_ort_headers.sh", tmp_path / "deps" / "onnxruntime", path=no_archive)
    assert result.returncode == 1
    assert "apt-get install libonnxruntime-dev" in result.stderr
    assert "ORT_HINA_DEBIAN_MIRROR=" in result.stderr
    assert list((tmp_path / "deps").iterdir()) == [], "something half-done was left"


def test_headers_are_not_fetched_twice(tmp_path: Path, no_archive: Path):
    (tmp_path / "deps" / "onnxruntime").mkdir(parents=True)
    (tmp_path / "deps" / "onnxruntime" / HEADER).touch()
    (tmp_path / "deps" / "SOURCE").write_text("suite=here\n")
    result = script("fetch_ort_headers.sh", tmp_path / "deps", path=no_archive)
    assert (result.returncode, result.stdout) == (0, "suite=here\n")


def test_python_headers_that_cannot_be_fetched_name_the_package(tmp_path: Path, no_archive: Path):
    result = script("fetch_python_headers.sh", tmp_path / "deps", "3.11", path=no_archive)
    assert result.returncode == 1
    assert "apt-get install python3-dev" in result.stderr
    assert list((tmp_path / "deps").iterdir()) == []


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path):
    path = stub(tmp_path / "bin", "python3", '[ "$1" = --version ] && echo "Python 3.9.2"; [ "$1" = --version ]')
    result = script("make_venv.sh", tmp_path / "venv", path=path)
    assert result.returncode == 1
    assert "Python 3.9.2" in result.stderr and "3.11 or newer" in result.stderr and "make PYTHON=" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_a_python_without_pip_and_no_archive_names_the_package(tmp_path: Path, no_archive: Path):
    """As Debian's python3 without python3-venv: venv is there, ensurepip is not."""
    project = tmp_path / "project"
    shutil.copytree(ROOT / "scripts", project / "scripts")
    stub(no_archive, "python3", f'case "$*" in *"import ensurepip"*) exit 1;; esac\nexec {sys.executable} "$@"')
    variables = os.environ | {"PATH": f"{no_archive}:{os.environ['PATH']}", "ORT_HINA_DEBIAN_MIRROR": "file:///none"}
    command = ["bash", project / "scripts" / "make_venv.sh", tmp_path / "venv"]
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert result.returncode == 1
    assert "apt-get install python3-venv" in result.stderr


def test_a_venv_that_works_is_left_alone(tmp_path: Path):
    before = sorted(Path(sys.prefix).iterdir())
    result = script("make_venv.sh", sys.prefix, "/no/such/python", path=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(Path(sys.prefix).iterdir()) == before


@pytest.mark.skipif(CMAKE is None, reason="cmake is not installed")
def test_a_wrong_header_folder_is_named(tmp_path: Path):
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.25)\nproject(probe NONE)\ninclude({ROOT}/cmake/OnnxRuntimeHeaders.cmake)\n"
    )
    command = [CMAKE, "-S", tmp_path, "-B", tmp_path / "build", f"-DORT_HINA_ORT_INCLUDE={tmp_path}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0
    assert str(tmp_path) in result.stderr and HEADER in result.stderr
