"""The instruction levels of this build, for tests that force each in turn."""

from __future__ import annotations

import pytest

from ort_hina import _native

LEVELS = [level["name"] for level in _native.isa_levels() if level["available"]]
LACKING = [level for level in _native.isa_levels() if not level["available"]]

every_level = pytest.mark.parametrize("isa", LEVELS)
