"""Run one of the shipped notebooks on a run folder, and write it as one HTML file.

Nothing of the user's Jupyter set-up is read or changed: the kernel is this interpreter's own, whatever is registered, and
its profile, history and connection file live in a temporary folder.
"""

from __future__ import annotations

import html
import os
import string
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench
from bench.drafts import file_to_replace
from bench.errors import BenchError
from bench.records import SavedRun, open_run, replace_text
from bench.report.notebook_blocks import ABSENT
from bench.slo import parse_slo_time_ns
from bench.subprocesses import child_environment

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

FILES = {"cold_start": "01_cold_start.ipynb", "burst": "02_burst.ipynb", "capacity": "03_capacity.ipynb"}
# What a notebook can read: the kinds of run, the first choice for a kind first.
_READS = {
    "coldstart": ("cold_start",),
    "experiment": ("burst", "capacity"),
    "load": ("burst", "capacity"),
    "curve": ("capacity",),
    "plan": ("capacity",),
    "validation": ("capacity",),
}
_START_TIMEOUT_S = 120
_SOCKET_NAME_BYTES = 100  # of the 104 (unix(7): 108) that a name may have; a number follows it
_CELL_TIMEOUT_S = 1800  # ten million requests are a minute's work


def notebook_file(which: str) -> Path:
    """The shipped notebook. Its folder lies beside `bench`, in a checkout and when installed."""
    path = Path(bench.__file__).resolve().parents[1] / "notebooks" / FILES[which]
    if not path.is_file():
        raise BenchError(f"{path} is missing: install coldburst again")
    return path


def choose(saved: SavedRun, which: str | None) -> str:
    """The notebook for the run: the one asked for, or the first that reads its kind. Raises BenchError where it cannot."""
    kind = saved.kind
    fitting = _READS.get(kind, ())
    if not fitting:
        raise BenchError(f"{saved.path} is a {kind} run, and no notebook reads those; they read {', '.join(_READS)} runs")
    if which is not None and which not in FILES:
        raise BenchError(f"--which {which!r} is not one of {', '.join(FILES)}")
    if which is not None and which not in fitting:
        raise BenchError(f"the notebook {which} does not read {kind} runs such as {saved.path}; use --which {' or '.join(fitting)}")
    return which or fitting[0]


def execute(which: str, run: Path, slo: str | None = None) -> Any:
    """The notebook, run from top to bottom on the run folder: an nbformat notebook with its outputs. `slo`: `200ms`, in
    place of the run's own.

    Raises BenchError: what a cell raised as one, or which cell failed and how.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    path = notebook_file(which)
    given = {"run": str(run.resolve()), **({} if slo is None else {"slo": slo})}
    with tempfile.TemporaryDirectory(prefix="coldburst-notebook-") as place:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the libraries' notices to their developers
                return papermill.execute_notebook(
                    path,
                    None,
                    parameters=given,
                    kernel_name="python3",
                    language="python",
                    progress_bar=False,
                    cwd=place,
                    start_timeout=_START_TIMEOUT_S,
                    execution_timeout=_CELL_TIMEOUT_S,
                    kernel_manager_class=_own_kernel(Path(place)),
                )
        except PapermillExecutionError as error:
            if error.ename in ("BenchError", "EngineRefused"):
                raise BenchError(error.evalue) from None
            where = f"{path.name} failed in its cell {error.cell_index + 1}"
            raise BenchError(f"{where} ({error.ename}: {error.evalue}); open it in Jupyter to see more, and report this") from None


def _own_kernel(place: Path) -> type[AsyncKernelManager]:
    """A kernel manager whose only kernel is this interpreter, with all that it writes in `place`.

    They talk over Unix sockets where there are such and their names are not too long: TCP ports are found free some time
    before the kernel takes them, and what takes one of them meanwhile keeps the kernel from starting.
    """
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import Unicode

    sockets = str(place / "socket")
    by_name = os.name == "posix" and len(os.fsencode(sockets)) < _SOCKET_NAME_BYTES

    class OwnKernel(AsyncKernelManager):
        connection_file = Unicode(str(place / "kernel.json"))

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            if by_name:
                self.transport, self.ip = "ipc", sockets

        @property
        def kernel_spec(self) -> KernelSpec:
            return _kernel_spec(place)

    return OwnKernel


def _kernel_spec(place: Path) -> KernelSpec:
    from jupyter_client.kernelspec import KernelSpec

    # It warns of its loopback sockets, which carry nothing but what is about to be a file of the user's, and of being ended.
    settings = ["--InteractiveShellApp.ignore_cwd=True", "--IPKernelApp.log_level=CRITICAL"]
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", *settings]
    own = {"IPYTHONDIR": place, "JUPYTER_CONFIG_DIR": place, "JUPYTER_DATA_DIR": place, "JUPYTER_RUNTIME_DIR": place}
    environment = {**child_environment(), **{name: str(folder) for name, folder in own.items()}, "JUPYTER_NO_CONFIG": "1"}
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    return KernelSpec(argv=command, display_name="Python", language="python", env=changed)


def to_html(notebook: Any, title: str, *, show_code: bool = False) -> str:
    """One self-contained page, without scripts: text, tables and pictures, and the code behind a switch (`show_code`: on).

    Made with the filters of nbconvert, not with its templates: those lie in Jupyter's folders, where a user's own of the
    same name would be taken, and they load scripts from the network.
    """
    from pygments.formatters import HtmlFormatter

    page = string.Template((Path(__file__).parent / "notebook_page.html").read_text("utf-8"))
    return page.substitute(
        title=html.escape(title),
        version=html.escape(bench.__version__),
        code_style=HtmlFormatter(style="default").get_style_defs(".highlight"),
        checked="checked" if show_code else "",
        body="\n".join(_cell(cell) for section in _sections(notebook.cells) if _says_something(section) for cell in section),
    )


def _sections(cells: Sequence[Any]) -> list[list[Any]]:
    """The cells from one second-level heading to the next."""
    found: list[list[Any]] = [[]]
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            found.append([])
        found[-1].append(cell)
    return found


def _says_something(section: Sequence[Any]) -> bool:
    """Not so where every output of a section only says that the run has no such thing."""
    code = [cell for cell in section if cell.cell_type == "code"]
    shown = [_output(output) for cell in code for output in cell.outputs]
    return not code or not shown or any(one and ABSENT not in one for one in shown)


def _cell(cell: Any) -> str:
    from nbconvert.filters import Highlight2HTML, markdown2html

    if cell.cell_type == "markdown":
        return str(markdown2html(cell.source))
    if cell.cell_type != "code":
        return ""
    code = Highlight2HTML(pygments_lexer="python3")(cell.source)  # type: ignore[no-untyped-call]
    return f'<div class="input">{code}</div>' + "".join(_output(output) for output in cell.outputs)


def _output(output: Any) -> str:
    """The richest form that a cell's output has. What went to standard error is no result."""
    from nbconvert.filters import markdown2html

    if output.output_type == "stream":
        return f"<pre>{html.escape(output.text)}</pre>" if output.name == "stdout" else ""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>' if data["text/html"] else ""
    if "text/markdown" in data:
        return str(markdown2html(data["text/markdown"]))
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{html.escape(data["image/png"].strip())}" alt="Output of the code above">'
    return f"<pre>{html.escape(data.get('text/plain', ''))}</pre>"


def write_notebook(
    run: Path, target: Path | None = None, *, which: str | None = None, slo: str | None = None, show_code: bool = False
) -> Path:
    """Run the notebook on the run and write it to `target`: HTML, or a notebook with outputs where its name ends in
    `.ipynb`. Without a target: `RUN/notebook_<which>.html`. Raises BenchError."""
    saved = open_run(run)
    chosen = choose(saved, which)
    if slo is not None and chosen == "cold_start":
        raise BenchError("--slo is for bursts: the notebook cold_start has no arrivals to judge; leave it out")
    if slo is not None:
        parse_slo_time_ns(slo)
    target = file_to_replace(target or saved.path / f"notebook_{chosen}.html")
    if not target.parent.is_dir():
        raise BenchError(f"{target} cannot be written: there is no folder {target.parent}; make it, or name another with -o")
    notebook = execute(chosen, saved.path, slo)
    if target.suffix == ".ipynb":
        import nbformat

        text = str(nbformat.writes(notebook)) + "\n"  # type: ignore[no-untyped-call]
    else:
        text = to_html(notebook, f"{chosen.replace('_', ' ')}: {saved.run.get('run_id', saved.path.name)}", show_code=show_code)
    replace_text(target, text)
    return target
