"""`fuse`: one node for each mixture of experts."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from .errors import OrtHinaError
from .graph_passes import pipeline
from .graph_passes.cleanup import remove_unused
from .graph_passes.meanings import Refusal
from .graph_passes.moe_layer import MoELayer, Refused
from .graph_passes.moe_node import make_moe_node, put_moe_node
from .model_file import ModelFile, check_output, read_model, write_model
from .report import FusionReport, LayerReport
from .verify import Verdict, verify_layer

__all__ = ["FusionReport", "LayerReport", "fuse"]


def fuse(
    model: str | os.PathLike,
    output: str | os.PathLike | None = None,
    *,
    verify: Literal["all", "none"] | int = "all",
    progress: Callable[[int, int], None] | None = None,
) -> FusionReport:
    """Replaces every mixture of experts of `model` by one node ``ort_hina::MoE``, and writes the result to `output`.

    Data files are neither changed nor copied: the result refers to them, so it lies in the same folder (or above).
    A layer that is not fully understood, or that fails its verification, stays as it is; the report says why.

    Args:
        model: the .onnx file.
        output: where to write; by default ``<name>_hina.onnx`` beside the model.
        verify: ``"all"`` runs every original layer next to its replacement in ONNX Runtime (it reads all the expert
            weights once), a number that many layers spread over the model, ``"none"`` no layer.
        progress: called with the layers done and the layers in all, before the first and after each.

    Returns:
        What was done. Where no layer was fused, nothing is written.

    Raises:
        OrtHinaError: the model or its data files are not as they should be, or the output cannot be written.
        ValueError: `verify` is none of the above.
    """
    _check_verify(verify)
    began = time.perf_counter()
    with _no_garbage_collection():
        report = _fuse(model, output, verify, progress or (lambda done, total: None))
    report.seconds = time.perf_counter() - began
    return report


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of objects that all stay: looking for garbage among them took a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _fuse(
    model: str | os.PathLike, output: str | os.PathLike | None, verify: str | int, progress: Callable[[int, int], None]
) -> FusionReport:
    source = read_model(model)
    destination = source.path.with_name(f"{source.path.stem}_hina.onnx") if output is None else Path(output)
    check_output(source, destination)
    graph = source.model.graph
    before = len(graph)
    remove_unused(graph)
    found = pipeline.find_layers(graph)
    warnings = [] if found else pipeline.hints(graph)
    sampled = _sampled([place for place, layer in enumerate(found) if isinstance(layer, MoELayer)], verify)
    layers = []
    progress(0, len(found))
    for place, layer in enumerate(found):
        layers.append(_fuse_layer(layer, source, place in sampled, warnings))
        progress(len(layers), len(found))
    report = FusionReport(os.fspath(source.path), None, layers, before, before, 0.0, warnings)
    if report.fused:
        remove_unused(graph)
        write_model(source, destination)
        report.output, report.nodes_after = os.fspath(destination), len(graph)
    return report


def _check_verify(verify: str | int) -> None:
    if verify in ("all", "none") or (isinstance(verify, int) and not isinstance(verify, bool) and verify >= 1):
        return
    raise ValueError(f'verify must be "all", "none" or the number of layers to verify (at least 1), got {verify!r}')


def _sampled(places: list[int], verify: str | int) -> set[int]:
    """Which of the layers to verify: a number of them is spread evenly, with the first and the last."""
    if verify == "none":
        return set()
    if verify == "all" or verify >= len(places):
        return set(places)
    if verify == 1:
        return {places[0]}
    return {places[round(i * (len(places) - 1) / (verify - 1))] for i in range(verify)}


def _fuse_layer(layer: MoELayer | Refused, source: ModelFile, verify: bool, warnings: list[str]) -> LayerReport:
    report = describe(layer)
    if isinstance(layer, Refused):
        warnings.append(f"{layer.where} stays unfused: {layer.reason}")
        return report
    try:
        node, windows = make_moe_node(layer)
    except Refusal as refusal:
        return _stays(report, str(refusal), warnings)
    report.windows = len(windows)
    if verify:
        verdict = verify_layer(layer, node, windows, source.model, source.folder)
        _note(report, verdict, warnings)
        if not verdict.allows_fusing:
            return _stays(report, f"verification failed: {verdict.detail}", warnings)
    put_moe_node(source.model.graph, layer, node, windows)
    report.fused, report.reason = True, None
    return report


def _stays(report: LayerReport, reason: str, warnings: list[str]) -> LayerReport:
    report.reason = reason
    warnings.append(f"{report.where} stays unfused: {reason}")
    return report


def _note(report: LayerReport, verdict: Verdict, warnings: list[str]) -> None:
    report.verification, report.difference = verdict.state, verdict.difference
    report.tolerance, report.verification_seconds = verdict.tolerance, verdict.seconds
    if verdict.allows_fusing and verdict.state != "verified":
        warnings.append(f"{report.where} was fused without proof by running: {verdict.detail}")


def describe(layer: MoELayer | Refused) -> LayerReport:
    """A report about a layer that is not fused (yet)."""
    if isinstance(layer, Refused):
        return LayerReport(layer.where, False, layer.reason, layer.experts_found, layer.num_experts, layer.k)
    tensors = {
        id(tensor): tensor
        for _, linears in layer.roles()
        for linear in linears
        for tensor in (linear.matrix.tensor, linear.bias)
        if tensor is not None
    }
    return LayerReport(
        where=layer.where,
        fused=False,
        reason=None,
        experts_found=layer.num_experts,
        num_experts=layer.num_experts,
        k=layer.k,
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        activation=layer.activation,
        dtype=layer.dtype.name.lower(),
        layout=layer.layout,
        bytes_referenced=sum(tensor.nbytes for tensor in tensors.values()),
        nodes=len(layer.nodes),
    )
