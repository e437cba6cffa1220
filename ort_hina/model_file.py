"""Reading and writing model files: nothing is believed before it is checked, nothing half-written is left behind."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from .errors import OrtHinaError
from .external_data import check_external_data, external_protos, place_of

# Protocol buffers count in signed 32-bit integers: no message can be larger.
LARGEST_MESSAGE = 2**31 - 1


@dataclass
class ModelFile:
    """An ONNX model whose external data has been checked to lie where the model says."""

    path: Path
    model: ir.Model
    locations: frozenset[str]
    """The data files, relative to `folder`."""

    @property
    def folder(self) -> Path:
        """The folder in which the locations of external data are looked up."""
        return self.path.parent


def read_model(path: str | os.PathLike) -> ModelFile:
    """Reads the graph of the model at `path`; external data is checked but not read.

    Raises:
        OrtHinaError: there is no such file, it is not an ONNX model, or its external data is missing, shorter than the
            model says, or outside of the model's folder.
    """
    path = Path(path)
    _check_file(path)
    proto = _parse(path)
    check_external_data(proto, path)
    locations = frozenset(place_of(tensor).location for tensor in external_protos(proto))
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx-ir raises whatever the broken part happens to cause
        raise OrtHinaError(f"{path} is not a valid ONNX model: {_root_cause(error)}") from error
    ir.external_data.set_base_dir(model.graph, path.parent)
    return ModelFile(path, model, locations)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise OrtHinaError(f"{path} is a folder; expected the path of an .onnx file in it")
    if not path.is_file():
        raise OrtHinaError(f"{path} does not exist")
    if path.stat().st_size == 0:
        raise OrtHinaError(f"{path} is empty")
    if path.stat().st_size > LARGEST_MESSAGE:
        raise OrtHinaError(
            f"{path} is larger than 2 GB, which no ONNX file can be: save the model with its weights as external data"
        )


def _parse(path: Path) -> onnx.ModelProto:
    try:
        proto = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise OrtHinaError(f"{path} is not an ONNX model: {error}") from error
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.initializer) or not proto.opset_import:
        raise OrtHinaError(f"{path} is not an ONNX model: it holds no graph or does not say which opset it uses")
    return proto


def _root_cause(error: BaseException) -> BaseException:
    """onnx-ir wraps an error once for each level of the model that it was in."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def write_model(source: ModelFile, output: str | os.PathLike) -> None:
    """Writes the (changed) model of `source` to `output`; its data files stay where they are.

    Raises:
        OrtHinaError: `output` is the file that was read, or lies where the data files cannot be reached from.
    """
    output = Path(output)
    check_output(source, output)
    proto = ir.to_proto(source.model)
    way_down = os.path.relpath(source.folder.resolve(), output.parent.resolve())
    if way_down != os.curdir:
        _prefix_locations(proto, way_down)
    real = _real_output(source, output)
    _write_atomically(proto, real)
    if real != output:
        _link_atomically(real, output)


def check_output(source: ModelFile, output: Path) -> None:
    """Checks, before any work, that the model could be written to `output`. Raises as `write_model`."""
    if output.is_dir() or not output.parent.is_dir():
        raise OrtHinaError(f"cannot write {output}: " + ("it is a folder" if output.is_dir() else "its folder does not exist"))
    if output.resolve() == source.path.resolve():
        raise OrtHinaError(f"output {output} is the model itself: expected another path, the source is never changed")
    if output.resolve() in {(source.folder / location).resolve() for location in source.locations}:
        raise OrtHinaError(f"output {output} is a data file of the model: expected another path")
    if source.locations and not source.folder.resolve().is_relative_to(output.parent.resolve()):
        raise OrtHinaError(
            f"cannot write {output}: the weights stay in {source.folder}, and a model can refer only to data files in its "
            "own folder or below; write it to the same folder"
        )


def _prefix_locations(proto: onnx.ModelProto, way_down: str) -> None:
    """Locations are relative to the model: from a folder further up they begin with the way down."""
    for tensor in external_protos(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = os.path.join(way_down, entry.value)


def _real_output(source: ModelFile, output: Path) -> Path:
    """Where the file itself goes. ONNX Runtime follows a link to data outside of the folder only for a model that is a
    link into that place too: then the output becomes one, and the file lies beside the data."""
    home = output.parent.resolve()
    if all((source.folder / location).resolve().is_relative_to(home) for location in source.locations):
        return output
    real = source.path.resolve()
    return real.with_name(f"{real.stem}_{output.name}")


def _write_atomically(proto: onnx.ModelProto, path: Path) -> None:
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            file.write(proto.SerializeToString())
        os.replace(temporary, path)
    except ValueError as error:  # what protobuf raises for a message that is too large
        raise OrtHinaError(f"{path} would be larger than 2 GB: save the source with external data first") from error
    finally:
        temporary.unlink(missing_ok=True)


def _link_atomically(target: Path, link: Path) -> None:
    temporary = _temporary(link)
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target, link.parent.resolve()))
    os.replace(temporary, link)


def _temporary(path: Path) -> Path:
    """A name in the same folder, so that renaming it is one step of the file system."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
