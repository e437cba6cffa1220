"""The tests of the C++ side choose levels themselves: one that the caller forces would run every test on that level."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_forced_level(monkeypatch):
    monkeypatch.delenv("ORT_HINA_ISA", raising=False)
