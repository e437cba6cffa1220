"""Where `make build` compiles, and what it left there. The installed libraries are stripped; these are not."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def newest_build_tree() -> Path:
    """The folder that was configured last; skips the test where nothing was built in this source tree."""
    trees = [cache.parent for kind in ("editable", "wheel") for cache in (ROOT / "build" / kind).rglob("CMakeCache.txt")]
    if not trees:
        pytest.skip("nothing was built in this source tree (make build)")
    return max(trees, key=lambda tree: (tree / "CMakeCache.txt").stat().st_mtime)


def object_files() -> list[Path]:
    """The object files of the project's own sources, without those whose source is gone since."""
    tree = newest_build_tree()
    return sorted(path for path in tree.rglob("*.o") if _source(tree, path).is_file())


def _source(tree: Path, compiled: Path) -> Path:
    """CMake compiles FOLDER/NAME.cc into FOLDER/CMakeFiles/TARGET.dir/NAME.cc.o, FOLDER relative to the tree."""
    folder, _, below = compiled.relative_to(tree).as_posix().partition("CMakeFiles/")
    return ROOT / folder / below.partition("/")[2].removesuffix(".o")
