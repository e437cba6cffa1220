"""The examples as modules: they are files of a folder that is no package."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(FOLDER))
