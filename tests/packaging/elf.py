"""What readelf says of a shared library."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def exported_symbols(library: Path) -> set[str]:
    """The names that the library defines for others: what another library in the process could collide with."""
    rows = (line.split() for line in _readelf("--dyn-syms", library).splitlines())
    # Num: Value Size Type Bind Visibility Index Name
    return {row[7].partition("@")[0] for row in rows if len(row) >= 8 and row[4] != "LOCAL" and row[6] not in ("UND", "Ndx")}


def needed_libraries(library: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", _readelf("--dynamic", library)))


def search_paths(library: Path) -> list[str]:
    """RPATH and RUNPATH: folders that the loader searches before the system's."""
    return re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", _readelf("--dynamic", library))


def _readelf(option: str, library: Path) -> str:
    command = ["readelf", "--wide", option, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
