"""One of the demo's runs, in a process of its own: load a model, generate greedily, and measure.

    python -m ort_hina.demo.worker '{"kind": "onnx", "model": ".../model_hina.onnx", …}'

The argument is a `Task`. The last line of standard output is JSON, a `Measurement`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import memory
from .measurement import Measurement, Task

_PREFILL_RUNS = 3
_LAYER = "/layers."  # in the names that the exporter gives to nodes of decoder layers


def measure(task: Task) -> Measurement:
    """Runs `task` here. Peak memory is that of the process: one task per process."""
    load = _pytorch_loader() if task.kind == "pytorch" else _onnx_loader()
    resident_before, private_before = memory.resident_now(), memory.private_now()
    start = time.perf_counter()
    model = load(Path(task.model))
    load_seconds = time.perf_counter() - start

    _generate(model, task.prompt, 2)  # warm-up: pages of the file, arenas, thread pools
    prefill = statistics.median(_generate(model, task.prompt, 1)[1] for _ in range(_PREFILL_RUNS))
    tokens, whole = _generate(model, task.prompt, task.new_tokens)
    private_after, peak = memory.private_now(), memory.resident_peak()
    nodes = [] if task.kind == "pytorch" else _node_names(Path(task.model))
    return Measurement(
        tokens=tokens,
        nodes=None if task.kind == "pytorch" else len(nodes),
        layer_nodes=None if task.kind == "pytorch" else sum(_LAYER in name for name in nodes),
        load_seconds=load_seconds,
        resident_before_bytes=resident_before,
        peak_bytes=peak,
        private_bytes=None if private_before is None or private_after is None else private_after - private_before,
        prefill_tokens_per_second=len(task.prompt) / prefill,
        decode_tokens_per_second=(task.new_tokens - 1) / (whole - prefill),
    )


# Both import what they need before they return the loader: imports are not what is measured.


def _pytorch_loader() -> Callable[[Path], Any]:
    import torch
    from transformers import AutoModelForCausalLM

    arguments = {"dtype": torch.float32, "attn_implementation": "sdpa", "local_files_only": True}
    return lambda folder: AutoModelForCausalLM.from_pretrained(folder, **arguments).eval()


def _onnx_loader() -> Callable[[Path], Any]:
    from ..causal_lm import ORTModelForCausalLM

    return lambda file: ORTModelForCausalLM.from_pretrained(file.parent, file_name=file.name)


def _generate(model: Any, prompt: list[int], new_tokens: int) -> tuple[list[int], float]:
    """Greedy continuation of exactly `new_tokens` tokens, and the seconds that it took."""
    import torch

    ids = torch.tensor([prompt])
    start = time.perf_counter()
    with torch.no_grad():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
        )
    return output[0, len(prompt) :].tolist(), time.perf_counter() - start


def _node_names(file: Path) -> list[str]:
    import onnx

    return [node.name for node in onnx.load(file, load_external_data=False).graph.node]


def main() -> None:
    print(json.dumps(asdict(measure(Task(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
