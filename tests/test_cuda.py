"""Both CUDA bindings through one contract, here on stand-ins that are as strict as the real ones; tests/gpu runs it on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda_stand_ins import Device, cuda_python_modules, install, pycuda_modules
from gpu.cuda_contract import CONTRACT

from bench.errors import BenchError
from reference_server.runtimes.cuda import BINDINGS, Cuda, CudaError, open_cuda

MODULES = {"pycuda": pycuda_modules, "cuda-python": cuda_python_modules}


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture(params=BINDINGS)
def cuda(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    install(monkeypatch, MODULES[request.param](device))
    return open_cuda(request.param)[0]


@pytest.mark.parametrize("check", CONTRACT, ids=[check.__name__ for check in CONTRACT])
def test_contract(check: Callable[[Cuda], None], cuda: Cuda, device: Device) -> None:
    check(cuda)
    assert device.leaks() == {}


def test_the_gpu_is_described(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BINDINGS:
        install(monkeypatch, MODULES[name](device))
        found = open_cuda(name)[1]
        assert (found.name, found.compute_capability) == ("Stand-in", "9.0")
        assert found.pci_address in ("0000:3B:00.0", "00000000:3B:00.0")  # NVML takes both


def test_pycuda_comes_first_and_either_will_do(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, cuda_python_modules(device))
    monkeypatch.setitem(__import__("sys").modules, "pycuda", None)
    assert open_cuda()[0].name == "cuda-python"
    install(monkeypatch, pycuda_modules(device))
    assert open_cuda()[0].name == "pycuda"


def test_no_context_is_left_on_a_thread(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = pycuda_modules(device)
    install(monkeypatch, modules)
    cuda, _ = open_cuda("pycuda")
    assert modules["pycuda.driver"].depth() == 0
    with pytest.raises(ValueError, match="inside"), cuda.current():
        raise ValueError("inside")
    assert modules["pycuda.driver"].depth() == 0


def test_a_spoiled_context_is_told_from_a_failed_call(cuda: Cuda, device: Device) -> None:
    assert cuda.healthy()
    with cuda.current():
        stream = cuda.make_stream()
        device.spoiled = True
        with pytest.raises(CudaError, match=r"(?i)illegal"):
            cuda.synchronize(stream)
    assert not cuda.healthy()


def test_missing_bindings_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = __import__("sys").modules
    for name in ("pycuda", "cuda"):
        monkeypatch.setitem(modules, name, None)
    with pytest.raises(BenchError, match="install the extra"):
        open_cuda()
    with pytest.raises(BenchError, match="not one of pycuda, cuda-python"):
        open_cuda("cupy")
