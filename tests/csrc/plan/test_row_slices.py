"""Slices by rows: every page once, to the node that is meant to get most of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_hina import _native


@st.composite
def stored_matrices(draw):
    """Matrices in a range of bytes: contiguous, or rows of several woven into each other; and the range's size."""
    matrices, end = [], draw(st.integers(0, 200))
    for _ in range(draw(st.integers(0, 4))):
        rows, columns, element = draw(st.integers(1, 40)), draw(st.integers(1, 90)), draw(st.sampled_from([2, 4]))
        woven, gap = draw(st.integers(1, 3)), draw(st.integers(0, 9))
        row = columns * element
        stride = woven * row + gap
        matrices += [(end + i * row, rows, columns, element, stride) for i in range(woven)]
        end += (rows - 1) * stride + woven * row + draw(st.integers(0, 300))
    return matrices, end + draw(st.integers(0, 400))


def _meant(matrices, size, weights):
    """[nodes, bytes]: how often a byte is meant for each node."""
    wanted = np.zeros((len(weights), size), dtype=np.int64)
    cuts = np.concatenate([[0.0], np.cumsum(weights) / np.sum(weights)])
    for begin, rows, columns, element, stride in matrices:
        for node in range(len(weights)):
            for row in range(int(rows * cuts[node] + 0.5), int(rows * cuts[node + 1] + 0.5)):
                at = begin + row * stride
                wanted[node, at : at + columns * element] += 1
    return wanted


@settings(max_examples=300, deadline=None)
@given(
    matrices=stored_matrices(), weights=st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any),
    page=st.sampled_from([64, 256, 4096]), phase=st.floats(0, 0.999),
)  # fmt: skip
def test_each_page_goes_where_most_of_it_is_meant_to(matrices, weights, page, phase):
    listed, size = matrices
    phase = int(phase * page)
    # Sums of these weights are exact, and so are their quotients, up to a last bit that no row's number reaches.
    slices = _native.row_slices(listed, size, [float(w) for w in weights], page, phase)
    assert [begin for begin, _, _ in slices] == [0, *(end for _, end, _ in slices)][: len(slices)]
    assert (slices[-1][1] if slices else 0) == size
    assert all((begin + phase) % page == 0 for begin, _, _ in slices[1:])
    assert all(a[2] != b[2] for a, b in zip(slices, slices[1:], strict=False))
    assert all(weights[node] > 0 for _, _, node in slices)
    if not listed:
        return
    wanted = _meant(listed, size, weights)
    previous = None
    for begin in range(-phase, size, page):
        here = wanted[:, max(0, begin) : begin + page].sum(axis=1)
        node = next(n for b, e, n in slices if b <= max(0, begin) < e)
        if here.any():
            assert here[node] == here.max() and node == int(here.argmax())
        elif previous is not None:
            assert node == previous
        previous = node


def test_of_a_large_matrix_each_node_gets_its_share():
    rows, row = 1000, 8192
    slices = _native.row_slices([(0, rows, row // 2, 2, row)], rows * row, [3.0, 1.0], 4096)
    assert slices == [(0, 750 * row, 0), (750 * row, rows * row, 1)]


def test_without_matrices_the_pages_are_cut():
    assert _native.row_slices([], 10 * 4096 + 5, [1.0, 0.0, 1.0], 4096) == [(0, 6 * 4096, 0), (6 * 4096, 40965, 2)]
    assert _native.row_slices([], 0, [1.0], 4096) == []


@pytest.mark.parametrize(
    ("matrices", "weights", "page", "message"),
    [
        ([(0, 2, 8, 2, 16)], [1.0, 1.0], 4096, "a matrix ends at byte 32 of a range of 31"),
        ([(0, 1, 8, 2, 8)], [1.0], 4096, "with rows of 16 bytes 8 apart"),
        ([], [0.0, 0.0], 4096, "expected a node with a weight above 0"),
        ([], [], 4096, "expected a node with a weight above 0"),
        ([], [1.0, -1.0], 4096, "expected weights of at least 0, got -1"),
        ([], [float("nan")], 4096, "expected weights of at least 0, got nan"),
    ],
)
def test_what_cannot_be_cut_is_refused(matrices, weights, page, message):
    with pytest.raises(ValueError, match=message):
        _native.row_slices(matrices, 31, weights, page)
