"""How far two sets of answers are apart, case by case."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from .onnx_cases import Answers, real_tokens

# The largest difference, relative to the largest answer, that roundings explain in models this small. Right files of the
# table are 2e-6 (fp32) and 4e-3 (fp16) from PyTorch; one wrong expert makes a tenth and more.
ROUNDING = {"fp32": 2e-5, "fp16": 1e-2}


def differences(
    answers: Answers, expected: Mapping[str, np.ndarray], without: Collection[tuple[str, int]] = ()
) -> dict[str, float]:
    """For each case in both, by name, the largest difference over its steps, in units of the answers.

    Tokens of the padding do not count, nor the sequences `without`. A value that is not finite in one of the two only is an
    infinite difference.
    """
    worst: dict[str, float] = {}
    for (case, number), difference in by_sequence(answers, expected).items():
        if (case, number) not in without:
            worst[case] = max(worst.get(case, 0.0), difference)
    return worst


def by_sequence(answers: Answers, expected: Mapping[str, np.ndarray]) -> dict[tuple[str, int], float]:
    """The same for each sequence: by case and number in the case."""
    real, worst = real_tokens(), {}
    for step, got in answers.items():
        if step not in expected:
            continue
        case = step.rpartition("/")[0]
        for number, (found, want) in enumerate(zip(got, expected[step], strict=True)):
            if step in real:
                found, want = found[real[step][number]], want[real[step][number]]
            key = (case, number)
            worst[key] = max(worst.get(key, 0.0), _difference(found, want))
    return worst


def scale(expected: Mapping[str, np.ndarray]) -> float:
    """The largest finite absolute value of `expected`: what a difference is measured against."""
    return max((float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) for value in expected.values()), default=0.0)


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    both_wild = ~np.isfinite(got) & ~np.isfinite(want)
    distance = np.abs(np.where(both_wild, 0, got) - np.where(both_wild, 0, want))
    return float(np.where(np.isfinite(distance), distance, np.inf).max(initial=0.0))
