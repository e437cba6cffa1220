"""The kernels' own test program (tests/native): plain, under sanitizers, on many threads, and for aarch64."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.levels import LEVELS

ROOT = Path(__file__).parents[3]
SUMMARY = re.compile(r"^(\d+) tests, 0 failed; best level ", re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None or shutil.which("cmake") is None, reason="needs make and cmake"),
]


def run(*arguments: str) -> str:
    """What ``make`` printed with these targets and variables; its program found no fault."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ORT_HINA_"))}
    result = subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    assert SUMMARY.search(result.stdout), result.stdout[-5000:]
    return result.stdout


def levels_tested(output: str) -> set[str]:
    return {line.split()[1] for line in output.splitlines() if line.startswith("ok ")} - {"-"}


def test_every_level_of_this_machine():
    output = run("native-tests")
    assert levels_tested(output) == set(LEVELS)
    assert int(SUMMARY.search(output)[1]) > 15 * len(LEVELS)


def test_under_sanitizers():
    assert levels_tested(run("asan")) == set(LEVELS)


def test_2000_shapes_on_up_to_64_threads():
    cases = re.search(r"stress +(\d+) cases", run("native-tests", "ARGS=--stress 2000"))
    assert int(cases[1]) > 2000


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="needs g++-aarch64-linux-gnu")
@pytest.mark.skipif(shutil.which("qemu-aarch64-static") is None, reason="needs qemu-user-static")
def test_aarch64():
    assert levels_tested(run("native-tests", "CROSS=aarch64", "STATIC=1")) == {"portable"}
