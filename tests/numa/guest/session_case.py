"""A model in ONNX Runtime: its data placed as asked for, a session, a few counted runs."""

from __future__ import annotations

import base64
import ctypes
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import counter
import memory
import numpy as np
import sessions
from memory import HUGE_PAGE, PAGE


def run(
    model: str,
    block: int,
    *,
    storage: str = "external",
    folder: str = "/dev/shm",
    cache: str = "cold",
    policy: str = "interleave",
    thp: str = "always",
    cpus: list[int] | None = None,
    threads: int | None = None,
    numa: str | None = None,
    runs: int = 5,
    log: int = 2,
) -> dict[str, Any]:
    """Runs the model and counts.

    Args:
        model: the folder that tests/support/numa_models.py made.
        block: the number of the counter's block for the first run; the others have the numbers after it.
        storage: of the windows. "external": in a data file; "inline": in the model; "shared": in memory of ours of which one
            half consists of huge pages and the other of small ones.
        folder: where the data file is copied to.
        cache: "cold": the file is not in the page cache when the session is created (a tmpfs has no other place for it:
            there it is written under `policy`); "warm": all of it is, on node 0.
        policy: of this process: "interleave" (as it was started with numactl) or "default".
        thp: transparent huge pages: "always", "madvise" or "never".
        cpus: those that this process may use; None: all.
        threads: of the session; None: as many as CPUs.
        numa: session config entry ``ort_hina.numa``.
        log: ONNX Runtime's severity.

    Returns:
        ``y`` (base64) of the first run, whether the others had ``equal`` bits; of each window its ``address`` and
        ``size``; the windows' ``pages`` by node (key "-2": not there), how many ``runs`` of neighbours on one node they
        make, and how many were ``present`` before the first run; ``seconds`` of creating the session and of each run.
    """
    memory.TRANSPARENT_HUGE_PAGES.write_text(thp)
    if policy == "default":
        memory.set_policy(memory.POLICY_DEFAULT)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    manifest, feeds = sessions.read_manifest(model), sessions.read_feeds(model)
    source = Path(model) / "inline.onnx" if storage == "inline" else place(Path(model), manifest, Path(folder), cache)
    shared = mixed_pages(manifest, source.parent) if storage == "shared" else None

    begin = time.monotonic()
    session = sessions.create(source, threads=threads, numa=numa, log=log, shared=shared)
    created = time.monotonic() - begin
    ranges = find_windows(manifest, storage, source.parent, shared)

    present = sum(int((memory.page_nodes(*window) >= 0).sum()) for window in ranges)
    outputs, seconds = [], []
    session.run(None, feeds)  # maps what is not mapped yet
    for number in range(runs):
        with counter.counting(block + number, ranges):
            begin = time.monotonic()
            outputs.append(session.run(None, feeds)[0])
            seconds.append(round(time.monotonic() - begin, 3))
    pages = np.concatenate([memory.page_nodes(*window) for window in ranges])
    numbers, counts = np.unique(pages, return_counts=True)
    return {
        "y": base64.b64encode(outputs[0].tobytes()).decode(),
        "equal": all(output.tobytes() == outputs[0].tobytes() for output in outputs),
        "windows": [{"address": address, "size": size} for address, size in ranges],
        "runs": int((np.diff(pages) != 0).sum()) + 1,
        "present": present,
        "pages": {str(number): int(count) for number, count in zip(numbers, counts)},
        "seconds": {"create": round(created, 3), "run": seconds},
    }


def place(model: Path, manifest: dict[str, Any], folder: Path, cache: str) -> Path:
    """Copies the model with its data file into a folder of its own and returns the path of the model."""
    target = folder / "model"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(model / "external.onnx", target)
    for file in {window["file"] for window in manifest["windows"]}:
        copy = ["cp", str(model / file), str(target / file)]
        on_node_0 = ["numactl", "--membind=0"]
        on_tmpfs = folder == Path("/dev/shm")
        subprocess.run([*on_node_0, *copy] if on_tmpfs and cache == "warm" else copy, check=True)
        if not on_tmpfs:
            evict(target / file)
            if cache == "warm":
                subprocess.run([*on_node_0, "cat", str(target / file)], stdout=subprocess.DEVNULL, check=True)
    return target / "external.onnx"


def evict(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mixed_pages(manifest: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """The windows in interleaved memory, each from the middle of a page on: first small pages, then huge ones."""
    arrays = {}
    for window in manifest["windows"]:
        size, start = window["size"], 3 * PAGE + 52
        whole = (start + size + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
        half = whole // 2 // HUGE_PAGE * HUGE_PAGE
        address = memory.anonymous(whole)
        memory.advise(address, half, memory.MADV_NOHUGEPAGE)
        memory.advise(address + half, whole - half, memory.MADV_HUGEPAGE)
        memory.set_policy_of(address, whole, memory.POLICY_INTERLEAVE, memory.memory_nodes())
        array = np.frombuffer((ctypes.c_uint8 * size).from_address(address + start), np.uint8)
        with (folder / window["file"]).open("rb") as file:
            file.seek(window["offset"])
            if file.readinto(memoryview(array)) != size:
                raise EOFError(f"{window['file']} is too short")
        arrays[window["name"]] = array
    return arrays


def find_windows(
    manifest: dict[str, Any], storage: str, folder: Path, shared: dict[str, np.ndarray] | None
) -> list[tuple[int, int]]:
    """(address, size) of each window in the session's memory. Where more than one place has its bytes: of each of them."""
    found = []
    for window in manifest["windows"]:
        size = window["size"]
        if storage == "external":
            places = memory.file_addresses(str(folder / window["file"]), window["offset"], size)
        elif storage == "inline":
            head, tail = (bytes.fromhex(window[end])[::-1] for end in ("head_reversed", "tail_reversed"))
            places = memory.find_bytes(head, tail, size)
        else:
            places = [shared[window["name"]].ctypes.data]
        if not places:
            raise RuntimeError(f"{window['name']} ({storage}) is nowhere in memory")
        found.extend((address, size) for address in places)
    return found
