"""A wheel of this source tree, and environments to install it in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from build_tree import ROOT

RUN_TINY_MOE = Path(__file__).with_name("run_tiny_moe.py")


@dataclass
class Environment:
    """A virtual environment elsewhere, without the source tree on its path."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, *requirements: str | Path) -> None:
        """Installs exactly these, without their dependencies. What is seen through the .pth line does not count."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet"]
        run(*pip, "--no-deps", "--ignore-installed", *requirements)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess:
        """Runs its Python, from its own folder."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(part) for part in (self.python, *arguments)]
        return subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=300)

    def run_tiny_moe(self) -> dict:
        """What `run_tiny_moe.py` finds in this environment."""
        result = self.run(RUN_TINY_MOE, self.folder)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout)


def run(*command: str | Path) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}{result.stderr}"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip wheel .`, with the build tools of this environment instead of downloaded ones."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def new_environment(tmp_path: Path) -> Callable[[str], Environment]:
    """``new_environment(name)``: an empty environment that sees this one's packages after its own.

    They are seen through a .pth file, and the .pth files of a folder that is found so are not read: the editable
    installation of the source tree is not seen.
    """

    def create(name: str) -> Environment:
        environment = Environment(tmp_path / name)
        run(sys.executable, "-m", "venv", "--without-pip", environment.folder)
        site_packages = sysconfig.get_path("purelib", vars={"base": str(environment.folder)})
        packages_here = [folder for folder in sys.path if folder.endswith("-packages")]
        Path(site_packages, "dependencies.pth").write_text("\n".join(packages_here) + "\n")
        return environment

    return create
