"""One boot for each machine of the lab, with all cases that were selected for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support import numa_lab
from support.moe_weights import MoeSpec
from support.numa_attention import NumaAttention, write_attention
from support.numa_lab import Case, Counts, Machine
from support.numa_models import NumaModel, write_model

# Most have windows of 8 to 20 MB: four to ten huge pages. Most begin in the middle of a page.
SPECS = {
    "k768-nk-float": (MoeSpec(4, 768, 512, "nk", "nk", ("float",)), 4096 * 5 + 1236),
    "k768-kn-bfloat16": (MoeSpec(8, 768, 512, "kn", "kn", ("bfloat16",)), 4096 * 2 + 64),
    "k2880-nk-bfloat16": (MoeSpec(4, 2880, 256, "nk_interleaved", "nk", ("bfloat16",), bias=True), 52),
    "k2880-kn-float": (MoeSpec(3, 2880, 192, "kn_interleaved", "kn", ("float",), bias=True), 4096 * 7 + 2000),
    "k14336-nk-bfloat16": (MoeSpec(3, 64, 14336, "nk", "nk", ("bfloat16",)), 3333),
    "k14336-kn-float": (MoeSpec(2, 64, 14336, "kn_concatenated", "kn", ("float",)), 0),
    # 100 MB: enough huge pages for every step to have some on every node.
    "large-nk-float": (MoeSpec(8, 2048, 512, "nk", "nk", ("float",)), 100),
}


# Of a case: each has a block of the counter.
MOST_RUNS = 100


@dataclass(frozen=True)
class Result:
    """What a case gave.

    Attributes:
        answer: of its function in the guest, with ``stderr`` and, where its process did not end well, ``failed``.
        runs: what the counter saw of each run; empty if nothing was counted.
    """

    answer: dict[str, Any]
    runs: list[Counts]
    blocks: dict[int, Counts]

    @property
    def counts(self) -> Counts:
        """Of all runs."""
        return Counts(sum(run.load for run in self.runs), sum(run.store for run in self.runs))

    def __getitem__(self, key: str) -> Any:
        assert "failed" not in self.answer, f"it ended with {self.answer['failed']}:\n{self.answer['stderr']}"
        return self.answer[key]


class Lab:
    def __init__(self, items: list[pytest.Item], model: Callable[[str], NumaModel], attention: NumaAttention) -> None:
        mine = (item for item in items if item.get_closest_marker("numa_lab") and "case" in _params(item))
        self._cases = list(dict.fromkeys(item.callspec.params["case"] for item in mine))
        self._model, self._attention = model, attention
        self._results: dict[Machine, dict[str, Result] | Exception] = {}
        self.measured: list[str] = []

    def run(self, case: Case) -> Result:
        """The case's result, of the one boot of its machine."""
        if case.machine not in self._results:
            try:
                self._results[case.machine] = self._boot(case.machine)
            except numa_lab.BootFailed as error:
                self._results[case.machine] = error
        results = self._results[case.machine]
        if isinstance(results, Exception):
            raise results
        return results[case.name]

    def _boot(self, machine: Machine) -> dict[str, Result]:
        cases = [case for case in self._cases if case.machine == machine]
        assert len({case.name for case in cases}) == len(cases), "two cases of a machine have one name"
        # The counter's own case uses the blocks from 1 on.
        blocks = {case.name: 1001 + MOST_RUNS * i for i, case in enumerate(cases)}
        jobs = [{"name": case.name, "kind": case.kind, "arguments": self._arguments(case, blocks)} for case in cases]
        answers, counts = numa_lab.boot(machine, jobs)
        numbers = {name: range(first, first + MOST_RUNS) for name, first in blocks.items()}
        return {
            name: Result(answer, [counts[n] for n in numbers[name] if n in counts], counts) for name, answer in answers.items()
        }

    def _arguments(self, case: Case, blocks: dict[str, int]) -> dict[str, Any]:
        """With folders in the place of models' names."""
        arguments = dict(case.arguments)
        if case.kind == "session":
            arguments |= {"model": str(self._model(arguments["model"]).folder), "block": blocks[case.name]}
        if case.kind == "attention":
            arguments |= {"model": str(self._attention.folder), "block": blocks[case.name]}
        if case.kind == "load":
            arguments["models"] = [str(self._model(name).folder) for name in arguments["models"]]
        return arguments


def _params(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


@pytest.fixture(scope="session")
def numa_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], NumaModel]:
    """``numa_model(name)`` → a model of `SPECS`, or one named ``tiny-TYPE-I-E`` (intermediate size, experts)."""
    folder, made = tmp_path_factory.mktemp("numa-models"), {}

    def make(name: str) -> NumaModel:
        if name not in made:
            if name.startswith("tiny-"):
                _, kind, intermediate, experts = name.split("-")
                spec, offset = MoeSpec(int(experts), 8, int(intermediate), windows=(kind,)), 100
            else:
                spec, offset = SPECS[name]
            made[name] = write_model(folder / name, spec, offset=offset)
        return made[name]

    return make


@pytest.fixture(scope="session")
def numa_attention(tmp_path_factory: pytest.TempPathFactory) -> NumaAttention:
    return write_attention(tmp_path_factory.mktemp("numa-attention") / "model")


@pytest.fixture(scope="session")
def lab(
    request: pytest.FixtureRequest, numa_model: Callable[[str], NumaModel], numa_attention: NumaAttention
) -> Lab:
    if reason := numa_lab.why_not():
        pytest.skip(f"THE NUMA LAB DID NOT RUN: {reason}")
    made = Lab(request.session.items, numa_model, numa_attention)
    request.config.stash[_LAB] = made
    return made


_LAB = pytest.StashKey[Lab]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (made := config.stash.get(_LAB, None)) and made.measured:
        terminalreporter.section("bytes of weights, counted by the lab")
        for line in made.measured:
            terminalreporter.line(line)
