"""What attention on AMX would need on the paper's Xeons, predicted from the instructions that it executes.

As `bench.amx_model`: the operator runs under the emulator, which counts the AMX instructions of one head of bfloat16 keys
and values, with the query rows that share it; a cost model turns the counts into cycles of one core.

    python -m bench.amx_attention [--shape NAME,...] [--keys N,...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ort_hina.benchmark.attention_work import ATTENTION_SHAPES, AttentionShape

from .amx_model import INTERLEAVE, MACHINES, PACK_LANES, TDP, Counts, blocks, counting, tile_cycles

# Vector instructions, in cycles of two 512-bit ports; estimates:
# 16 scores: scale and maximum; exponential, about 16 instructions; sum
SOFTMAX = 10
# weights of 16 rows × 32 keys: 64 instructions that round and pair, a transpose
PACK_WEIGHTS = 130
# a result tile of 16 rows × 16 columns: rescaled and added to what there is
ADD = 32
# scores of 16 keys × 8 rows, which lie closer than in a tile
NARROW = 16
# 32 columns of a row into the order that interleaving gives and back
REORDER = 8
# bf16 products of a vector instruction, of which one is taken a cycle
VECTOR = 32

# Rows of a unit that has many queries (csrc/plan/attention.h).
PREFILL_ROWS = 64
KEYS = (1024, 4096)

# counts(shape, rows, keys) of one head of keys and values
Counter = Callable[[AttentionShape, int, int], Counts]


@dataclass(frozen=True)
class Prediction:
    """One head of `keys` keys and values and `rows` query rows, one core. `dram_share` maps machines to the cycles against
    those in which this core's part of the memory bandwidth delivers keys and values; `vector_ratio` is the time of AVX-512
    with bf16 products over that of tiles."""

    shape: str
    rows: int
    keys: int
    tdp: float
    fewest_tdp: int
    loads_per_tdp: float
    tile_cycles: float
    vector_cycles: float
    tmul_share: float
    vector_ratio: float
    dram_share: dict[str, float]

    def row(self) -> str:
        return (
            f"{self.shape:<15}{self.rows:>5}{self.keys:>7}{self.tdp / self.fewest_tdp:>9.2f}{self.loads_per_tdp:>11.2f}"
            f"{self.vector_cycles / (self.tile_cycles + self.vector_cycles):>9.0%}{self.tmul_share:>8.0%}"
            f"{self.vector_ratio:>9.1f}" + "".join(f"{self.dram_share[machine.name]:>12.0%}" for machine in MACHINES)
        )


HEADER = (
    f"{'shape':<15}{'rows':>5}{'keys':>7}{'TDP/min':>9}{'loads/TDP':>11}{'vector':>9}{'TMUL':>8}{'AVX/AMX':>9}"
    + "".join(f"{'DRAM ' + machine.name.split()[-1]:>12}" for machine in MACHINES)
)
FORMULA = f"""\
cycles = tiles, as python -m bench.amx_model says, + vector
vector: {SOFTMAX} each 16 scores, {PACK_WEIGHTS} each 16 rows × 32 keys of weights, {INTERLEAVE} each 32×32 values,
        {ADD} each 16×16 results of a block of 128 keys, {PACK_LANES} each 16 rows × 32 elements of queries,
        {REORDER} each 32 results; with 8 rows {NARROW} each 16 keys
TMUL share = {TDP}·(fewest TDPBF16PS possible) / cycles
AVX/AMX = (products / {VECTOR} + softmax) / cycles
DRAM share = cycles / (bytes of keys and values / bytes that the memory gives a core in a cycle)"""


def fewest_tdp(rows: int, keys: int, size: int) -> int:
    """Scores, 16 keys and 32 elements at a time, and values, 32 keys and 16 columns."""
    return blocks(rows, 16) * (blocks(keys, 16) * blocks(size, 32) + blocks(keys, 32) * blocks(size, 16))


def softmax_cycles(rows: int, keys: int) -> float:
    """Up to 8 rows take half a vector each key."""
    return SOFTMAX * keys * (0.5 if rows <= 8 else blocks(rows, 16))


def vector_cycles(rows: int, keys: int, size: int) -> float:
    row_tiles, columns = blocks(rows, 16), 2 * blocks(size, 32)
    narrow = NARROW * blocks(keys, 16) if rows <= 8 else 0
    weights = PACK_WEIGHTS * row_tiles * blocks(keys, 32) + ADD * row_tiles * columns * blocks(keys, 128)
    values = INTERLEAVE * blocks(keys, 32) * blocks(size, 32)
    ends = PACK_LANES * row_tiles * blocks(size, 32) + REORDER * rows * blocks(size, 32)
    return softmax_cycles(rows, keys) + narrow + weights + values + ends


def predict(shape: AttentionShape, rows: int, keys: int, counter: Counter) -> Prediction:
    size = shape.head_size
    counts = counter(shape, rows, keys)
    fewest = fewest_tdp(rows, keys, size)
    tiles, vector = tile_cycles(counts), vector_cycles(rows, keys, size)
    cycles, cache_bytes = tiles + vector, 2 * keys * size * 2
    return Prediction(
        shape.name, rows, keys, counts["TDPBF16PS"], fewest,
        (counts["TILELOADD"] + counts["TILELOADDT1"]) / counts["TDPBF16PS"], tiles, vector, TDP * fewest / cycles,
        (2 * rows * keys * size / VECTOR + softmax_cycles(rows, keys)) / cycles,
        {machine.name: cycles * machine.bytes_per_cycle() / cache_bytes for machine in MACHINES},
    )  # fmt: skip


def emulated_counter() -> Counter:
    """Counts of the operator with one head of keys and values, in place."""
    emulator = counting()
    from tests.support.attention_native import run_native
    from tests.support.attention_reference import make_case

    def count(shape: AttentionShape, rows: int, keys: int) -> Counts:
        group = shape.heads // shape.kv_heads
        queries = rows // group
        case = make_case(
            np.random.default_rng(0), group=group, size=shape.head_size, queries=queries, past=keys - queries,
            capacity=keys, kind="bfloat16",
        )  # fmt: skip
        emulator.reset()
        run_native(case, isa="amx", in_place=True)
        return dict(emulator.counts())

    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.amx_attention", description=__doc__.splitlines()[0])
    names = [shape.name for shape in ATTENTION_SHAPES.values() if not shape.window]
    parser.add_argument("--shape", default=",".join(names), help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--keys", default=",".join(map(str, KEYS)), help="of the head")
    parser.add_argument("--json", type=Path, help="one object for each line")
    arguments = parser.parse_args()
    counter = emulated_counter()
    print(f"{FORMULA}\n\n{HEADER}")
    predictions = []
    for name in arguments.shape.split(","):
        shape = ATTENTION_SHAPES[name]
        for rows in (shape.heads // shape.kv_heads, PREFILL_ROWS):
            # Fewer rows than 8 are left to vectors.
            for keys in map(int, arguments.keys.split(",") if rows >= 8 else ()):
                predictions.append(predict(shape, rows, keys, counter))
                print(predictions[-1].row(), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(prediction) for prediction in predictions], indent=1))


if __name__ == "__main__":
    main()
