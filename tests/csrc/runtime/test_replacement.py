"""Re-placing memory: the same bytes at the same address, and nothing beside them changed."""

from __future__ import annotations

import mmap
import subprocess
import sys

import numpy as np
import pytest
from support.mappings import PAGE, READ, forbid, map_anonymous, map_file, mappings_of, random_bytes

from ort_hina import _native

NODES = [i for i, node in enumerate(_native.topology()["nodes"]) if node["memory_allowed"] and node["memory_bytes"]]


def _permitted():
    memory = map_anonymous(PAGE)
    return not _native.interleave(memory.ctypes.data, PAGE, NODES)["error"]


pytestmark = pytest.mark.skipif(not NODES or not _permitted(), reason="this system does not permit mbind")


def _halves(size, *nodes):
    """Slices of a page and a half each, so that most ends lie within pages."""
    step = 3 * PAGE // 2
    return [(at, min(size, at + step), nodes[i % len(nodes)]) for i, at in enumerate(range(0, size, step))]


def _actions(size):
    return {
        "interleave": lambda address: _native.interleave(address, size, NODES),
        "bind": lambda address: _native.bind(address, size, _halves(size, *NODES)),
        "prefer": lambda address: _native.bind(address, size, _halves(size, *NODES), False),
    }


@pytest.fixture(params=["interleave", "bind", "prefer"])
def action(request):
    return lambda address, size: _actions(size)[request.param](address)


@pytest.mark.parametrize("begin", [0, 1, PAGE - 1])
@pytest.mark.parametrize("end", [0, 5, PAGE])
def test_a_private_file_mapping(tmp_path, action, begin, end):
    path, before = tmp_path / "data", random_bytes(50 * PAGE)
    before.tofile(path)
    data = map_file(path)
    size = data.nbytes - begin - end
    done = action(data.ctypes.data + begin, size)
    whole = 50 * PAGE - PAGE * (begin > 0) - PAGE * (end > 0)
    assert done["error"] == "" and done["bytes"] == whole and done["copied_bytes"] == whole and done["seconds"] > 0
    assert np.array_equal(data, before) and np.array_equal(np.fromfile(path, np.uint8), before)
    assert mappings_of(data) <= 3  # those of before and after the range, and one of the range
    again = action(data.ctypes.data + begin, size)
    assert again["error"] == "" and again["bytes"] == whole and np.array_equal(data, before)


def test_pages_at_both_ends_belong_to_others(tmp_path):
    path, before = tmp_path / "data", random_bytes(8 * PAGE)
    before.tofile(path)
    data = map_file(path)
    done = _native.interleave(data.ctypes.data + PAGE // 2, 3 * PAGE, NODES)
    assert done["error"] == "" and done["bytes"] == 2 * PAGE
    done = _native.interleave(data.ctypes.data + PAGE // 2, PAGE, NODES)  # no page is wholly in it
    assert done == {"error": "", "bytes": 0, "copied_bytes": 0, "seconds": 0}
    # A file's page that is the process's own no longer follows the file.
    with open(path, "r+b") as file:
        file.write(bytes(8 * PAGE))
    changed = [not np.array_equal(data[i * PAGE : (i + 1) * PAGE], before[i * PAGE : (i + 1) * PAGE]) for i in range(8)]
    assert changed == [True, False, False, True, True, True, True, True]


@pytest.mark.parametrize("size", [PAGE, 100 * PAGE + 77, (5 << 20) + 12345, (130 << 20) + 1])
def test_the_heap(action, size):
    before = random_bytes(size)
    memory = np.concatenate([np.full(100, 7, np.uint8), before, np.full(100, 9, np.uint8)])
    done = action(memory.ctypes.data + 100, size)
    assert done["error"] == "" and done["copied_bytes"] == 0 and done["bytes"] <= size
    assert np.array_equal(memory[100:-100], before)
    assert (memory[:100] == 7).all() and (memory[-100:] == 9).all()
    memory[:] = 3  # it is as good as before
    assert (memory == 3).all()


def test_memory_that_nobody_has_touched(action):
    memory = map_anonymous(20 * PAGE)
    done = action(memory.ctypes.data, memory.nbytes)
    assert done["error"] == "" and done["bytes"] == memory.nbytes and not memory.any()


def test_a_file_and_the_heap_in_one_range(tmp_path, action):
    """Neighbouring mappings: a file put over the middle of anonymous memory."""
    path, before = tmp_path / "data", random_bytes(4 * PAGE)
    before.tofile(path)
    memory = map_anonymous(12 * PAGE)
    memory[:] = 5
    _map_over(memory.ctypes.data + 4 * PAGE, path, 4 * PAGE)
    done = action(memory.ctypes.data + 1, memory.nbytes - 1)
    assert done["error"] == "" and done["bytes"] == 11 * PAGE and done["copied_bytes"] == 4 * PAGE
    assert np.array_equal(memory[4 * PAGE : 8 * PAGE], before)
    assert (memory[: 4 * PAGE] == 5).all() and (memory[8 * PAGE :] == 5).all()


def _map_over(address, path, size):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with open(path, "rb") as file:
        map_fixed = 0x10
        got = libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | map_fixed, file.fileno(), 0)
    assert got == address


def test_memory_that_must_stay_says_why(tmp_path, action):
    path, before = tmp_path / "data", random_bytes(4 * PAGE)
    before.tofile(path)
    for data, why in (
        (map_file(path, prot=READ), f"memory of {path} is read-only: expected a private, writable mapping"),
        (map_file(path, flags=mmap.MAP_SHARED), f"memory of {path} is shared with other processes"),
        (map_anonymous(4 * PAGE, flags=mmap.MAP_SHARED), "is shared with other processes"),
    ):
        kept = data.copy()
        done = action(data.ctypes.data, data.nbytes)
        assert why in done["error"] and done["bytes"] == 0 and np.array_equal(data, kept)


def test_a_hole_stops_it_and_what_lies_before_is_good(action):
    memory = map_anonymous(9 * PAGE)
    memory[:] = 6
    forbid(memory, 4 * PAGE, PAGE)
    done = action(memory.ctypes.data, memory.nbytes)
    assert "is read-only" in done["error"] and done["bytes"] == 4 * PAGE
    assert (memory[: 4 * PAGE] == 6).all() and (memory[5 * PAGE :] == 6).all()
    address = memory.ctypes.data
    del memory
    assert action(address, 9 * PAGE)["error"] != ""


def test_memory_that_runs_out_is_an_error_and_no_crash(tmp_path):
    """In a process of its own, with little address space left."""
    program = """
import resource, sys
import numpy as np
from ort_hina import _native
data = np.full(200 << 20, 3, np.uint8)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (50 << 20),) * 2)
done = _native.interleave(data.ctypes.data, data.nbytes, [0])
assert done["error"].startswith("mmap of "), done
assert data.min() == data.max() == 3
print(done["error"])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("Cannot allocate memory")


def test_wrong_arguments():
    memory = map_anonymous(4 * PAGE)
    address, size = memory.ctypes.data, memory.nbytes
    missing = len(_native.topology()["nodes"])
    with pytest.raises(ValueError, match=f"there is no node {missing}"):
        _native.interleave(address, size, [missing])
    with pytest.raises(ValueError, match="expected at least one node"):
        _native.interleave(address, size, [])
    with pytest.raises(ValueError, match=f"there is no node {missing}"):
        _native.bind(address, size, [(0, size, missing)])
    for slices in ([(0, size + 1, 0)], [(5, 4, 0)], [(0, 8, 0), (4, 12, 0)]):
        with pytest.raises(ValueError, match=f"expected ascending slices of {size} bytes, got one from"):
            _native.bind(address, size, slices)
    assert _native.bind(address, size, [])["bytes"] == 0
