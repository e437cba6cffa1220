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

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "fused": self.fused, "shared_fused": self.shared_fused}, indent=2)

    def to_text(self) -> str:
        lines = [_headline(self)]
        lines += [f"  {_layer_line(layer)}" for layer in (*self.layers, *self.shared)]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        if self.output is None:
            lines.append("  nothing was written")
        else:
            if self.norms or self.residual_sums:
                lines.append(f"  norms: {self.norms} became one node each, {self.residual_sums} joined with the sum before them")
            nodes = f"{self.nodes_before} nodes -> {self.nodes_after}"
            lines.append(f"  written: {self.output} ({nodes}; the weights stay in place)")
        return "\n".join(lines)


def _headline(report: FusionReport) -> str:
    if not report.layers:
        return f"{report.source}: no mixture-of-experts layer found ({report.seconds:.1f} s)"
    checking = sum(layer.verification_seconds for layer in report.layers)
    return (
        f"{report.source}: {report.fused} of {len(report.layers)} mixture-of-experts layers fused "
        f"({report.seconds:.1f} s, of which verification {checking:.1f} s)"
    )


def _layer_line(layer: LayerReport) -> str:
    if not layer.fused:
        return f"{layer.where}: refused: {layer.reason}"
    router = f"; router: {layer.router}" if layer.router else ""
    lost = f"; LOST experts {_numbers(layer.missing_experts)}" if layer.missing_experts else ""
    return f"{layer.where}: {layer_sizes(layer)}; {_verification(layer)}{router}{lost}"


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


def _verification(layer: LayerReport) -> str:
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
