"""Levels of the C++ side's tests: most choose one themselves; the others run on the best, or on the one that is forced:

    ORT_HINA_ISA=avx2 python -m pytest tests/csrc
"""

from __future__ import annotations

import os
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def level_of_the_caller(request, monkeypatch):
    # These ask what is chosen, and force levels themselves.
    if request.path.parent.name == "runtime":
        monkeypatch.delenv("ORT_HINA_ISA", raising=False)


@pytest.fixture(autouse=True, scope="module")
def emulated_amx():
    # Not imported above: this file is read before pytest takes SIGILL, which the emulator needs, for itself.
    from support.levels import EMULATION

    with mock.patch.dict(os.environ, EMULATION):
        yield
