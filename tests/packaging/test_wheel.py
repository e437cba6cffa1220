"""The wheel works where there is no source tree."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from build_tree import ROOT
from elf import exported_symbols, needed_libraries, search_paths

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_every_module_is_in_its_place_and_nothing_else(names: list[str]):
    packages = {"ort_hina": "ort_hina", "graph_passes": "ort_hina/graph_passes", "models": "ort_hina/models"}
    wanted = {
        f"{target}/{path.relative_to(ROOT / source).as_posix()}"
        for source, target in packages.items()
        for path in (ROOT / source).rglob("*.py")
        if not (source == "ort_hina" and path.relative_to(ROOT / source).parts[0] in packages)
    }
    in_wheel = {name for name in names if ".dist-info/" not in name}
    compiled = {name for name in in_wheel if name.endswith(".so")}
    assert in_wheel - compiled == wanted
    assert {PurePosixPath(name).name.partition(".")[0] for name in compiled} == {"libort_hina", "_native"}


def test_the_licence_is_in_it(names: list[str]):
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_metadata_names_the_oldest_onnxruntime_that_the_code_accepts(wheel: Path, names: list[str]):
    from ort_hina.library import OLDEST_ONNXRUNTIME

    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(metadata).decode()
    assert f"Requires-Dist: onnxruntime>={'.'.join(map(str, OLDEST_ONNXRUNTIME))}" in text


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed (package binutils)")
def test_the_compiled_files_stand_alone(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for library in tmp_path.rglob("*.so"):
        assert not {name for name in needed_libraries(library) if "python" in name or "onnxruntime" in name}
        assert search_paths(library) == []
    assert exported_symbols(tmp_path / "ort_hina" / "libort_hina.so") == {"RegisterCustomOps"}


def test_a_model_runs_from_the_wheel(wheel: Path, new_environment):
    environment = new_environment("elsewhere")
    environment.install(wheel)
    found = environment.run_tiny_moe()
    for name in ("package", "library"):
        assert Path(found[name]).is_relative_to(environment.folder)
    assert found["difference"] < 1e-5


def test_the_command_line_runs_from_the_wheel(wheel: Path, new_environment):
    environment = new_environment("elsewhere")
    environment.install(wheel)
    result = environment.run(environment.folder / "bin" / "ort-hina", "--help")
    assert result.returncode == 0, result.stderr
    assert "fuse" in result.stdout
