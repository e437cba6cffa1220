"""Memory of this process, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_peak() -> int | None:
    """The most memory that was ever resident, in bytes: private pages and pages of mapped files. None: not Linux."""
    return _field("VmHWM")


def resident_now() -> int | None:
    """The memory that is resident now, in bytes, of both kinds. None: not Linux."""
    return _field("VmRSS")


def private_now() -> int | None:
    """Resident anonymous memory in bytes: what the process holds for itself alone, and what nobody else can share.

    Weights that are mapped from their file are not in it; copies of them are. None: not Linux.
    """
    return _field("RssAnon")


def _field(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024  # "123 kB"
    return None
