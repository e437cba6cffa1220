"""What a job may ask for, by name."""

from __future__ import annotations

import attention_case
import counter_case
import load_case
import machine_case
import session_case

KINDS = {
    "machine": machine_case.run,
    "counter": counter_case.run,
    "session": session_case.run,
    "attention": attention_case.run,
    "load": load_case.run,
}
