"""`bench env`: it never fails, whatever /proc and /sys hold, and it finds what is really here."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import environment, host
from bench.environment import Environment, collect, to_json, warnings
from bench.gpus import Gpu, parse_program_answer, read_gpus

# Every file that a reader opens
FILES = (
    "proc/stat", "proc/cpuinfo", "proc/loadavg", "proc/meminfo", "proc/self/cgroup", "proc/self/mountinfo", "etc/os-release",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "sys/devices/system/cpu/smt/active",
    "sys/devices/system/cpu/cpufreq/boost", "sys/devices/system/clocksource/clocksource0/current_clocksource",
    "sys/kernel/mm/transparent_hugepage/enabled", "sys/class/dmi/id/product_name", "sys/hypervisor/type",
    "sys/fs/cgroup/cgroup.controllers", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/cpu.stat",
)  # fmt: skip
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"0::/\n", b"max 100000\n", b"1:cpu,memory:/x\n", b"cpu  1 2 3 4 5 6 7 8 9 10\n", b"9" * 5000, b"1e999 nan", b"-1"]),
)


@pytest.fixture(scope="module")
def here() -> Environment:
    return collect()


def read_all(root: Path) -> str:
    """All readers that take a root, without the steal window; as strict JSON."""
    found = [host.read_cpu_ticks(root), host.read_cpu(root), host.read_memory(root), host.read_system(root)]
    assert host.read_file_system(root, root) is None or isinstance(host.read_file_system(root, root), str)
    return json.dumps([dataclasses.asdict(part) for part in found if part is not None], allow_nan=False)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(CONTENTS, min_size=len(FILES), max_size=len(FILES)))
def test_rubbish_never_fails(tmp_path: Path, contents: list[bytes]) -> None:
    for name, content in zip(FILES, contents, strict=True):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert json.loads(read_all(tmp_path))


def test_folders_where_files_should_be(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).mkdir(parents=True)
    assert json.loads(read_all(tmp_path))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are those of POSIX")
def test_forbidden_files_and_folders_are_not_known(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("0::/\n")
        (root / name).chmod(0)
    (root / "sys").chmod(0)
    tmp_path.chmod(0o755)
    program = (
        "import os; from pathlib import Path; from bench import host\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "r = Path('root'); m = host.read_memory(r); c = host.read_cpu(r)\n"
        "print(m.total_bytes, m.limit_bytes, c.model, c.governor, c.quota_cores, host.read_cpu_ticks(r), host.read_system(r).container)"
    )
    checkout = str(Path(__file__).resolve().parents[1])
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": checkout}, capture_output=True, text=True
    )
    (root / "sys").chmod(stat.S_IRWXU)
    assert answer.stdout.split() == ["None"] * 7, answer.stderr


def test_an_empty_tree_waits_for_nothing_and_warns_of_nothing_it_does_not_know(tmp_path: Path) -> None:
    found = collect(tmp_path, root=tmp_path / "nothing")
    assert found.steal.since_boot is None
    assert found.steal.window_ns < environment.STEAL_WINDOW_NS
    assert found.memory == host.Memory(
        total_bytes=None,
        available_bytes=None,
        limit_bytes=None,
        swap_total_bytes=None,
        swap_used_bytes=None,
        transparent_huge_pages=None,
    )
    assert not [text for text in warnings(found) if "page" not in text and "GPU" not in text]


def test_this_machine(here: Environment) -> None:
    assert here.software.python == platform.python_version()
    assert here.software.packages["numpy"]
    assert here.cpu.logical_cores == os.cpu_count()
    assert json.loads(json.dumps(to_json(here), allow_nan=False)) == to_json(here)
    if sys.platform == "linux":
        assert here.memory.total_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert here.cpu.affinity_cores == len(os.sched_getaffinity(0))
        assert here.cpu.usable_cores is not None
        assert 0 < here.cpu.usable_cores <= here.cpu.affinity_cores
        assert here.steal.window_ns >= environment.STEAL_WINDOW_NS


def test_a_results_folder_that_does_not_exist_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    storage = environment.read_storage(tmp_path / "not" / "yet")
    assert storage.folder == str(tmp_path / "not" / "yet")
    assert storage.free_bytes
    assert storage.page_cache_drop == environment.try_page_cache(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "loop"])
def test_impossible_results_folders(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert environment.read_storage(tmp_path / name).folder == str(tmp_path / name)


def test_git(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    assert environment.read_git(tmp_path / "missing") == (None, None)
    try:
        git("init")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git here")
    assert environment.read_git(tmp_path) == (None, None)
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    (tmp_path / "untracked").write_text("")
    assert environment.read_git(tmp_path) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("two")
    assert environment.read_git(tmp_path) == (git("rev-parse", "HEAD"), True)


def test_quiet_machine_has_no_warnings_and_each_disturbance_has_its_own(here: Environment) -> None:
    cpu = dataclasses.replace(here.cpu, governor="performance", load_average_1min=0.5, usable_cores=2.0, affinity_cores=2, quota_cores=0.0)
    quiet = dataclasses.replace(
        here,
        cpu=cpu,
        steal=environment.Steal(since_boot=0.001, recent=0.02, window_ns=200_000_000, resolution=0.02),
        memory=dataclasses.replace(here.memory, swap_used_bytes=0),
        system=dataclasses.replace(here.system, clock_source="tsc"),
        storage=dataclasses.replace(here.storage, page_cache_drop=True),
        gpus=(),
    )
    assert warnings(quiet) == []
    disturbed = {
        "governor": {"cpu": dataclasses.replace(cpu, governor="performance, powersave")},
        "since boot": {"steal": dataclasses.replace(quiet.steal, since_boot=0.03)},
        "just now": {"steal": dataclasses.replace(quiet.steal, recent=0.05)},
        "load average": {"cpu": dataclasses.replace(cpu, load_average_1min=2.5)},
        "quota": {"cpu": dataclasses.replace(cpu, quota_cores=1.5)},
        "swap": {"memory": dataclasses.replace(quiet.memory, swap_used_bytes=1)},
        "clock source": {"system": dataclasses.replace(quiet.system, clock_source="hpet")},
        "cannot be dropped": {"storage": dataclasses.replace(quiet.storage, page_cache_drop=False)},
        "cannot be seen": {"storage": dataclasses.replace(quiet.storage, page_cache_drop=None)},
    }
    for word, change in disturbed.items():
        (warning,) = warnings(dataclasses.replace(quiet, **change))
        assert word in warning


def test_gpus_from_the_program() -> None:
    one = "NVIDIA H200, 570.1, 143771, 4, 345, 1980, 3201, 75.25, 700.00, 30, 0, Enabled, Disabled\n"
    no_values = "GPU 2, 570.1, [N/A], [N/A], [Not Supported], , x, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]\n"
    gpus = parse_program_answer(one + no_values)
    assert gpus is not None
    first, second = gpus
    assert (first.name, first.memory_total_bytes, first.power_draw_w, first.persistence) == ("NVIDIA H200", 143771 << 20, 75.25, True)
    assert (first.mig, first.utilisation, first.sm_clock_max_mhz) == (False, 0, 1980)
    assert second == Gpu(name="GPU 2", driver_version="570.1", **dict.fromkeys([f.name for f in dataclasses.fields(Gpu)][2:]))


@pytest.mark.parametrize("text", ["No devices were found", "Failed to initialize NVML: Driver/library version mismatch\n"])
def test_an_answer_of_the_program_that_is_no_table_is_not_known(text: str) -> None:
    assert parse_program_answer(text) is None


@pytest.mark.parametrize("script", ["exit 9", "echo rubbish", "head -c 1000 /dev/urandom"])
def test_a_broken_program_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if the library were not installed
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert read_gpus(tmp_path) is None


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "env", "--results", str(tmp_path)]
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(as_json.stdout)
    assert set(answer) == {field.name for field in dataclasses.fields(Environment)} | {"warnings"}
    table = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"})
    assert platform.python_version() in table.stdout
    assert "page cache drop" in table.stdout


def test_nothing_outside_the_standard_library_is_imported_to_look(tmp_path: Path) -> None:
    program = (
        "import sys; before = set(sys.modules)\nfrom bench.environment import collect; collect()\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'bench', 'pynvml'}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
