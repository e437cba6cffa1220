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
        sigmoid_gates: float64 [experts, hidden], NaN for an expert without; None: no expert has one.
    """

    attributes: dict[str, Any]
    windows: list[tuple[np.ndarray, str]]
    matrices: dict[str, np.ndarray]
    biases: dict[str, np.ndarray] = field(default_factory=dict)
    sigmoid_gates: np.ndarray | None = None

    def kind(self, role: str, expert: int) -> str:
        """The element type of this matrix."""
        windows = self.attributes.get(f"{role}_windows")
        return self.windows[windows[expert] if windows else 0][1]


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
        sigmoid_gates: experts with a sigmoid gate, which lies in the window of down; None: no such attribute.
        sigmoid_gate_stride: of their vectors.
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
    sigmoid_gates: frozenset[int] | None = None
    sigmoid_gate_stride: int = 1
    padding: int = 0
    scale: float = 1.0
    activation: str = "silu"
    extra: dict[str, Any] = field(default_factory=dict)


def make_weights(spec: MoeSpec, seed: int = 0) -> MoeWeights:
    """Random experts. Specs that differ in layout only hold the same values, where their types are the same."""
    return _Maker(spec, seed).make()


class _Maker:
    def __init__(self, spec: MoeSpec, seed: int) -> None:
        self.spec = spec
        self.roles = ROLES if spec.gated else ("gate", "down")
        self.values = np.random.default_rng([seed, 0])
        gaps = np.random.default_rng([seed, 1])
        self.writers = [WindowWriter(kind, gaps) for kind in (*spec.windows, *(spec.down_windows or ()))]
        self.attributes: dict[str, Any] = {}
        shapes = {role: self._shape(role) for role in self.roles}
        self.matrices = {role: np.full((spec.experts, *shape), np.nan) for role, shape in shapes.items()}
        self.biases = {role: np.full((spec.experts, shape[1]), np.nan) for role, shape in shapes.items() if spec.bias}

    def make(self) -> MoeWeights:
        spec = self.spec
        for expert in range(spec.experts):
            matrices = {role: self._random_matrix(role) for role in self.roles}
            biases = {role: self.values.standard_normal(self._shape(role)[1]).astype(np.float32) for role in self.roles}
            for group in self._groups():
                if expert in spec.missing:
                    self._miss(group)
                    continue
                self._place(group, expert, [matrices[role] for role in group])
                if spec.bias:
                    self._place_bias(group, expert, [biases[role] for role in group])
        gates = None if spec.sigmoid_gates is None else self._place_sigmoid_gates()
        self.attributes |= {
            "num_experts": spec.experts,
            "hidden_size": spec.hidden,
            "intermediate_size": spec.intermediate,
            "activation": spec.activation,
            **spec.extra,
        }
        windows = [(writer.bytes(), writer.kind) for writer in self.writers]
        return MoeWeights(self.attributes, windows, self.matrices, self.biases, gates)

    def _place_sigmoid_gates(self) -> np.ndarray:
        spec, stride = self.spec, self.spec.sigmoid_gate_stride
        gates = np.full((spec.experts, spec.hidden), np.nan)
        for expert in range(spec.experts):
            values = self.values.standard_normal(spec.hidden) * (2 / np.sqrt(spec.hidden))
            window, writer = self._window("down", expert)
            offset = -1
            if expert in spec.sigmoid_gates:
                strided = np.full((spec.hidden - 1) * stride + 1, np.nan, np.float32)
                strided[::stride] = values
                offset, kept = writer.place(strided)
                gates[expert] = kept[::stride]
            self._record("sigmoid_gate_offsets", offset)
            self._record("sigmoid_gate_windows", window)
        self.attributes["sigmoid_gate_stride"] = stride
        return gates

    def _groups(self) -> list[list[str]]:
        """The matrices that lie in one array each."""
        if self.spec.gate_up_layout in PAIRED:
            return [["gate", "up"], ["down"]]
        return [[role] for role in self.roles]

    def _place(self, roles: list[str], expert: int, values: list[np.ndarray]) -> None:
        k, n = values[0].shape
        layout = self.spec.down_layout if roles == ["down"] else self.spec.gate_up_layout
        stored = store(values, layout, self.spec.padding)
        window, writer = self._window(roles[0], expert)
        offset, kept = writer.place(stored.array)
        along_k, along_n = stored.strides
        for role, start in zip(roles, stored.starts):
            at = start + along_k * np.arange(k)[:, None] + along_n * np.arange(n)[None, :]
            self.matrices[role][expert] = kept[at]
            self._record(f"{role}_offsets", offset + start * size_of(writer.kind))
            self._record(f"{role}_windows", window)
            self.attributes[f"{role}_strides"] = list(stored.strides)

    def _place_bias(self, roles: list[str], expert: int, values: list[np.ndarray]) -> None:
        interleaved = len(roles) == 2 and self.spec.gate_up_layout.endswith("interleaved")
        window, writer = self._window(roles[0], expert)
        offset, kept = writer.place(np.stack(values, axis=1 if interleaved else 0))
        for i, role in enumerate(roles):
            self.biases[role][expert] = kept[:, i] if interleaved else kept[i]
            start = i if interleaved else i * len(values[0])
            self._record(f"{role}_bias_offsets", offset + start * size_of(writer.kind))
            self._record(f"{role}_bias_windows", window)
            if interleaved:
                self.attributes[f"{role}_bias_stride"] = 2

    def _miss(self, roles: list[str]) -> None:
        for role in roles:
            for part in ("", "bias_") if self.spec.bias else ("",):
                self._record(f"{role}_{part}offsets", -1)
                self._record(f"{role}_{part}windows", 0)

    def _window(self, role: str, expert: int) -> tuple[int, WindowWriter]:
        first, count = 0, len(self.spec.windows)
        if role == "down" and self.spec.down_windows is not None:
            first, count = count, len(self.spec.down_windows)
        window = first + expert % count
        return window, self.writers[window]

    def _random_matrix(self, role: str) -> np.ndarray:
        k, n = self._shape(role)
        scale = (1.0 if role == "down" else self.spec.scale) / np.sqrt(k)
        return (scale * self.values.standard_normal((k, n))).astype(np.float32)

    def _shape(self, role: str) -> tuple[int, int]:
        spec = self.spec
        return (spec.intermediate, spec.hidden) if role == "down" else (spec.hidden, spec.intermediate)

    def _record(self, name: str, value: int) -> None:
        self.attributes.setdefault(name, []).append(int(value))
