"""`inspect`: what a model holds, and what `fuse` would do with it. Nothing is written and no weight is read."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from .graph_passes import pipeline
from .graph_passes.attention_node import is_attention_node
from .graph_passes.cleanup import remove_unused
from .graph_passes.moe_layer import MoELayer, Refused
from .graph_passes.moe_node import is_moe_node, make_replacement
from .library import onnxruntime_version
from .lost_experts import refused_if_lost
from .model_file import ModelFile, read_model
from .report import AttentionReport, LayerReport, attention_sizes, human_bytes, layer_sizes
from .rewriting import describe, describe_attention

_DATA_TYPES = {int(dtype): dtype for dtype in ir.DataType}


@dataclass
class ExternalFile:
    """A data file of the model: its size, and how many bytes of it the model's tensors cover (shared bytes once)."""

    location: str
    size: int
    bytes_used: int


@dataclass
class ModelInventory:
    """What is in a model. All sizes in bytes."""

    path: str
    file_size: int
    opsets: dict[str, int]
    nodes: int
    layers: list[LayerReport]
    """MoE layers as an exporter wrote them; `reason` says why one would not be fused, None that it would be."""
    attention: list[AttentionReport]
    """Attention as an exporter wrote it, of a model with such layers; `reason` as there."""
    fused_nodes: int
    """Nodes ``ort_hina::MoE`` that the model holds already."""
    fused_attention: int
    """Nodes ``ort_hina::GroupQueryAttention``."""
    bytes_by_kind: dict[str, int]
    """Weights of experts, and of all else."""
    bytes_by_dtype: dict[str, int]
    """A window of a fused node counts as what its node reads from it."""
    external_files: list[ExternalFile]

    @property
    def fusable(self) -> int:
        """How many layers `fuse` would replace."""
        return sum(layer.reason is None for layer in self.layers)

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "fusable": self.fusable}, indent=2)

    def to_text(self) -> str:
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        lines = [f"{self.path}: {self.nodes} nodes, opset {opsets}, {human_bytes(self.file_size)}"]
        lines += [f"  {kind}: {human_bytes(size)}" for kind, size in self.bytes_by_kind.items()]
        types = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.bytes_by_dtype.items())
        lines.append(f"  by type: {types or 'no weights'}")
        lines += [
            f"  data file {file.location}: {human_bytes(file.size)}, of which the model uses {human_bytes(file.bytes_used)}"
            for file in self.external_files
        ]
        if self.fused_attention:
            lines.append(f"  fused attention nodes: {self.fused_attention}")
        if self.fused_nodes:
            lines.append(f"  fused mixture-of-experts nodes: {self.fused_nodes}")
        lines.append(f"  mixture-of-experts layers to fuse: {self.fusable} of {len(self.layers)} found")
        for layer in self.layers:
            what = layer_sizes(layer) if layer.reason is None else f"would stay as it is: {layer.reason}"
            lines.append(f"    {layer.where}: {what}")
        if self.attention:
            count = sum(layer.reason is None for layer in self.attention)
            lines.append(f"  attention to fuse: {count} of {len(self.attention)} found")
        for layer in self.attention:
            what = attention_sizes(layer) if layer.reason is None else f"would stay as it is: {layer.reason}"
            lines.append(f"    {layer.where}: {what}")
        return "\n".join(lines)


def inspect(model: str | os.PathLike) -> ModelInventory:
    """Looks into the .onnx file `model`.

    Raises:
        OrtHinaError: the model or its data files are not as they should be (as `fuse`).
    """
    source = read_model(model)
    graph = source.model.graph
    nodes = len(graph)
    remove_unused(graph)  # as `fuse` does: what nobody uses is no reason to refuse
    contents = pipeline.find(graph, onnxruntime_version())
    found = [refused_if_lost(layer) for layer in contents.routed]
    weights = {id(value.const_value): value.const_value for value in graph.initializers.values() if value.const_value}
    windows = _window_types(graph)
    experts = _expert_tensors(found) | windows.keys()
    return ModelInventory(
        path=os.fspath(source.path),
        file_size=source.path.stat().st_size,
        opsets=dict(graph.opset_imports),
        nodes=nodes,
        layers=[_describe(layer) for layer in found],
        attention=[describe_attention(layer) for layer in contents.attention],
        fused_attention=sum(is_attention_node(node) for node in graph),
        fused_nodes=sum(is_moe_node(node) for node in graph),
        bytes_by_kind={
            "experts": _covered(weights[identity] for identity in experts),
            "other weights": _covered(tensor for identity, tensor in weights.items() if identity not in experts),
        },
        bytes_by_dtype=_bytes_by_dtype(weights.values(), windows),
        external_files=_external_files(source),
    )


def _describe(layer: MoELayer | Refused) -> LayerReport:
    report = describe(layer)
    if isinstance(layer, MoELayer):
        report.windows = len(make_replacement(layer).windows)
    return report


def _expert_tensors(found: list[MoELayer | Refused]) -> set[int]:
    return {
        id(tensor)
        for layer in found
        if isinstance(layer, MoELayer)
        for _, linears in layer.roles()
        for linear in linears
        if linear is not None
        for tensor in (linear.matrix.tensor, linear.bias and linear.bias.tensor)
        if tensor is not None
    }


def _window_types(graph: ir.Graph) -> dict[int, ir.DataType]:
    """``id(tensor)`` → element type, of the windows of nodes that are fused already."""
    return {id(tensor): dtype for node in graph if is_moe_node(node) for tensor, dtype in _windows(node)}


def _windows(node: ir.Node) -> list[tuple[ir.TensorProtocol, ir.DataType]]:
    """Each window and what the node reads from it; that is the tensor's own type where the node does not say."""
    attribute = node.attributes.get("window_types")
    stated = attribute.as_ints() if attribute is not None and attribute.type == ir.AttributeType.INTS else ()
    tensors = [value and value.const_value for value in node.inputs[4:]]
    types = [_DATA_TYPES.get(number) for number in stated[: len(tensors)]]
    pairs = itertools.zip_longest(tensors, types)
    return [(tensor, dtype or tensor.dtype) for tensor, dtype in pairs if tensor is not None]


def _covered(tensors: Iterable[ir.TensorProtocol]) -> int:
    """Bytes of `tensors`; windows and tied tensors may overlap in a file, where every byte counts once."""
    inline, ranges = 0, {}
    for tensor in tensors:
        if isinstance(tensor, ir.ExternalTensor):
            begin = tensor.offset or 0
            ranges.setdefault(os.fspath(tensor.location), []).append((begin, begin + tensor.nbytes))
        else:
            inline += tensor.nbytes
    return inline + sum(_length_of_union(parts) for parts in ranges.values())


def _length_of_union(ranges: list[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for begin, end in sorted(ranges):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _bytes_by_dtype(tensors: Iterable[ir.TensorProtocol], windows: dict[int, ir.DataType]) -> dict[str, int]:
    by_type: dict[str, list[ir.TensorProtocol]] = {}
    for tensor in tensors:
        by_type.setdefault(windows.get(id(tensor), tensor.dtype).name.lower(), []).append(tensor)
    sizes = {name: _covered(members) for name, members in by_type.items()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _external_files(source: ModelFile) -> list[ExternalFile]:
    tensors = [value.const_value for value in source.model.graph.initializers.values()]
    external = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
    return [
        ExternalFile(
            location,
            (source.folder / location).stat().st_size,
            _covered(tensor for tensor in external if os.fspath(tensor.location) == location),
        )
        for location in sorted(source.locations)
    ]
