"""Memory nodes as read from trees of machines that are not this one, and from this one."""

from __future__ import annotations

import os
import threading

import pytest
from support.sysfs import FakeNode, numbers, write_status, write_sysfs

from ort_hina import _native


def _read(sysfs, cpus, status="/nowhere"):
    return _native.topology(str(sysfs), str(status), cpus)


def _cpus(found):
    return [node["cpus"] for node in found["nodes"]]


def test_interleaved_lists_of_cpus(tmp_path):
    """N03."""
    nodes = [FakeNode(0, "0-31,64-95"), FakeNode(1, "32-63,96-127")]
    sysfs = write_sysfs(tmp_path, nodes, siblings=[f"{core},{core + 64}" for core in range(64)])
    found = _read(sysfs, list(range(128)))
    assert _cpus(found) == [numbers("0-31,64-95"), numbers("32-63,96-127")]
    assert found["node_of_cpu"] == [0] * 32 + [1] * 32 + [0] * 32 + [1] * 32
    assert found["cores"] == [[core, core + 64] for core in range(64)]
    assert found["multi_node"]
    assert found["nodes"][1]["distances"] == [13, 10]
    assert found["nodes"][0]["memory_bytes"] == 32 << 30 and found["nodes"][0]["free_bytes"] == 24 << 30


def test_gaps_between_ids(tmp_path):
    """N03."""
    sysfs = write_sysfs(tmp_path, [FakeNode(0, "0-1"), FakeNode(2, "2-3"), FakeNode(8, "4-5")])
    found = _read(sysfs, list(range(6)), write_status(tmp_path, "0,8"))
    assert [node["id"] for node in found["nodes"]] == [0, 2, 8]
    assert found["node_of_cpu"] == [0, 0, 1, 1, 2, 2]
    assert [node["memory_allowed"] for node in found["nodes"]] == [True, False, True]
    assert found["nodes"][2]["distances"] == [16, 13, 10]


def test_a_cpuset_leaves_some_cpus(tmp_path):
    sysfs = write_sysfs(tmp_path, [FakeNode(0, "0-3"), FakeNode(1, "4-7")], siblings=["0-1", "2-3", "4-5", "6-7"])
    found = _read(sysfs, [1, 3, 5])
    assert _cpus(found) == [[1, 3], [5]] and found["cores"] == [[1], [3], [5]] and found["multi_node"]
    # The others are known all the same: an affinity may be changed later.
    assert found["node_of_cpu"] == [0] * 4 + [1] * 4
    assert not _read(sysfs, [4, 6])["multi_node"]


def test_offline_cpus_are_not_used(tmp_path):
    """N03."""
    sysfs = write_sysfs(tmp_path, [FakeNode(0, "0-1"), FakeNode(1, "4")], online_cpus="0-1,4")
    found = _read(sysfs, list(range(8)))
    assert _cpus(found) == [[0, 1], [4]]
    assert found["node_of_cpu"] == [0, 0, None, None, 1]


def test_nodes_without_memory_and_without_cpus(tmp_path):
    """N03."""
    sysfs = write_sysfs(tmp_path, [FakeNode(0, "0-3", memory=0, free=0, cache=0), FakeNode(1, "4-7"), FakeNode(2, "")])
    found = _read(sysfs, list(range(8)), write_status(tmp_path, "1-2"))
    assert _cpus(found) == [[0, 1, 2, 3], [4, 5, 6, 7], []]
    assert [node["memory_bytes"] for node in found["nodes"]] == [0, 32 << 30, 32 << 30]
    assert [node["memory_allowed"] for node in found["nodes"]] == [False, True, True]
    assert found["multi_node"]


def test_only_one_node_with_cpus_is_not_several(tmp_path):
    assert not _read(write_sysfs(tmp_path, [FakeNode(0, "0-3"), FakeNode(1, "")]), [0, 1])["multi_node"]


@pytest.mark.parametrize("count", [16, 64, 300])
def test_many_nodes(tmp_path, count):
    sysfs = write_sysfs(tmp_path, [FakeNode(i, f"{4 * i}-{4 * i + 3}") for i in range(count)])
    found = _read(sysfs, list(range(4 * count)))
    known = min(count, 255)
    assert len(found["nodes"]) == known
    assert found["node_of_cpu"] == [cpu // 4 for cpu in range(4 * known)]
    assert all(node["distances"][i] == 10 for i, node in enumerate(found["nodes"]))


def test_more_than_1024_cpus(tmp_path):
    sysfs = write_sysfs(tmp_path, [FakeNode(0, "0-1023"), FakeNode(1, "1024-2047")])
    found = _read(sysfs, [5, 1500])
    assert _cpus(found) == [[5], [1500]]


def test_without_sysfs_there_is_one_node(tmp_path):
    """N03."""
    found = _read(tmp_path / "none", [1, 3])
    assert _cpus(found) == [[1, 3]] and found["cores"] == [[1], [3]] and not found["multi_node"]
    assert found["node_of_cpu"] == [0, 0, 0, 0]
    assert found["nodes"][0]["id"] == 0 and found["nodes"][0]["distances"] == [10]


@pytest.mark.parametrize("text", ["", "x", "-", "3-1", "0-99999999999", ",", "\0"])
def test_nonsense_in_sysfs_is_survived(tmp_path, text):
    sysfs = write_sysfs(tmp_path, [FakeNode(0, text), FakeNode(1, "0-1")], siblings=["0", "1"], distances=False)
    for file in sysfs.rglob("distance"):
        file.write_text(text)
    (sysfs / "devices/system/cpu/cpu0/topology/thread_siblings_list").write_text(text)
    found = _read(sysfs, [0, 1])
    assert found["nodes"][1]["cpus"] == [0, 1] and found["cores"] == [[0], [1]]
    assert [node["distances"] for node in found["nodes"]] == [[10, 20], [20, 10]]


def test_this_machine():
    found = _native.topology()
    cpus = sorted(cpu for node in found["nodes"] for cpu in node["cpus"])
    assert set(cpus) >= os.sched_getaffinity(0)
    assert sorted(cpu for core in found["cores"] for cpu in core) == cpus
    assert _native.current_node() in range(len(found["nodes"]))


def test_a_pinned_caller_does_not_hide_the_cpus_of_other_threads():
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two CPUs")
    started, finish = threading.Event(), threading.Event()

    def idle():
        started.set()
        finish.wait()

    thread = threading.Thread(target=idle)
    thread.start()
    started.wait()
    try:
        os.sched_setaffinity(0, {min(allowed)})
        seen = {cpu for node in _native.topology()["nodes"] for cpu in node["cpus"]}
    finally:
        os.sched_setaffinity(0, allowed)
        finish.set()
        thread.join()
    assert seen == allowed
