"""Kernels that forbid the calls for placement, or are too old for some: an answer all the same, and no harm done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import refusing_kernel

pytestmark = pytest.mark.skipif(not refusing_kernel.SUPPORTED, reason="system calls of this architecture are not known here")


def _run(program, folder):
    """In a process of its own: a filter cannot be taken off."""
    head = f"import sys; sys.path.insert(0, {str(Path(refusing_kernel.__file__).parents[1])!r}); folder = {str(folder)!r}\n"
    result = subprocess.run([sys.executable, "-c", head + program], capture_output=True, text=True, check=False)
    if "seccomp failed" in result.stderr:
        pytest.skip("this system has no seccomp filters")
    assert result.returncode == 0, result.stderr


def test_forbidden_calls(tmp_path):
    _run(
        """
from support.mappings import map_file, random_bytes
from support.refusing_kernel import forbid_placement
from ort_hina import _native
before = random_bytes(300000)
before.tofile(folder + "/data")
forbid_placement()
data = map_file(folder + "/data")
heap = before.copy()
for memory in (data, heap):
    assert _native.query_placement(memory) == [(0, memory.nbytes, None)]
    for done in (_native.interleave(memory.ctypes.data, memory.nbytes, [0]),
                 _native.bind(memory.ctypes.data, memory.nbytes, [(0, memory.nbytes, 0)])):
        assert done["error"].startswith("mbind of ") and done["error"].endswith("Operation not permitted"), done
    assert (memory == before).all()
""",
        tmp_path,
    )


def test_a_kernel_that_cannot_populate(tmp_path):
    _run(
        """
from support.mappings import PAGE, map_file, random_bytes
from support.refusing_kernel import forget_populating
from ort_hina import _native
before = random_bytes(300000)
before.tofile(folder + "/data")
forget_populating()
data = map_file(folder + "/data")
known = _native.query_placement(data)
assert all(node is not None for _, _, node in known), known
nodes = [i for i, node in enumerate(_native.topology()["nodes"]) if node["memory_allowed"] and node["memory_bytes"]]
heap = before.copy()
for memory in (data, heap):
    done = _native.interleave(memory.ctypes.data, memory.nbytes, nodes)
    if "Operation not permitted" in done["error"]:
        sys.exit()
    assert done["error"] == "", done
    assert (memory == before).all()
# The whole pages are the process's own: what is written to the file does not show in them.
with open(folder + "/data", "r+b") as file:
    file.write(bytes(300000))
whole = 300000 // PAGE * PAGE
assert (data[:whole] == before[:whole]).all() and not data[whole:].any()
""",
        tmp_path,
    )
