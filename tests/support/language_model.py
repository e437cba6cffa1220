"""Prefill and decode of an exported language model, by hand: every output of every step is kept."""

from __future__ import annotations

import numpy as np
import onnxruntime

STEPS = 2
VOCABULARY = 300


def generate(session: onnxruntime.InferenceSession, batch: int, length: int, left_padding: int = 0) -> list[np.ndarray]:
    """The logits of a prefill of random tokens and of `STEPS` decode steps (the same tokens in every session).

    `left_padding` tokens of the first row are masked.
    """
    random = np.random.default_rng(batch * 100 + length)
    mask = np.ones((batch, length), np.int64)
    mask[0, :left_padding] = 0
    past = {
        value.name: np.zeros((batch, value.shape[1], 0, value.shape[3]), _dtype(value.type))
        for value in session.get_inputs()
        if value.name.startswith("past_key_values")
    }
    logits = []
    for step in range(1 + STEPS):
        count = length if step == 0 else 1
        if step > 0:
            mask = np.concatenate([mask, np.ones((batch, 1), np.int64)], axis=1)
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -count:]
        feeds = {"input_ids": random.integers(3, VOCABULARY, (batch, count)), "attention_mask": mask, "position_ids": positions}
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(None, feeds | past), strict=True))
        logits.append(outputs["logits"])
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
    return logits


def _dtype(name: str) -> type:
    return {"tensor(float)": np.float32, "tensor(float16)": np.float16}[name]
