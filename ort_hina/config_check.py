"""What a model's config.json says about its experts, against what its graph holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .graph_passes.moe_layer import MoELayer, Refused

# How the families call the number of routed experts.
_NAMES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def config_warnings(folder: Path, layers: Sequence[MoELayer | Refused]) -> list[str]:
    """One warning if config.json in `folder` names another number of experts than the routers of the graph choose from, or
    names experts where the graph has no layer at all. Nothing if there is no such file, or it says nothing."""
    expected = experts_of_config(folder / "config.json")
    if expected is None or expected < 2:
        return []
    if not layers:
        return [f"config.json says that the model has {expected} experts, and no mixture of experts was found in the graph"]
    counts = sorted({layer.num_experts for layer in layers if layer.num_experts is not None} - {expected})
    if not counts:
        return []
    found = ", ".join(map(str, counts))
    return [f"config.json says that the model has {expected} experts, and routers of the graph choose from {found}"]


def experts_of_config(file: Path) -> int | None:
    """The number of routed experts in a transformers configuration, or None."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    parts = [content, content.get("text_config"), content.get("ffn_config")]
    for part in parts:
        for name in _NAMES if isinstance(part, dict) else ():
            value = part.get(name)
            if isinstance(value, list):  # one for each layer
                value = max((item for item in value if isinstance(item, int)), default=None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None
