"""What reading by memory nodes costs where it gains nothing: on a machine with one node, which is told that it has two.

    python -m bench.numa_price [--shape NAME,...] [--layout nk,kn] [--dtype TYPE] [--tokens M,...] [--threads N] [--json FILE]

The page maps are made up; the pages all lie on this machine's node. So the difference to the flat plan is the price of cut
rows, partial sums and shorter runs, without any gain. Also: what asking the kernel for the real map, and planning, take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ort_hina import _native
from ort_hina.benchmark import models
from ort_hina.benchmark.layers import NativeLayer, touch
from ort_hina.benchmark.setting import Setting
from ort_hina.benchmark.shapes import SHAPES, MoeShape
from ort_hina.benchmark.workload import exact
from ort_hina.benchmark.yardsticks import Yardsticks

Runs = list[tuple[int, int]]
NODES = 2
# Bytes that the first page of a window lies behind the begin of a page.
PHASE = 100
CALLS = 9


def in_turn(size: int, granule: int) -> Runs:
    """(bytes, node) of granules on one node after the other."""
    first = min(granule - PHASE, size)
    rest = range(first, size, granule)
    return [(first, 0), *((min(granule, size - at), (i + 1) % NODES) for i, at in enumerate(rest))]


def without_order(size: int, granule: int) -> Runs:
    """(bytes, node) of granules on any node."""
    nodes = np.random.default_rng(0).integers(NODES, size=-(-size // granule))
    return [(min(granule, size - i * granule), int(node)) for i, node in enumerate(nodes)]


PLACEMENTS = {
    "4 KB in turn": lambda size: in_turn(size, 4 << 10),
    "2 MB in turn": lambda size: in_turn(size, 2 << 20),
    "4 KB without order": lambda size: without_order(size, 4 << 10),
}


@dataclass(frozen=True)
class Price:
    """Medians of one size of call. `flat`: bytes/s; `by_nodes`: bytes/s for each placement; `planning`: seconds per GB."""

    shape: str
    layout: str
    dtype: str
    tokens: int
    read_bandwidth: float
    flat: float
    by_nodes: dict[str, float]
    planning: dict[str, float]

    def row(self) -> str:
        shares = "  ".join(f"{name} {rate / self.flat:4.2f}" for name, rate in self.by_nodes.items())
        share = self.flat / self.read_bandwidth
        return f"{self.shape:14} {self.layout} {self.dtype:9} m {self.tokens:3}  flat {self.flat / 1e9:5.1f} GB/s ({share:.2f} of reading)  {shares}"


def prices(directory: Path, setting: Setting, tokens: list[int]) -> Iterator[Price]:
    """With the weights stored in `directory`. Placements take turns from call to call."""
    size = (directory / models.DATA_FILE).stat().st_size
    layers = {"flat": NativeLayer(directory, setting)}
    for name, runs in PLACEMENTS.items():
        numa = {"nodes": NODES, "maps": [runs(size)], "threads": [i % NODES for i in range(setting.threads)],
                "thread_count": setting.threads}  # fmt: skip
        layers[name] = NativeLayer(directory, setting, numa)
    planning = {name: layer.moe.share_out_seconds / (size / 1e9) for name, layer in layers.items() if name != "flat"}
    touch(layers["flat"], setting.stored)
    yardsticks = Yardsticks(setting.threads, setting.isa)
    for m in tokens:
        workload = exact(setting.stored, m)
        seconds: dict[str, list[float]] = {name: [] for name in layers}
        bandwidth = []
        for step in range(CALLS + 1):
            for i, (name, layer) in enumerate(layers.items()):
                seconds[name].append(layer.seconds(workload, step * len(layers) + i))
            bandwidth.append(yardsticks.read_bandwidth())
        rate = {name: workload.weight_bytes(setting.dtype) / statistics.median(s[1:]) for name, s in seconds.items()}
        flat = rate.pop("flat")
        yield Price(
            setting.model.name, setting.layout, setting.dtype, m, statistics.median(bandwidth), flat, rate, planning
        )


def asking_seconds(file: Path) -> float:
    """Per GB, of a file that is in the page cache and not yet mapped."""
    window = np.memmap(file, np.uint8, "c")
    start = time.perf_counter()
    _native.query_placement(window.ctypes.data, window.nbytes)
    return (time.perf_counter() - start) / (window.nbytes / 1e9)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.numa_price", description=__doc__.splitlines()[0])
    split = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--shape", type=split, default=["qwen3-30b-a3b", "mixtral-8x7b"])
    parser.add_argument("--layout", type=split, default=["nk", "kn"])
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(models.ELEMENT_TYPES))
    parser.add_argument("--tokens", type=lambda text: [int(m) for m in text.split(",")], default=[1, 4, 16])
    parser.add_argument("--threads", type=int, default=_native.usable_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found = []
    for name in options.shape:
        found += _of_shape(SHAPES[name], options)
    if options.json:
        options.json.write_text(json.dumps([asdict(price) for price in found], indent=1))


def _of_shape(model: MoeShape, options: argparse.Namespace) -> list[Price]:
    with tempfile.TemporaryDirectory() as folder:
        directory, stored = Path(folder), model.stored(options.dtype)
        models.write_weights(directory, stored, options.dtype)
        asking = statistics.median(asking_seconds(directory / models.DATA_FILE) for _ in range(3))
        print(f"{model.name}: asking for the page map takes {1e3 * asking:.0f} ms per GB", flush=True)
        found = []
        for layout in options.layout:
            setting = Setting(model, stored, options.dtype, layout, _native.chosen_isa()["name"], options.threads)
            for price in prices(directory, setting, options.tokens):
                print(price.row(), flush=True)
                found.append(price)
            planned = ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in found[-1].planning.items())
            print(f"{model.name} {layout}: planning takes, in ms per GB: {planned}", flush=True)
        return found


if __name__ == "__main__":
    main()
