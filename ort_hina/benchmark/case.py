"""One measured case: a line of the table, an object of the JSON."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from .. import _native
from .setting import Setting
from .workload import Workload
from .yardsticks import Measurement


@dataclass(frozen=True)
class Case:
    """Times in milliseconds, bandwidth in bytes/s, peak in operations/s.

    `kernel` is the one that was picked for the mean number of tokens; `arithmetic` is what its products are formed in, and
    `peak_flops` that arithmetic's peak. `model_experts` of the model, of which `stored_experts` are in the file.
    """

    operator: str
    shape: str
    dtype: str
    layout: str
    isa: str
    kernel: str
    arithmetic: str
    prefill: bool
    tokens: int
    tokens_per_expert: float
    active_experts: int
    stored_experts: int
    model_experts: int
    threads: int
    ms_median: float
    ms_min: float
    ms_max: float
    weight_bytes: int
    flops: int
    read_bandwidth: float
    peak_flops: float

    @property
    def roofline_share(self) -> float:
        """The least time that the machine allows, over the time."""
        limit = max(self.weight_bytes / self.read_bandwidth, self.flops / self.peak_flops)
        return limit / (self.ms_median / 1000)

    def facts(self) -> dict:
        return {**asdict(self), "roofline_share": self.roofline_share}

    def row(self) -> str:
        seconds = self.ms_median / 1000
        what = "prefill" if self.prefill else "exact"
        return (
            f"{self.operator:<12}{self.layout:<3}{self.dtype:<9}{what:<8}{self.tokens:>6}{self.tokens_per_expert:>7.1f}"
            f"{self.ms_median:>10.2f}{self.weight_bytes / seconds / 1e9:>7.1f}{self.read_bandwidth / 1e9:>6.1f}"
            f"{self.flops / seconds / 1e9:>8.0f}{self.peak_flops / 1e9:>6.0f}{self.roofline_share:>9.2f}  {self.kernel}"
        )


HEADER = (
    f"{'operator':<12}{'':<3}{'weights':<9}{'routing':<8}{'tokens':>6}{'m':>7}{'ms':>10}{'GB/s':>7}{'read':>6}"
    f"{'GFLOP/s':>8}{'peak':>6}{'roofline':>9}  kernel"
)


@dataclass(frozen=True)
class Kernel:
    """A matmul kernel, and what its products are formed in: ``float`` or ``bfloat16``."""

    name: str
    arithmetic: str


def picked(setting: Setting, workload: Workload) -> Kernel:
    """The kernel that the operator takes for the mean number of tokens."""
    shape, m = workload.shape, max(1, round(workload.tokens_per_expert))
    name = _native.pick_kernel(
        setting.isa, setting.dtype, setting.layout, m, shape.intermediate, shape.hidden, bf16_compute=setting.bf16_compute
    )
    activations = {row["name"]: row["activations"] for row in _native.kernel_table()}
    return Kernel(name, activations[name])


MLAS = Kernel("MLAS", "float")


def case(operator: str, setting: Setting, kernel: Kernel, workload: Workload, measured: Measurement) -> Case:
    return Case(
        operator, setting.model.name, setting.dtype, setting.layout, setting.isa, kernel.name, kernel.arithmetic,
        workload.prefill, workload.tokens, workload.tokens_per_expert, workload.active_experts, setting.stored.experts,
        setting.model.experts, setting.threads, statistics.median(measured.seconds) * 1000, min(measured.seconds) * 1000,
        max(measured.seconds) * 1000, workload.weight_bytes(setting.dtype), workload.flops, measured.read_bandwidth,
        measured.peak_flops,
    )  # fmt: skip
