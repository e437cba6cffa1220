"""Numbers and caches for the measurements of attention."""

from __future__ import annotations

import numpy as np
import pytest

from ort_hina.benchmark import attention_caches
from ort_hina.benchmark.attention_work import AttentionShape, AttentionWork

TINY = AttentionShape("tiny", 6, 2, 32)
WINDOW = AttentionShape("tiny-window", 6, 2, 32, window=8)


def test_no_two_caches_are_alike_and_each_is_made_again():
    work = AttentionWork(TINY, 2, 1, 37)
    first, second = attention_caches.caches(work, "bfloat16", 2)
    arrays = [first.key, first.value, second.key, second.value]
    assert all(array.shape == (2, 2, 37, 32) and array.dtype == np.uint16 for array in arrays)
    assert len({array.tobytes() for array in arrays}) == 4
    assert np.array_equal(second.value, attention_caches.caches(work, "bfloat16", 2)[1].value)


def test_numbers_go_on_beyond_their_block():
    count = attention_caches._BLOCK + 5
    values = attention_caches.numbers((count,), "float", 1)
    assert len(values) == count and np.array_equal(values[-5:], values[:5])
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01


@pytest.mark.parametrize(
    ("free", "length", "count"),
    [(None, 37, 28), (10**9, 37, 28), (3 * 2 * 37 * 1024, 37, 2), (3, 37, 0), (None, 1 << 20, 1)],
)
def test_caches_are_as_many_as_are_cold_and_fit(free, length, count, monkeypatch):
    monkeypatch.setattr(attention_caches, "free_memory", lambda: free)
    work = AttentionWork(TINY, 2, 1, length)  # 1024 bytes of float a row
    assert work.stored_bytes("float") == length * 1024
    assert attention_caches.cache_count(work, "float", 1 << 20) == count


def test_a_window_needs_more_caches_to_be_cold():
    decode, prompt = AttentionWork(WINDOW, 1, 1, 80), AttentionWork(WINDOW, 1, 80, 80)
    assert attention_caches.cache_count(decode, "float", 80 * 512) == 10
    assert attention_caches.cache_count(prompt, "float", 1 << 20) == 1


@pytest.mark.parametrize(("l3", "fewest"), [(None, attention_caches.ROTATION_BYTES // 512), (1 << 20, 8 << 11)])
def test_cold_is_many_times_the_l3_or_much_where_that_is_unknown(l3, fewest, monkeypatch):
    monkeypatch.setattr(attention_caches, "l3_bytes", lambda: l3)
    work = AttentionWork(TINY, 1, 1, 1)  # 512 bytes of float
    assert attention_caches.cold(work, "float", fewest) and not attention_caches.cold(work, "float", fewest - 1)
    assert attention_caches.rotation_bytes() == attention_caches.ROTATION_BYTES


def test_the_l3_of_two_chiplets_counts_twice(monkeypatch, tmp_path):
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2"), (3, "3")):
        for index, level, size in ((0, "1", "32K"), (3, "3", "1024K")):
            folder = tmp_path / f"cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(text + "\n")
    monkeypatch.setattr(attention_caches, "_SYSFS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    assert attention_caches.l3_bytes() == 2 << 20
    monkeypatch.setattr(attention_caches, "_SYSFS", tmp_path / "nowhere")
    assert attention_caches.l3_bytes() is None


def test_free_memory_is_in_bytes_or_unknown(monkeypatch, tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 900 kB\nMemAvailable:    300 kB\n")
    monkeypatch.setattr(attention_caches, "_MEMINFO", file)
    assert attention_caches.free_memory() == 300 << 10
    file.unlink()
    assert attention_caches.free_memory() is None
