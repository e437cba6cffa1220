"""The instruction levels of this build, for tests that force each in turn, and what they round.

On a CPU with AVX512-BF16 and without AMX, the level ``amx`` runs in the emulator. The library allows that only where its
environment holds `EMULATION`, which tests/csrc/conftest.py sets for the tests of the C++ side.
"""

from __future__ import annotations

import os
from unittest import mock

import pytest

from ort_hina import _native

from . import emulator

# Best last: a level has what those before it have.
ORDER = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
ROUNDS_TO_BFLOAT16 = ("avx512_bf16", "amx")

EMULATION_VARIABLE = "ORT_HINA_EMULATED_AMX"
with mock.patch.dict(os.environ):
    os.environ.pop(EMULATION_VARIABLE, None)
    _CPU = {level["name"]: level for level in _native.isa_levels()}


def _why_amx_is_not_emulated() -> str:
    """Empty if it is."""
    if "amx" not in _CPU or _CPU["amx"]["available"]:
        return "this build or this CPU does not need it"
    if not _CPU["avx512_bf16"]["available"]:
        return "its vector instructions are not emulated, and " + _CPU["avx512_bf16"]["reason"]
    try:
        emulator.install()
    except (OSError, RuntimeError, pytest.skip.Exception) as error:
        return f"there is no emulator: {error}"
    return ""


_LACKS_EMULATOR = _why_amx_is_not_emulated()
EMULATED_AMX = not _LACKS_EMULATOR
EMULATION = {EMULATION_VARIABLE: "1"} if EMULATED_AMX else {}

with mock.patch.dict(os.environ, EMULATION):
    LEVELS = [level["name"] for level in _native.isa_levels() if level["available"]]
    LACKING = [level for level in _native.isa_levels() if not level["available"]]

_skipped = [] if "amx" in LEVELS or "amx" not in _CPU else [
    pytest.param("amx", marks=pytest.mark.skip(reason=f"no AMX: {_CPU['amx']['reason']}; {_LACKS_EMULATOR}"))
]  # fmt: skip
every_level = pytest.mark.parametrize("isa", [*LEVELS, *_skipped])


def level_named(isa: str) -> str:
    """This level; of an empty name, the one that the library chooses."""
    return isa or _native.chosen_isa()["name"]


def product_type(isa: str, weights: str, bf16_compute: bool = False) -> str:
    """The type to which a level rounds both factors of its products with weights of this element type."""
    wanted = weights == "bfloat16" or bf16_compute
    return "bfloat16" if wanted and level_named(isa) in ROUNDS_TO_BFLOAT16 else "float"
