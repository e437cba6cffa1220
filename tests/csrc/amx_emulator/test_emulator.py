"""The emulator inside this process: what tests of AMX kernels rely on. (tests/native checks each instruction.)"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import signal
import threading
from collections.abc import Callable

import pytest
from support import emulator

# A configuration of one tile: palette 1; tile 0 has 16 rows of 64 bytes.
CONFIGURATION = bytes([1]) + bytes(15) + (64).to_bytes(2, "little") + bytes(30) + bytes([16]) + bytes(15)

# ldtilecfg [rdi]; sttilecfg [rsi]; tilezero tmm0; tilerelease; ret
CODE = bytes.fromhex("c4e2784907 c4e2794906 c4e27b49c0 c4e27849c0 c3")


@pytest.fixture(autouse=True)
def installed():
    emulator.install()


def machine_code(code: bytes) -> Callable[[bytes, ctypes.Array], None]:
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(address)
    function.memory = memory  # lives as long as the function
    return function


def stored_configuration() -> bytes:
    stored = ctypes.create_string_buffer(64)
    machine_code(CODE)(CONFIGURATION, stored)
    return stored.raw


def test_executes_and_counts():
    emulator.reset()
    assert stored_configuration() == CONFIGURATION
    counted = {name: count for name, count in emulator.counts().items() if count}
    assert counted == {"LDTILECFG": 1, "STTILECFG": 1, "TILEZERO": 1, "TILERELEASE": 1}


def test_counts_name_every_instruction():
    names = emulator.counts()
    assert {"TILELOADD", "TILELOADDT1", "TILESTORED", "TDPBF16PS"} <= names.keys()
    assert len(names) == 15 and all(name.isalnum() for name in names)


def test_reset():
    stored_configuration()
    emulator.reset()
    assert set(emulator.counts().values()) == {0}


def test_other_threads_are_emulated_and_counted():
    emulator.reset()
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(stored_configuration())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONFIGURATION] * 4
    assert emulator.counts()["LDTILECFG"] == 4


def test_comes_in_front_again_after_another_handler():
    """faulthandler takes SIGILL for itself, and would end the process."""
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    with open("/dev/null", "w") as nowhere:
        faulthandler.enable(nowhere)
        emulator.install()
        assert stored_configuration() == CONFIGURATION
        faulthandler.disable()
    if was_enabled:
        faulthandler.enable()
    emulator.install()
    assert stored_configuration() == CONFIGURATION


def test_a_signal_that_was_sent_goes_to_the_handler_before(monkeypatch):
    """Only what the instruction itself raises is the emulator's."""
    seen: list[int] = []
    before = signal.signal(signal.SIGILL, lambda number, frame: seen.append(number))
    emulator.install()
    signal.raise_signal(signal.SIGILL)
    assert seen == [signal.SIGILL]
    assert stored_configuration() == CONFIGURATION
    signal.signal(signal.SIGILL, before)
    emulator.install()
