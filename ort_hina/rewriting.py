"""Puts the fused nodes into the graph, one layer after the other, and tells what became of each."""

from __future__ import annotations

import onnx_ir as ir

from .graph_passes.attention_layer import AttentionLayer, RefusedAttention
from .graph_passes.attention_node import make_attention_node, put_attention_node, replaced_values
from .graph_passes.domain import DOMAIN
from .graph_passes.moe_layer import MoELayer, Refused
from .graph_passes.moe_node import make_replacement, put_replacement
from .graph_passes.pipeline import Found
from .graph_passes.router_match import RouterMatch
from .graph_passes.router_node import make_router_node, put_router_node
from .graph_passes.slices import where_of
from .lost_experts import lost_text, refused_if_lost
from .model_file import ModelFile
from .report import AttentionReport, LayerReport
from .verify import Verdict, verify_layer
from .verify_attention import verify_attention
from .verify_router import verify_router


class Rewriter:
    """Fuses the layers of one model, in order."""

    def __init__(self, source: ModelFile, found: Found, allow_lost_experts: bool, warnings: list[str]) -> None:
        self._source = source
        self._found = found
        self._allow_lost_experts = allow_lost_experts
        self._warnings = warnings
        self._replaced: dict[ir.Value, ir.Value] = {}
        """Values that another one stands for since their layer or router was fused. Layers were found before that."""
        self._names = {node.name for node in source.model.graph if node.domain == DOMAIN}

    def fuse(self, layer: MoELayer | Refused, verify: bool) -> LayerReport:
        """Fuses `layer` and its router, or leaves either as it is; the report says which, and why."""
        report = describe(layer)
        checked = layer if self._allow_lost_experts else refused_if_lost(layer)
        if isinstance(checked, Refused):
            return self._stays(report, checked.reason)
        layer = checked.with_values(self._current)
        replacement = make_replacement(layer)
        report.windows = len(replacement.windows)
        if verify:
            verdict = verify_layer(layer, replacement, self._source.model, self._source.folder)
            self._note(report, verdict)
            if not verdict.allows_fusing:
                return self._stays(report, f"verification failed: {verdict.detail}")
        for node in replacement.nodes:
            self._make_unique(node)
        put_replacement(self._source.model.graph, layer, replacement)
        self._replaced[layer.output] = replacement.output
        report.fused, report.reason = True, None
        if layer.missing:
            self._warnings.append(f"{layer.where} was fused although {lost_text(layer)}: the result is as wrong as the file")
        if layer.is_routed:
            report.router = self._fuse_router(self._found.router_of(checked), verify)
        return report

    def fuse_attention(self, layer: AttentionLayer | RefusedAttention, verify: bool) -> AttentionReport:
        """Fuses `layer`, or leaves it as it is; the report says which, and why."""
        report = describe_attention(layer)
        if isinstance(layer, RefusedAttention):
            return report
        layer = layer.with_values(self._current)
        node = make_attention_node(layer)
        if verify:
            verdict = verify_attention(layer, node, self._source.model, self._source.folder, shapes=self._found.shapes)
            report.verification, report.difference = verdict.state, verdict.difference
            report.tolerance, report.verification_seconds = verdict.tolerance, verdict.seconds
            if not verdict.allows_fusing:
                report.reason = f"verification failed: {verdict.detail}"
                self._warnings.append(f"attention of {report.where} stays unfused: {report.reason}")
                return report
            if verdict.state != "verified":
                self._warnings.append(f"attention of {report.where} was fused without proof by running: {verdict.detail}")
        self._make_unique(node)
        results = put_attention_node(self._source.model.graph, layer, node)
        self._replaced |= dict(zip(replaced_values(layer), results, strict=True))
        report.fused, report.reason = True, None
        return report

    def _current(self, value: ir.Value | None) -> ir.Value | None:
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def _fuse_router(self, match: RouterMatch | str | None, verify: bool) -> str:
        """Puts the Router node in place of what the graph computes; returns ``fused``, or why that stays."""
        if isinstance(match, str):
            return f"as the graph computes it: {match}"
        if match is None or match.ids in self._replaced:
            return "fused"  # it came with the layer, or with another one that shares it
        node = make_router_node(match.call, f"{where_of(match.ids.producer())}/Router", match.ids, match.weights)
        if verify:
            verdict = verify_router(match, node, self._source.model, self._source.folder, shapes=self._found.shapes)
            if verdict.state != "verified":
                return f"as the graph computes it: verification {verdict.state}: {verdict.detail}"
        self._make_unique(node)
        put_router_node(self._source.model.graph, match, node)
        self._replaced |= dict(zip((match.ids, match.weights), node.outputs, strict=True))
        return "fused"

    def _make_unique(self, node: ir.Node) -> None:
        """ONNX Runtime does not load a model in which two nodes have one name."""
        if node.name in self._names:
            node.name = f"{node.name} {node.outputs[0].name}"
        self._names.add(node.name)

    def _stays(self, report: LayerReport, reason: str) -> LayerReport:
        report.reason = reason
        self._warnings.append(f"{report.where} stays unfused: {reason}")
        return report

    def _note(self, report: LayerReport, verdict: Verdict) -> None:
        report.verification, report.difference = verdict.state, verdict.difference
        report.tolerance, report.verification_seconds = verdict.tolerance, verdict.seconds
        if verdict.allows_fusing and verdict.state != "verified":
            self._warnings.append(f"{report.where} was fused without proof by running: {verdict.detail}")


def describe_attention(layer: AttentionLayer | RefusedAttention) -> AttentionReport:
    """A report about attention that is not fused (yet)."""
    if isinstance(layer, RefusedAttention):
        return AttentionReport(layer.where, False, layer.reason)
    masks = {(True, False): "causal", (True, True): "causal and attention_mask", (False, False): "none"}
    rotary = "interleaved" if layer.rotary_interleaved else "half"
    return AttentionReport(
        where=layer.where,
        fused=False,
        reason=None,
        num_heads=layer.num_heads,
        kv_num_heads=layer.kv_num_heads,
        head_size=layer.head_size,
        value_head_size=layer.value_head_size,
        dtype=layer.dtype.name.lower() if layer.dtype is not None else None,
        rotary=rotary if layer.cos_cache is not None else "",
        normalised=layer.q_norm_weight is not None or layer.k_norm_weight is not None,
        sinks=layer.head_sink is not None,
        window=None if layer.local_window_size == -1 else layer.local_window_size,
        mask=masks[layer.causal, layer.attention_mask is not None]
        if layer.attention_bias is None
        else "as the graph computes it",
        notes=list(layer.notes),
        nodes=len(layer.nodes),
    )


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
