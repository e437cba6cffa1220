"""`fuse`: one node for each mixture of experts."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from .config_check import config_warnings
from .graph_passes import pipeline
from .graph_passes.attention_layer import AttentionLayer, RefusedAttention
from .graph_passes.attention_past import count_past_by_mask
from .graph_passes.cleanup import remove_unused
from .graph_passes.known_sizes import make_constant
from .graph_passes.moe_layer import MoELayer
from .graph_passes.residual_shapes import follow_residuals
from .graph_passes.shapes import Shapes
from .library import onnxruntime_version
from .model_file import check_output, read_model, write_model
from .report import AttentionReport, FusionReport, LayerReport
from .rewriting import Rewriter
from .tidying import tidy

__all__ = ["AttentionReport", "FusionReport", "LayerReport", "fuse"]


def fuse(
    model: str | os.PathLike,
    output: str | os.PathLike | None = None,
    *,
    verify: Literal["all", "none"] | int = "all",
    allow_lost_experts: bool = False,
    attention: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> FusionReport:
    """Replaces every mixture of experts of `model` by one node ``ort_hina::MoE``, and writes the result to `output`.

    Its router becomes one node ``ort_hina::Router``, where it is proved equal; the shared experts and dense layers of such a
    model become a MoE with one expert that every token goes to; the attention of each layer becomes one node
    ``ort_hina::GroupQueryAttention``.

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
        attention: False leaves attention as it was exported.
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
        report = _fuse(model, output, verify, allow_lost_experts, attention, progress or (lambda done, total: None))
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
    attention: bool,
    progress: Callable[[int, int], None],
) -> FusionReport:
    source = read_model(model)
    destination = source.path.with_name(f"{source.path.stem}_hina.onnx") if output is None else Path(output)
    check_output(source, destination)
    graph = source.model.graph
    before = len(graph)
    remove_unused(graph)
    found = pipeline.find(graph, onnxruntime_version())
    report = FusionReport(
        os.fspath(source.path), None, [], before, before, 0.0, config_warnings(source.folder, found.routed)
    )
    if not found.routed:
        report.warnings += pipeline.hints(source.model)
    if not attention:
        found.attention = []
    layers = [*found.routed, *found.always_on]
    sampled = _sampled([place for place, layer in enumerate(layers) if isinstance(layer, MoELayer)], verify)
    rewriter = Rewriter(source, found, allow_lost_experts, report.warnings)
    progress(0, len(layers))
    for place, layer in enumerate(layers):
        shared = place >= len(found.routed)
        if shared and not report.fused:
            break  # in a model without routed layers dense ones are none of our business
        done = rewriter.fuse(layer, place in sampled)
        done.shared = shared
        (report.shared if shared else report.layers).append(done)
        progress(place + 1, len(layers))
    if report.fused:
        report.attention = _fuse_attention(rewriter, found.attention, verify)
        remove_unused(graph)
        if report.attention_fused:
            report.one_buffer = count_past_by_mask(graph)
        graph.sort()
        _settle_shapes(graph)
        tidied = tidy(source, verify != "none")
        report.norms, report.residual_sums = tidied.norms, tidied.sums
        report.warnings += tidied.warnings
        write_model(source, destination)
        report.output, report.nodes_after = os.fspath(destination), len(graph)
    return report


def _fuse_attention(
    rewriter: Rewriter, layers: list[AttentionLayer | RefusedAttention], verify: str | int
) -> list[AttentionReport]:
    sampled = _sampled([place for place, layer in enumerate(layers) if isinstance(layer, AttentionLayer)], verify)
    return [rewriter.fuse_attention(layer, place in sampled) for place, layer in enumerate(layers)]


def _settle_shapes(graph: ir.Graph) -> None:
    """Without the nodes that compute shapes which are known."""
    shapes = Shapes()
    follow_residuals(graph, shapes)
    make_constant(graph, shapes)
    remove_unused(graph)


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
