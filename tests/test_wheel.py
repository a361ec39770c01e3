"""The wheel is complete: installed apart from the repository, it runs a job.

What it depends on is borrowed from this environment, to be quick: whether pip finds it all is not checked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

pytestmark = [pytest.mark.long, pytest.mark.job, pytest.mark.timeout(600)]


class Installed:
    """An environment with the wheel in it, and nothing of the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "env" / "bin"
        source, wheels = folder / "source", folder / "wheels"
        for part in ("src", "bench"):
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for part in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / part, source / part)
        self._pip("wheel", str(source), "--no-deps", "--no-build-isolation", "-w", str(wheels))
        (wheel,) = wheels.iterdir()
        venv.create(folder / "env", with_pip=False)
        self._pip("--python", str(self.bin / "python"), "install", "--no-deps", "--no-index", str(wheel))
        (self.site,) = (folder / "env" / "lib").glob("python*/site-packages")
        (self.site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))

    @property
    def _env(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**own, "UNDERSTUDY_HOME": str(self.folder / "home"), "COLUMNS": "120"}

    def _pip(self, *words: str) -> None:
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
        subprocess.run(command, check=True, cwd=self.folder, env=self._env, timeout=200)

    def run(self, *words: str, limit: float = 200) -> str:
        command = [str(self.bin / words[0]), *words[1:]]
        ended = subprocess.run(command, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=limit)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("wheel"))


def test_the_imported_package_is_the_wheel(installed: Installed) -> None:
    where = installed.run("python", "-c", "import understudy, understudy_bench; print(understudy.__file__)")
    assert Path(where.strip()).is_relative_to(installed.site)


def test_all_packages_are_in_it(installed: Installed) -> None:
    for source, package in ((ROOT / "src" / "understudy", "understudy"), (ROOT / "bench", "understudy_bench")):
        files = {file.relative_to(source) for file in source.rglob("*.py")} | (
            {Path("py.typed")} if package == "understudy" else set()
        )
        assert files == {file for file in files if (installed.site / package / file).exists()}


def test_the_version_is_that_of_the_changelog(installed: Installed) -> None:
    version = installed.run("understudy", "--version").split()[1]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_commands(installed: Installed) -> None:
    assert "understudy replace m1" in installed.run("understudy", "--help")
    assert "replace" in installed.run("understudy", "bench", "--list")
    assert "mask" in installed.run("understudy", "plan", "--gpus", "1024", "--model-params", "8B")


def test_a_job(installed: Installed) -> None:
    (script,) = [block.text for block in blocks(ROOT / "docs" / "tutorial.md") if block.name == "train.py"]
    (installed.folder / "train.py").write_text(script)
    said = installed.run("understudy", "run", "--machines", "2", "--steps", "4", "train.py")
    assert "finished after 4 steps" in said
