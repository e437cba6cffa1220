"""The guard pages guard: without this, the tests that rely on them could not fail."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.guard import guarded

READ = """
import ctypes, numpy as np
from support.guard import guarded
array = guarded(np.arange(5, dtype=np.uint8), at={at!r})
ctypes.string_at(array.ctypes.data + {offset}, 1)
"""


def exit_status(at: str, offset: int) -> int:
    tests = Path(__file__).resolve().parents[1]
    return subprocess.run([sys.executable, "-c", READ.format(at=at, offset=offset)], cwd=tests).returncode


@pytest.mark.parametrize(("at", "last", "beyond"), [("end", 4, 5), ("start", 0, -1)])
def test_the_byte_beyond_kills(at, last, beyond):
    assert exit_status(at, last) == 0
    assert exit_status(at, beyond) == -signal.SIGSEGV


@pytest.mark.parametrize("at", ["start", "end"])
@pytest.mark.parametrize("shape", [(0,), (3, 5), (4096,), (1, 4097)])
def test_copies(at, shape):
    data = np.random.default_rng(0).standard_normal(shape)
    copy = guarded(data, at=at)
    assert copy.shape == data.shape
    np.testing.assert_array_equal(copy, data)
