"""The demo's result: one table, and whether the three wrote the same text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .measurement import Measurement

_COLUMNS = ("PyTorch", "ONNX unfused", "ONNX fused")


@dataclass(frozen=True)
class DemoReport:
    """Three measurements of the same greedy continuation, and the circumstances.

    Attributes:
        model: the model in words.
        layers: its decoder layers.
        weights_bytes: size of its weights.
        prompt_tokens, new_tokens: lengths.
        kernels: the kernels that the fused model ran with.
        threads: CPUs that each process could use.
        fusion: what the fusion reported, in words.
    """

    model: str
    layers: int
    weights_bytes: int
    prompt_tokens: int
    new_tokens: int
    kernels: str
    threads: int
    fusion: str
    pytorch: Measurement
    unfused: Measurement
    fused: Measurement

    @property
    def tokens_identical(self) -> bool:
        """All three wrote all tokens, and the same ones."""
        wanted = self.pytorch.tokens
        return len(wanted) == self.new_tokens and self.unfused.tokens == wanted and self.fused.tokens == wanted

    def to_json(self) -> str:
        """Everything, with `tokens_identical`, as a JSON object."""
        return json.dumps({**asdict(self), "tokens_identical": self.tokens_identical}, indent=2)

    def to_text(self) -> str:
        """The table, with a line above that says what ran, and where texts differ, a line that says where."""
        head = (
            f"{self.model}, {self.weights_bytes / 1e6:.0f} MB of weights; {self.prompt_tokens} prompt tokens, "
            f"{self.new_tokens} new ones; {self.threads} CPUs, {self.kernels} kernels"
        )
        return "\n".join([head, self.fusion, "", *_table(self._rows()), *self._differences()])

    def _runs(self) -> tuple[Measurement, ...]:
        return self.pytorch, self.unfused, self.fused

    def _rows(self) -> list[tuple[str, ...]]:
        runs = self._runs()
        return [
            ("", *_COLUMNS),
            ("nodes", *(f"{run.nodes:,}" if run.nodes is not None else "–" for run in runs)),
            ("nodes in each layer", *(self._nodes_per_layer(run) for run in runs)),
            ("session creation, s", *(f"{run.load_seconds:.2f}" for run in runs)),
            ("peak memory, MB", *(_megabytes(run.peak_bytes) for run in runs)),
            ("  of it before loading, MB", *(_megabytes(run.resident_before_bytes) for run in runs)),
            ("private memory of the model, MB", *(_megabytes(run.private_bytes) for run in runs)),
            ("prefill, tokens/s", *(f"{run.prefill_tokens_per_second:.1f}" for run in runs)),
            ("decode, tokens/s", *(f"{run.decode_tokens_per_second:.1f}" for run in runs)),
            ("tokens identical", "reference", *(_yes_no(run.tokens == self.pytorch.tokens) for run in runs[1:])),
        ]

    def _nodes_per_layer(self, run: Measurement) -> str:
        return "–" if run.layer_nodes is None else f"{run.layer_nodes / self.layers:,.0f}"

    def _differences(self) -> list[str]:
        lines = [f"tokens identical: {_yes_no(self.tokens_identical)}"]
        for name, run in zip(_COLUMNS[1:], (self.unfused, self.fused), strict=True):
            if run.tokens != self.pytorch.tokens:
                lines.append(f"{name} differs from PyTorch first at new token {self._first_difference(run)}")
        return lines

    def _first_difference(self, run: Measurement) -> int:
        """The first position (from 1) where the texts differ, or where the shorter one ends."""
        pairs = zip(run.tokens, self.pytorch.tokens, strict=False)
        shorter = min(len(run.tokens), len(self.pytorch.tokens))
        return next((position for position, (got, wanted) in enumerate(pairs) if got != wanted), shorter) + 1


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:], ""]


def _megabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:,.0f}"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
