"""Who may import whom, and what a module may look like: read off the syntax trees, so that a wrong import fails here first.

The walls between bench, reference_server and scenarios are what keeps a slow import out of a measured cold start.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bench", "reference_server", "scenarios")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

LEAVES = {
    "bench.errors", "bench.clock", "bench.packages", "bench.slo", "bench.streams", "bench.units",
    "bench.engine.manifest", "bench.engine.manifest_reading", "bench.engine.onnxruntime_library", "bench.engine.probe",
    "bench.engine.signature", "bench.engine.tensorrt_log",
}  # fmt: skip
# The packages around the leaves are imported with them, so they must be as light.
LIGHT = LEAVES | {"bench", "bench.engine"}
INFERENCE_LIBRARIES = {"onnxruntime", "tensorrt", "tensorrt_rtx", "pycuda", "cuda"}
VAGUE_NAMES = {"utils", "util", "common", "core", "base", "manager", "helpers", "misc"}
LONGEST_MODULE_LINES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, by its full name. `at_top`: it is imported with the module that names it, not later in a function."""

    module: str
    names: tuple[str, ...]
    line: int
    at_top: bool


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[Import]:
    """Every import of a module outside `if TYPE_CHECKING`, in order."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    return list(walk(ast.parse(path.read_text("utf-8")), package, at_top=True))


def walk(node: ast.AST, package: str, *, at_top: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module=alias.name, names=(), line=child.lineno, at_top=at_top)
        elif isinstance(child, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
            source = ".".join([*parents, child.module] if child.module else parents)
            yield Import(module=source, names=tuple(alias.name for alias in child.names), line=child.lineno, at_top=at_top)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from walk(ast.Module(body=[other], type_ignores=[]), package, at_top=at_top)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, package, at_top=at_top and not inside)


def is_module(name: str) -> bool:
    base = ROOT.joinpath(*name.split("."))
    return base.with_suffix(".py").exists() or base.is_dir()


def targets(found: Import) -> set[str]:
    """What is imported, as modules: `from bench import records` means bench.records."""
    submodules = {f"{found.module}.{name}" for name in found.names if is_module(f"{found.module}.{name}")}
    return submodules or {found.module}


def top_package(name: str) -> str:
    return name.partition(".")[0]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def offences(paths: Iterator[Path] | list[Path], wrong: object) -> list[str]:
    """`file:line imports module`, for each import of which `wrong(module, import)` holds."""
    assert callable(wrong)
    return [
        f"{relative(path)}:{found.line} imports {target}"
        for path in paths
        for found in imports(path)
        for target in sorted(targets(found))
        if wrong(target, found)
    ]


def of(package: str) -> list[Path]:
    return [path for path in MODULES if within(module_name(path), package)]


def test_the_reader_of_imports_sees_what_it_must() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import a
else:
    import b
def f():
    import c
class K:
    import d
    def m(self):
        from . import e
try:
    from ..g import h
except ImportError: ...
"""
    found = [(i.module, i.at_top) for i in walk(ast.parse(source), "x.y", at_top=True)]
    assert found == [("typing", True), ("b", True), ("c", False), ("d", True), ("x.y", False), ("x.g", True)]


def test_there_are_modules_to_check() -> None:
    assert {top_package(module_name(path)) for path in MODULES} >= {"bench", "reference_server"}
    assert all((ROOT / leaf.replace(".", "/")).with_suffix(".py").exists() for leaf in LEAVES)


def test_the_server_imports_only_the_leaves_of_bench() -> None:
    assert not offences(of("reference_server"), lambda name, _: within(name, "bench") and name not in LIGHT)
    assert not offences(of("reference_server"), lambda name, _: within(name, "scenarios") or within(name, "locust"))


def test_leaves_import_the_standard_library_and_each_other() -> None:
    leaves = [path for path in MODULES if module_name(path) in LIGHT]
    allowed = sys.stdlib_module_names
    assert not offences(leaves, lambda name, found: found.at_top and top_package(name) not in allowed and name not in LIGHT)


def test_bench_imports_neither_the_server_nor_the_scenarios_nor_locust() -> None:
    assert not offences(of("bench"), lambda name, _: top_package(name) in {"reference_server", "scenarios", "locust"})


def test_scenarios_import_of_bench_only_load_records_and_leaves() -> None:
    allowed = LIGHT | {"bench.records"}
    paths = of("scenarios")
    assert not offences(paths, lambda name, _: within(name, "bench") and name not in allowed and not within(name, "bench.load"))
    assert not offences(paths, lambda name, _: within(name, "reference_server"))


def test_locustfiles_import_locust_first() -> None:
    """locust patches the sockets on import; what is imported before it may hold on to unpatched ones."""
    for path in of("scenarios"):
        outside = [i for i in imports(path) if i.at_top and i.module != "__future__"]
        if any(within(found.module, "locust") for found in outside):
            assert within(outside[0].module, "locust"), f"{relative(path)} imports {outside[0].module} before locust"


def test_pandas_and_matplotlib_only_in_analysis_and_report() -> None:
    paths = [p for p in MODULES if not within(module_name(p), "bench.analysis") and not within(module_name(p), "bench.report")]
    assert not offences(paths, lambda name, _: top_package(name) in {"pandas", "matplotlib"})


def test_inference_libraries_only_in_runtimes_and_builders() -> None:
    paths = [
        path
        for path in MODULES
        if not within(module_name(path), "reference_server.runtimes")
        and not (within(module_name(path), "bench.engine") and (path.stem.endswith(("_builder", "_library")) or path.stem == "precision"))
    ]
    assert not offences(paths, lambda name, _: top_package(name) in INFERENCE_LIBRARIES)


def test_inference_libraries_are_imported_only_when_used() -> None:
    assert not offences(MODULES, lambda name, found: found.at_top and top_package(name) in INFERENCE_LIBRARIES)


def test_onnx_only_where_models_and_engines_are_made() -> None:
    paths = [p for p in MODULES if not within(module_name(p), "bench.models") and not within(module_name(p), "bench.engine")]
    assert not offences(paths, lambda name, _: top_package(name) == "onnx")


def test_the_command_line_imports_only_typer_and_light_modules_at_its_top() -> None:
    """`bench --help` must answer at once; test_cli looks at what is really imported."""
    allowed = sys.stdlib_module_names | {"typer"}
    wrong = offences(
        [*of("bench.cli"), ROOT / "bench/__main__.py"],
        lambda name, found: found.at_top and top_package(name) not in allowed and name not in LIGHT and not within(name, "bench.cli"),
    )
    assert not wrong


def test_no_wildcard_imports() -> None:
    assert not offences(MODULES, lambda _, found: "*" in found.names)


def test_no_vague_module_names() -> None:
    assert not [relative(path) for path in MODULES if VAGUE_NAMES & set(module_name(path).split("."))]


def test_modules_are_short() -> None:
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE_LINES}


def test_modules_and_their_public_functions_and_classes_have_docstrings() -> None:
    missing = []
    for path in MODULES:
        tree = ast.parse(path.read_text("utf-8"))
        if tree.body and not ast.get_docstring(tree):
            missing.append(f"{relative(path)}: the module")
        for node in tree.body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named and not node.name.startswith("_") and not ast.get_docstring(node):
                missing.append(f"{relative(path)}:{node.lineno} {node.name}")
    assert not missing


# Put together here, so that this file does not hold what it looks for.
MACHINE_WORDS = [
    "/" + "work/", "/" + "root/", "." + "library", "pypi" + ".org", "python" + "hosted", "npm" + "js",
]  # fmt: skip


def test_no_machine_paths_and_no_registry_hosts(repository_files: list[Path]) -> None:
    pattern = re.compile("|".join(re.escape(word) for word in MACHINE_WORDS).encode())
    hits = []
    for path in repository_files:
        content = path.read_bytes()
        if b"\0" in content[:8192]:
            continue  # not text
        for match in pattern.finditer(content):
            hits.append(f"{relative(path)}:{content[: match.start()].count(10) + 1} holds {match.group().decode()}")
    assert not hits


@pytest.mark.parametrize("word", MACHINE_WORDS)
def test_the_words_looked_for_are_whole(word: str) -> None:
    assert word not in Path(__file__).read_text("utf-8")
