"""The shared library shows one function to the process, and brings no library that could clash with the process's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ort_hina
from elf import exported_symbols, needed_libraries, search_paths

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed (package binutils)")

# The C and C++ run-time libraries that every g++ program has. No OpenMP of our own: two in one process crash or crawl.
ALLOWED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2",
           "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Path:
    return Path(ort_hina.library_path())


def test_only_the_entry_point_is_exported(library: Path):
    assert exported_symbols(library) == {"RegisterCustomOps"}


def test_neither_python_nor_onnxruntime_nor_openmp_is_linked(library: Path):
    assert needed_libraries(library) <= ALLOWED


def test_no_folder_of_the_build_machine_is_searched(library: Path):
    assert search_paths(library) == []
