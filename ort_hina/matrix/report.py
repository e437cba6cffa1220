"""The matrix for people and for programs."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass

from .cell import Cell

_MARKS = {"right": "right", "refused": "refused", "export wrong": "export!", "not exported": "-", "WRONG": "WRONG"}


@dataclass
class Matrix:
    """Every cell, in the order in which they were computed."""

    cells: list[Cell]

    @property
    def wrong(self) -> list[Cell]:
        """The cells in which fusing made a file wrong."""
        return [cell for cell in self.cells if cell.state == "WRONG"]

    def to_json(self) -> str:
        return json.dumps({"cells": [dataclasses.asdict(cell) for cell in self.cells], "wrong": len(self.wrong)}, indent=1)

    def to_text(self) -> str:
        """Families by exporters, with the exporters' default opset and float32, and a count of all cells."""
        return f"{_grid(self.cells)}\n\n{_summary(self.cells)}"


def line(cell: Cell) -> str:
    """One cell, on one line."""
    opset = "default" if cell.opset is None else str(cell.opset)
    return f"{cell.family:22} {cell.exporter:21} {opset:7} {cell.dtype:4}  {cell.state}: {cell.detail}"


def _grid(cells: list[Cell]) -> str:
    exporters = list(dict.fromkeys(cell.exporter for cell in cells))
    families = list(dict.fromkeys(cell.family for cell in cells))
    shown = [cell for cell in cells if cell.opset is None and cell.dtype == "fp32"]
    marks = {(cell.family, cell.exporter): _MARKS[cell.state] for cell in shown}
    widths = [max(len(exporter), max(map(len, _MARKS.values()))) for exporter in exporters]
    rows = [_row("", exporters, widths)]
    for family in families:
        rows.append(_row(family, [marks.get((family, exporter), "") for exporter in exporters], widths))
    return "\n".join(rows)


def _row(head: str, fields: list[str], widths: list[int]) -> str:
    return "  ".join([f"{head:22}", *(f"{text:{width}}" for text, width in zip(fields, widths, strict=True))]).rstrip()


def _summary(cells: list[Cell]) -> str:
    counts = Counter(cell.state for cell in cells)
    return f"{len(cells)} cells: " + ", ".join(f"{counts[state]} {state}" for state in _MARKS if counts[state])
