"""One measured call of attention: a line of the table, an object of the JSON."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from .attention_work import AttentionWork
from .yardsticks import Measurement


@dataclass(frozen=True)
class AttentionCase:
    """Times in milliseconds, bandwidth in bytes/s, peak in operations/s.

    `length` counts the keys, old and new, of each sequence. `cache_bytes` is what some query sees of keys and values, and
    `flops` counts causal operations. `arithmetic` is what `peak_flops` is the peak of. `caches` were used in turn; `cold`
    says that they have together many times the size of the L3. Of ort_hina's own operator, `times_faster` compares it with
    each peer of the same work (by operator and type), and `difference` is the largest difference to the answers of peers
    with the same type, relative to the largest of its own.
    """

    operator: str
    shape: str
    heads: int
    kv_heads: int
    head_size: int
    window: int | None
    dtype: str
    isa: str
    arithmetic: str
    phase: str
    batch: int
    new_tokens: int
    length: int
    threads: int
    caches: int
    cold: bool
    ms_median: float
    ms_min: float
    ms_max: float
    cache_bytes: int
    flops: int
    read_bandwidth: float
    peak_flops: float
    times_faster: dict[str, float] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)

    @property
    def roofline_share(self) -> float:
        """The least time that the machine allows, over the time."""
        limit = max(self.cache_bytes / self.read_bandwidth, self.flops / self.peak_flops)
        return limit / (self.ms_median / 1000)

    def facts(self) -> dict:
        return {"study": "attention", **asdict(self), "roofline_share": self.roofline_share}

    def row(self) -> str:
        seconds = self.ms_median / 1000
        return (
            f"{self.operator:<24}{self.dtype:<9}{self.isa:<12}{self.phase:<8}{self.batch:>5}{self.length:>8}"
            f"{self.ms_median:>10.3f}{self.cache_bytes / seconds / 1e9:>7.1f}{self.read_bandwidth / 1e9:>6.1f}"
            f"{self.flops / seconds / 1e9:>8.0f}{self.peak_flops / 1e9:>6.0f}{self.roofline_share:>9.2f}"
            f"{'' if self.cold or self.phase == 'prefill' else '  not cold'}"
        )

    def comparison(self) -> str:
        """A line for people: times faster than peers of the same type and of float, and the difference to the former."""
        parts = []
        for peer, times in self.times_faster.items():
            operator, _, dtype = peer.rpartition(" ")
            if dtype == self.dtype:
                parts.append(f"{times:.2f} {operator} (difference {self.difference[operator]:.0e})")
            elif dtype == "float":
                parts.append(f"{times:.2f} {peer}")
        return f"  {self.dtype} {self.isa}, times faster than: {', '.join(parts)}"


HEADER = (
    f"{'operator':<24}{'type':<9}{'level':<12}{'phase':<8}{'batch':>5}{'keys':>8}{'ms':>10}{'GB/s':>7}{'read':>6}"
    f"{'GFLOP/s':>8}{'peak':>6}{'roofline':>9}"
)


def attention_case(
    operator: str, work: AttentionWork, dtype: str, isa: str, arithmetic: str, threads: int, caches: int, cold: bool,
    measured: Measurement,
) -> AttentionCase:  # fmt: skip
    shape = work.shape
    return AttentionCase(
        operator, shape.name, shape.heads, shape.kv_heads, shape.head_size, shape.window, dtype, isa, arithmetic, work.phase,
        work.batch, work.new_tokens, work.length, threads, caches, cold, statistics.median(measured.seconds) * 1000,
        min(measured.seconds) * 1000, max(measured.seconds) * 1000, work.cache_bytes(dtype), work.flops,
        measured.read_bandwidth, measured.peak_flops,
    )  # fmt: skip
