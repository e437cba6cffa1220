"""What PyTorch answers to the cases, with the installed version of transformers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from .cases import CASES, Case, steps
from .exporters.block import moe_block
from .exporters.dtypes import TORCH_NAMES
from .random_model import random_model

_BLOCK_SHAPES = ((1, 1), (2, 16), (3, 40))


def key(case: str, step: int) -> str:
    """The name of the logits of one step in the file that `write_logits` writes."""
    return f"{case}/{step}"


def write_logits(family: str, file: Path, *, dtype: str = "fp32") -> None:
    """Runs the random model `family` on every case and writes the logits, float32 (B, S, vocabulary), to an .npz `file`.

    `dtype` is the type of the model's weights and arithmetic, a key of `exporters.dtypes.TORCH_NAMES`.
    """
    model = random_model(family, dtype=TORCH_NAMES[dtype])
    np.savez_compressed(file, **{key(case.name, i): logits for case in CASES for i, logits in enumerate(_run(model, case))})


def block_inputs(hidden_size: int) -> dict[str, np.ndarray]:
    """Hidden states, float32 (B, S, hidden_size), on which blocks are compared."""
    return {
        f"block B{batch}S{length}": np.random.default_rng(length).standard_normal((batch, length, hidden_size), np.float32)
        for batch, length in _BLOCK_SHAPES
    }


def write_block_outputs(family: str, file: Path, *, dtype: str = "fp32") -> None:
    """Runs the last MoE block of `family` on `block_inputs` and writes its outputs, float32, to an .npz `file`."""
    import torch

    model = random_model(family, dtype=TORCH_NAMES[dtype])
    block, outputs = moe_block(model), {}
    with torch.no_grad():
        for name, hidden in block_inputs(model.get_input_embeddings().embedding_dim).items():
            answer = block(torch.from_numpy(hidden).to(model.dtype))
            outputs[key(name, 0)] = (answer[0] if isinstance(answer, tuple) else answer).float().numpy()
    np.savez_compressed(file, **outputs)


def _run(model: Any, case: Case) -> list[np.ndarray]:
    import torch

    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    cache, logits = None, []
    for step in steps(case):
        arguments = {"input_ids": step.ids, "attention_mask": step.mask}
        if takes_positions:
            arguments["position_ids"] = step.positions
        with torch.no_grad():
            answer = model(
                **{name: torch.from_numpy(value) for name, value in arguments.items()}, past_key_values=cache, use_cache=True
            )
        cache = answer.past_key_values
        logits.append(answer.logits.float().numpy())
    return logits
