"""NVIDIA GPUs of a host, as the driver's management library (NVML) describes them. Never touches CUDA: no context is made.

Asks `nvidia-ml-py` where it is installed, else the program `nvidia-smi` where it is on the PATH.
Field names: `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
_PROGRAM_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device. Clocks are those at the moment of the question: an idle GPU clocks down."""

    name: str | None
    driver_version: str | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    sm_clock_mhz: int | None
    sm_clock_max_mhz: int | None
    memory_clock_mhz: int | None
    power_draw_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    utilisation: float | None  # share (0..1) of the last sample period in which a kernel ran
    persistence: bool | None
    mig: bool | None


def read_gpus(root: Path = Path("/")) -> tuple[Gpu, ...] | None:
    """All NVIDIA GPUs; () where there is no driver; None where there may be one and nothing here can ask it."""
    gpus = _from_library()
    if gpus is None:
        gpus = _from_program()
    if gpus is None and (root / "proc").is_dir() and not (root / "proc/driver/nvidia").exists():
        return ()
    return gpus


def _from_library() -> tuple[Gpu, ...] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        driver = _asked(pynvml.nvmlSystemGetDriverVersion)
        return tuple(_describe(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i), driver) for i in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return None
    finally:
        _asked(pynvml.nvmlShutdown)


def _describe(nvml: Any, device: Any, driver: object) -> Gpu:
    memory = _asked(nvml.nvmlDeviceGetMemoryInfo, device)
    draw = _asked(nvml.nvmlDeviceGetPowerUsage, device)
    limit = _asked(nvml.nvmlDeviceGetEnforcedPowerLimit, device)
    rates = _asked(nvml.nvmlDeviceGetUtilizationRates, device)
    mig = _asked(nvml.nvmlDeviceGetMigMode, device)
    persistence = _asked(nvml.nvmlDeviceGetPersistenceMode, device)
    return Gpu(
        name=_text(_asked(nvml.nvmlDeviceGetName, device)),
        driver_version=_text(driver),
        memory_total_bytes=memory.total if memory else None,
        memory_used_bytes=memory.used if memory else None,
        sm_clock_mhz=_asked(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=_asked(nvml.nvmlDeviceGetMaxClockInfo, device, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=_asked(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_MEM),
        power_draw_w=draw / 1000 if draw is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
        temperature_c=_asked(nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU),
        utilisation=rates.gpu / 100 if rates else None,
        persistence=persistence == nvml.NVML_FEATURE_ENABLED if persistence is not None else None,
        mig=mig[0] == nvml.NVML_DEVICE_MIG_ENABLE if mig else None,
    )


def _asked(function: Callable[..., Any], *arguments: Any) -> Any:
    """The library's answer; None where this device, driver or library version has none."""
    try:
        return function(*arguments)
    except Exception:  # NVMLError, and ctypes errors where library and driver are of different ages
        return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):  # older versions of the library
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


_QUERY = (
    "name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.mem,"
    "power.draw,power.limit,temperature.gpu,utilization.gpu,persistence_mode,mig.mode.current"
)


def _from_program() -> tuple[Gpu, ...] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PROGRAM_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_program_answer(answer.stdout.decode("utf-8", "replace")) if answer.returncode == 0 else None


def parse_program_answer(text: str) -> tuple[Gpu, ...] | None:
    """The lines of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; None where they are something else.

    A device without a value writes `[N/A]` or `[Not Supported]`. Memory is in MiB, clocks in MHz, power in W.
    """
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != _QUERY.count(",") + 1:
            return None
        name, driver, total, used, sm, sm_max, memory, draw, limit, temperature, busy, persistence, mig = fields
        gpus.append(
            Gpu(
                name=_given(name),
                driver_version=_given(driver),
                memory_total_bytes=_converted(lambda t: int(t) << 20, total),
                memory_used_bytes=_converted(lambda t: int(t) << 20, used),
                sm_clock_mhz=_converted(int, sm),
                sm_clock_max_mhz=_converted(int, sm_max),
                memory_clock_mhz=_converted(int, memory),
                power_draw_w=_converted(float, draw),
                power_limit_w=_converted(float, limit),
                temperature_c=_converted(int, temperature),
                utilisation=_converted(lambda t: int(t) / 100, busy),
                persistence={"Enabled": True, "Disabled": False}.get(persistence),
                mig={"Enabled": True, "Disabled": False}.get(mig),
            )
        )
    return tuple(gpus)


def _given(field: str) -> str | None:
    return None if not field or field.startswith("[") else field


def _converted(convert: Callable[[str], _T], field: str) -> _T | None:
    try:
        return convert(field)
    except ValueError:
        return None
