"""``ort-hina numa``: on which memory nodes a model's weights lie in the page cache, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from .graph_passes import pipeline
from .graph_passes.cleanup import remove_unused
from .graph_passes.moe_layer import MoELayer
from .graph_passes.moe_node import is_moe_node, make_replacement
from .graph_passes.weight_windows import byte_range
from .library import native_module, onnxruntime_version
from .model_file import ModelFile, read_model
from .numa import Topology, topology
from .report import human_bytes

# A remote share from which on something should be done.
_NOTABLE = 0.05

Ranges = dict[str, list[tuple[int, int]]]
"""Data file → byte ranges in it, ascending and apart."""


@dataclass
class WeightGroup:
    """Weights that are used together: those of a layer, or all others.

    Attributes:
        name: of the layer.
        bytes: in data files, shared ones once.
        cached_bytes: of these, in the page cache; None: the kernel does not tell of a file that belongs to somebody else.
        bytes_on_node: node id → bytes that lie there now.
        unknown_bytes: cached, but the kernel does not say where.
        remote_flat: the share of the known bytes that is read from another node, where threads take their parts of the work
            without regard to nodes.
        remote_planned: the same where the threads of a node take what lies there, and as much work as all others.
    """

    name: str
    bytes: int
    cached_bytes: int | None
    bytes_on_node: dict[int, int]
    unknown_bytes: int
    remote_flat: float
    remote_planned: float


@dataclass
class NumaReport:
    """The answer of `numa_report`. Sizes in bytes.

    Attributes:
        path: the model.
        nodes: id → CPUs of this process there, of every node.
        multi_node: whether this process may use CPUs of several nodes.
        inline_bytes: weights in the model file itself: they are placed when a session loads them.
        groups: of the weights in data files.
        advice: what to do, most useful first.
    """

    path: str
    nodes: dict[int, int]
    multi_node: bool
    inline_bytes: int
    groups: list[WeightGroup]
    advice: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    def to_text(self) -> str:
        nodes = ", ".join(f"node {number} ({cpus} CPUs)" for number, cpus in self.nodes.items())
        lines = [f"{self.path}: this process may use {nodes}"]
        if self.inline_bytes:
            lines.append(f"  inline weights: {human_bytes(self.inline_bytes)}, placed when a session loads them")
        lines += [f"  {_line(group)}" for group in self.groups]
        return "\n".join([*lines, *self.advice])


def numa_report(model: str | os.PathLike, *, touch: bool = False, machine: Topology | None = None) -> NumaReport:
    """Looks where the weights of the .onnx file `model` lie in the page cache now. Nothing is changed.

    Args:
        model: fused or not.
        touch: read what is not in the page cache, which may be the whole of it.
        machine: None: this one.

    Raises:
        OrtHinaError: the model or its data files are not as they should be (as `fuse`).
        OSError: a data file cannot be mapped.
    """
    source = read_model(model)
    machine = machine or topology()
    cache = _PageCache(source.folder, touch)
    tensors = [value.const_value for value in source.model.graph.initializers.values() if value.const_value is not None]
    groups = [_group(name, ranges, cache, machine) for name, ranges in _grouped(source, tensors)]
    report = NumaReport(
        path=os.fspath(source.path),
        nodes={node.id: len(node.cpus) for node in machine.nodes},
        multi_node=machine.multi_node,
        inline_bytes=sum(tensor.nbytes for tensor in tensors if not isinstance(tensor, ir.ExternalTensor)),
        groups=groups,
    )
    report.advice = _advice(report)
    return report


def _grouped(source: ModelFile, tensors: list[ir.TensorProtocol]) -> list[tuple[str, Ranges]]:
    """The layers in order, and what is left."""
    layers = _fused_layers(source.model.graph) or _layers_to_fuse(source.model.graph)
    named = [(name, _ranges(members)) for name, members in layers]
    rest = _without(_ranges(tensors), [ranges for _, ranges in named])
    return [(name, ranges) for name, ranges in [*named, ("other weights", rest)] if ranges]


def _fused_layers(graph: ir.Graph) -> list[tuple[str, list[ir.TensorProtocol]]]:
    nodes = (node for node in graph if is_moe_node(node))
    windows = ((node, [value.const_value for value in node.inputs[4:] if value is not None]) for node in nodes)
    return [(node.name or "MoE", [tensor for tensor in members if tensor is not None]) for node, members in windows]


def _layers_to_fuse(graph: ir.Graph) -> list[tuple[str, list[ir.TensorProtocol]]]:
    remove_unused(graph)
    found = (layer for layer in pipeline.find(graph, onnxruntime_version()).routed if isinstance(layer, MoELayer))
    return [(layer.where, [value.const_value for value in make_replacement(layer).windows]) for layer in found]


def _ranges(tensors: Iterable[ir.TensorProtocol]) -> Ranges:
    found: Ranges = {}
    for tensor in tensors:
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes:
            found.setdefault(os.fspath(tensor.location), []).append(byte_range(tensor))
    return {location: _union(parts) for location, parts in found.items()}


def _union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def _without(ranges: Ranges, taken: list[Ranges]) -> Ranges:
    left = {}
    for location, parts in ranges.items():
        holes = _union(hole for other in taken for hole in other.get(location, ()))
        rest = [piece for part in parts for piece in _cut(part, holes)]
        if rest:
            left[location] = rest
    return left


def _cut(part: tuple[int, int], holes: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """What of `part` lies in none of `holes`, which are ascending."""
    begin, end = part
    for first, last in holes:
        if first >= end:
            break
        if begin < first:
            yield begin, first
        begin = max(begin, last)
    if begin < end:
        yield begin, end


class _PageCache:
    """Where parts of data files lie; each file is mapped once, for reading."""

    def __init__(self, folder: Path, touch: bool):
        self._folder, self._touch = folder, touch
        self._files: dict[str, tuple[np.ndarray, bool]] = {}

    def runs(self, location: str, begin: int, end: int) -> tuple[int | None, list[tuple[int, int, int | None]]]:
        """Bytes that are cached (None: unknown), and of these the runs (begin, end, place in the topology's nodes)."""
        data, tells = self._file(location)
        address = data.ctypes.data + begin
        if self._touch:
            return end - begin, native_module().query_placement(address, end - begin)
        if not tells:
            return None, []
        resident = native_module().resident_pages(address, end - begin)
        found = [run for first, last in resident for run in native_module().query_placement(address + first, last - first)]
        return sum(last - first for first, last in resident), found

    def _file(self, location: str) -> tuple[np.ndarray, bool]:
        """Its bytes, and whether the kernel tells this process which of them are cached: if it owns or may write the file."""
        if location not in self._files:
            path = self._folder / location
            with open(path, "rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                owned = os.fstat(file.fileno()).st_uid == os.geteuid()
            if not self._touch:
                mapping.madvise(mmap.MADV_RANDOM)  # mapping what is cached must not read what follows it
            self._files[location] = np.frombuffer(mapping, np.uint8), owned or os.access(path, os.W_OK)
        return self._files[location]


def _group(name: str, ranges: Ranges, cache: _PageCache, machine: Topology) -> WeightGroup:
    on_node = dict.fromkeys((node.id for node in machine.nodes), 0)
    cached: int | None = 0
    unknown = total = 0
    for location, parts in ranges.items():
        for begin, end in parts:
            total += end - begin
            here, runs = cache.runs(location, begin, end)
            cached = None if cached is None or here is None else cached + here
            for first, last, node in runs:
                if node is None:
                    unknown += last - first
                else:
                    on_node[machine.nodes[node].id] += last - first
    flat, planned = _remote_shares(on_node, machine)
    return WeightGroup(name, total, cached, on_node, unknown, flat, planned)


def _remote_shares(on_node: dict[int, int], machine: Topology) -> tuple[float, float]:
    """(flat, planned), of bytes whose node is known; every CPU that the process may use has a thread.

    Flat: a byte on node m is read by any thread, so by one of another node with probability 1 - t_m, where t_m is m's share of
    the threads. Planned: a node reads what lies on it, up to its share t_m of all; what is beyond, other nodes read.
    """
    known, cpus = sum(on_node.values()), sum(len(node.cpus) for node in machine.nodes)
    if not known or not cpus:
        return 0.0, 0.0
    shares = [(on_node[node.id] / known, len(node.cpus) / cpus) for node in machine.nodes]
    return sum(b * (1 - t) for b, t in shares), sum(max(0.0, b - t) for b, t in shares)


def _advice(report: NumaReport) -> list[str]:
    if not report.multi_node:
        return ["This process may use the CPUs of one memory node only: nothing to do."]
    advice = []
    total = sum(group.bytes for group in report.groups)
    remote = sum(group.bytes * group.remote_planned for group in report.groups)
    if remote > _NOTABLE * total:
        advice.append(
            f"About {remote / total:.0%} of the weights would be read from another node. Set the session config entry "
            f"ort_hina.numa=interleave: it spreads the pages of each layer over the nodes when a session is created, at the "
            "cost of a copy in memory. Or drop them from the page cache (as root: sync; echo 1 >/proc/sys/vm/drop_caches) and "
            "start under numactl --interleave=all: the page cache is then filled evenly."
        )
    if any(group.cached_bytes is None for group in report.groups):
        advice.append("The kernel does not tell which pages of somebody else's file are cached: --touch reads all of them.")
    elif sum(group.cached_bytes or 0 for group in report.groups) < (1 - _NOTABLE) * total:
        advice.append(
            "Weights that are not in the page cache yet lie where they are first read: start under numactl --interleave=all, "
            "and they are spread evenly."
        )
    if any(group.unknown_bytes for group in report.groups):
        advice.append(
            "The kernel does not say where some pages lie. Containers often forbid move_pages and mbind (--cap-add SYS_NICE)."
        )
    return [*advice, "Pin the threads to cores, node by node: ort_hina.numa.pin_threads(options)."]


def _line(group: WeightGroup) -> str:
    if group.cached_bytes is None:
        return f"{group.name}: {human_bytes(group.bytes)}, not known whether cached"
    text = f"{group.name}: {human_bytes(group.bytes)}, {_percent(group.cached_bytes, group.bytes)} cached"
    known = sum(group.bytes_on_node.values())
    if not known:
        return text
    shares = ", ".join(f"node {number} {_percent(size, known)}" for number, size in group.bytes_on_node.items())
    if len(group.bytes_on_node) == 1:
        return f"{text}; {shares}"
    return f"{text}; {shares}; remote: flat {group.remote_flat:.0%}, planned {group.remote_planned:.0%}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}"
