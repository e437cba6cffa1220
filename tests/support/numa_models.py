"""Models for the NUMA lab: one MoE node whose windows are large enough to lie on several nodes."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from .moe_native import expected
from .moe_reference import Bounded
from .moe_session import external_windows, inline_windows, model_for
from .moe_tokens import MoeTokens, make_tokens, random_ids
from .moe_weights import MoeSpec, MoeWeights, make_weights

# The level of the CPUs that QEMU emulates.
GUEST_LEVEL = "avx2"
# Bytes of a window's begin and end by which the guest finds it in memory.
SIGNATURE = 64


@dataclass(frozen=True)
class NumaModel:
    """A model in a folder: ``external.onnx`` with its data file, ``inline.onnx``, ``feeds.npz`` and ``manifest.json``."""

    folder: Path
    weights: MoeWeights
    tokens: MoeTokens

    def expected(self) -> Bounded:
        """What the guest's CPU must answer."""
        return expected(self.weights, self.tokens, GUEST_LEVEL)

    def decode(self, y: str) -> np.ndarray:
        """An output as the guest reports it, float64 [T, H]."""
        return np.frombuffer(base64.b64decode(y), np.float32).reshape(self.tokens.x.shape).astype(np.float64)


def write_model(folder: Path, spec: MoeSpec, *, tokens: int = 4, k: int = 2, offset: int = 0) -> NumaModel:
    """Makes the model in `folder`; each window begins at byte `offset` of its file."""
    folder.mkdir(parents=True)
    weights = make_weights(spec)
    inputs = make_tokens(random_ids(tokens, min(k, spec.experts), spec.experts), spec.hidden)
    external = external_windows(weights, folder, offset)
    onnx.save(model_for(weights, inputs, initializers=external), folder / "external.onnx")
    onnx.save(model_for(weights, inputs, initializers=inline_windows(weights)), folder / "inline.onnx")
    feeds = {"X": inputs.x.astype(np.float32), "ids": inputs.ids, "routing": inputs.routing.astype(np.float32)}
    np.savez(folder / "feeds.npz", **feeds)
    windows = [
        {
            "name": tensor.name,
            "file": f"data{i}.bin",
            "offset": offset,
            "size": data.size,
            # Backwards, so that the guest does not find these bytes themselves.
            "head_reversed": data[:SIGNATURE][::-1].tobytes().hex(),
            "tail_reversed": data[-SIGNATURE:][::-1].tobytes().hex(),
        }
        for i, (tensor, (data, _)) in enumerate(zip(external, weights.windows))
    ]
    (folder / "manifest.json").write_text(json.dumps({"windows": windows}))
    return NumaModel(folder, weights, inputs)
