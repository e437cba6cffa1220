"""Progress of long steps, on standard error: a bar in a terminal, one line per finished step anywhere else.

    with Progress("verifying layers", total=48) as progress:
        for layer in layers:
            ...
            progress.advance()

Without `total` (a step that cannot say how far it is, such as an export by another library) the seconds count up.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

_WIDTH = 24
_REFRESH_SECONDS = 0.25


class Progress:
    """One step: use it as a context manager, and call `advance` as parts of it are done."""

    def __init__(self, description: str, *, total: int | None = None, stream: TextIO | None = None) -> None:
        self._description = description
        self._total = total
        self._stream = stream or sys.stderr
        self._done = 0
        self._start = 0.0
        self._finished = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._in_terminal = self._stream.isatty()

    def advance(self, parts: int = 1) -> None:
        """Says that `parts` more of `total` are done."""
        self._done += parts

    def show(self, done: int, total: int) -> None:
        """Says that `done` of `total` parts are done, where the total becomes known only during the step."""
        self._done, self._total = done, total

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        if self._in_terminal:
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        if self._in_terminal:
            self._ticker.join()
            self._stream.write("\r\x1b[K")  # clear the bar: the closing line takes its place
        outcome = "done" if kind is None else "failed"
        self._stream.write(f"{self._description}: {outcome} in {self._seconds():.1f} s\n")
        self._stream.flush()

    def _tick(self) -> None:
        """Redraws from its own thread, so that the clock runs while the step does not call `advance`."""
        while not self._finished.wait(_REFRESH_SECONDS):
            self._stream.write(f"\r\x1b[K{self._line()}")
            self._stream.flush()

    def _line(self) -> str:
        if self._total is None:
            return f"{self._description} … {self._seconds():.0f} s"
        filled = _WIDTH * min(self._done, self._total) // max(self._total, 1)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        return f"{self._description} [{bar}] {self._done}/{self._total} {self._seconds():.0f} s"

    def _seconds(self) -> float:
        return time.monotonic() - self._start
