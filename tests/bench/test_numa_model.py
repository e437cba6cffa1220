"""Bytes are counted as they lie, and the formula gives what is worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from support.page_maps import mixed, node_of_bytes

from bench import numa_bytes, numa_model
from bench.numa_bytes import (
    COLUMN_STEP,
    ELEMENT,
    Items,
    Layer,
    Matrix,
    NodeBytes,
    Pages,
    Partition,
    Step,
    _helped,
    flat,
    partition,
    queued,
)
from bench.numa_time import MACHINES, Machine, layer_seconds, step_seconds
from ort_hina import _native
from ort_hina.benchmark.shapes import SHAPES, MoeShape

THREADS = 64
SHAPE = MoeShape("s", 512, 768, 8, 2)


def test_bytes_between_two_others():
    rng = np.random.default_rng(0)
    runs = mixed(20_000, (64, 256, 4096), 3, rng)
    node = node_of_bytes(runs)
    begin = np.append(rng.integers(0, 20_000, 200), [0, 20_000, 0])
    end = np.append(np.minimum(begin[:200] + rng.integers(0, 9_000, 200), 20_000), [20_000, 20_000, 0])
    counted = NodeBytes(runs, 3).between(begin, end)
    assert counted.tolist() == [np.bincount(node[b:e], minlength=3).tolist() for b, e in zip(begin, end, strict=True)]


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("granule", [4096, 2 << 20])
@pytest.mark.parametrize("begin", [0, 1234])
def test_the_partition_reads_all_weights_once_and_nearly_all_from_the_own_node(layout, nodes, granule, begin):
    matrix, pages = Matrix(begin, 3000, 1536, layout), Pages(nodes, granule)
    traffic = partition(matrix, pages, THREADS).items.traffic()
    node = node_of_bytes(pages.runs(begin + 3000 * 1536 * 2))[begin : begin + 3000 * 1536 * 2]
    assert traffic.sum(0).tolist() == np.bincount(node, minlength=nodes).tolist()
    assert 1 - np.trace(traffic) / traffic.sum() <= 0.01


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_what_each_item_reads_is_what_lies_under_its_pieces(layout):
    matrix, pages = Matrix(1030, 70, 1000, layout), Pages(2, 4096)
    end = 1030 + 70 * 1000 * ELEMENT
    plan = _native.node_partition(
        pages.runs(end), 1030, 70, 1000, ELEMENT, None, layout == "kn", COLUMN_STEP[layout]
    )
    node = node_of_bytes(pages.runs(end))[1030:end].reshape(70, 1000, ELEMENT)
    items = partition(matrix, pages, THREADS).items
    for item, reader, read in zip(plan["items"], items.reader, items.bytes, strict=True):
        of_item = node[item["row"] :, item["column"] :]
        counts = sum(
            np.bincount(of_item[piece["rows"], slice(*piece["columns"])].ravel(), minlength=2) for piece in item["pieces"]
        )
        assert (item["node"], counts.tolist()) == (reader, read.tolist())


@pytest.mark.parametrize("nodes", [2, 4])
def test_the_flat_partition_reads_all_but_an_nth_from_other_nodes(nodes):
    # A thread's 64 rows of 4 KB are whole periods.
    traffic = flat(Matrix(0, 64 * 8 * nodes, 2048, "nk"), Pages(nodes, 4096), 8).traffic()
    assert (traffic == 64 * 8 * 4096 // nodes).all()
    step = Step(traffic, np.ones(nodes), 0)
    assert numa_model.remote_share((step,)) == (nodes - 1) / nodes


def test_rows_are_shared_by_all_threads():
    items = flat(Matrix(0, 10, 100, "nk"), Pages(2, 4096), 2)
    assert items.bytes.sum(1).tolist() == [400, 600, 400, 600]
    assert items.reader.tolist() == [0, 1, 0, 1]


def test_balance_is_that_of_cores_that_take_the_next_item():
    sizes = np.array([3, 3, 2, 2, 4])
    items = Items(np.array([0, 0, 0, 0, 1]), np.stack([sizes, 0 * sizes, 0 * sizes], axis=1))
    assert items.balance(2).tolist() == [1, 0.5, 1]
    assert items.balance(3)[0] == pytest.approx(10 / 3 / 4)  # 3, 3, 2 + 2
    assert items.traffic().tolist() == [[10, 0, 0], [4, 0, 0], [0, 0, 0]]


def test_nodes_that_have_had_their_share_are_helped():
    assert _helped([0] * 4, np.ones(4), 2).tolist() == [0, 0, 1, 1]
    assert _helped([0, 1, 0, 1], np.ones(4), 2).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_blocks_of_outputs_are_read_once(layout):
    matrix, pages = Matrix(100, 512, 768, layout), Pages(2, 4096)
    blocks = tuple((begin, 64) for begin in range(0, matrix.outputs, 64))
    items = queued(matrix, pages, blocks, THREADS)
    assert items.bytes.sum(0).tolist() == partition(matrix, pages, THREADS).items.bytes.sum(0).tolist()
    assert (items.bytes.sum(1) == 64 * matrix.inputs * ELEMENT).all()


def test_blocks_of_rows_go_to_the_node_that_has_the_tile_in_their_middle(monkeypatch):
    matrix, pages = Matrix(0, 2048, 2048, "nk"), Pages(2, 2 << 20)  # 512 rows in a granule
    tiles = np.array([[row, 256, 0, 2048, row // 512 % 2] for row in range(0, 2048, 256)])
    plan = Partition(Items(np.zeros(0, int), np.zeros((0, 2), int)), 1, tiles)
    assert [plan.node_at(row, 5) for row in (511, 512, 1024)] == [0, 1, 0]
    monkeypatch.setattr(numa_bytes, "partition", lambda matrix, pages, threads: plan)
    traffic = queued(matrix, pages, tuple((begin, 64) for begin in range(0, 2048, 64)), THREADS).traffic()
    assert traffic.tolist() == [[1024 * 4096, 0], [0, 1024 * 4096]]


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_the_partition_serves_as_many_tokens_as_partial_sums_allow(layout):
    layer = Layer(SHAPE, layout, Pages(2, 4096), 4, 0)
    parts = [
        max(partition(matrix, layer.pages, layer.threads).parts for expert in layer.experts() for matrix in matrices(expert))
        for matrices in (lambda e: e[:2], lambda e: e[2:])
    ]
    most = max(numa_bytes.FEW_ANYWAY, min(SHAPE.hidden // parts[0], SHAPE.intermediate // parts[1]) * 2 // (4 * 8))
    assert layer.serves(most) and not layer.serves(most + 1)


@pytest.mark.parametrize("m", [1, 256])
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_both_partitions_read_all_chosen_experts(layout, m):
    layer = Layer(SHAPE, layout, Pages(2, 4096), 4, 1228)
    assert layer.serves(m) == (m == 1)
    for steps in (layer.flat(), layer.ours(m)):
        gate_up, down = (step.traffic.sum() for step in steps)
        assert gate_up == 2 * down
        assert gate_up + down == SHAPE.k * SHAPE.expert_bytes("bfloat16")
    # gate and up, then down; 4 bytes of each part of each output of each expert
    if m == 1:
        parts = [partition(layer.experts()[0][place], layer.pages, layer.threads).parts for place in (0, 2)]
        outputs = 2 * SHAPE.k * SHAPE.intermediate, SHAPE.k * SHAPE.hidden
        assert [step.sums for step in layer.ours(1)] == [4 * p * n for p, n in zip(parts, outputs, strict=True)]


def test_experts_lie_one_after_the_other():
    layer = Layer(SHAPE, "nk", Pages(2, 1 << 30), 4, 10)
    size = 512 * 768 * 2
    assert [[matrix.begin - 10 for matrix in expert] for expert in layer.experts()] == [
        [0, size, 2 * size],
        [12 * size, 13 * size, 14 * size],
    ]
    assert [(m.outputs, m.inputs) for m in layer.experts()[0]] == [(768, 512), (768, 512), (512, 768)]


# 10 bytes/s from the own memory, 2 from others; 8 operations/s on each node.
HAND_MADE = Machine("hand-made", 2, 1, 10, 2, 16)


@pytest.mark.parametrize(
    ("traffic", "balance", "sums", "m", "overlapped", "seconds"),
    [
        ([[40, 0], [0, 40]], [1, 1], 0, 1, True, 5),  # compute: 2·20 operations at 8/s
        ([[40, 0], [0, 40]], [1, 0.5], 0, 1, True, 10),  # by half of the cores
        ([[30, 10], [10, 30]], [1, 1], 0, 0, True, 5),  # 10 bytes at 2/s, and 30 at 10/s meanwhile
        ([[30, 10], [10, 30]], [1, 1], 0, 0, False, 8),
        ([[30, 10], [10, 30]], [1, 0.5], 0, 0, False, 16),
        ([[90, 0], [4, 0]], [1, 1], 0, 0, True, 9.4),  # all from one memory
        ([[40, 0], [0, 40]], [1, 1], 20, 1, True, 6),  # 10 written, 10 read of each: half from the other node; served: 60
        ([[40, 0], [0, 40]], [1, 1], 20, 1, False, 8),  # 40 + 10 + 5 at 10/s, then 5 at 2/s
    ],
)
def test_seconds_worked_out_by_hand(traffic, balance, sums, m, overlapped, seconds):
    step = Step(np.array(traffic), np.array(balance), sums)
    assert step_seconds(step, HAND_MADE, m, overlapped) == pytest.approx(seconds)
    assert layer_seconds((step, step), HAND_MADE, m, overlapped) == pytest.approx(2 * seconds)


def test_cross_bandwidth_of_a_pair_or_of_a_node():
    machine = Machine("three", 3, 1, 100, 2, 1)
    step = Step(np.array([[10, 4, 6], [0, 10, 0], [0, 0, 10]]), np.ones(3), 0)
    assert step_seconds(step, machine, 0, True) == pytest.approx(5)
    assert step_seconds(step, machine, 0, True, "pair") == pytest.approx(3)


def test_speed_ups_are_those_of_bandwidths_where_nothing_else_counts():
    """flat: half of a node's reads from the other one; ours: none."""
    machine = MACHINES["6430"]
    prediction = numa_model.predict(machine, SHAPES["qwen3-235b"], "nk", "4 KB", 1)
    near, far = 1 / machine.local, 1 / machine.cross
    assert prediction.partitioned and prediction.flat_remote == pytest.approx(0.5, abs=0.01)
    assert prediction.ours_remote <= 0.01
    assert prediction.speedup[0] == pytest.approx(far / 2 / near, rel=0.02)
    assert prediction.speedup[1] == pytest.approx((near + far) / 2 / near, rel=0.02)


def test_end_to_end(tmp_path):
    command = [sys.executable, "-m", "bench.numa_model", "--machine", "6430,9462", "--shape", "qwen3-30b-a3b", "--tokens",
               "1,256", "--json", str(tmp_path / "times.json"), "--plot", str(tmp_path / "plots")]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Predicted, not measured" in result.stdout and "234 GB/s local, 95 GB/s cross" in result.stdout
    times = json.loads((tmp_path / "times.json").read_text())
    assert [(p["machine"], p["layout"], p["pages"], p["tokens"]) for p in times] == [
        (machine, layout, pages, m)
        for machine in ("6430", "9462") for layout in ("nk", "kn") for pages in ("4 KB", "2 MB") for m in (1, 256)
    ]  # fmt: skip
    assert all(p["ours_remote"] <= 0.01 for p in times if p["partitioned"])
    assert all(p["partitioned"] == (p["tokens"] == 1) for p in times)
    for name in ("numa_6430.svg", "numa_9462.svg"):
        ElementTree.parse(tmp_path / "plots" / name)


def test_a_machine_that_is_not_known():
    with pytest.raises(SystemExit, match="6431: expected one of 6430, 6448H, 9462"):
        numa_model.chosen("6430,6431", MACHINES)
