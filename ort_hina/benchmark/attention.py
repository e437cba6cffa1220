"""Attention over a cache, decode and prefill, beside ONNX Runtime's own operator and PyTorch's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

from . import attention_caches as memory
from . import attention_torch
from .attention_case import HEADER, AttentionCase, attention_case
from .attention_engines import Engine, OnnxRuntimeAttention
from .attention_torch import TorchFailed, TorchProcess
from .attention_work import ATTENTION_SHAPES, AttentionWork
from .layers import forced
from .yardsticks import Yardsticks, measure

OWN, CONTRIB, TORCH = "GroupQueryAttention", "ORT GroupQueryAttention", "torch SDPA"
# ONNX Runtime's operator has no others on a CPU.
CONTRIB_TYPES = ("float", "float16")
# A peer that takes a minute for a call is not called more often.
FEWEST_OF_A_PEER = 3

Say = Callable[[str], None]
# By operator, type and level.
Answers = dict[tuple[str, str, str], np.ndarray]


def run(options: argparse.Namespace, isas: list[str], directory: Path, say: Say) -> list[dict]:
    """Measures every call that the options name (see `arguments`), and says each line as soon as it is known."""
    yardsticks = {isa: Yardsticks(options.threads, isa) for isa in isas}
    for isa in isas:
        say(yardsticks[isa].text())
    cases: list[AttentionCase] = []
    with ExitStack() as processes:
        study = _Study(options, yardsticks, processes, directory, say)
        for name in options.attention:
            shape = ATTENTION_SHAPES[name]
            window = "" if shape.window is None else f", window {shape.window}"
            say(
                f"\n{name}: {shape.heads} heads, {shape.kv_heads} of keys and values, size {shape.head_size}{window}; "
                f"{options.threads} threads, onnxruntime {onnxruntime.__version__}\n{HEADER}"
            )
            for work in works(options, name):
                cases += study.measure(work)
    return [case.facts() for case in cases]


def works(options: argparse.Namespace, name: str) -> Iterator[AttentionWork]:
    """Decode of one token by length and batch, then prompts of one sequence."""
    shape = ATTENTION_SHAPES[name]
    for length in options.lengths:
        for batch in options.batch:
            yield AttentionWork(shape, batch, 1, length)
    for tokens in options.prefill:
        yield AttentionWork(shape, 1, tokens, tokens)


def compared(cases: list[AttentionCase], answers: Answers) -> list[AttentionCase]:
    """All cases of one work; ort_hina's own with what the peers among them took and answered."""
    peers = [case for case in cases if case.operator != OWN]
    return [_beside(case, peers, answers) if case.operator == OWN else case for case in cases]


def _beside(own: AttentionCase, peers: list[AttentionCase], answers: Answers) -> AttentionCase:
    answer = answers[OWN, own.dtype, own.isa]
    largest = float(np.abs(answer).max())
    return replace(
        own,
        times_faster={f"{peer.operator} {peer.dtype}": peer.ms_median / own.ms_median for peer in peers},
        difference={
            peer.operator: float(np.abs(answers[peer.operator, peer.dtype, peer.isa] - answer).max()) / largest
            for peer in peers
            if peer.dtype == own.dtype
        },
    )


def _scores_bytes(work: AttentionWork, dtype: str) -> int:
    """What ONNX Runtime's operator allocates for all scores at once: of float it works in blocks."""
    return 0 if dtype == "float" else 4 * work.batch * work.shape.heads * work.new_tokens * work.length


class _Study:
    """Measures one work after the other."""

    def __init__(
        self, options: argparse.Namespace, yardsticks: dict[str, Yardsticks], processes: ExitStack, directory: Path, say: Say
    ) -> None:
        self._options, self._yardsticks, self._processes = options, yardsticks, processes
        self._directory, self._say = directory, say
        self._first_isa = next(iter(yardsticks))
        self._rotation = options.rotation_bytes or memory.rotation_bytes()
        self._torch = self._start_torch() if "torch" in options.peers else None

    def measure(self, work: AttentionWork) -> list[AttentionCase]:
        """Every type and level, and the peers."""
        cases, answers = [], {}
        for dtype in self._options.dtype:
            count = memory.cache_count(work, dtype, self._rotation)
            if count == 0:
                self._say(f"{work.phase} {work.batch} × {work.length} {dtype}: left out, a cache does not fit into memory")
                continue
            cases += self._in_this_process(work, dtype, count, answers)
            if self._torch is not None:
                cases += self._in_torch(work, dtype, count, answers)
        cases = compared(cases, answers)
        for case in cases:
            if case.times_faster:
                self._say(case.comparison())
        return cases

    def _in_this_process(self, work: AttentionWork, dtype: str, count: int, answers: Answers) -> list[AttentionCase]:
        tokens, caches = memory.new_tokens(work, dtype), memory.caches(work, dtype, count)
        cases = []
        for isa in self._yardsticks:
            with forced(isa):
                engine = OnnxRuntimeAttention("ort_hina", work, dtype, self._options.threads, tokens, caches)
            cases.append(self._case(OWN, engine, work, dtype, isa, count, answers))
        if "ort" in self._options.peers and dtype in CONTRIB_TYPES:
            if _scores_bytes(work, dtype) > (memory.free_memory() or float("inf")) / 2:
                self._say(f"{CONTRIB} {dtype}: left out, its scores take {_scores_bytes(work, dtype) / 1e9:.0f} GB")
                return cases
            engine = OnnxRuntimeAttention("com.microsoft", work, dtype, self._options.threads, tokens, caches)
            cases.append(self._case(CONTRIB, engine, work, dtype, self._first_isa, count, answers))
        return cases

    def _in_torch(self, work: AttentionWork, dtype: str, count: int, answers: Answers) -> list[AttentionCase]:
        try:
            self._torch.prepare(work, dtype, count)
            return [self._case(TORCH, self._torch, work, dtype, self._first_isa, count, answers)]
        except TorchFailed as error:
            self._say(f"{TORCH} {dtype}: left out, {error}")
            self._torch = self._start_torch()
            return []

    def _case(
        self, operator: str, engine: Engine, work: AttentionWork, dtype: str, isa: str, count: int, answers: Answers
    ) -> AttentionCase:
        arithmetic = self._arithmetic(isa, dtype)
        answers[operator, dtype, isa] = engine.answer()
        fewest = {} if operator == OWN else {"fewest": FEWEST_OF_A_PEER}
        measured = measure(engine.seconds, self._yardsticks[isa], arithmetic, **fewest)
        cold = memory.cold(work, dtype, count)
        case = attention_case(operator, work, dtype, isa, arithmetic, self._options.threads, count, cold, measured)
        self._say(case.row())
        return case

    def _arithmetic(self, isa: str, dtype: str) -> str:
        """bfloat16 can be multiplied as it is where the level has instructions for that; everything else is widened."""
        if dtype != "bfloat16":
            return "float"
        try:
            self._yardsticks[isa].peak("bfloat16")
        except ValueError:
            return "float"
        return "bfloat16"

    def _start_torch(self) -> TorchProcess | None:
        if not attention_torch.installed():
            self._say(f"{TORCH}: left out, torch is not installed")
            return None
        return self._processes.enter_context(TorchProcess(self._options.threads, self._directory))
