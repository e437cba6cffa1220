"""Prompts of any size on exported language models, beyond the seven cases of `ort_hina.models.cases`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnxruntime

from ort_hina.models.cases import Step
from ort_hina.models.onnx_cases import run_step

FIRST_TOKEN, TOKENS = 3, 384


def prefill_and_step(session: onnxruntime.InferenceSession, batch: int, length: int) -> list[np.ndarray]:
    """The logits of a random prompt and of one more token, the same tokens in every session."""
    random = np.random.default_rng(batch * 1000 + length)
    ids = random.integers(FIRST_TOKEN, TOKENS, (batch, length + 1))
    first, state = run_step(session, _step(ids[:, :-1], 0), None, {})
    second, _ = run_step(session, _step(ids[:, -1:], length), state, {})
    return [first, second]


def greedy(session: onnxruntime.InferenceSession, length: int, count: int, sizes: Mapping[str, int]) -> list[int]:
    """`count` tokens, each the likeliest after a random prompt of `length` tokens and those before it."""
    ids = np.random.default_rng(length).integers(FIRST_TOKEN, TOKENS, (1, length))
    tokens, state, past = [], None, 0
    for _ in range(count):
        logits, state = run_step(session, _step(ids, past), state, sizes)
        past += ids.shape[1]
        tokens.append(int(logits[0, -1].argmax()))
        ids = np.array([[tokens[-1]]])
    return tokens


def _step(ids: np.ndarray, past: int) -> Step:
    batch, length = ids.shape
    positions = np.tile(np.arange(past, past + length), (batch, 1))
    return Step(ids, np.ones((batch, past + length), np.int64), positions)


def padded_prompt(batch: int, length: int, padding: int) -> Iterator[Step]:
    """A random prompt, of which the first row is padded on its left, then single random tokens without end."""
    random = np.random.default_rng(batch * 1000 + length)
    ids = random.integers(FIRST_TOKEN, TOKENS, (batch, length))
    mask = np.ones_like(ids)
    mask[0, :padding] = 0
    yield Step(ids, mask, np.where(mask == 0, 1, mask.cumsum(-1) - 1))
    while True:
        mask = np.concatenate([mask, np.ones((batch, 1), np.int64)], axis=1)
        yield Step(random.integers(FIRST_TOKEN, TOKENS, (batch, 1)), mask, mask.sum(-1, keepdims=True) - 1)


def greedy_batch(
    session: onnxruntime.InferenceSession, length: int, padding: Sequence[int], count: int, sizes: Mapping[str, int]
) -> np.ndarray:
    """(rows, count): the likeliest tokens after random prompts, of which row i has ``padding[i]`` of padding on its left."""
    ids = np.random.default_rng(length).integers(FIRST_TOKEN, TOKENS, (len(padding), length))
    mask = (np.arange(length) >= np.array(padding)[:, None]).astype(np.int64)
    positions, state, tokens = np.where(mask == 0, 1, mask.cumsum(-1) - 1), None, []
    for _ in range(count):
        logits, state = run_step(session, Step(ids, mask, positions), state, sizes)
        tokens.append(logits[:, -1].argmax(-1))
        ids, mask = tokens[-1][:, None], np.concatenate([mask, np.ones((len(padding), 1), np.int64)], axis=1)
        positions = mask.sum(-1, keepdims=True) - 1
    return np.stack(tokens, axis=1)
