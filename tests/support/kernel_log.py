"""What ORT_HINA_LOG=kernels says: every kernel that a matmul could have had, with its estimated cost, and the choice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .levels import EMULATED_AMX, EMULATION

LINE = re.compile(r"ort_hina: kernels: m=(\d+) n=(\d+) k=(\d+): ([* ]) (\w+), (\d+) cycles")

# Calls of one expert with different numbers of tokens, in a process of its own: a process tells each question once.
CALLS = """
from support import emulator
from support.moe_native import NativeMoe
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights
if {emulated}:
    emulator.install()
for kind, bf16_compute in {types}:
    for layout in ("nk", "kn"):
        weights = make_weights(MoeSpec(1, {hidden}, {intermediate}, layout, layout, windows=(kind,)))
        node = NativeMoe(weights, {isa!r}, bf16_compute=bf16_compute)
        for _ in range({times}):
            for tokens in {tokens}:
                node.run(make_tokens(random_ids(tokens, 1, 1), {hidden}))
"""


@dataclass(frozen=True)
class Candidate:
    name: str
    cycles: int
    chosen: bool


def log_of_calls(
    isa: str, tokens: list[int], *, hidden: int, intermediate: int, times: int = 1, topics: str = "kernels",
    types: tuple[tuple[str, bool], ...] = (("float", False), ("bfloat16", False), ("float", True)),
) -> str:  # fmt: skip
    """stderr of a process that runs nodes of these sizes, element types and `bf16_compute`, [N,K] and [K,N] in turn.

    Args:
        tokens: of each call, all for one expert.
        times: how often all calls are repeated.
        topics: the value of ORT_HINA_LOG; empty: not set.
    """
    code = CALLS.format(
        isa=isa, tokens=tokens, hidden=hidden, intermediate=intermediate, times=times, types=types,
        emulated=isa == "amx" and EMULATED_AMX,
    )  # fmt: skip
    environment = os.environ | EMULATION | ({"ORT_HINA_LOG": topics} if topics else {})
    tests = Path(__file__).resolve().parents[1]
    result = subprocess.run([sys.executable, "-c", code], cwd=tests, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stderr


def questions(log: str) -> dict[tuple[int, int, int, str], list[Candidate]]:
    """The candidates of each question: (m, n, k, "activations_weights_layout")."""
    found: dict[tuple[int, int, int, str], list[Candidate]] = {}
    for match in LINE.finditer(log):
        m, n, k = (int(match[i]) for i in (1, 2, 3))
        form = "_".join(match[5].split("_")[1:4])
        found.setdefault((m, n, k, form), []).append(Candidate(match[5], int(match[6]), match[4] == "*"))
    return found
