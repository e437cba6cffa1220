"""What `fuse` did, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field


@dataclass
class LayerReport:
    """One MoE layer of the model."""

    where: str
    """A path for people, taken from node names; nothing depends on it."""
    fused: bool
    reason: str | None
    """Why it was not fused."""
    experts_found: int
    num_experts: int | None
    """How many experts the router chooses from; None: unknown, or there is no router."""
    k: int | None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    activation: str | None = None
    dtype: str | None = None
    layout: str | None = None
    """How the matrices are stored: ``[K, N]`` or ``[N, K]``, N being the outputs."""
    bytes_referenced: int = 0
    """Size of the layer's own weights, in bytes."""
    windows: int = 0
    nodes: int = 0
    """How many nodes compute the layer in the source."""
    verification: str = "not asked for"
    """``verified``, ``failed``, ``inconclusive``, ``not run`` or ``not asked for``."""
    difference: float | None = None
    """The largest difference found by the verification, relative to the output's scale."""
    tolerance: float | None = None
    verification_seconds: float = 0.0
    pattern: str = ""
    """How the graph spells it, in a few words."""
    missing_experts: list[int] = field(default_factory=list)
    """Ids that the router may choose, and whose weights the file does not hold."""
    router: str = ""
    """``fused``, or why the router stays as the graph computes it; empty if the layer has none."""
    shared: bool = False
    """Not routed: a network that every token goes through (a shared expert, a dense layer)."""


@dataclass
class AttentionReport:
    """Attention of one layer."""

    where: str
    fused: bool
    reason: str | None
    """Why it was not fused."""
    num_heads: int | None = None
    kv_num_heads: int | None = None
    head_size: int | None = None
    value_head_size: int | None = None
    dtype: str | None = None
    rotary: str = ""
    """``half`` or ``interleaved``: the node turns queries and keys. Empty: the graph does, or nothing does."""
    normalised: bool = False
    """The node normalises queries, keys or both."""
    sinks: bool = False
    window: int | None = None
    mask: str = ""
    """``causal``, ``causal and attention_mask``, ``none``, or ``as the graph computes it``."""
    notes: list[str] = field(default_factory=list)
    nodes: int = 0
    """How many nodes compute it in the source, those that layers share (the mask) included."""
    verification: str = "not asked for"
    """As in `LayerReport`."""
    difference: float | None = None
    tolerance: float | None = None
    verification_seconds: float = 0.0


@dataclass
class FusionReport:
    """The result of `fuse`. `output` is None when nothing was written."""

    source: str
    output: str | None
    layers: list[LayerReport]
    nodes_before: int
    nodes_after: int
    seconds: float
    warnings: list[str] = field(default_factory=list)

    shared: list[LayerReport] = field(default_factory=list)
    """Shared experts and dense layers: fused where a router's layers are."""
    norms: int = 0
    """How many root-mean-square norms became one node each."""
    residual_sums: int = 0
    """How many residual sums were joined with the norm behind them."""
    attention: list[AttentionReport] = field(default_factory=list)
    """Attention: fused where a router's layers are."""
    one_buffer: str | None = None
    """Why one buffer cannot be bound as past and present of the fused model's caches; None: it can, or there are none."""

    @property
    def fused(self) -> int:
        """How many layers with a router were fused."""
        return sum(layer.fused for layer in self.layers)

    @property
    def shared_fused(self) -> int:
        return sum(layer.fused for layer in self.shared)

    @property
    def routers_fused(self) -> int:
        return sum(layer.router == "fused" for layer in self.layers)

    @property
    def attention_fused(self) -> int:
        return sum(layer.fused for layer in self.attention)

    def to_json(self) -> str:
        counts = {name: getattr(self, name) for name in ("fused", "shared_fused", "attention_fused")}
        return json.dumps({**dataclasses.asdict(self), **counts}, indent=2)

    def to_text(self) -> str:
        lines = [_headline(self)]
        lines += [f"  {_layer_line(layer)}" for layer in (*self.layers, *self.shared)]
        lines += [f"  {_attention_line(layer)}" for layer in self.attention]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        if self.output is None:
            lines.append("  nothing was written")
        else:
            if self.norms or self.residual_sums:
                lines.append(
                    f"  norms: {self.norms} became one node each, {self.residual_sums} joined with the sum before them"
                )
            nodes = f"{self.nodes_before} nodes -> {self.nodes_after}"
            if self.attention_fused:
                reason = (
                    f" cannot be bound as past and present: {self.one_buffer}"
                    if self.one_buffer
                    else " may be bound as past and present"
                )
                lines.append(f"  caches: one buffer{reason}")
            lines.append(f"  written: {self.output} ({nodes}; the weights stay in place)")
        return "\n".join(lines)


def _headline(report: FusionReport) -> str:
    if not report.layers:
        return f"{report.source}: no mixture-of-experts layer found ({report.seconds:.1f} s)"
    checking = sum(layer.verification_seconds for layer in (*report.layers, *report.shared, *report.attention))
    attention = f", attention of {report.attention_fused} of {len(report.attention)}" if report.attention else ""
    return (
        f"{report.source}: {report.fused} of {len(report.layers)} mixture-of-experts layers fused{attention} "
        f"({report.seconds:.1f} s, of which verification {checking:.1f} s)"
    )


def _layer_line(layer: LayerReport) -> str:
    if not layer.fused:
        return f"{layer.where}: refused: {layer.reason}"
    router = f"; router: {layer.router}" if layer.router else ""
    lost = f"; LOST experts {_numbers(layer.missing_experts)}" if layer.missing_experts else ""
    return f"{layer.where}: {layer_sizes(layer)}; {_verification(layer)}{router}{lost}"


def _attention_line(layer: AttentionReport) -> str:
    if not layer.fused:
        return f"{layer.where}: attention refused: {layer.reason}"
    notes = "".join(f"; {note}" for note in layer.notes)
    return f"{layer.where}: attention, {attention_sizes(layer)}; {_verification(layer)}{notes}"


def attention_sizes(layer: AttentionReport) -> str:
    """One line about attention that is understood."""
    value = "" if layer.value_head_size == layer.head_size else f" (values {layer.value_head_size})"
    parts = [
        f"{layer.num_heads} heads for {layer.kv_num_heads} of {layer.head_size}{value}",
        f"{layer.dtype}",
        f"mask: {layer.mask}",
    ]
    parts += [f"window {layer.window}"] * (layer.window is not None)
    parts += [f"rotary ({layer.rotary})"] * bool(layer.rotary) + ["q/k norm"] * layer.normalised + ["sinks"] * layer.sinks
    return ", ".join(parts)


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def layer_sizes(layer: LayerReport) -> str:
    """One line about a layer that is understood."""
    experts = "every token" if layer.shared else f"{layer.experts_found} experts, top {layer.k}"
    return (
        f"{experts}, {layer.hidden_size} -> {layer.intermediate_size}, {layer.activation}, "
        f"{layer.dtype} {layer.layout}, {human_bytes(layer.bytes_referenced)} in {layer.windows} window"
        f"{'' if layer.windows == 1 else 's'}"
    )


def _verification(layer: LayerReport | AttentionReport) -> str:
    if layer.difference is None:
        return f"verification: {layer.verification}"
    return f"{layer.verification}: difference {layer.difference:.1e} of the output's scale (allowed {layer.tolerance:.1e})"


def human_bytes(count: int) -> str:
    """A size for people: powers of 1000, as disks and model cards have them."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
