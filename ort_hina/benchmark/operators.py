"""The plain run: every wished combination, a line each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnxruntime

from . import models
from .case import HEADER, MLAS, Case, Kernel, case, picked
from .layers import ENGINES, Layer, touch
from .peers import ContribLayer, MatmulLayer, over_all_experts
from .setting import Setting
from .shapes import SHAPES
from .workload import Workload, exact, scaled_prefill
from .yardsticks import Yardsticks, measure

Say = Callable[[str], None]


def run(options: argparse.Namespace, isas: list[str], directory: Path, say: Say) -> list[Case]:
    """Measures what the options name (see `arguments`), and says each line as soon as it is known."""
    yardsticks = {isa: Yardsticks(options.threads, isa) for isa in isas}
    for isa in isas:
        say(yardsticks[isa].text())
    cases = []
    for settings in stored_weights(options, isas, directory, say):
        say(HEADER)
        for setting in settings:
            bench = _Bench(directory, setting, yardsticks[setting.isa], options, say)
            cases += bench.operator()
            if "ort" in options.peers and setting.dtype == "float" and setting.isa == isas[0]:
                cases += bench.peers()
    return cases


def stored_weights(options: argparse.Namespace, isas: list[str], directory: Path, say: Say) -> Iterator[list[Setting]]:
    """Writes the weights of one shape and element type after another, and yields the settings that read them."""
    for name in options.shape:
        for dtype in options.dtype:
            model = SHAPES[name]
            stored = model.stored(dtype)
            size = models.write_weights(directory, stored, dtype)
            scaled = "" if stored == model else ", prefill with as many tokens as these would get"
            say(
                f"\n{name}: hidden {model.hidden}, intermediate {model.intermediate}, k {model.k}; {stored.experts} of "
                f"{model.experts} experts stored{scaled}; {size / 1e9:.1f} GB of {dtype}; {options.threads} threads, "
                f"onnxruntime {onnxruntime.__version__}"
            )
            yield [
                Setting(model, stored, dtype, layout, isa, options.threads, options.compute == "bfloat16")
                for isa in isas
                for layout in options.layout
            ]


class _Bench:
    """One setting, with its weights stored."""

    def __init__(
        self, directory: Path, setting: Setting, yardsticks: Yardsticks, options: argparse.Namespace, say: Say
    ) -> None:
        self._directory, self._setting, self._yardsticks, self._say = directory, setting, yardsticks, say
        self._options = options

    def operator(self) -> list[Case]:
        cases = []
        for engine in self._options.engine:
            layer = ENGINES[engine](self._directory, self._setting)
            touch(layer, self._setting.stored)
            for workload in self._workloads():
                cases.append(self._case(layer, picked(self._setting, workload), workload))
        return cases

    def peers(self) -> list[Case]:
        """ONNX Runtime's operators that take weights in this layout."""
        cases = []
        if self._setting.layout == ContribLayer.layout:
            layer = ContribLayer(self._directory, self._setting)
            touch(layer, self._setting.stored)
            cases += [self._case(layer, MLAS, workload) for workload in self._workloads()]
        if self._setting.layout == MatmulLayer.layout:
            layer = MatmulLayer(self._directory, self._setting)
            for workload in self._workloads():
                even = over_all_experts(self._setting.stored, max(1, round(workload.tokens_per_expert)))
                cases.append(self._case(layer, MLAS, replace(even, prefill=workload.prefill)))
        return cases

    def _workloads(self) -> Iterator[Workload]:
        for tokens_per_expert in self._options.tokens:
            yield exact(self._setting.stored, tokens_per_expert)
        for tokens in self._options.prefill:
            yield scaled_prefill(self._setting.model, self._setting.stored, tokens)

    def _case(self, layer: Layer, kernel: Kernel, workload: Workload) -> Case:
        measured = measure(lambda step: layer.seconds(workload, step), self._yardsticks, kernel.arithmetic)
        result = case(layer.operator, self._setting, kernel, workload, measured)
        self._say(result.row())
        return result
