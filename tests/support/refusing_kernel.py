"""Kernels that refuse: a seccomp filter, as containers have, over the rest of the calling process."""

from __future__ import annotations

import ctypes
import platform
import struct

# By architecture: move_pages, mbind, get_mempolicy, madvise.
_CALLS = {"x86_64": (279, 237, 239, 28), "aarch64": (239, 235, 236, 233)}
SUPPORTED = platform.machine() in _CALLS
_MOVE_PAGES, _MBIND, _GET_MEMPOLICY, _MADVISE = _CALLS.get(platform.machine(), (0, 0, 0, 0))

_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_NUMBER, _THIRD_ARGUMENT = 0, 32  # offsets in struct seccomp_data
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_EPERM, _EINVAL = 1, 22
_POPULATE_READ, _POPULATE_WRITE = 22, 23


def forbid_placement() -> None:
    """As Docker does: neither queries nor policies are permitted."""
    calls = (_MOVE_PAGES, _MBIND, _GET_MEMPOLICY)
    steps = [(_LOAD, 0, 0, _NUMBER)]
    steps += [(_JUMP_EQUAL, len(calls) - i, 0, call) for i, call in enumerate(calls)]
    _install([*steps, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | _EPERM)])


def forget_populating() -> None:
    """As a kernel before 5.14, which does not know MADV_POPULATE_READ and MADV_POPULATE_WRITE."""
    _install(
        [
            (_LOAD, 0, 0, _NUMBER),
            (_JUMP_EQUAL, 0, 3, _MADVISE),
            (_LOAD, 0, 0, _THIRD_ARGUMENT),
            (_JUMP_EQUAL, 2, 0, _POPULATE_READ),
            (_JUMP_EQUAL, 1, 0, _POPULATE_WRITE),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERROR | _EINVAL),
        ]
    )


def _install(steps: list[tuple[int, int, int, int]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    set_no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, mode_filter, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp failed")
