"""Folders of onnxruntime-genai: which model their configuration names, and with which library of operators.

Its ``genai_config.json`` names the decoder's file and the options of its session. Of these, ``custom_ops_library`` is a
library to register. Version 0.18 loads one only from the folder itself, from that of an execution provider, or from below
the current directory, and looks up a relative name in the folder first: so the folder gets a copy of ours, and stays
complete when it is moved. Options that onnxruntime-genai does not know become entries of the session's configuration,
before the library is registered; their values have to be strings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import OrtHinaError
from .library import LIBRARY_NAME, THREADS_ENTRY, library_path

CONFIG_NAME = "genai_config.json"
BACKUP_NAME = f"{CONFIG_NAME}.before_hina"

_FUSED_ENDING = "_hina"
_LIBRARY_OPTION = "custom_ops_library"
_THREADS_OPTION = "intra_op_num_threads"
# Our entries among the session options; undoing takes them back.
_OUR_OPTIONS = (_LIBRARY_OPTION, THREADS_ENTRY)


@dataclass(frozen=True)
class GenaiReport:
    """The result of `use_fused`."""

    config: str
    """Path of the configuration."""
    model: str
    """The decoder's file that it names, relative to its folder."""
    library: str | None
    """The library that it registers, relative to its folder."""
    changed: bool
    """Whether the configuration is another one than before."""

    def to_text(self) -> str:
        state = "now" if self.changed else "unchanged:"
        operators = f", with the operators of {self.library}" if self.library else ""
        return f"{self.config}: {state} runs {self.model}{operators}"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def use_fused(folder: str | os.PathLike, *, undo: bool = False) -> GenaiReport:
    """Makes ``genai_config.json`` in `folder` name the fused model, ``<name>_hina.onnx`` beside the one that it names.

    Three entries of ``model.decoder`` change, everything else stays as it is, in its order:

    - ``filename``: the fused model;
    - ``session_options.custom_ops_library``: the library of operators, of which `folder` gets a copy;
    - ``session_options["ort_hina.threads"]``: the value of ``intra_op_num_threads``, where that is set.

    The configuration as it was is kept as ``genai_config.json.before_hina``. A further call updates the copy of the library
    and the number of threads, and changes nothing else.

    Args:
        folder: what the builder of onnxruntime-genai wrote, after `fuse`.
        undo: take the three entries back instead, and remove the copy of the library and the kept configuration.

    Raises:
        OrtHinaError: the folder or its configuration is not as it should be, there is no fused model in it, another
            library is registered already (onnxruntime-genai takes one), or there is nothing to undo with.
        OSError: a file cannot be read or written.
    """
    folder = Path(folder)
    _check_folder(folder)
    return _undo(folder) if undo else _use(folder)


def next_step(fused: str | os.PathLike) -> str | None:
    """The command to run after writing `fused` into a folder of onnxruntime-genai. None elsewhere, or if it has run."""
    fused = Path(fused)
    try:
        config = _read(fused.parent / CONFIG_NAME)
    except (OrtHinaError, OSError):
        return None
    if config.is_ours or _fused_name(config.filename) != fused.name:
        return None
    return f"ort-hina genai {shlex.quote(os.fspath(fused.parent))}"


@dataclass
class _Config:
    """A configuration whose parts that are needed here have been checked."""

    path: Path
    text: str
    content: dict[str, Any]

    @property
    def decoder(self) -> dict[str, Any]:
        return self.content["model"]["decoder"]

    @property
    def filename(self) -> str:
        return self.decoder["filename"]

    @property
    def options(self) -> dict[str, Any]:
        return self.decoder.get("session_options", {})

    @property
    def is_ours(self) -> bool:
        return self.filename == _fused_name(self.filename) and self.options.get(_LIBRARY_OPTION) == LIBRARY_NAME

    def to_text(self) -> str:
        """As the builder writes it: four spaces; letters beyond ASCII escaped or not, and a last line end, as they were."""
        end = "\n" if self.text.endswith("\n") else ""
        return json.dumps(self.content, indent=4, ensure_ascii=self.text.isascii()) + end


def _use(folder: Path) -> GenaiReport:
    config = _read(folder / CONFIG_NAME)
    was_ours, before = config.is_ours, json.dumps(config.content)
    filename = _fused_name(config.filename)
    _check_fused(folder, config.filename, filename)
    _check_library_option(config)
    library = Path(library_path())

    config.decoder["filename"] = filename
    options = config.decoder.setdefault("session_options", {})
    options[_LIBRARY_OPTION] = LIBRARY_NAME
    threads = options.get(_THREADS_OPTION)
    if isinstance(threads, int) and threads > 0:
        options[THREADS_ENTRY] = str(threads)

    # In this order the configuration never names what is not there, wherever it is interrupted.
    _copy_library(library, folder / LIBRARY_NAME)
    changed = json.dumps(config.content) != before
    if changed:
        if not was_ours:
            _replace(folder / BACKUP_NAME, config.path.read_bytes(), mode_of=config.path)
        _replace(config.path, config.to_text().encode(), mode_of=config.path)
    return _report(config, changed)


def _undo(folder: Path) -> GenaiReport:
    config, kept = _read(folder / CONFIG_NAME), folder / BACKUP_NAME
    if not kept.exists():
        if config.is_ours:
            raise OrtHinaError(
                f"{kept} does not exist, so the original cannot be restored: in {config.path}, set model.decoder.filename "
                f"to the model that was fused, and remove {_LIBRARY_OPTION} and {THREADS_ENTRY} from its session_options"
            )
        return _report(config, changed=False)
    original, before = _read(kept), config.text
    _take_back(config, original)
    # What was edited since stays; if nothing was, the file is the original, byte for byte.
    same = config.content == original.content
    text = original.text if same else config.to_text()
    _replace(config.path, text.encode(), mode_of=config.path)
    if config.options.get(_LIBRARY_OPTION) != LIBRARY_NAME:
        (folder / LIBRARY_NAME).unlink(missing_ok=True)
    kept.unlink()
    return _report(config, text != before)


def _take_back(config: _Config, original: _Config) -> None:
    config.decoder["filename"] = original.filename
    for name in _OUR_OPTIONS:
        if name in original.options:
            config.options[name] = original.options[name]
        else:
            config.options.pop(name, None)
    if not config.options and "session_options" not in original.decoder:
        config.decoder.pop("session_options", None)


def _report(config: _Config, changed: bool) -> GenaiReport:
    return GenaiReport(os.fspath(config.path), config.filename, config.options.get(_LIBRARY_OPTION), changed)


def _fused_name(filename: str) -> str:
    """What `fuse` calls the result by default; the name itself if it is that of a result."""
    path = Path(filename)
    return filename if path.stem.endswith(_FUSED_ENDING) else str(path.with_name(f"{path.stem}{_FUSED_ENDING}.onnx"))


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise OrtHinaError(f"{folder} does not exist; expected a folder that holds {CONFIG_NAME}")
    if not folder.is_dir():
        raise OrtHinaError(f"{folder} is a file; expected the folder that holds {CONFIG_NAME}")
    if not (folder / CONFIG_NAME).is_file():
        raise OrtHinaError(f"{folder} holds no {CONFIG_NAME}: expected a folder that onnxruntime-genai's builder wrote")


def _check_fused(folder: Path, filename: str, fused: str) -> None:
    if (folder / fused).is_file():
        return
    path = Path(filename)
    source = folder / path.with_name(f"{path.stem.removesuffix(_FUSED_ENDING)}.onnx")
    raise OrtHinaError(
        f"there is no fused model {folder / fused}: write it with: ort-hina fuse {shlex.quote(os.fspath(source))}"
    )


def _check_library_option(config: _Config) -> None:
    library = config.options.get(_LIBRARY_OPTION)
    if library is not None and (not isinstance(library, str) or Path(library).name != LIBRARY_NAME):
        raise OrtHinaError(
            f"{config.path}: {_LIBRARY_OPTION} of model.decoder.session_options is {library!r} already, and "
            f"onnxruntime-genai registers one library only: expected none, or {LIBRARY_NAME}"
        )


def _read(path: Path) -> _Config:
    try:
        text = path.read_bytes().decode("utf-8")
        content = json.loads(text)
    except ValueError as error:
        raise OrtHinaError(f"{path} is not JSON: {error}") from error
    decoder = _object(path, _object(path, _object(path, content, ""), "model"), "model.decoder")
    filename = decoder.get("filename")
    if not isinstance(filename, str) or not Path(filename).name:
        found = "a pipeline of several files" if "pipeline" in decoder else f"{filename!r}"
        raise OrtHinaError(f"{path}: expected the name of an .onnx file as model.decoder.filename, got {found}")
    if "session_options" in decoder:
        _object(path, decoder, "model.decoder.session_options")
    return _Config(path, text, content)


def _object(path: Path, parent: Any, name: str) -> dict[str, Any]:
    """The member of `parent` whose full name is `name`; `parent` itself if that is empty."""
    value = parent.get(name.rpartition(".")[2]) if name else parent
    if not isinstance(value, dict):
        raise OrtHinaError(f"{path}: expected an object as {name or 'the whole'}, got {json.dumps(value)[:40]}")
    return value


def _copy_library(source: Path, copy: Path) -> None:
    """A copy and not a link: onnxruntime-genai follows links before it asks where the library lies."""
    content = source.read_bytes()
    if copy.is_symlink() or not copy.is_file() or copy.read_bytes() != content:
        _replace(copy, content, mode_of=source)


def _replace(path: Path, content: bytes, *, mode_of: Path) -> None:
    """Writes under another name first: nobody sees half a file, and a process that runs an old library keeps it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        shutil.copymode(mode_of, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
