"""What `machine` reads from a system, on the real one and on made-up ones."""

from __future__ import annotations

import json
import os
import sys

import pytest

import ort_hina
from ort_hina.errors import OrtHinaError
from ort_hina.machine import IsaLevel, MachineInfo, NumaNode

# The package binds the function to this name; the module is found where Python keeps it.
machine_module = sys.modules["ort_hina.machine"]


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def two_sockets(tmp_path):
    """Two packages of two cores with two threads each; the core ids repeat from package to package."""
    for cpu in range(8):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        _write(topology / "physical_package_id", str(cpu % 4 // 2))
        _write(topology / "core_id", str(cpu % 2))
    _write(tmp_path / "devices/system/node/online", "0-1,4")
    for node, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7"), (4, "")):
        _write(tmp_path / f"devices/system/node/node{node}/cpulist", cpus)
        _write(tmp_path / f"devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  1048576 kB")
    _write(tmp_path / "kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    return tmp_path


def test_this_machine(monkeypatch):
    monkeypatch.delenv("ORT_HINA_ISA", raising=False)
    info = ort_hina.machine()
    assert [level.name for level in info.isa_levels][-1] == "portable" and info.isa_levels[-1].available
    assert all(level.reason for level in info.isa_levels) and info.isa_reason
    assert info.threads == len(os.sched_getaffinity(0))
    assert info.isa == next(level.name for level in info.isa_levels if level.available)
    assert info.page_size in (4096, 16384, 65536)


def test_forced_kernels_are_said(monkeypatch):
    monkeypatch.setenv("ORT_HINA_ISA", "portable")
    info = ort_hina.machine()
    assert (info.isa, info.forced_isa, info.isa_reason) == ("portable", "portable", "forced by ORT_HINA_ISA")


def test_forcing_unknown_kernels_is_an_error_that_lists_the_known(monkeypatch):
    monkeypatch.setenv("ORT_HINA_ISA", "sse9")
    with pytest.raises(OrtHinaError, match="ORT_HINA_ISA=sse9 is not a level of this build; .*one of: .*portable"):
        ort_hina.machine()


def test_json_holds_every_fact():
    info = ort_hina.machine()
    facts = json.loads(info.to_json())
    assert set(facts) == set(MachineInfo.__dataclass_fields__)
    assert facts["isa"] == info.isa and len(facts["nodes"]) == len(info.nodes)


def test_affinity_narrows_threads_cores_and_nodes(two_sockets):
    cpus = (1, 5, 6)
    assert machine_module._physical_cores(two_sockets, cpus) == 2
    assert [node.cpus for node in machine_module._numa_nodes(two_sockets, cpus)] == [(1, 5), (6,), ()]


def test_nodes_without_cpus_and_holes_in_the_numbers(two_sockets):
    nodes = machine_module._numa_nodes(two_sockets, tuple(range(8)))
    assert [node.id for node in nodes] == [0, 1, 4]
    assert nodes[0].cpus == (0, 1, 4, 5) and nodes[2].cpus == ()
    assert nodes[2].memory_bytes == 2**30


def test_cores_of_both_packages_are_counted(two_sockets):
    assert machine_module._physical_cores(two_sockets, tuple(range(8))) == 4


def test_huge_pages(two_sockets):
    assert machine_module._transparent_huge_pages(two_sockets) == "madvise"


def test_hidden_sysfs_is_said_and_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_module, "_SYSFS", tmp_path)
    info = ort_hina.machine()
    assert (info.physical_cores, info.nodes, info.transparent_huge_pages) == (None, (), None)
    assert "NUMA nodes          unknown" in info.to_text()


def test_text_of_a_server():
    info = MachineInfo(
        isa="avx2",
        isa_reason="forced by ORT_HINA_ISA",
        isa_levels=(IsaLevel("avx512", False, "the CPU lacks avx512f"), IsaLevel("avx2", True, "the CPU has avx2")),
        forced_isa="avx2",
        threads=12,
        physical_cores=6,
        nodes=(NumaNode(0, (0, 1, 2, 6, 7, 8), 2**36), NumaNode(1, (), None)),
        page_size=4096,
        transparent_huge_pages="always",
    )
    assert info.to_text().splitlines() == [
        "kernels             avx2 (forced by ORT_HINA_ISA)",
        "  avx512            not available (the CPU lacks avx512f)",
        "  avx2              available (the CPU has avx2)",
        "ORT_HINA_ISA        avx2",
        "usable CPUs         12",
        "physical cores      6",
        "NUMA nodes          2",
        "  node 0            CPUs 0-2,6-8, 64.0 GiB",
        "  node 1            no usable CPUs, memory unknown",
        "page size           4096 bytes",
        "huge pages          always",
    ]


def test_without_the_compiled_module_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ort_hina._native", None)
    monkeypatch.delattr(ort_hina, "_native", raising=False)
    with pytest.raises(OrtHinaError, match=r"ort_hina._native cannot be imported .*make build"):
        ort_hina.machine()
