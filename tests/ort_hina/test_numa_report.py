"""`ort-hina numa`: where a model's weights lie in the page cache, what of it is remote, and what to do."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from support.external_data import save_external
from support.looped_graph import looped_model

import ort_hina
from ort_hina import OrtHinaError, cli, numa, numa_report
from ort_hina.numa import Node, Topology
from ort_hina.numa_report import _cut, _remote_shares, _union, _without

GIB = 2**30


def _machine(*cpus):
    """Nodes 0, 2, 4, … with so many CPUs each."""
    nodes, first = [], 0
    for i, count in enumerate(cpus):
        nodes.append(Node(2 * i, tuple(range(first, first + count)), True, GIB, GIB, (10,) * len(cpus)))
        first += count
    return Topology(tuple(nodes), tuple((cpu,) for cpu in range(first)))


def test_an_export_by_its_layers(tiny_export):
    path = tiny_export("qwen3_moe")
    report = numa_report.numa_report(path)
    *layers, rest = report.groups
    expected = ort_hina.inspect(path)
    assert [layer.name for layer in layers] == [layer.where for layer in expected.layers]
    assert sum(group.bytes for group in report.groups) == expected.external_files[0].bytes_used
    assert rest.name == "other weights" and rest.bytes == expected.bytes_by_kind["other weights"] - report.inline_bytes


def test_a_fused_model_by_its_nodes(tiny_copy):
    path = tiny_copy("qwen3_moe")
    exported = numa_report.numa_report(path)
    fused = numa_report.numa_report(ort_hina.fuse(path, verify="none").output)
    assert [group.bytes for group in fused.groups] == [group.bytes for group in exported.groups]
    assert all(group.name.endswith("/MoE") for group in fused.groups[:-1])


@pytest.mark.skipif(len(numa.topology().nodes) > 1, reason="for a machine with one node")
def test_on_one_node(tiny_export, capsys):
    path = tiny_export("qwen3_moe")
    assert cli.main(["numa", str(path), "--touch"]) == 0
    text = capsys.readouterr().out
    assert "100% cached; node 0 100%" in text and "remote" not in text
    assert text.endswith("This process may use the CPUs of one memory node only: nothing to do.\n")
    assert cli.main(["numa", str(path), "--json", "-"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert not facts["multi_node"] and sum(facts["nodes"].values()) == len(os.sched_getaffinity(0))
    assert all(group["bytes_on_node"] == {"0": group["cached_bytes"]} for group in facts["groups"])


def test_only_touching_reads_the_file(tmp_path):
    path = _save_cold(tmp_path)
    before = numa_report.numa_report(path)
    if before.groups[0].cached_bytes != 0:
        pytest.skip("this file system keeps what it was asked to drop")
    assert numa_report.numa_report(path).groups[0].cached_bytes == 0  # nothing was read
    numa_report.numa_report(path, touch=True)
    after = numa_report.numa_report(path)
    assert all(group.cached_bytes == group.bytes for group in after.groups)


def _save_cold(folder):
    """A model whose data file is not in the page cache."""
    path = folder / "model.onnx"
    save_external(looped_model(), path)
    for file in folder.iterdir():
        with open(file, "rb") as data:
            os.fsync(data.fileno())
            os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def test_inline_weights_are_said_to_be_placed_later(tiny_export):
    report = numa_report.numa_report(tiny_export("qwen3_moe", external=False))
    assert report.groups == [] and report.inline_bytes > 0
    assert "placed when a session loads them" in report.to_text()


def test_a_file_of_somebody_else_is_not_read(tiny_export, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    report = numa_report.numa_report(tiny_export("qwen3_moe"), machine=_machine(2, 2))
    assert all(group.cached_bytes is None and not any(group.bytes_on_node.values()) for group in report.groups)
    assert "not known whether cached" in report.to_text()
    assert any("--touch reads all of them" in line for line in report.advice)


def test_advice_for_weights_on_one_of_two_nodes(tiny_export):
    report = numa_report.numa_report(tiny_export("qwen3_moe"), touch=True, machine=_machine(2, 2))
    assert all(group.bytes_on_node == {0: group.bytes, 2: 0} for group in report.groups)
    assert all((group.remote_flat, group.remote_planned) == (0.5, 0.5) for group in report.groups)
    text = report.to_text()
    assert "node 0 100%, node 2 0%; remote: flat 50%, planned 50%" in text
    assert "About 50% of the weights would be read from another node" in text
    assert "ort_hina.numa=interleave" in text and "numactl --interleave=all" in text and "pin_threads" in text


def test_advice_for_cold_weights(tmp_path):
    report = numa_report.numa_report(_save_cold(tmp_path), machine=_machine(2, 2))
    if report.groups[0].cached_bytes:
        pytest.skip("this file system keeps what it was asked to drop")
    first, *_ = report.advice
    assert first.startswith("Weights that are not in the page cache yet lie where they are first read")


@pytest.mark.parametrize(
    ("cpus", "shares", "flat", "planned"),
    [
        ((4, 4), (50, 50), 0.5, 0.0),
        ((4, 4), (100, 0), 0.5, 0.5),
        ((6, 2), (75, 25), 0.75 * 0.25 + 0.25 * 0.75, 0.0),
        ((6, 2), (50, 50), 0.5 * 0.25 + 0.5 * 0.75, 0.25),
        ((4, 4, 0), (25, 25, 50), 0.25 * 0.5 * 2 + 0.5, 0.5),
        ((2,) * 4, (25,) * 4, 0.75, 0.0),
        ((4, 4), (0, 0), 0.0, 0.0),
    ],
)
def test_remote_shares(cpus, shares, flat, planned):
    machine = _machine(*cpus)
    found = _remote_shares({2 * i: share * 1000 for i, share in enumerate(shares)}, machine)
    assert found == pytest.approx((flat, planned))


def test_ranges():
    rng = np.random.default_rng(0)
    for _ in range(200):
        parts, holes = ([tuple(sorted(rng.integers(0, 60, 2))) for _ in range(rng.integers(1, 6))] for _ in range(2))
        parts, holes = ([p for p in some if p[0] < p[1]] for some in (parts, holes))
        covered = {i for begin, end in parts for i in range(begin, end)}
        hidden = {i for begin, end in holes for i in range(begin, end)}
        assert {i for begin, end in _union(parts) for i in range(begin, end)} == covered
        left = [piece for part in _union(parts) for piece in _cut(part, _union(holes))]
        assert {i for begin, end in left for i in range(begin, end)} == covered - hidden
        assert all(begin < end for begin, end in left)
    assert _without({"a": [(0, 9)], "b": [(0, 4)]}, [{"a": [(2, 3)]}, {"b": [(0, 4)]}]) == {"a": [(0, 2), (3, 9)]}


def test_a_missing_model_is_an_error(tmp_path):
    with pytest.raises(OrtHinaError, match="does not exist"):
        numa_report.numa_report(tmp_path / "none.onnx")


def test_a_missing_data_file_is_an_error(tiny_copy, capsys):
    path = tiny_copy("qwen3_moe")
    path.with_name("model.onnx_data").unlink()
    assert cli.main(["numa", str(path)]) == 2
    assert "data file" in capsys.readouterr().err
