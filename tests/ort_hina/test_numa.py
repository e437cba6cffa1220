"""Threads pinned to cores, node by node: of machines that are not this one, and in real sessions on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sysfs import FakeNode, write_sysfs

from ort_hina import numa

CPUS = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@pytest.fixture
def two_sockets(tmp_path):
    """16 CPUs: two nodes with interleaved lists, two threads on each of 8 cores."""
    sysfs = write_sysfs(
        tmp_path, [FakeNode(0, "0-3,8-11"), FakeNode(1, "4-7,12-15")], siblings=[f"{core},{core + 8}" for core in range(8)]
    )
    return lambda cpus=range(16): numa.topology(sysfs, "/nowhere", list(cpus))


def test_one_thread_for_each_core_node_by_node(two_sockets):
    assert numa.thread_cpus(topology=two_sockets()) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert numa.thread_affinities(topology=two_sockets()) == "2;3;4;5;6;7;8"


def test_fewer_threads_are_spread_over_the_nodes(two_sockets):
    assert numa.thread_cpus(4, two_sockets()) == (0, 1, 4, 5)
    assert numa.thread_affinities(4, two_sockets()) == "2;5;6"
    assert numa.thread_cpus(1, two_sockets()) == (0,) and numa.thread_affinities(1, two_sockets()) == ""


def test_more_threads_than_cores_are_reduced(two_sockets):
    """N06."""
    assert numa.thread_cpus(100, two_sockets()) == tuple(range(8))


def test_only_cpus_that_are_allowed(two_sockets):
    assert numa.thread_cpus(topology=two_sockets([1, 3, 5, 9, 13])) == (1, 3, 5)
    assert numa.thread_cpus(8, two_sockets([8, 9])) == (8, 9)  # a node of two: fewer, and no error
    assert numa.thread_affinities(2, two_sockets([15])) == ""


def test_cpus_of_no_node_have_threads_too(tmp_path):
    machine = numa.topology(write_sysfs(tmp_path, [FakeNode(0, "0-1")]), "/nowhere", [0, 1, 7])
    assert numa.thread_cpus(topology=machine) == (0, 1, 7)
    assert numa.thread_cpus(2, numa.topology(tmp_path / "none", "/nowhere", [2, 5])) == (2, 5)


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads_are_refused(threads, two_sockets):
    for call in (numa.thread_cpus, numa.thread_affinities):
        with pytest.raises(ValueError, match=f"threads must be at least 1, got {threads}"):
            call(threads, two_sockets())


@given(sizes=st.lists(st.integers(0, 70), min_size=1, max_size=9).filter(any), share=st.floats(0, 1))
def test_parts_are_in_proportion(sizes, share):
    total = int(share * sum(sizes))
    parts = numa._proportional(total, sizes)
    assert sum(parts) == total
    for part, size in zip(parts, sizes, strict=True):
        assert 0 <= part <= size and abs(part - total * size / sum(sizes)) < 1


def test_options_are_set(two_sockets):
    options = onnxruntime.SessionOptions()
    assert numa.pin_threads(options, 3, topology=two_sockets()) == (0, 1, 4)
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry(numa.AFFINITY_ENTRY) == "2;5"


def test_a_caller_that_cannot_be_pinned_is_an_error(tmp_path):
    nowhere = numa.topology(tmp_path, "/nowhere", [60000])
    with pytest.raises(numa.OrtHinaError, match="the calling thread cannot be pinned to CPU 60000"):
        numa.pin_threads(onnxruntime.SessionOptions(), topology=nowhere, caller=True)


# A session with pinned threads in a process of its own: what it prints of its threads, as JSON.
_SESSION = """
import json, os, sys, time
import numpy as np, onnxruntime
from onnx import TensorProto, helper
from ort_hina import numa

wanted, caller = json.loads(sys.argv[1]), json.loads(sys.argv[2])
square = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [700, 700])
graph = helper.make_graph([helper.make_node("MatMul", ["a", "a"], ["b"])], "g", [square("a")], [square("b")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
before = set(os.listdir("/proc/self/task"))
options = onnxruntime.SessionOptions()
cpus = numa.pin_threads(options, wanted, caller=caller)
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
workers = sorted(set(os.listdir("/proc/self/task")) - before, key=int)


def ticks():
    def of(task):
        fields = open(f"/proc/self/task/{task}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    return {task: of(task) for task in os.listdir("/proc/self/task")}


start, end = ticks(), time.monotonic() + 0.5
feed = {"a": np.ones((700, 700), np.float32)}
while time.monotonic() < end:
    session.run(None, feed)
busy = sum(count > start.get(task, 0) + 1 for task, count in ticks().items())
used = time.process_time()
time.sleep(1)
print(json.dumps({
    "cpus": cpus,
    "workers": [sorted(os.sched_getaffinity(int(task))) for task in workers],
    "caller": sorted(os.sched_getaffinity(0)),
    "busy": busy,
    "idle": time.process_time() - used,
}))
"""


def _run_session(allowed, threads=None, caller=False):
    """Under an affinity as taskset sets it."""
    result = subprocess.run(
        [sys.executable, "-c", _SESSION, json.dumps(threads), json.dumps(caller)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert "[E:onnxruntime" not in result.stderr and "affinity" not in result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("allowed", [CPUS[1::2] or CPUS[:1], CPUS[:1], CPUS], ids=["odd", "one", "all"])
def test_threads_stay_inside_the_affinity(allowed):
    """N01."""
    seen = _run_session(allowed, threads=8)
    assert 1 <= len(seen["cpus"]) <= len(allowed) and set(seen["cpus"]) <= set(allowed)
    assert [[cpu] for cpu in seen["cpus"][1:]] == seen["workers"]
    assert seen["caller"] == allowed


def test_sessions_are_idle_after_a_run_and_no_busier_than_they_may_be():
    """N07."""
    seen = _run_session(CPUS)
    assert seen["busy"] <= len(seen["cpus"])
    assert seen["idle"] < 0.05  # CPU seconds in a second


@needs_two_cpus
def test_the_caller_is_pinned_if_asked():
    seen = _run_session(CPUS, threads=2, caller=True)
    assert seen["caller"] == [seen["cpus"][0]]
    assert not {cpu for worker in seen["workers"] for cpu in worker} & set(seen["caller"]) or len(seen["cpus"]) == 1


@needs_two_cpus
def test_processes_with_cpus_of_their_own_share_none():
    """N06."""
    first, second = (_run_session([cpu], threads=2) for cpu in CPUS[:2])
    assert first["cpus"] == [CPUS[0]] and second["cpus"] == [CPUS[1]]
