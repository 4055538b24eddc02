"""The command line as a whole: every command explains itself, errors are one sentence, and help costs nothing.

What a command does is tested with what it calls.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

import bench.cli.run  # noqa: F401  (it adds the commands)
from bench.cli.app import app

HEAVY = (
    "numpy", "onnx", "onnxruntime", "pandas", "matplotlib", "pyarrow", "scipy", "numba", "starlette", "uvicorn", "locust", "gevent",
    "cryptography", "psutil", "jupyter", "nbconvert", "papermill", "tensorrt", "pycuda",
)  # fmt: skip


def bench_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands and groups, with the words that lead to them. The application itself has no words."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = list(commands(typer.main.get_command(app)))
LEAVES = [(path, command) for path, command in ALL if not hasattr(command, "commands")]


def test_there_are_commands() -> None:
    assert ("env",) in [path for path, _ in LEAVES]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(("bench", *path)) for path, _ in ALL])
def test_every_command_and_option_has_help(path: tuple[str, ...], command: Any) -> None:
    assert command.help
    # An argument in capitals that the command's own text names is explained there.
    silent = [p.name for p in command.params if not getattr(p, "help", None) and p.human_readable_name.upper() not in command.help]
    assert not silent, f"bench {' '.join(path)}: no help for {silent}"


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(("bench", *path)) for path, _ in LEAVES])
def test_every_command_has_an_example_of_itself(path: tuple[str, ...], command: Any) -> None:
    text = f"{command.help}\n{command.epilog or ''}"
    assert re.search(rf"\bbench {' '.join(map(re.escape, path))}\b", text)


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=[" ".join(("bench", *path)) for path, _ in ALL])
def test_help_answers(path: tuple[str, ...]) -> None:
    answer = bench_command(*path, "--help")
    assert answer.returncode == 0, answer.stderr
    assert "Usage" in answer.stdout
    assert answer.stderr == ""


def test_no_arguments_show_the_help_with_the_exit_codes() -> None:
    answer = bench_command()
    assert answer.returncode == 0
    assert "Exit codes: 0 fine" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nonsense",), "nonsense"),
        (("env", "--nonsense"), "--nonsense"),
        (("env", "nonsense"), "nonsense"),
        (("env", "--results"), "--results"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_usage_is_one_sentence_that_names_it(arguments: tuple[str, ...], named: str) -> None:
    answer = bench_command(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("bench: ")
    assert named in line
    assert "--help" in line


def test_help_imports_nothing_heavy() -> None:
    answer = subprocess.run([sys.executable, "-X", "importtime", "-m", "bench", "--help"], capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if line.startswith("import time:")}
    assert "typer" in imported
    assert not {name for name in imported if name.partition(".")[0] in HEAVY}
