"""The clock of a GPU's multiprocessors (SM clock), asked of the driver's management library through `nvidia-ml-py`.

`bench.gpus` asks once and closes; here the library stays open, since opening it takes longer than a sample of the
timeline and an answer takes microseconds. Nothing is set: a clock that is looked at runs as it would.
"""

from __future__ import annotations

import threading
from typing import Any


class SmClock:
    """The SM clock of a GPU that is told by its PCI address. For any thread; nothing raises, what is not known is None."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nvml: Any = None
        self._tried = False
        self._devices: dict[str, Any] = {}  # by PCI address; None: the library does not know it

    def read_mhz(self, pci_address: str | None) -> int | None:
        """The clock at this moment of the GPU at `pci_address`. None where it is not known, or nvidia-ml-py does not tell.

        The first call opens the library, also without an address: who samples can have that behind it before the GPU is in use.
        """
        with self._lock:
            if not self._tried:  # once: a host without the library has none later either
                self._tried = True
                self._nvml = _open()
            nvml = self._nvml
            if nvml is None or pci_address is None:
                return None
            if pci_address not in self._devices:
                self._devices[pci_address] = _find(nvml, pci_address)
            device = self._devices[pci_address]
        if device is None:
            return None
        try:
            return int(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM))
        except nvml.NVMLError:
            return None


def _open() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _find(nvml: Any, pci_address: str) -> Any:
    """The library numbers GPUs in its own order and does not know of CUDA_VISIBLE_DEVICES, so only the address tells which one is meant."""
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(pci_address)
    except nvml.NVMLError:  # a container may show other addresses; where there is one GPU, it is that one
        try:
            return nvml.nvmlDeviceGetHandleByIndex(0) if nvml.nvmlDeviceGetCount() == 1 else None
        except nvml.NVMLError:
            return None
