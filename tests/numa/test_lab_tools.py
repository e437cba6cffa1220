"""The lab's tools without booting anything: options, messages, the counter's file, the share."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support import numa_lab
from support.numa_checks import assert_local, remote_shares
from support.numa_lab import ODD, THREE, TWO, Counts, Machine, read_counts

LAB = numa_lab.VM.parent


def run(script: Path, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run([script, *arguments], env=os.environ | variables, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "0", "--", "true"], "not a positive number: 0"),
        (["--nodes", "3", "--cpus", "1,2", "--", "true"], "want one value or 3"),
        (["--cpus", "1,x", "--", "true"], "--cpus wants numbers, got 1,x"),
        (["--mem", "1G,2T", "--", "true"], "--mem wants numbers and M or G, or 0, got 1G,2T"),
        (["--cpus", "1,0", "--mem", "1G,0", "--", "true"], "node 1 has neither CPUs nor memory"),
        (["--mem", "0,1G", "--", "true"], "node 0 needs CPUs and memory"),
        (["--nodes", "3", "--cpus", "1,0,1", "--", "true"], "nodes without CPUs come last, got 1,0,1"),
        (["--distance", "0-1", "--", "true"], "--distance wants D or I-J=D, got 0-1"),
        (["--scratch", "many", "--", "true"], "--scratch wants a number and M or G, got many"),
        (["--accel", "kvm", "--count", "counts", "--", "true"], "--count needs emulation"),
        (["--rw", "/no/such/folder", "--", "true"], "no such folder: /no/such/folder"),
        (["--what"], "unknown option: --what"),
        (["--cpus"], "--cpus needs a value"),
        ([], "no command"),
    ],
)
def test_bad_options_are_named(options, message):
    result = run(numa_lab.VM, *options)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere it is the machine that does not fit")
def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(numa_lab.shutil, "which", lambda tool, path: None if tool in ("numactl", "xz") else f"/bin/{tool}")
    assert numa_lab.why_not.__wrapped__() == "missing: numactl xz-utils (apt-get install numactl xz-utils)"


def test_without_an_archive_the_way_out_is_named(tmp_path: Path):
    result = run(LAB / "fetch_kernel.sh", tmp_path / "lab" / "suite", "suite", ORT_HINA_DEBIAN_MIRROR="file:///nonexistent")
    assert result.returncode == 1
    assert "the kernel of Debian suite could not be fetched" in result.stderr
    assert "ORT_HINA_DEBIAN_MIRROR=URL" in result.stderr
    assert [path.name for path in (tmp_path / "lab").iterdir()] == ["suite.lock"], "something half-done was left"


def test_a_kernel_is_not_fetched_twice(tmp_path: Path):
    (tmp_path / "initrd.img").touch()
    result = run(LAB / "fetch_kernel.sh", tmp_path, "suite", ORT_HINA_DEBIAN_MIRROR="file:///nonexistent")
    assert (result.returncode, result.stderr) == (0, "")


def test_counts_are_read_by_block(tmp_path: Path):
    (tmp_path / "counts").write_text("block 3\ncpu 0 load 5 6\ncpu 3 store 0 7\nend\nblock 4\nend\n")
    counts = read_counts(tmp_path / "counts", TWO)
    assert list(counts) == [3, 4]
    np.testing.assert_array_equal(counts[3].load, [[5, 6], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(counts[3].store, [[0, 0], [0, 0], [0, 0], [0, 7]])
    assert not counts[4].load.any()


def counts_of(machine: Machine, load: list[list[int]]) -> Counts:
    array = np.array(load, np.int64)
    assert array.shape == (len(machine.node_of_cpu), len(machine.cpus))
    return Counts(array, np.zeros_like(array))


def test_the_remote_shares():
    local = counts_of(TWO, [[4, 0], [4, 0], [0, 4], [0, 4]])
    assert remote_shares([local], TWO) == 0
    disturbed = counts_of(TWO, [[4, 4], [4, 4], [4, 4], [4, 4]])
    assert remote_shares([local, disturbed, local], TWO).tolist() == [0, 0.5, 0]
    assert_local(remote_shares([disturbed, local], TWO))
    with pytest.raises(AssertionError):
        assert_local(remote_shares([disturbed], TWO))
    assert remote_shares([counts_of(TWO, [[4, 4], [4, 4], [4, 4], [4, 4]])], TWO) == 0.5
    # CPU 2 has no thread, so node 1 is read by CPU 3 alone.
    assert remote_shares([counts_of(TWO, [[4, 1], [4, 0], [9, 0], [0, 7]])], TWO, [0, 1, 3]) == 1 / 16


def test_what_nothing_can_be_done_about_is_left_out():
    """CPU 3's node has no memory; node 3 has no CPUs."""
    assert remote_shares([counts_of(ODD, [[5, 0, 0, 3], [0, 5, 0, 3], [0, 5, 0, 3], [7, 7, 0, 7]])], ODD) == 0
    assert remote_shares([counts_of(ODD, [[5, 5, 0, 3], [0, 5, 0, 3], [0, 5, 0, 3], [7, 7, 0, 7]])], ODD) == 0.25


def test_nothing_read_is_no_success():
    with pytest.raises(AssertionError, match="nothing was read"):
        remote_shares([counts_of(TWO, [[0, 0]] * 4)], TWO)


def test_a_machine_in_options():
    assert THREE.arguments() == [
        "--nodes", "3", "--cpus", "1,2,1", "--mem", "1024M,768M,896M", "--distance", "0-1=15", "--distance", "0-2=31",
    ]  # fmt: skip
    assert ODD.arguments()[-1] == "1024M,768M,0,512M"
    assert [THREE.distance(i, 2) for i in THREE.nodes] == [31, 20, 10]
    assert THREE.node_of_cpu == [0, 1, 1, 2] and THREE.cpus_of(1, 2) == [1, 2, 3]
