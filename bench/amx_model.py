"""What the AMX kernels would need on the paper's Xeons, predicted from the instructions that they execute.

The kernels run under the emulator of `csrc/amx_emulator`, which counts every AMX instruction; a cost model turns the counts
of one expert's three matrices into cycles of one core. No AMX machine is needed, and none confirms the prediction.

    python -m bench.amx_model [--shape NAME,...] [--tokens M,...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from ort_hina.benchmark.shapes import PAPER_SHAPES, SHAPES, MoeShape

# Cycles of throughput, from Intel's optimisation manual.
TDP, LOAD, LOAD_T1, STORE, LOAD_CONFIG, STORE_CONFIG = 16, 8, 33, 16, 204, 19
# Vector instructions, which the emulator does not see, in cycles of two 512-bit ports; estimates:
# two rows of weights interleaved, 32 inputs × 32 outputs of [K,N]: 32 loads, 32 shuffles on one port, 32 stores
INTERLEAVE = 64
# 16 tokens × 32 inputs gathered and rounded to bf16; into lanes that is a transpose besides
PACK_ROWS, PACK_LANES = 32, 64
# a result tile of 16×16 turned to tokens in rows ([N,K]), or its outputs put in order ([K,N])
TRANSPOSE, REORDER = 64, 32
# silu(gate)·up of 16×16 results: 16 vectors, each about 25 instructions and a division
ACTIVATE = 384

# Outputs of the part of each matrix that runs: all counts are proportional to the outputs.
BLOCK_OUTPUTS = 128
TOKENS = (1, 16, 32, 128, 512)


@dataclass(frozen=True)
class Machine:
    """One socket. `clock` in Hz, `bandwidth` in bytes/s of its own memory (Table 2 of the paper)."""

    name: str
    cores: int
    clock: float
    bandwidth: float

    def bytes_per_cycle(self) -> float:
        """What the memory gives each core in a cycle, all cores reading."""
        return self.bandwidth / self.cores / self.clock


MACHINES = (Machine("Xeon 6430", 32, 2.1e9, 234e9), Machine("Xeon 6448H", 32, 2.4e9, 158e9))

FORMULA = f"""\
cycles = max({TDP}·TDPBF16PS, {LOAD}·TILELOADD + {LOAD_T1}·TILELOADDT1) + {STORE}·TILESTORED
         + {LOAD_CONFIG}·LDTILECFG + {STORE_CONFIG}·STTILECFG + vector
vector, [N,K]: {PACK_LANES} each 16 tokens × 32 inputs, {TRANSPOSE} each 16×16 results of down
        [K,N]: {PACK_ROWS} each 16 tokens × 32 inputs, {REORDER} each 16×16 results, {INTERLEAVE} each 32×32 weights
        both:  {ACTIVATE} each 16×16 results of silu(gate)·up
TMUL share = {TDP}·(fewest TDPBF16PS possible) / cycles
DRAM share = cycles / (bytes of the weights / bytes that the memory gives a core in a cycle)"""

Counts = dict[str, float]
# counts(layout, m, n, k) of one matmul
Counter = Callable[[str, int, int, int], Counts]


@dataclass(frozen=True)
class Prediction:
    """One expert with `tokens` tokens, one core. `dram_share` maps machines to the cycles against those in which this core's
    part of the memory bandwidth delivers the weights: below 1 the work hides behind the memory."""

    shape: str
    layout: str
    tokens: int
    tdp: float
    fewest_tdp: int
    loads_per_tdp: float
    t1_loads: float
    tile_cycles: float
    vector_cycles: float
    tmul_share: float
    dram_share: dict[str, float]

    def row(self) -> str:
        return (
            f"{self.shape:<15}{self.layout:<4}{self.tokens:>5}{self.tdp / self.fewest_tdp:>9.2f}{self.loads_per_tdp:>11.2f}"
            f"{self.vector_cycles / (self.tile_cycles + self.vector_cycles):>9.0%}{self.tmul_share:>8.0%}"
            + "".join(f"{self.dram_share[machine.name]:>12.0%}" for machine in MACHINES)
        )


HEADER = f"{'shape':<19}{'m':>5}{'TDP/min':>9}{'loads/TDP':>11}{'vector':>9}{'TMUL':>8}" + "".join(
    f"{'DRAM ' + machine.name.split()[-1]:>12}" for machine in MACHINES
)


def blocks(size: int, step: int) -> int:
    return -(-size // step)


def fewest_tdp(m: int, n: int, k: int) -> int:
    """A TDPBF16PS multiplies 16 tokens, 16 outputs and 32 inputs."""
    return blocks(m, 16) * blocks(n, 16) * blocks(k, 32)


def tile_cycles(counts: Counts) -> float:
    """Loads run beside the multiplications; stores and configurations beside nothing."""
    loads = LOAD * counts["TILELOADD"] + LOAD_T1 * counts["TILELOADDT1"]
    others = STORE * counts["TILESTORED"] + LOAD_CONFIG * counts["LDTILECFG"] + STORE_CONFIG * counts["STTILECFG"]
    return max(TDP * counts["TDPBF16PS"], loads) + others


def vector_cycles(shape: MoeShape, layout: str, m: int) -> float:
    """Of one expert. Gate and up read the same packed tokens; silu(gate)·up leaves the hidden units packed; weights are
    interleaved once, whatever the number of tokens."""
    h, i, token_blocks = shape.hidden, shape.intermediate, blocks(m, 16)
    activate = ACTIVATE * token_blocks * blocks(i, 16)
    if layout == "nk":
        return PACK_LANES * token_blocks * blocks(h, 32) + TRANSPOSE * token_blocks * blocks(h, 16) + activate
    interleave = INTERLEAVE * 3 * blocks(h, 32) * blocks(i, 32)
    results = token_blocks * (2 * blocks(i, 16) + blocks(h, 16))
    return interleave + PACK_ROWS * token_blocks * blocks(h, 32) + REORDER * results + activate


def predict(shape: MoeShape, layout: str, m: int, counter: Counter) -> Prediction:
    h, i = shape.hidden, shape.intermediate
    matmuls = ((i, h), (i, h), (h, i))  # n, k of gate, up, down
    counts: Counts = {}
    for n, k in matmuls:
        for name, count in counter(layout, m, min(n, BLOCK_OUTPUTS), k).items():
            counts[name] = counts.get(name, 0) + count * n / min(n, BLOCK_OUTPUTS)
    fewest = sum(fewest_tdp(m, n, k) for n, k in matmuls)
    tiles, vector = tile_cycles(counts), vector_cycles(shape, layout, m)
    weight_bytes = shape.expert_bytes("bfloat16")
    return Prediction(
        shape.name, layout, m, counts["TDPBF16PS"], fewest,
        (counts["TILELOADD"] + counts["TILELOADDT1"]) / counts["TDPBF16PS"], counts["TILELOADDT1"], tiles, vector,
        TDP * fewest / (tiles + vector),
        {machine.name: (tiles + vector) * machine.bytes_per_cycle() / weight_bytes for machine in MACHINES},
    )  # fmt: skip


def counting() -> ModuleType:
    """The emulator, which counts AMX instructions from now on."""
    # Before the first look at the CPU's levels.
    os.environ["ORT_HINA_EMULATED_AMX"] = "1"
    from tests.support import emulator

    emulator.install()
    return emulator


def emulated_counter() -> Counter:
    """Counts of the table's AMX kernels for bf16 weights, each on weights and tokens of ones."""
    emulator = counting()
    from ort_hina import _native

    def count(layout: str, m: int, n: int, k: int) -> Counts:
        bf16_one = np.full(n * k, 0x3F80, np.uint16).view(np.uint8)
        emulator.reset()
        name = amx_kernel(_native, layout, m, n, k)
        _native.matmul(name, np.ones((m, k), np.float32), bf16_one, 0, k if layout == "nk" else n, n)
        return dict(emulator.counts())

    return count


def amx_kernel(native, layout: str, m: int, n: int, k: int) -> str:
    """The kernel that is picked at level amx; where that is one of a level below, the first AMX kernel of the layout."""
    amx = [
        row["name"]
        for row in native.kernel_table()
        if (row["isa"], row["weights"], row["layout"]) == ("amx", "bfloat16", layout)
    ]
    picked = native.pick_kernel("amx", "bfloat16", layout, m, n, k)
    return picked if picked in amx else amx[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.amx_model", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shape", default=",".join(PAPER_SHAPES), help=f"of {', '.join(SHAPES)} (default: those of the paper)"
    )
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="for each expert")
    parser.add_argument("--json", type=Path, help="one object for each line")
    arguments = parser.parse_args()
    counter = emulated_counter()
    print(f"{FORMULA}\n\n{HEADER}")
    predictions = []
    for name in arguments.shape.split(","):
        for layout in ("nk", "kn"):
            for m in map(int, arguments.tokens.split(",")):
                predictions.append(predict(SHAPES[name], layout, m, counter))
                print(predictions[-1].row(), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(prediction) for prediction in predictions], indent=1))


if __name__ == "__main__":
    main()
