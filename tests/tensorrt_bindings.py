"""Published Python bindings of TensorRT, imported over empty stand-ins for its libraries, which is enough to look at names.

`python tensorrt_bindings.py FOLDER SYMBOL ...` prints, as JSON, which of the symbols (`ICudaEngine.num_layers`) are there.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PUBLISHED = (
    "tensorrt-bindings==8.6.1",
    "tensorrt-cu12-bindings==10.6.0",
    "tensorrt-cu13-bindings==10.16.1.11",
    "tensorrt-cu13-bindings==11.4.0.106",
)
_PIP_TIMEOUT_S = 120
_waited_in_vain: list[str] = []  # an index that let one download wait is not asked again by this process


def fetch_or_skip(requirement: str) -> Path:
    """The folder with the compiled module, from the cache or from its package; without it, or without a C compiler, the test is skipped."""
    tools = [tool for tool in ("gcc", "nm", "objdump") if shutil.which(tool) is None]
    if tools or sys.platform != "linux":
        pytest.skip(f"stand-ins for TensorRT's libraries are made on Linux with {', '.join(tools) or 'gcc'}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coldburst" / "tensorrt-bindings"
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folder = cache / f"{requirement}-{version}"
    if not (folder / "tensorrt.so").exists():
        if _waited_in_vain:
            pytest.skip(_waited_in_vain[0])
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            pytest.skip(f"{requirement} cannot be kept in {cache}: {error.strerror}")
        with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
            command += ["--only-binary=:all:", "--dest", scratch, requirement]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _waited_in_vain.append(f"{requirement} was not downloaded within {_PIP_TIMEOUT_S} s")
                pytest.skip(_waited_in_vain[0])
            if done.returncode != 0:
                pytest.skip(f"{requirement} cannot be downloaded here: {(done.stderr.strip() or 'pip said nothing').splitlines()[-1]}")
            (wheel,) = Path(scratch).glob("*.whl")
            made = Path(scratch) / "made"
            made.mkdir()
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith("/tensorrt.so"))
                (made / "tensorrt.so").write_bytes(archive.read(name))
            _make_stand_ins(made)
            try:
                made.rename(folder)
            except OSError:  # another run of the tests was quicker
                assert (folder / "tensorrt.so").exists()
    return folder


def _make_stand_ins(folder: Path) -> None:
    """A library under each name that the module needs; the first one has every symbol that nobody else has."""
    module = folder / "tensorrt.so"
    needed = [line.split()[1] for line in _output("objdump", "-p", module) if "NEEDED" in line and "libnv" in line]
    undefined = [line.split()[-1] for line in _output("nm", "-D", "--undefined-only", module)]
    own = [name for name in undefined if "@" not in name and (name.startswith(("create", "get", "init")) or "nv" in name)]
    for number, name in enumerate(needed):
        source = "".join(f"char {symbol}[64];\n" for symbol in own) if number == 0 else ""
        command = ["gcc", "-shared", "-fPIC", "-o", folder / name, "-x", "c", "-", f"-Wl,-soname,{name}"]
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)


def _output(*command: Any) -> list[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout.splitlines()


def missing_symbols(folder: Path, symbols: Sequence[str]) -> list[str]:
    """Those that the module does not have. In a process of its own: bindings of two versions do not go together."""
    answer = subprocess.run([sys.executable, __file__, str(folder), *symbols], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    missing: list[str] = json.loads(answer.stdout)
    return missing


def missing_in(module: Any, symbols: Sequence[str]) -> list[str]:
    missing = []
    for symbol in symbols:
        found = module
        for name in symbol.split("."):
            found = getattr(found, name, None)
            if found is None:
                missing.append(symbol)
                break
    return missing


def main() -> None:
    folder, *symbols = sys.argv[1:]
    for library in sorted(Path(folder).glob("libnv*")):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    spec = importlib.util.spec_from_file_location("tensorrt", Path(folder) / "tensorrt.so")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(json.dumps(missing_in(module, symbols)))


if __name__ == "__main__":
    main()
