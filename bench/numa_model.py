"""What threads that read their own memory node would gain on the HiNa-MoE paper's machines: predicted, not measured.

The partition is the operator's own (`_native.node_partition`) on the page map of evenly interleaved pages; what each node
reads from where is counted byte by byte. A formula turns bytes into time; it is printed with all its inputs. Beside it
stands the flat partition: equal shares of rows for all threads, wherever their pages lie. Starting threads, waiting for each
other and the activations are not in it.

    python -m bench.numa_model [--machine NAME,...] [--shape NAME,...] [--tokens M,...] [--json FILE] [--plot DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.numa_bytes import ELEMENT, LAYOUTS, Layer, Pages, Step
from bench.numa_time import FORMULA, MACHINES, Machine, layer_seconds
from ort_hina.benchmark.plot import plot
from ort_hina.benchmark.shapes import PAPER_SHAPES, SHAPES, MoeShape

GRANULES = {"4 KB": 4 << 10, "2 MB": 2 << 20}
# Where the window begins in a granule: weights rarely begin with a page.
PHASES = (0.0, 0.3)
TOKENS = tuple(2**i for i in range(10))
# Measured seconds per GB of ort_hina.numa = interleave.
INTERLEAVE_SECONDS = (0.35, 0.7)


@dataclass(frozen=True)
class Prediction:
    """One layer with `tokens` tokens for each chosen expert; means over the phases. Milliseconds and speed-ups as [fully
    overlapped, one after the other]; shares of the weights' bytes that are read from another node; `balance` of the busiest
    node's cores, the worse step's."""

    machine: str
    shape: str
    layout: str
    pages: str
    tokens: int
    partitioned: bool  # by nodes; else whole outputs, each queued to the node that has most of it
    flat_remote: float
    ours_remote: float
    balance: float
    flat_ms: tuple[float, float]
    ours_ms: tuple[float, float]

    @property
    def speedup(self) -> tuple[float, float]:
        return tuple(flat / ours for flat, ours in zip(self.flat_ms, self.ours_ms, strict=True))


def remote_share(steps: tuple[Step, ...]) -> float:
    return float(sum(step.remote().sum() for step in steps) / sum(step.traffic.sum() for step in steps))


def layers(shape: MoeShape, layout: str, pages: Pages, cores: int) -> list[Layer]:
    """The layer at each phase, in whole elements."""
    return [Layer(shape, layout, pages, cores, int(phase * pages.granule) // ELEMENT * ELEMENT) for phase in PHASES]


def predict(machine: Machine, shape: MoeShape, layout: str, pages: str, m: int, cross: str = "node") -> Prediction:
    at = layers(shape, layout, Pages(machine.nodes, GRANULES[pages]), machine.cores)
    flat, ours = [layer.flat() for layer in at], [layer.ours(m) for layer in at]

    def mean_ms(all_steps: list[tuple[Step, ...]]) -> tuple[float, float]:
        return tuple(
            1e3 * float(np.mean([layer_seconds(steps, machine, m, overlapped, cross) for steps in all_steps]))
            for overlapped in (True, False)
        )

    return Prediction(
        machine.name, shape.name, layout, pages, m, all(layer.serves(m) for layer in at),
        float(np.mean([remote_share(steps) for steps in flat])), float(np.mean([remote_share(steps) for steps in ours])),
        float(np.mean([min(step.balance.min() for step in steps) for steps in ours])), mean_ms(flat), mean_ms(ours),
    )  # fmt: skip


def byte_rows(nodes: int, cores: int, shape: MoeShape) -> Iterator[str]:
    """Local and remote megabytes of each node, the least and the most of all, for one token."""
    for layout in LAYOUTS:
        for name, granule in GRANULES.items():
            at = layers(shape, layout, Pages(nodes, granule), cores)
            of = {"flat": [layer.flat() for layer in at], "ours": [layer.ours(1) for layer in at]}
            cells = [_span(steps, remote) for steps in of.values() for remote in (False, True)]
            sums = max(sum(step.sums for step in steps) for steps in of["ours"])
            balance = min(step.balance.min() for steps in of["ours"] for step in steps)
            yield f"{nodes:>5}  {shape.name:<14}{layout:<4}{name:<6}" + "".join(f"{cell:>15}" for cell in cells) + (
                f"{sums / 1e6:>9.2f}{balance:>9.0%}"
            )


BYTES_HEADER = "nodes  shape         layout pages " + "".join(
    f"{title:>15}" for title in ("flat: local", "remote", "ours: local", "remote")
) + f"{'sums':>8}{'balance':>9}"  # fmt: skip


def _span(all_steps: list[tuple[Step, ...]], remote: bool) -> str:
    """Megabytes of the nodes, least–most over all phases."""
    per_node = [sum(step.remote() if remote else np.diag(step.traffic) for step in steps) / 1e6 for steps in all_steps]
    low, high = np.min(per_node), np.max(per_node)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f}–{high:.1f}"


TIMES_HEADER = (
    f"{'machine':<8}{'shape':<14}layout pages {'m':>4}  {'remote: flat':>12}{'ours':>8}"
    f"{'flat, ms':>16}{'ours, ms':>16}{'speed-up':>14}"
)


def time_row(p: Prediction) -> str:
    flat, ours, times = (_range(values) for values in (p.flat_ms, p.ours_ms, p.speedup))
    return (
        f"{p.machine:<8}{p.shape:<14}{p.layout:<7}{p.pages:<5}{p.tokens:>5}  {p.flat_remote:>12.1%}{p.ours_remote:>8.2%}"
        f"{flat:>16}{ours:>16}{times:>14}{'' if p.partitioned else '  by outputs'}"
    )


def _range(values: tuple[float, float]) -> str:
    low, high = (f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in sorted(values))
    return low if low == high else f"{low}–{high}"


def figure(predictions: list[Prediction]) -> str:
    """The form of the paper's Figures 10 and 16: one machine, its smallest pages, all reads overlapped."""
    cases = [
        {
            "shape": p.shape, "layout": p.layout, "operator": f"{name}, predicted for {p.machine}", "dtype": "bfloat16",
            "isa": f"pages of {p.pages} interleaved", "tokens_per_expert": p.tokens, "ms_median": ms[0],
            "active_experts": SHAPES[p.shape].k, "prefill": False,
        }
        for p in predictions if p.pages == "4 KB" for name, ms in (("flat", p.flat_ms), ("by nodes", p.ours_ms))
    ]  # fmt: skip
    return plot(cases)


def inputs(machines: list[Machine], shapes: list[MoeShape], cross: str) -> str:
    phases = " and ".join(map(str, PHASES))
    lines = [FORMULA, "", f"cross bandwidth: of a {cross}; windows begin at {phases} of a granule; bfloat16; GB: 1e9 bytes"]
    lines += [
        f"{m.name:<6} {m.nodes} nodes × {m.cores} cores, {m.local / 1e9:.0f} GB/s local, {m.cross / 1e9:.0f} GB/s cross, "
        f"{m.peak / 1e12:.1f} TFLOP/s"
        for m in machines
    ]
    for shape in shapes:
        expert = shape.expert_bytes("bfloat16") / 1e9
        layer = expert * shape.experts
        low, high = (seconds * layer for seconds in INTERLEAVE_SECONDS)
        lines.append(
            f"{shape.name:<14} {shape.hidden} × {shape.intermediate}, top {shape.k} of {shape.experts}: "
            f"{expert * shape.k:.3f} GB a call; ort_hina.numa = interleave: {low:.1f}–{high:.1f} s a layer at the start, "
            f"and its {layer:.1f} GB of memory"
        )
    return "\n".join(lines)


def chosen(names: str, known: dict) -> list:
    """The named ones.

    Raises:
        SystemExit: one is not known.
    """
    for name in names.split(","):
        if name not in known:
            raise SystemExit(f"{name}: expected one of {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.numa_model", description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default=",".join(MACHINES), help=f"of {', '.join(MACHINES)} (default: all)")
    parser.add_argument(
        "--shape", default=",".join(PAPER_SHAPES), help=f"of {', '.join(SHAPES)} (default: those of the paper)"
    )
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="for each expert")
    parser.add_argument("--cross", choices=("node", "pair"), default="node", help="what shares the cross bandwidth")
    parser.add_argument("--json", type=Path, help="one object for each line of times")
    parser.add_argument("--plot", type=Path, help="an SVG for each machine in this directory")
    arguments = parser.parse_args()
    machines, shapes = chosen(arguments.machine, MACHINES), chosen(arguments.shape, SHAPES)
    print(f"Predicted, not measured.\n\n{inputs(machines, shapes, arguments.cross)}\n\n{BYTES_HEADER}")
    for nodes, cores in dict.fromkeys((m.nodes, m.cores) for m in machines):
        for shape in shapes:
            for row in byte_rows(nodes, cores, shape):
                print(row, flush=True)
    print(f"\n{TIMES_HEADER}")
    predictions = []
    for machine in machines:
        for shape in shapes:
            for layout in LAYOUTS:
                for pages in GRANULES:
                    for m in map(int, arguments.tokens.split(",")):
                        predictions.append(predict(machine, shape, layout, pages, m, arguments.cross))
                        print(time_row(predictions[-1]), flush=True)
    if arguments.json:
        rows = [asdict(prediction) | {"speedup": prediction.speedup} for prediction in predictions]
        arguments.json.write_text(json.dumps(rows, indent=1))
    if arguments.plot:
        arguments.plot.mkdir(parents=True, exist_ok=True)
        for machine in machines:
            of = [prediction for prediction in predictions if prediction.machine == machine.name]
            (arguments.plot / f"numa_{machine.name}.svg").write_text(figure(of), encoding="utf-8")


if __name__ == "__main__":
    main()
