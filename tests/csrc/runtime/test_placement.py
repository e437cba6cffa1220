"""Where memory lies, asked of the real kernel."""

from __future__ import annotations

import itertools
import mmap

import numpy as np
import pytest
from support.mappings import PAGE, forbid, map_anonymous, map_file, random_bytes

from ort_hina import _native

ONE_NODE = len(_native.topology()["nodes"]) == 1
only_one_node = pytest.mark.skipif(not ONE_NODE, reason="of several nodes it is not known here which")


def _check(runs, size):
    """The runs are the whole range, and no two neighbours are alike."""
    assert [begin for begin, _, _ in runs] == [0, *(end for _, end, _ in runs)][: len(runs)]
    assert (runs[-1][1] if runs else 0) == size
    assert all(a[2] != b[2] for a, b in itertools.pairwise(runs))
    return runs


@only_one_node
@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (5, 6), (1, 3 * PAGE), (PAGE - 1, PAGE + 1), (7, 40 * PAGE)])
def test_a_file_mapping_from_anywhere_in_a_page(tmp_path, begin, end):
    path = tmp_path / "data"
    random_bytes(40 * PAGE).tofile(path)
    for prot in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
        data = map_file(path, prot=prot)
        runs = _native.query_placement(data.ctypes.data + begin, end - begin)
        assert runs == ([(0, end - begin, 0)] if end > begin else [])


@only_one_node
def test_heap_and_buffers():
    data = random_bytes(3 * PAGE + 17)
    assert _native.query_placement(data) == [(0, data.nbytes, 0)]
    assert _native.query_placement(np.ones((5, 700), np.float64)) == [(0, 28000, 0)]


@only_one_node
def test_more_than_a_batch_of_the_kernel(tmp_path):
    path = tmp_path / "data"
    with open(path, "wb") as file:
        file.truncate(9000 * PAGE)
    data = map_file(path)
    assert _native.query_placement(data.ctypes.data + 100, data.nbytes - 100) == [(0, data.nbytes - 100, 0)]


@only_one_node
def test_pages_that_cannot_be_read_are_unknown_and_hide_no_others():
    memory = map_anonymous(64 * PAGE)
    memory[3 * PAGE :] = 1
    forbid(memory, 0, 2 * PAGE)
    forbid(memory, 10 * PAGE, PAGE)  # this one is there all the same
    runs = _check(_native.query_placement(memory), memory.nbytes)
    assert runs[0] == (0, 3 * PAGE, None)  # the third: all untouched memory is one page of zeros, on no node
    assert runs[1:] == [(3 * PAGE, 64 * PAGE, 0)]


@only_one_node
def test_pages_after_one_that_cannot_be_mapped_are_asked_about(tmp_path):
    path = tmp_path / "data"
    random_bytes(64 * PAGE).tofile(path)
    data = map_file(path)
    forbid(data, 10 * PAGE, PAGE)
    expected = [(0, 10 * PAGE, 0), (10 * PAGE, 11 * PAGE, None), (11 * PAGE, 64 * PAGE, 0)]
    assert _native.query_placement(data) == expected


def test_memory_that_is_not_there_is_unknown():
    memory = map_anonymous(8 * PAGE)
    address = memory.ctypes.data
    del memory
    assert _check(_native.query_placement(address, 8 * PAGE), 8 * PAGE) == [(0, 8 * PAGE, None)]


def test_resident_pages(tmp_path):
    path = tmp_path / "data"
    random_bytes(20 * PAGE).tofile(path)
    data = map_file(path)
    assert _native.resident_pages(data.ctypes.data + 10, data.nbytes - 10) == [(0, data.nbytes - 10)]
    with pytest.raises(RuntimeError, match="mincore: Cannot allocate memory"):
        _native.resident_pages(0, PAGE)
