"""A bar in a terminal, one line elsewhere."""

from __future__ import annotations

import io

import pytest

from ort_hina import progress
from ort_hina.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_line_where_there_is_no_terminal():
    stream = io.StringIO()
    with Progress("working", total=2, stream=stream) as step:
        step.advance(2)
    line = stream.getvalue()
    assert line.startswith("working: done in ") and line.endswith(" s\n") and line.count("\n") == 1


def test_a_failed_step_says_so_and_the_error_goes_on():
    stream = io.StringIO()
    with pytest.raises(KeyError), Progress("working", stream=stream):
        raise KeyError("x")
    assert stream.getvalue().startswith("working: failed in ")


def test_terminal_gets_a_bar_that_is_cleared_at_the_end(monkeypatch):
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0.001)
    stream = Terminal()
    with Progress("working", total=4, stream=stream) as step:
        step.advance()
        while "1/4" not in stream.getvalue():
            step._finished.wait(0.001)
    assert f"working [{'#' * 6}{'-' * 18}] 1/4" in stream.getvalue()
    assert stream.getvalue().rsplit("\r\x1b[K", 1)[1].startswith("working: done in ")


@pytest.mark.parametrize(("total", "done", "filled"), [(0, 0, 0), (3, 5, 24), (48, 24, 12)])
def test_bar_never_overflows(total, done, filled):
    step = Progress("working", total=total, stream=io.StringIO())
    step.advance(done)
    assert step._line().count("#") == filled


def test_the_number_of_parts_may_become_known_during_the_step():
    stream = Terminal()
    step = Progress("working", stream=stream)
    assert "/" not in step._line()
    step.show(1, 3)
    assert "1/3" in step._line()
