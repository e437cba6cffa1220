"""Seven prompts on which two models are compared: batches, one token, a long one, padding, one repeated token.

Each is a prefill on an empty past and two steps of decoding. The tokens are drawn before anything runs, so a difference in
one step does not change the input of the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

DECODE_STEPS = 2
# Families here have 384 tokens, of which the first three are padding, begin and end.
_FIRST_TOKEN, _TOKENS = 3, 384
_REPEATED = 17


@dataclass(frozen=True)
class Case:
    """A prompt: `batch` rows of `length` tokens, `padding` of which, on the left of row 0, are padding."""

    name: str
    batch: int
    length: int
    padding: int = 0
    repeated: bool = False


@dataclass(frozen=True)
class Step:
    """What a model is given, all of int64: ids and positions (B, S), mask (B, past + S)."""

    ids: np.ndarray
    mask: np.ndarray
    positions: np.ndarray

    @property
    def real(self) -> np.ndarray:
        """Which tokens of this step are none of the padding, (B, S)."""
        return self.mask[:, -self.ids.shape[1] :] != 0


CASES = (
    Case("B1S5", 1, 5),
    Case("B2S16", 2, 16),
    Case("B3S11", 3, 11),
    Case("B1S1", 1, 1),
    Case("B1S40", 1, 40),
    Case("B2S9 left-padded", 2, 9, padding=4),
    Case("B1S6 one token", 1, 6, repeated=True),
)


def steps(case: Case) -> Iterator[Step]:
    """The prefill of `case` and its steps of decoding, the same at every call."""
    random = np.random.default_rng(CASES.index(case))
    ids = random.integers(_FIRST_TOKEN, _TOKENS, (case.batch, case.length))
    if case.repeated:
        ids[:] = _REPEATED
    mask = np.ones_like(ids)
    mask[0, : case.padding] = 0
    # As transformers' own generation counts; the position of padding is never used.
    yield Step(ids, mask, np.where(mask == 0, 1, mask.cumsum(-1) - 1))
    for _ in range(DECODE_STEPS):
        ids = random.integers(_FIRST_TOKEN, _TOKENS, (case.batch, 1))
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        yield Step(ids, mask, mask.sum(-1, keepdims=True) - 1)
