"""Layers of which the file lacks experts: exporters that trace a model drop those that their example input did not reach."""

from __future__ import annotations

from .graph_passes.moe_layer import MoELayer, Refused


def lost_text(layer: MoELayer) -> str:
    """What `layer` lacks, for people."""
    missing = ", ".join(map(str, layer.missing))
    return (
        f"the router chooses from {layer.num_experts} experts, and the graph holds {layer.num_experts - len(layer.missing)}: "
        f"missing {missing} (the export dropped experts that its example input did not reach, so the file is wrong for tokens "
        "that choose them)"
    )


def refused_if_lost(layer: MoELayer | Refused) -> MoELayer | Refused:
    """`layer`, or its refusal if it lacks experts."""
    if isinstance(layer, Refused) or not layer.missing:
        return layer
    return Refused(
        layer.where,
        f"{lost_text(layer)}; export the model again with other inputs, or fuse it as it is with --allow-lost-experts "
        "(allow_lost_experts=True)",
        layer.output.producer().name or "",
        layer.num_experts - len(layer.missing),
        layer.num_experts,
        layer.k,
        tuple(layer.missing),
    )
