"""The shared library of custom operators: where it lies, and how a session gets to know it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import OrtHinaError

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

LIBRARY_NAME = "libort_hina.so"
# The oldest release that the package is tested with. An older one may load the library and fail later, in other words.
OLDEST_ONNXRUNTIME = (1, 23)

# Session configuration entries. The library reads all but the last, so they are written before the library is registered; the
# last is how `register` recognises options that it has seen (the object takes no Python attributes).
THREADS_ENTRY = "ort_hina.threads"
COMPUTE_ENTRY = "ort_hina.compute"
NUMA_ENTRY = "ort_hina.numa"
NUMA_MODES = ("off", "read", "interleave", "bind")
_REGISTERED_ENTRY = "ort_hina.library"


def library_path() -> str:
    """The absolute path of ``libort_hina.so``, for `onnxruntime.SessionOptions.register_custom_ops_library`.

    Raises:
        OrtHinaError: it was not built; the message names the folders that were searched.
    """
    import ort_hina

    return _find(Path(folder) for folder in ort_hina.__path__)


def native_module() -> ModuleType:
    """The compiled module ``ort_hina._native``.

    Raises:
        OrtHinaError: it was not built.
    """
    try:
        from . import _native
    except ImportError as error:
        raise OrtHinaError(
            f"the compiled module ort_hina._native cannot be imported ({error}): "
            "install the package (pip install ort-hina), or build it in the source tree (make build)"
        ) from error
    return _native


def _find(package_folders: Iterable[Path]) -> str:
    """Looks in the folders of the package: one in a normal installation; in an editable one, the source tree and the
    folder in site-packages that holds what was compiled."""
    searched = [folder.resolve() for folder in package_folders]
    for folder in searched:
        if (folder / LIBRARY_NAME).is_file():
            return str(folder / LIBRARY_NAME)
    raise OrtHinaError(
        f"{LIBRARY_NAME} was not found in {', '.join(map(str, searched))}: "
        "install the package (pip install ort-hina), or build it in the source tree (make build)"
    )


def register(
    session_options: SessionOptions, *, threads: int | None = None, compute: str | None = None, numa: str | None = None
) -> None:
    """Makes the operators of ``ort_hina`` known to the sessions that will be created with `session_options`.

    Registering the same options again changes nothing and is no error.

    Args:
        session_options: the options to register on.
        threads: how many threads the operators plan their work for. None takes `intra_op_num_threads` of the options
            where it is set; otherwise the library finds out by itself. The work runs on the session's own pool: this
            starts no threads.
        compute: "bfloat16" lets float32 and float16 weights be multiplied as bfloat16 (both factors rounded to 8 bits of
            precision, sums in float32) on CPUs that have instructions for that: faster, less exact. None or "default":
            only bfloat16 weights are multiplied so.
        numa: on a machine with several memory nodes, what is done with the pages of weights: "read" (what None means) leaves
            them where they lie and gives the work to threads nearby; "interleave" and "bind" spread them over the nodes
            first, by pages or by rows, which may cost a copy; "off" does nothing. See docs/numa.md.

    Raises:
        OrtHinaError: the installed onnxruntime is too old, the library is not built or does not load, or the options
            were registered before with other `threads`, `compute` or `numa`.
        ValueError: `threads` is less than 1, or `compute` or `numa` is unknown.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if compute not in (None, "default", "bfloat16"):
        raise ValueError(f'compute must be "default" or "bfloat16", got {compute!r}')
    if numa not in (None, *NUMA_MODES):
        raise ValueError(f"numa must be one of {', '.join(NUMA_MODES)}, got {numa!r}")
    import onnxruntime

    _check_onnxruntime(onnxruntime.__version__)
    if _entry(session_options, _REGISTERED_ENTRY) is not None:
        _check_same(session_options, THREADS_ENTRY, "threads", None if threads is None else str(threads))
        _check_same(session_options, COMPUTE_ENTRY, "compute", compute)
        _check_same(session_options, NUMA_ENTRY, "numa", numa)
        return
    path = library_path()
    count = threads or session_options.intra_op_num_threads
    if count > 0:
        session_options.add_session_config_entry(THREADS_ENTRY, str(count))
    if compute is not None:
        session_options.add_session_config_entry(COMPUTE_ENTRY, compute)
    if numa is not None:
        session_options.add_session_config_entry(NUMA_ENTRY, numa)
    try:
        session_options.register_custom_ops_library(path)
    except Exception as error:  # onnxruntime's own exception types have no public common base
        raise OrtHinaError(f"onnxruntime {onnxruntime.__version__} could not load {path}: {error}") from error
    session_options.add_session_config_entry(_REGISTERED_ENTRY, path)


def onnxruntime_version() -> tuple[int, int]:
    """Major and minor version of the installed onnxruntime."""
    import onnxruntime

    return _numbers(onnxruntime.__version__)


def _numbers(version: str) -> tuple[int, int]:
    major, minor = (int(part) for part in version.split(".")[:2])
    return major, minor


def _check_onnxruntime(version: str) -> None:
    if _numbers(version) < OLDEST_ONNXRUNTIME:
        from .version import __version__

        needed = ".".join(map(str, OLDEST_ONNXRUNTIME))
        raise OrtHinaError(
            f"ort_hina {__version__} needs onnxruntime {needed} or newer, and this is onnxruntime {version}: "
            f'pip install --upgrade "onnxruntime>={needed}"'
        )


def _check_same(session_options: SessionOptions, key: str, name: str, value: str | None) -> None:
    before = _entry(session_options, key)
    if value is not None and value != before:
        raise OrtHinaError(
            f"these session options were registered with {name}={before or 'the default'}, which the library has read "
            f"already; for {name}={value} register new SessionOptions"
        )


def _entry(session_options: SessionOptions, key: str) -> str | None:
    """A session configuration entry, or None: onnxruntime raises RuntimeError for a key that was never added."""
    try:
        return session_options.get_session_config_entry(key)
    except RuntimeError:
        return None
