"""main.py JOB: runs the cases of a job in the guest, each in a process of its own, and prints a line of JSON for each.

A case is a fork of this process, since importing ONNX Runtime takes seconds under emulation. It starts with the policy that
this process was started with, and ends with it whatever it did.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import counter
import cases


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    for case in job["cases"]:
        begin = time.monotonic()
        result = run_apart(case, job["seconds"])
        result |= {"case": case["name"], "took": round(time.monotonic() - begin, 2)}
        print(json.dumps(result), flush=True)


def run_apart(case: dict[str, Any], seconds: int) -> dict[str, Any]:
    """What the case's function returned, with what its process wrote to stderr; or ``failed``, how it ended."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        answer, errors = Path(folder) / "answer", Path(folder) / "errors"
        process = os.fork()
        if process == 0:
            signal.alarm(seconds)
            run_here(case, answer, errors)
        _, status = os.waitpid(process, 0)
        counter.stop()
        result = json.loads(answer.read_text()) if answer.exists() else {}
        if status:
            ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
            result["failed"] = ended
        return result | {"stderr": errors.read_text(errors="replace")[-50_000:] if errors.exists() else ""}


def run_here(case: dict[str, Any], answer: Path, errors: Path) -> None:
    """Runs the case and ends this process."""
    status = 1
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        answer.write_text(json.dumps(cases.KINDS[case["kind"]](**case["arguments"])))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        with contextlib.suppress(BaseException):
            os._exit(status)


if __name__ == "__main__":
    main()
