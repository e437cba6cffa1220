"""`fuse`: one node for each mixture of experts."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from .config_check import config_warnings
from .errors import OrtHinaError
from .graph_passes import pipeline
from .graph_passes.cleanup import remove_unused
from .graph_passes.meanings import Refusal
from .graph_passes.moe_layer import MoELayer, Refused
from .graph_passes.moe_node import make_replacement, put_replacement
from .graph_passes.router_match import RouterMatch
from .graph_passes.router_node import make_router_node, put_router_node
from .model_file import ModelFile, check_output, read_model, write_model
from .report import FusionReport, LayerReport
from .graph_passes.slices import where_of
from .verify import Verdict, verify_layer
from .verify_router import verify_router

__all__ = ["FusionReport", "LayerReport", "fuse"]


def fuse(
    model: str | os.PathLike,
    output: str | os.PathLike | None = None,
    *,
    verify: Literal["all", "none"] | int = "all",
    allow_lost_experts: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> FusionReport:
    """Replaces every mixture of experts of `model` by one node ``ort_hina::MoE``, and writes the result to `output`.

    Its router becomes one node ``ort_hina::Router``, where it is proved equal; the shared experts and dense layers of such a
    model become a MoE with one expert that every token goes to.

    Data files are neither changed nor copied: the result refers to them, so it lies in the same folder (or above).
    A layer that is not fully understood, or that fails its verification, stays as it is; the report says why.

    Args:
        model: the .onnx file.
        output: where to write; by default ``<name>_hina.onnx`` beside the model.
        verify: ``"all"`` runs every original layer next to its replacement in ONNX Runtime (it reads all the expert
            weights once), a number that many layers spread over the model, ``"none"`` no layer.
        allow_lost_experts: fuse layers of which the file lacks experts (an exporter drops those that its example input did
            not reach). The result does what the file does: whoever chooses a lost expert gets nothing from it. By
            default such a layer stays as it is, with the list of its lost experts.
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
        report = _fuse(model, output, verify, allow_lost_experts, progress or (lambda done, total: None))
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
    model: str | os.PathLike,
    output: str | os.PathLike | None,
    verify: str | int,
    allow_lost_experts: bool,
    progress: Callable[[int, int], None],
) -> FusionReport:
    source = read_model(model)
    destination = source.path.with_name(f"{source.path.stem}_hina.onnx") if output is None else Path(output)
    check_output(source, destination)
    graph = source.model.graph
    before = len(graph)
    remove_unused(graph)
    found = pipeline.find(graph)
    report = FusionReport(os.fspath(source.path), None, [], before, before, 0.0, config_warnings(source.folder, found.routed))
    if not found.routed:
        report.warnings += pipeline.hints(graph)
    layers = [*found.routed, *found.always_on]
    sampled = _sampled([place for place, layer in enumerate(layers) if isinstance(layer, MoELayer)], verify)
    progress(0, len(layers))
    for place, layer in enumerate(layers):
        shared = place >= len(found.routed)
        if shared and not report.fused:
            break
        checked = _without_lost(layer, allow_lost_experts, report.warnings)
        fused = _fuse_layer(checked, source, place in sampled, report.warnings)
        fused.shared = shared
        (report.shared if shared else report.layers).append(fused)
        if fused.fused and fused.num_experts and isinstance(layer, MoELayer) and layer.is_routed:
            fused.router = _fuse_router(found.routers.get(layer.ids), source, place in sampled, report.warnings)
        progress(place + 1, len(layers))
    if report.fused:
        remove_unused(graph)
        write_model(source, destination)
        report.output, report.nodes_after = os.fspath(destination), len(graph)
    return report


def _without_lost(layer: MoELayer | Refused, allowed: bool, warnings: list[str]) -> MoELayer | Refused:
    """`layer`, or its refusal if it lacks experts and that is not `allowed`."""
    if isinstance(layer, Refused) or not layer.missing:
        return layer
    missing = ", ".join(map(str, layer.missing))
    held = layer.num_experts - len(layer.missing)
    lost = (
        f"the router chooses from {layer.num_experts} experts, and the graph holds {held}: missing {missing} "
        "(the export dropped experts that its example input did not reach, so the file is wrong for tokens that choose them)"
    )
    if allowed:
        warnings.append(f"{layer.where} was fused although {lost}: the result is as wrong as the file")
        return layer
    reason = f"{lost}; export the model again with other inputs, or fuse it as it is with allow_lost_experts"
    return Refused(layer.where, reason, layer.output.producer().name or "", held, layer.num_experts, layer.k, tuple(layer.missing))


def _fuse_router(match: RouterMatch | str | None, source: ModelFile, verify: bool, warnings: list[str]) -> str:
    """Puts the Router node in place of what the graph computes; returns ``fused``, or why that stays."""
    if match is None:
        return "fused"  # it came with the layer
    if isinstance(match, str):
        return f"as the graph computes it: {match}"
    where = where_of(match.ids.producer())
    node = make_router_node(match.call, f"{where}/Router", match.ids, match.weights)
    if verify:
        verdict = verify_router(match, node, source.model, source.folder)
        if verdict.state != "verified":
            return f"as the graph computes it: verification {verdict.state}: {verdict.detail}"
    put_router_node(source.model.graph, match, node)
    return "fused"


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
        replacement = make_replacement(layer)
    except Refusal as refusal:
        return _stays(report, str(refusal), warnings)
    report.windows = len(replacement.windows)
    if verify:
        verdict = verify_layer(layer, replacement, source.model, source.folder)
        _note(report, verdict, warnings)
        if not verdict.allows_fusing:
            return _stays(report, f"verification failed: {verdict.detail}", warnings)
    put_replacement(source.model.graph, layer, replacement)
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
        return LayerReport(
            layer.where,
            False,
            layer.reason,
            layer.experts_found,
            layer.num_experts,
            layer.k,
            missing_experts=list(layer.missing_experts),
        )
    tensors = {
        id(tensor): tensor
        for _, linears in layer.roles()
        for linear in linears
        if linear is not None
        for tensor in (linear.matrix.tensor, linear.bias and linear.bias.tensor)
        if tensor is not None
    }
    return LayerReport(
        where=layer.where,
        fused=False,
        reason=None,
        experts_found=layer.num_experts - len(layer.missing),
        num_experts=layer.num_experts,
        k=layer.k,
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        activation=layer.activation.name,
        dtype=layer.dtype.name.lower(),
        layout=layer.layout,
        bytes_referenced=sum(tensor.nbytes for tensor in tensors.values()),
        nodes=len(layer.nodes),
        pattern=layer.pattern,
        missing_experts=layer.missing,
    )
