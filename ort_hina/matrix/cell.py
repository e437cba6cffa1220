"""One cell of the matrix: an export, fused, compared, and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime

from ..fusion import fuse
from ..library import register
from ..models.cases import CASES
from ..models.comparison import ROUNDING, by_sequence, differences, scale
from ..models.export_folder import Exported
from ..models.families import expert_sizes
from ..models.onnx_cases import (
    Answers,
    CannotRun,
    open_session,
    run_block,
    run_model,
    state_sizes,
)
from ..report import FusionReport

State = Literal["right", "refused", "export wrong", "not exported", "WRONG"]

# In half precision a near tie may send a token to another expert, in either file, and then all that comes behind it in its
# sequence differs. In so many of the sequences of all cases (ten) that is taken for the cause.
MOST_STRAYED = {"fp16": 2}
# The builder's graphs take padding to be behind a sequence, so what they answer to padding before it means nothing.
NO_LEFT_PADDING = ("genai",)


@dataclass
class Cell:
    """What became of one export."""

    family: str
    exporter: str
    opset: int | None
    """As asked for; None is the exporter's default."""
    dtype: str
    state: State
    detail: str
    """For people: what is missing, why it was refused, or how far the fused file is from the file as exported."""
    layers_fused: int = 0
    layers_found: int = 0
    nodes_before: int | None = None
    nodes_after: int | None = None
    fused_against_export: float | None = None
    """The largest difference of the fused file from the file as exported, relative to the largest answer."""
    strayed: list[str] = field(default_factory=list)
    """Sequences that this leaves out, of a file in half precision: a near tie sent a token to another expert."""
    export_against_pytorch: float | None = None
    fused_against_pytorch: float | None = None
    cases_that_fail: list[str] = field(default_factory=list)
    """Cases in which the file as exported does not run."""
    cases_that_differ: list[str] = field(default_factory=list)
    """Cases in which its answers differ from PyTorch's by more than roundings."""


@dataclass
class _Run:
    """The answers of one file, and why there are none in some cases, by case."""

    answers: Answers
    failures: dict[str, str]


def judge(exported: Exported, reference: Mapping[str, np.ndarray] | None) -> Cell:
    """Fuses the export and compares the fused file with the file as exported and with PyTorch.

    The fused file is written beside the export and removed again.

    Args:
        exported: the export, or why there is none.
        reference: PyTorch's answers; None where PyTorch does not run.
    """
    export = exported.export
    cell = Cell(export.family, export.exporter, export.opset, export.dtype, "not exported", exported.error or "")
    if exported.path is None:
        return cell
    try:
        original = _run(exported, exported.path)
    except CannotRun as error:
        cell.state, cell.detail = "export wrong", f"ONNX Runtime does not load it: {error}"
        return cell
    fused_file = exported.path.with_name("model_matrix_hina.onnx")
    try:
        report = fuse(exported.path, fused_file)
        fused = None if report.output is None else _run(exported, fused_file)
    except Exception as error:  # whatever it is, a file that ONNX Runtime runs must be fused or refused
        cell.state, cell.detail = "WRONG", f"{type(error).__name__}: {error}"
        return cell
    finally:
        fused_file.unlink(missing_ok=True)
    _measure(cell, report, original, fused, reference)
    cell.state, cell.detail = _verdict(cell, report, original, fused)
    return cell


def _run(exported: Exported, file: Path) -> _Run:
    options = onnxruntime.SessionOptions()
    register(options, threads=1)
    session = open_session(file, options)
    if exported.export.by.whole_model:
        return _Run(*run_model(session, state_sizes(file.parent)))
    return _Run(*run_block(session))


def _measure(
    cell: Cell, report: FusionReport, original: _Run, fused: _Run | None, reference: Mapping[str, np.ndarray] | None
) -> None:
    cell.layers_fused, cell.layers_found = report.fused, len(report.layers)
    cell.nodes_before, cell.nodes_after = report.nodes_before, report.nodes_after
    cell.cases_that_fail = sorted(original.failures)
    if reference is not None:
        cell.export_against_pytorch = _apart(original.answers, reference)
        cell.cases_that_differ = _differing(original.answers, reference, ROUNDING.get(cell.dtype))
    if fused is not None:
        cell.fused_against_export, cell.strayed = _against_export(cell, fused.answers, original.answers)
        if reference is not None:
            cell.fused_against_pytorch = _apart(fused.answers, reference)


def _against_export(cell: Cell, answers: Answers, expected: Answers) -> tuple[float | None, list[str]]:
    """The largest difference but for sequences that strayed, and those."""
    if cell.exporter in NO_LEFT_PADDING:
        padded = {case.name for case in CASES if case.padding}
        answers = {step: answer for step, answer in answers.items() if step.rpartition("/")[0] not in padded}
    limit = ROUNDING.get(cell.dtype, ROUNDING["fp32"]) * scale(expected)
    strayed = [sequence for sequence, apart in by_sequence(answers, expected).items() if not apart <= limit]
    if len(strayed) > MOST_STRAYED.get(cell.dtype, 0):
        strayed = []
    apart = differences(answers, expected, strayed).values()
    names = [f"{case}, sequence {number}" for case, number in strayed]
    return (max(apart) / (scale(expected) or 1.0) if apart else None), names


def _apart(answers: Answers, expected: Mapping[str, np.ndarray]) -> float | None:
    """The largest difference, relative to the largest answer; None where no case is in both."""
    apart = differences(answers, expected).values()
    return max(apart) / (scale(expected) or 1.0) if apart else None


def _differing(answers: Answers, expected: Mapping[str, np.ndarray], allowed: float | None) -> list[str]:
    """Which cases differ; with `allowed` None (quantised weights, which may differ by any amount) none do."""
    if allowed is None:
        return []
    # Not "greater": a difference may be no number.
    return sorted(case for case, apart in differences(answers, expected).items() if not apart <= allowed * scale(expected))


def _verdict(cell: Cell, report: FusionReport, original: _Run, fused: _Run | None) -> tuple[State, str]:
    if fused is not None and (fault := _fault(cell, report, original, fused)):
        return "WRONG", fault
    refusals = "; ".join(f"{layer.where}: {layer.reason}" for layer in report.layers if not layer.fused)
    outcome = _fused(cell, refusals) if fused is not None else refusals or "no mixture-of-experts layer was found"
    if wrong := _export_fault(cell, report, original):
        return "export wrong", f"{wrong}; {outcome}"
    return ("right" if fused is not None else "refused"), outcome


def _fault(cell: Cell, report: FusionReport, original: _Run, fused: _Run) -> str | None:
    """What is wrong with the fused file: nothing excuses it but the same fault in the file as exported."""
    for case, failure in fused.failures.items():
        if case not in original.failures:
            return f"the fused file does not run in case {case}: {failure}"
    experts, _ = expert_sizes(cell.family)
    for layer in report.layers:
        if layer.fused and layer.experts_found < experts:
            return f"{layer.where} was fused with {layer.experts_found} of {experts} experts"
    allowed = ROUNDING.get(cell.dtype, ROUNDING["fp32"])
    if not fused.answers:
        return None  # neither file runs at all
    if cell.fused_against_export is None:
        if cell.fused_against_pytorch is not None and cell.fused_against_pytorch <= allowed:
            return None
        return "the file as exported runs in no case, and the fused file does not answer what PyTorch answers"
    if not cell.fused_against_export <= allowed:
        return f"the fused file differs from the file as exported by {cell.fused_against_export:.1e} (allowed {allowed:.0e})"
    return None


def _export_fault(cell: Cell, report: FusionReport, original: _Run) -> str | None:
    """What is wrong with the file as exported."""
    if any(layer.missing_experts for layer in report.layers):
        return "experts lost"
    if original.failures:
        return f"it does not run in {', '.join(original.failures)} ({next(iter(original.failures.values()))})"
    if cell.cases_that_differ:
        worst = _number(cell.export_against_pytorch)
        return f"its answers differ from PyTorch's by up to {worst} in {', '.join(cell.cases_that_differ)}"
    return None


def _fused(cell: Cell, refusals: str) -> str:
    difference, pytorch = _number(cell.fused_against_export), _number(cell.fused_against_pytorch)
    layers = f"{cell.layers_fused} layer{'' if cell.layers_fused == 1 else 's'} fused"
    text = f"max difference {difference} (PyTorch: {pytorch}), {layers}, nodes {cell.nodes_before} -> {cell.nodes_after}"
    if cell.strayed:
        text += f"; but for {'; '.join(cell.strayed)}, where a token went to another expert, as with a near tie of float16"
    return f"{text}; refused: {refusals}" if refusals else text


def _number(difference: float | None) -> str:
    return "not compared" if difference is None else f"{difference:.1e}"
