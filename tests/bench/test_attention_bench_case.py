"""What a call of attention counts, and the arithmetic of its line."""

from __future__ import annotations

import numpy as np
import pytest

from ort_hina.benchmark import attention
from ort_hina.benchmark.attention_case import HEADER, AttentionCase, attention_case
from ort_hina.benchmark.attention_work import AttentionShape, AttentionWork
from ort_hina.benchmark.yardsticks import Measurement

TINY = AttentionShape("tiny", 6, 2, 32)


def test_a_prompt_counts_the_pairs_below_the_diagonal():
    work = AttentionWork(AttentionShape("s", 6, 2, 10), 3, 4, 4)
    assert work.phase == "prefill"
    assert work.flops == 2 * (10 + 10) * (1 + 2 + 3 + 4) * 6 * 3
    assert work.cache_bytes("float16") == work.stored_bytes("float16") == 2 * 2 * 10 * 4 * 2 * 3


def test_a_new_token_counts_every_key_and_each_cache_once_for_all_heads():
    work = AttentionWork(AttentionShape("s", 6, 2, 10), 3, 1, 100)
    assert work.phase == "decode"
    assert work.flops == 2 * (10 + 10) * 100 * 6 * 3
    assert work.cache_bytes("float") == 2 * 2 * 10 * 100 * 4 * 3


def test_a_window_hides_keys():
    shape = AttentionShape("s", 1, 1, 1, window=3)
    assert AttentionWork(shape, 1, 1, 100).flops == 4 * 3
    assert AttentionWork(shape, 1, 1, 100).cache_bytes("float") == 3 * 2 * 4
    assert AttentionWork(shape, 1, 1, 100).stored_bytes("float") == 100 * 2 * 4
    assert AttentionWork(shape, 1, 5, 5).flops == 4 * (1 + 2 + 3 + 3 + 3)
    assert AttentionWork(shape, 1, 5, 5).cache_bytes("float") == 5 * 2 * 4


def test_a_share_is_of_the_nearer_limit():
    work = AttentionWork(AttentionShape("s", 8, 1, 10), 1, 1, 1000)  # 80,000 bytes of float, 320,000 operations
    reading = _case(work, Measurement([0.5, 0.25, 1], read_bandwidth=8e5, peak_flops=1e9))
    assert (reading.ms_min, reading.ms_median, reading.ms_max) == (250, 500, 1000)
    assert reading.roofline_share == pytest.approx(0.2)
    assert _case(work, Measurement([1.0], read_bandwidth=1e9, peak_flops=6.4e5)).roofline_share == pytest.approx(0.5)


def test_a_row_stands_under_its_header():
    case = _case(AttentionWork(TINY, 1, 1, 37), Measurement([1.0], 1e9, 1e9))
    assert len(case.row()) == len(HEADER)


def _case(work: AttentionWork, measured: Measurement, operator: str = attention.OWN, dtype: str = "float") -> AttentionCase:
    return attention_case(operator, work, dtype, "avx2", "float", 1, 3, True, measured)


def test_peers_are_compared_with_their_time_and_their_answer():
    work = AttentionWork(TINY, 1, 1, 37)
    one, two = (Measurement([seconds], 1.0, 1.0) for seconds in (1.0, 2.0))
    cases = [
        _case(work, one), _case(work, two, attention.CONTRIB), _case(work, one, attention.OWN, "bfloat16"),
        _case(work, two, attention.TORCH, "bfloat16"),
    ]  # fmt: skip
    answers = {
        (attention.OWN, "float", "avx2"): np.array([1.0, -4.0]),
        (attention.CONTRIB, "float", "avx2"): np.array([1.5, -4.0]),
        (attention.OWN, "bfloat16", "avx2"): np.array([1.0, -2.0]),
        (attention.TORCH, "bfloat16", "avx2"): np.array([1.0, -2.0]),
    }
    own, peer, bf16, _ = attention.compared(cases, answers)
    assert own.times_faster == {f"{attention.CONTRIB} float": 2, f"{attention.TORCH} bfloat16": 2}
    assert own.difference == {attention.CONTRIB: 0.125} and bf16.difference == {attention.TORCH: 0}
    assert peer.times_faster == {} and "2.00 ORT GroupQueryAttention (difference 1e-01)" in own.comparison()
    assert "torch" not in own.comparison() and "ORT GroupQueryAttention float" in bf16.comparison()
