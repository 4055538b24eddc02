"""What Linux says about a host in /proc, /sys and /etc: processor, limits, memory, kernel, hints of containers and VMs.

Each reader takes the root of the file tree, gives None for what it cannot know, and never raises: these files differ
between kernels, are missing in containers, and are empty or forbidden in sandboxes.
Formats: proc(5); the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and pm/cpufreq.rst.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_LARGEST_READ = 8 << 20
_CGROUP_V1_UNLIMITED = 1 << 62  # version 1 writes "no limit" as the largest multiple of a page below 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTicks:
    """All processors' time since boot in clock ticks (1/100 s, as a rule)."""

    total: int
    stolen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """`usable_cores` is the smaller of the affinity and the quota. `quota_cores` and `throttled_periods`: 0 is none.

    `governor` and `frequency_mhz` may differ between cores: all governors are named, and the middle frequency is given.
    """

    model: str | None
    architecture: str
    logical_cores: int | None
    affinity_cores: int | None
    quota_cores: float | None
    usable_cores: float | None
    throttled_periods: int | None
    governor: str | None
    frequency_mhz: float | None
    frequency_max_mhz: float | None
    boost: bool | None
    smt: bool | None
    load_average_1min: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """`limit_bytes` is the tightest cgroup limit over this process; 0 is none."""

    total_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None
    transparent_huge_pages: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """`container` and `virtual_machine` name what gave it away; "" means that no sign of one was seen."""

    os: str | None
    kernel: str | None
    container: str | None
    virtual_machine: str | None
    clock_source: str | None


def read_cpu_ticks(root: Path = ROOT) -> CpuTicks | None:
    """The first line of /proc/stat. Guest time is left out of the total: it is part of user time already."""
    match = re.match(r"cpu((?: +\d{1,18}){8,})", _read(root / "proc/stat") or "")
    if match is None:
        return None
    fields = [int(field) for field in match.group(1).split()]
    return CpuTicks(total=sum(fields[:8]), stolen=fields[7])


def steal_share(before: CpuTicks | None, after: CpuTicks | None) -> float | None:
    """The share (0..1) of processor time between two readings in which the host ran somebody else; None if not known."""
    if before is None or after is None or after.total <= before.total:
        return None
    return min(1.0, max(0.0, (after.stolen - before.stolen) / (after.total - before.total)))


def read_cpu(root: Path = ROOT) -> Cpu:
    """The processors, and how much of them this process may use."""
    info = _read(root / "proc/cpuinfo") or ""
    folder = root / "sys/devices/system/cpu"
    policies = [path / "cpufreq" for path in _matching(folder, "cpu[0-9]*")]
    frequencies = _known(_number(text) for text in re.findall(r"^cpu MHz\s*:(.*)$", info, re.MULTILINE))
    if not frequencies:
        frequencies = [khz / 1000 for khz in _known(_number(_read(path / "scaling_cur_freq")) for path in policies[:8])]
    highest_khz = _number(_read(policies[0] / "cpuinfo_max_freq")) if policies else None
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    quota = read_cpu_quota(root)
    limits = [limit for limit in (affinity or os.cpu_count(), quota) if limit]
    load = (_read(root / "proc/loadavg") or "").split()
    return Cpu(
        model=_cpu_model(info),
        architecture=platform.machine(),
        logical_cores=os.cpu_count(),
        affinity_cores=affinity,
        quota_cores=quota,
        usable_cores=min(limits) if limits else None,
        throttled_periods=_throttled_periods(root),
        governor=", ".join(sorted(set(filter(None, (_word(path / "scaling_governor") for path in policies))))) or None,
        frequency_mhz=sorted(frequencies)[len(frequencies) // 2] if frequencies else None,
        frequency_max_mhz=highest_khz / 1000 if highest_khz is not None else None,
        boost=_boost(folder),
        smt=_flag(folder / "smt/active"),
        load_average_1min=_number(load[0]) if load else None,
    )


def read_memory(root: Path = ROOT) -> Memory:
    """Memory of the host (/proc/meminfo), and the limit of this process's cgroup."""
    kib = dict(re.findall(r"^(\w+): +(\d{1,18}) kB$", _read(root / "proc/meminfo") or "", re.MULTILINE))

    def size(name: str) -> int | None:
        return int(kib[name]) * 1024 if name in kib else None

    swap, swap_free = size("SwapTotal"), size("SwapFree")
    huge = re.search(r"\[(\w+)\]", _read(root / "sys/kernel/mm/transparent_hugepage/enabled") or "", re.ASCII)
    return Memory(
        total_bytes=size("MemTotal"),
        available_bytes=size("MemAvailable"),
        limit_bytes=read_memory_limit(root),
        swap_total_bytes=swap,
        swap_used_bytes=swap - swap_free if swap is not None and swap_free is not None else None,
        transparent_huge_pages=huge.group(1) if huge else None,
    )


def read_system(root: Path = ROOT) -> System:
    """Operating system, kernel, and whether anything stands between them and the hardware."""
    release = _read(root / "etc/os-release") or _read(root / "usr/lib/os-release") or ""
    pretty = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]+)", release, re.MULTILINE)
    return System(
        os=pretty.group(1) if pretty else platform.system() or None,
        kernel=platform.release() or None,
        container=_container(root),
        virtual_machine=_virtual_machine(root),
        clock_source=_word(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )


def read_file_system(path: Path, root: Path = ROOT) -> str | None:
    """The kind of file system (`ext4`, `tmpfs`, `overlay`) that holds an absolute, resolved path: /proc/self/mountinfo."""
    best: tuple[int, str] | None = None
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        mount, separator, source = line.partition(" - ")
        fields, kind = mount.split(" "), source.split(" ")[0]
        if not separator or len(fields) < 5 or not kind:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4]))
        # The longest mount point wins; of two in one place the later one lies over the earlier.
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kind)
    return best[1] if best else None


def read_cpu_quota(root: Path = ROOT) -> float | None:
    """The tightest CPU quota of this process's cgroups, in cores; 0 is none."""

    def version_2(folder: Path) -> float | None:
        fields = _limit_text(folder / "cpu.max").split()
        if fields[:1] == ["max"]:
            return 0.0
        return _quotient(_number(fields[0]), _number(fields[1])) if len(fields) == 2 else None

    def version_1(folder: Path) -> float | None:
        quota = _number(_limit_text(folder / "cpu.cfs_quota_us"))
        return 0.0 if quota is not None and quota < 0 else _quotient(quota, _number(_limit_text(folder / "cpu.cfs_period_us")))

    return _tightest(root, "cpu", "cpu.cfs_quota_us", version_1, "cpu.max", version_2)


def read_memory_limit(root: Path = ROOT) -> int | None:
    """The tightest memory limit of this process's cgroups, in bytes; 0 is none."""

    def limit(text: str) -> float | None:
        value = 0.0 if text.strip() == "max" else _number(text)
        return 0.0 if value is not None and value >= _CGROUP_V1_UNLIMITED else value

    tightest = _tightest(
        root,
        "memory",
        "memory.limit_in_bytes",
        lambda folder: limit(_limit_text(folder / "memory.limit_in_bytes")),
        "memory.max",
        lambda folder: limit(_limit_text(folder / "memory.max")),
    )
    return int(tightest) if tightest is not None else None


def _cgroup_folders(root: Path, controller: str) -> tuple[int, list[Path]] | None:
    """The cgroup version that governs the controller, and this process's folder in it with all folders above."""
    version_2_path = None
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controller, root / "sys/fs/cgroup" / controllers]
            mount = next((mount for mount in mounts if _is_folder(mount)), None)
            return (1, _upwards(mount, path)) if mount else None
        if hierarchy == "0" and not controllers:
            version_2_path = path
    mount = root / "sys/fs/cgroup"
    if version_2_path is None or _word(mount / "cgroup.controllers") is None:
        return None
    return 2, _upwards(mount, version_2_path)


def _upwards(mount: Path, path: str) -> list[Path]:
    # Inside a container the path may be the host's, which is not mounted here: then only the folders above it exist.
    # A path that leads out of the cgroup namespace (`/../..`) says nothing here but "at the top".
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        parts = []
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


_LimitReader = Callable[[Path], float | None]


def _tightest(root: Path, controller: str, file_1: str, read_1: _LimitReader, file_2: str, read_2: _LimitReader) -> float | None:
    """The smallest limit from this process's cgroup upwards. A folder without the file sets none."""
    found = _cgroup_folders(root, controller)
    if found is None:
        return None
    version, folders = found
    file, read = (file_1, read_1) if version == 1 else (file_2, read_2)
    present = [read(folder) for folder in folders if _exists(folder / file)]
    limits = [limit for limit in present if limit]
    if limits:
        return min(limits)
    return None if None in present else 0.0


def _throttled_periods(root: Path) -> int | None:
    found = _cgroup_folders(root, "cpu")
    if found is None:
        return None
    match = re.search(r"^nr_throttled (\d{1,18})$", _read(found[1][0] / "cpu.stat") or "", re.MULTILINE)
    return int(match.group(1)) if match else None


def _cpu_model(info: str) -> str | None:
    for key in ("model name", "cpu model", "Hardware", "cpu"):
        if match := re.search(rf"^{key}\s*:[ \t]*(\S.*)$", info, re.MULTILINE):
            return " ".join(match.group(1).split())
    # 64-bit ARM kernels give numbers only
    parts = [re.search(rf"^CPU {key}\s*: *(\w+)$", info, re.MULTILINE) for key in ("implementer", "part")]
    named = [match.group(1) for match in parts if match]
    return f"ARM implementer {named[0]} part {named[1]}" if len(named) == 2 else None


def _boost(folder: Path) -> bool | None:
    no_turbo = _flag(folder / "intel_pstate/no_turbo")
    return not no_turbo if no_turbo is not None else _flag(folder / "cpufreq/boost")


def _container(root: Path) -> str | None:
    cgroup = _read(root / "proc/self/cgroup")
    for file, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if _exists(root / file):
            return name
    if match := re.search(r"kubepods|docker|containerd|libpod|lxc", cgroup or ""):
        return match.group(0)
    return "" if cgroup is not None else None


def _virtual_machine(root: Path) -> str | None:
    product = _read(root / "sys/class/dmi/id/product_name") or ""
    vendor = _read(root / "sys/class/dmi/id/sys_vendor") or ""
    maker = re.search(r"KVM|QEMU|VMware|VirtualBox|Xen|Amazon EC2|Google Compute Engine|Virtual Machine", f"{product} {vendor}")
    if maker:
        return maker.group(0)
    if hypervisor := _word(root / "sys/hypervisor/type"):
        return hypervisor
    flags = re.search(r"^flags\s*:(.*)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    if flags is None:
        return None
    return "hypervisor flag of the processor" if "hypervisor" in flags.group(1).split() else ""


def _read(path: Path) -> str | None:
    """The file as text whatever its bytes are, None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_READ).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _limit_text(path: Path) -> str:
    return _read(path) or ""


def _word(path: Path) -> str | None:
    """The file's first word, None where it has none or cannot be text."""
    words = (_read(path) or "").split(maxsplit=1)
    return words[0] if words and words[0].isprintable() and "\ufffd" not in words[0] else None


def _flag(path: Path) -> bool | None:
    return {"0": False, "1": True}.get(_word(path) or "")


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below is not None and below > 0 else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
