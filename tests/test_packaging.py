"""The wheel, built and installed for real: everything that the repository's packages hold works from any folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from notebook_runs import cold_start_run

from bench import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bench", "reference_server", "scenarios", "notebooks")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="looks for programs where POSIX virtual environments have them")


def run(*command: str | Path, cwd: Path) -> str:
    """The program's standard output. Fails with all that it wrote. Nothing of this checkout is on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    answer = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, f"{' '.join(map(str, command))}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


def packaged(files: list[Path]) -> set[str]:
    """The files of the packages, by their path in the repository and in the wheel."""
    names = {path.relative_to(ROOT).as_posix() for path in files}
    return {name for name in names if name.partition("/")[0] in PACKAGES}


@pytest.fixture(scope="module")
def wheel(repository_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays clean and only what git has can get in."""
    copy = tmp_path_factory.mktemp("checkout")
    for path in repository_files:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment with the wheel, which borrows this one's other packages.

    They come in by a .pth file after the environment's own; a .pth file in a folder that came in so is not read, so an
    editable install of this checkout stays out.
    """
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    python = venv / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=venv)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site_packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return venv / "bin"


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path, repository_files: list[Path]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == packaged(repository_files)
    assert {"bench/py.typed", "reference_server/py.typed", "scenarios/py.typed", "bench/cli/environment.py"} <= inside


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_what_is_imported_is_what_was_installed(programs: Path, tmp_path: Path) -> None:
    program = "import bench, reference_server; print(bench.__file__); print(reference_server.__file__)"
    for line in run(programs / "python", "-c", program, cwd=tmp_path).splitlines():
        assert Path(line).resolve().is_relative_to(programs.parent.resolve())


def test_the_environment_is_seen_from_an_unrelated_folder(programs: Path, tmp_path: Path) -> None:
    answer = json.loads(run(programs / "bench", "env", "--json", cwd=tmp_path))
    assert answer["software"]["packages"]["coldburst"] == __version__
    assert list(tmp_path.iterdir()) == []


def test_every_command_answers_from_an_unrelated_folder(programs: Path, tmp_path: Path) -> None:
    assert "Usage" in run(programs / "bench", "--help", cwd=tmp_path)
    listing = """
import bench.cli.run, typer.main
def walk(command, *path):
    print(*path)
    for name, child in getattr(command, "commands", {}).items():
        walk(child, *path, name)
walk(typer.main.get_command(bench.cli.run.app))
"""
    paths = run(programs / "python", "-c", listing, cwd=tmp_path).splitlines()
    assert "env" in paths
    for path in paths:
        assert "Usage" in run(programs / "bench", *path.split(), "--help", cwd=tmp_path)


@pytest.mark.parametrize("module", ["reference_server", "reference_server.probe"])
def test_the_programs_of_the_server_answer_from_an_unrelated_folder(programs: Path, tmp_path: Path, module: str) -> None:
    path = ROOT.joinpath(*module.split("."))
    if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
        pytest.skip(f"{module} is not in this checkout")
    assert "usage" in run(programs / "python", "-m", module, "--help", cwd=tmp_path).lower()


def test_locust_runs_a_scenario_that_only_the_wheel_brought(programs: Path, tmp_path: Path) -> None:
    listed = run(programs / "bench", "scenario", cwd=tmp_path)
    assert [line.split()[0] for line in listed.splitlines()] == ["burst", "steady", "trace"]
    locustfile = Path(run(programs / "bench", "scenario", "burst", cwd=tmp_path).strip())
    assert locustfile.resolve().is_relative_to(programs.parent.resolve())
    assert "Burst" in run(programs / "python", "-m", "locust", "-f", locustfile, "--list", cwd=tmp_path)


def test_a_notebook_runs_where_no_kernel_is_registered(programs: Path, tmp_path: Path) -> None:
    """The new environment has no Jupyter folder of its own, so whatever runs is the interpreter that was asked."""
    assert not (programs.parent / "share/jupyter").exists()
    cold_start_run(tmp_path / "run")
    page = Path(run(programs / "bench", "notebook", tmp_path / "run", cwd=tmp_path).strip())
    assert "A cold process takes 200 ms" in page.read_text("utf-8")
