"""Random experts of a MoE node: the windows and attributes that the node is given, and their values as float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .elements import size_of
from .layouts import PAIRED, store
from .windows import WindowWriter

ROLES = ("gate", "up", "down")


@dataclass
class MoeWeights:
    """What a node holds.

    Attributes:
        attributes: as docs/operators.md names them.
        windows: (uint8 bytes, element type) of each.
        matrices: role → float64 [experts, k, n]; no ``up`` for a plain FFN.
        biases: role → float64 [experts, n]; empty without biases.
    """

    attributes: dict[str, Any]
    windows: list[tuple[np.ndarray, str]]
    matrices: dict[str, np.ndarray]
    biases: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class MoeSpec:
    """What to make.

    Attributes:
        windows: element types of the windows that hold gate, up and their biases; expert e lies in window e modulo
            their number.
        down_windows: the same for down; None: the same windows.
        missing: experts without weights.
        padding: elements between the rows of each matrix.
        scale: of gate and up, beyond what keeps their outputs near 1.
        extra: further attributes (``activation_alpha``, …).
    """

    experts: int
    hidden: int
    intermediate: int
    gate_up_layout: str = "nk"
    down_layout: str = "nk"
    windows: Sequence[str] = ("float",)
    down_windows: Sequence[str] | None = None
    gated: bool = True
    bias: bool = False
    missing: frozenset[int] = frozenset()
    padding: int = 0
    scale: float = 1.0
    activation: str = "silu"
    extra: dict[str, Any] = field(default_factory=dict)


def make_weights(spec: MoeSpec, seed: int = 0) -> MoeWeights:
    return _Maker(spec, seed).make()


class _Maker:
    def __init__(self, spec: MoeSpec, seed: int) -> None:
        self.spec = spec
        self.rng = np.random.default_rng(seed)
        down_kinds = spec.windows if spec.down_windows is None else spec.down_windows
        self.gate_up_windows = list(range(len(spec.windows)))
        self.down_windows = [i + (0 if spec.down_windows is None else len(spec.windows)) for i in range(len(down_kinds))]
        kinds = [*spec.windows, *(spec.down_windows or ())]
        self.writers = [WindowWriter(kind, self.rng) for kind in kinds]
        self.lists: dict[str, list[int]] = {}
        self.attributes: dict[str, Any] = {}

    def make(self) -> MoeWeights:
        spec = self.spec
        roles = ROLES if spec.gated else ("gate", "down")
        matrices = {role: np.full((spec.experts, *self._shape(role)), np.nan) for role in roles}
        biases = {role: np.full((spec.experts, self._shape(role)[1]), np.nan) for role in roles} if spec.bias else {}
        for expert in range(spec.experts):
            if expert in spec.missing:
                for role in roles:
                    self._record(role, "offsets", -1)
                    self._record(role, "windows", 0)
                    if spec.bias:
                        self._record(role, "bias_offsets", -1)
                        self._record(role, "bias_windows", 0)
                continue
            self._gate_up(expert, matrices, biases)
            self._place(["down"], spec.down_layout, self.down_windows[expert % len(self.down_windows)], expert, matrices)
            if spec.bias:
                self._place_bias(["down"], self.down_windows[expert % len(self.down_windows)], expert, biases)
        self.attributes |= {
            "num_experts": spec.experts,
            "hidden_size": spec.hidden,
            "intermediate_size": spec.intermediate,
            "activation": spec.activation,
            **self.lists,
            **spec.extra,
        }
        return MoeWeights(self.attributes, [(w.bytes(), w.kind) for w in self.writers], matrices, biases)

    def _gate_up(self, expert: int, matrices: dict, biases: dict) -> None:
        spec = self.spec
        window = self.gate_up_windows[expert % len(self.gate_up_windows)]
        paired = spec.gate_up_layout in PAIRED
        groups = [["gate", "up"]] if paired else [["gate"], ["up"]] if spec.gated else [["gate"]]
        for group in groups:
            self._place(group, spec.gate_up_layout, window, expert, matrices)
            if spec.bias:
                self._place_bias(group, window, expert, biases)

    def _place(self, roles: list[str], layout: str, window: int, expert: int, matrices: dict) -> None:
        k, n = self._shape(roles[0])
        scale = (self.spec.scale if roles[0] != "down" else 1.0) / np.sqrt(k)
        values = [(scale * self.rng.standard_normal((k, n))).astype(np.float32) for _ in roles]
        stored = store(values, layout, self.spec.padding)
        writer = self.writers[window]
        offset, kept = writer.place(stored.array)
        along_k, along_n = stored.strides
        for role, start in zip(roles, stored.starts):
            at = start + along_k * np.arange(k)[:, None] + along_n * np.arange(n)[None, :]
            matrices[role][expert] = kept[at]
            self._record(role, "offsets", offset + start * size_of(writer.kind))
            self._record(role, "windows", window)
            self.attributes[f"{role}_strides"] = list(stored.strides)

    def _place_bias(self, roles: list[str], window: int, expert: int, biases: dict) -> None:
        n = self._shape(roles[0])[1]
        interleaved = len(roles) == 2 and self.spec.gate_up_layout.endswith("interleaved")
        values = self.rng.standard_normal((len(roles), n)).astype(np.float32)
        writer = self.writers[window]
        offset, kept = writer.place(values.T if interleaved else values)
        for i, role in enumerate(roles):
            biases[role][expert] = kept[:, i] if interleaved else kept[i]
            self._record(role, "bias_offsets", offset + (i if interleaved else i * n) * size_of(writer.kind))
            self._record(role, "bias_windows", window)
            if interleaved:
                self.attributes[f"{role}_bias_stride"] = 2

    def _shape(self, role: str) -> tuple[int, int]:
        spec = self.spec
        return (spec.intermediate, spec.hidden) if role == "down" else (spec.hidden, spec.intermediate)

    def _record(self, role: str, name: str, value: int) -> None:
        self.lists.setdefault(f"{role}_{name}", []).append(int(value))
