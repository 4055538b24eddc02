"""What a result needs to be believed: the machine, its limits, its quiet, and the versions of what ran on it.

Nothing here fails: a value is known, or it is None. In limits 0 means known to be none.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import host, pagecache
from bench.clock import now_ns, utc_now
from bench.gpus import Gpu, read_gpus
from bench.packages import installed_version

STEAL_WINDOW_NS = 200_000_000
STEAL_BOUND = 0.02

# Distributions whose version can change a measured number. Those that are not installed are left out.
PACKAGES = (
    "coldburst", "cryptography", "cuda-python", "gevent", "geventhttpclient", "httptools", "locust", "numba", "numpy", "nvidia-ml-py",
    "onnx", "onnxruntime", "onnxruntime-gpu", "orjson", "pandas", "prometheus-client", "psutil", "pyarrow", "pycuda", "scipy",
    "starlette", "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-rtx", "uvicorn", "uvloop",
)  # fmt: skip
_GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Steal:
    """Shares (0..1) of processor time that the host gave to others: since boot, and over a short window just now.

    The window holds few clock ticks: `resolution` is the share that one of them stands for.
    """

    since_boot: float | None
    recent: float | None
    window_ns: int
    resolution: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """The monotonic clock's claimed resolution, and whether Linux's timerfd_create(2) can be used."""

    resolution_ns: int | None
    timerfd: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where results go. `page_cache_drop`: a file's pages were dropped and verified gone (True), stayed (False), not known."""

    folder: str
    file_system: str | None
    free_bytes: int | None
    page_cache_drop: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """`git_dirty`: tracked files differ from the commit. Both are of the working folder, and None outside a git checkout."""

    python: str
    implementation: str
    packages: dict[str, str]
    git_commit: str | None
    git_dirty: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One look at the machine. `gpus` is () where there is no NVIDIA driver, None where it could not be asked."""

    taken_at: str
    system: host.System
    cpu: host.Cpu
    steal: Steal
    memory: host.Memory
    gpus: tuple[Gpu, ...] | None
    storage: Storage
    timer: Timer
    software: Software


def collect(results: Path | None = None, *, root: Path = host.ROOT) -> Environment:
    """Look at everything; takes the steal window, 0.2 s, and little more.

    `results` is the folder that results go to (or will: it need not exist), None the working folder. `root` is where
    /proc, /sys and /etc are looked for.
    """
    before, started_ns = host.read_cpu_ticks(root), now_ns()
    system, cpu, memory = host.read_system(root), host.read_cpu(root), host.read_memory(root)
    gpus, storage, timer, software = read_gpus(root), read_storage(results or Path(), root), read_timer(), read_software(Path())
    # Without a first reading there is nothing to wait for.
    remaining_ns = STEAL_WINDOW_NS - (now_ns() - started_ns) if before is not None else 0
    if remaining_ns > 0:
        time.sleep(remaining_ns / 1e9)
    after, window_ns = host.read_cpu_ticks(root), now_ns() - started_ns
    return Environment(
        taken_at=utc_now(),
        system=system,
        cpu=cpu,
        steal=_steal(before, after, window_ns),
        memory=memory,
        gpus=gpus,
        storage=storage,
        timer=timer,
        software=software,
    )


def to_json(environment: Environment) -> dict[str, Any]:
    """The environment as plain dicts, lists, strings, numbers and None: what `run.json` holds."""
    plain = dataclasses.asdict(environment)
    if environment.gpus is not None:
        plain["gpus"] = list(plain["gpus"])
    return plain


def warnings(environment: Environment) -> list[str]:
    """What here makes a measured time less believable, one sentence each, with its remedy."""
    cpu, memory, steal, found = environment.cpu, environment.memory, environment.steal, []
    if cpu.governor and any(governor in ("powersave", "conservative", "ondemand") for governor in cpu.governor.split(", ")):
        found.append(
            f"CPU governor is {cpu.governor}: clocks change while you measure; set it with `cpupower frequency-set -g performance`"
        )
    if steal.since_boot is not None and steal.since_boot > STEAL_BOUND:
        found.append(f"{steal.since_boot:.1%} of processor time was stolen since boot: use a host of its own or a larger instance")
    elif steal.recent is not None and steal.recent - (steal.resolution or 0) > STEAL_BOUND:
        found.append(f"{steal.recent:.1%} of processor time was stolen just now: wait for quiet, or use a host of its own")
    if cpu.load_average_1min is not None and cpu.usable_cores and cpu.load_average_1min > cpu.usable_cores:
        found.append(
            f"load average {cpu.load_average_1min:.1f} is above the {cpu.usable_cores:g} usable cores: stop what else runs, or wait"
        )
    if cpu.quota_cores and cpu.affinity_cores and cpu.quota_cores < cpu.affinity_cores:
        found.append(
            f"a cgroup quota of {cpu.quota_cores:g} cores throttles {cpu.affinity_cores} visible ones, which shows as pauses of up to "
            "100 ms: pin whole cores (a cpuset) instead, or set no more threads than the quota"
        )
    if memory.swap_used_bytes:
        found.append(f"swap is in use ({memory.swap_used_bytes / 1e6:.0f} MB): free memory, then `swapoff -a`")
    if environment.system.clock_source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        found.append(
            f"clock source is {environment.system.clock_source}, slow to read: boot with `clocksource=tsc` where the TSC is stable"
        )
    if environment.storage.page_cache_drop is not True:
        state = "cannot be dropped" if environment.storage.page_cache_drop is False else "cannot be seen"
        where = environment.storage.file_system or "this file system"
        found.append(
            f"pages cached of files in {environment.storage.folder} {state} ({where}): for cold reads name a folder on a local disk"
        )
    for index, gpu in enumerate(environment.gpus or ()):
        if gpu.persistence is False:
            found.append(f"GPU {index} has persistence mode off, so that its driver starts in your measurement: `nvidia-smi -pm 1`")
        if gpu.utilisation:
            found.append(f"GPU {index} is at work for somebody ({gpu.utilisation:.0%} busy): stop that first")
    return found


def read_storage(folder: Path, root: Path = host.ROOT) -> Storage:
    """Look at the file system of `folder`, or of the nearest folder above it that exists, by a small temporary file there."""
    resolved = _resolved(folder)
    existing = next((path for path in (resolved, *resolved.parents) if _is_folder(path)), resolved)
    return Storage(
        folder=str(folder),
        file_system=host.read_file_system(existing, root),
        free_bytes=_free_bytes(existing),
        page_cache_drop=try_page_cache(existing),
    )


def try_page_cache(folder: Path) -> bool | None:
    """Write a file there, see its pages cached, drop them, see them gone: True. False: they stay. None: not to be known."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bench-page-cache-") as file:
            file.write(b"\x01" * (256 << 10))
            file.flush()
            path = Path(file.name)
            pagecache.warm(path)
            if pagecache.resident_fraction(path) != 1.0:
                return None  # just written and read: what sees nothing of it here would see nothing afterwards
            return pagecache.drop(path)
    except OSError:
        return None


def read_timer() -> Timer:
    """What waiting for a moment can rely on."""
    resolution_s = time.get_clock_info("monotonic").resolution
    return Timer(resolution_ns=round(resolution_s * 1e9) if math.isfinite(resolution_s) else None, timerfd=_timerfd_works())


def read_software(folder: Path) -> Software:
    """Python, the packages that matter, and the git state of `folder`."""
    commit, dirty = read_git(folder)
    return Software(
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        packages={name: version for name in PACKAGES if (version := installed_version(name)) is not None},
        git_commit=commit,
        git_dirty=dirty,
    )


def read_git(folder: Path) -> tuple[str | None, bool | None]:
    """The commit checked out around `folder` and whether tracked files differ from it; None where there is no git or no commit."""
    try:
        answer = subprocess.run(
            ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"],
            cwd=folder,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    commits = [line.split()[2] for line in lines if line.startswith("# branch.oid ")]
    if answer.returncode != 0 or not commits or commits[0] == "(initial)":
        return None, None
    return commits[0], any(not line.startswith("#") for line in lines)


def _steal(before: host.CpuTicks | None, after: host.CpuTicks | None, window_ns: int) -> Steal:
    ticks = after.total - before.total if before is not None and after is not None else 0
    return Steal(
        since_boot=host.steal_share(host.CpuTicks(total=0, stolen=0), after),
        recent=host.steal_share(before, after),
        window_ns=window_ns,
        resolution=1 / ticks if ticks > 0 else None,
    )


def _timerfd_works() -> bool | None:
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        descriptor: int = ctypes.CDLL(None).timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
    except (OSError, AttributeError):
        return False
    if descriptor < 0:
        return False
    os.close(descriptor)
    return True


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links; a working folder that was deleted
        return folder


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _free_bytes(folder: Path) -> int | None:
    import shutil

    try:
        return shutil.disk_usage(folder).free
    except (OSError, ValueError):
        return None
