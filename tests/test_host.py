"""Readers of /proc and /sys on trees as real hosts show them, and on trees that no host should show."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import host


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


CGROUP_2 = {"proc/self/cgroup": "0::/app/web\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}
CGROUP_1 = {"proc/self/cgroup": "5:memory:/docker/3f\n4:cpu,cpuacct:/docker/3f\n1:name=systemd:/docker/3f\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, 0),  # version 2 without the cpu controller: no limit can be set
        ({"app/web/cpu.max": "max 100000\n"}, 0),
        ({"app/web/cpu.max": "150000 100000\n"}, 1.5),
        ({"app/web/cpu.max": "max 100000\n", "app/cpu.max": "50000 100000\n"}, 0.5),
        ({"app/web/cpu.max": "400000 100000\n", "cpu.max": "800000 100000\n"}, 4),
        ({"app/web/cpu.max": ""}, None),
        ({"app/web/cpu.max": "rubbish"}, None),
        ({"app/web/cpu.max": "100000 0\n"}, None),
        ({"app/web/cpu.max": "nan inf\n"}, None),
        ({"app/web/cpu.max": b"\xff\xfe\x00"}, None),
    ],
)
def test_cpu_quota_of_cgroup_2(tmp_path: Path, files: dict[str, str | bytes], quota: float | None) -> None:
    tree(tmp_path, CGROUP_2 | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert host.read_cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("text", "limit"), [("max\n", 0), ("4294967296\n", 4 << 30), ("", None), ("-\n", None), ("9" * 5000, None), (b"\x80" * 9, None)]
)
def test_memory_limit_of_cgroup_2(tmp_path: Path, text: str | bytes, limit: int | None) -> None:
    tree(tmp_path, CGROUP_2 | {"sys/fs/cgroup/app/memory.max": text})
    assert host.read_memory_limit(tmp_path) == limit


def test_cgroup_1_with_the_container_mounted_at_the_top(tmp_path: Path) -> None:
    tree(
        tmp_path,
        CGROUP_1
        | {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
        },
    )
    assert host.read_cpu_quota(tmp_path) == 2
    assert host.read_memory_limit(tmp_path) == 1 << 30


def test_cgroup_1_without_limits(tmp_path: Path) -> None:
    tree(
        tmp_path,
        CGROUP_1
        | {
            "sys/fs/cgroup/cpu/docker/3f/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/docker/3f/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/docker/3f/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert host.read_cpu_quota(tmp_path) == 0
    assert host.read_memory_limit(tmp_path) == 0


def test_no_cgroups_at_all_is_not_known(tmp_path: Path) -> None:
    assert host.read_cpu_quota(tmp_path) is None
    assert host.read_memory_limit(tmp_path) is None


def test_a_cgroup_path_that_leads_out_of_the_namespace_stays_inside(tmp_path: Path) -> None:
    tree(tmp_path, CGROUP_2 | {"proc/self/cgroup": "0::/../../../etc\n", "sys/fs/cgroup/memory.max": "1024\n"})
    assert host.read_memory_limit(tmp_path) == 1024


def test_steal(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/stat": "cpu  100 0 50 800 10 0 0 40 7 7\ncpu0 1 2 3\n"})
    ticks = host.read_cpu_ticks(tmp_path)
    assert ticks == host.CpuTicks(total=1000, stolen=40)
    assert host.steal_share(ticks, host.CpuTicks(total=1100, stolen=45)) == 0.05
    assert host.steal_share(ticks, ticks) is None
    assert host.steal_share(None, ticks) is None


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu 1 2 3\n", "cpu a b c d e f g h\n", "cpu" + f" {'9' * 5000}" * 8, b"\x00" * 100, b"\xff" * 100]
)
def test_a_stat_file_that_says_nothing(tmp_path: Path, text: str | bytes) -> None:
    assert host.read_cpu_ticks(tree(tmp_path, {"proc/stat": text})) is None


def test_processor(tmp_path: Path) -> None:
    policy = "sys/devices/system/cpu/cpu{}/cpufreq/{}"
    tree(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some  CPU @ 2.00GHz\ncpu MHz\t\t: 1200.5\n\n"
            "processor\t: 1\nmodel name\t: Some  CPU @ 2.00GHz\ncpu MHz\t\t: 3100\n\nprocessor\t: 2\ncpu MHz\t\t: 3000\n",
            "proc/loadavg": "3.25 1.00 0.50 2/345 6789\n",
            policy.format(0, "scaling_governor"): "powersave\n",
            policy.format(1, "scaling_governor"): "performance\n",
            policy.format(0, "cpuinfo_max_freq"): "3500000\n",
            "sys/devices/system/cpu/smt/active": "1\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
        },
    )
    cpu = host.read_cpu(tmp_path)
    assert (cpu.model, cpu.governor, cpu.smt, cpu.boost) == ("Some CPU @ 2.00GHz", "performance, powersave", True, True)
    assert (cpu.frequency_mhz, cpu.frequency_max_mhz, cpu.load_average_1min) == (3000, 3500, 3.25)


def test_an_arm_processor_is_named_by_its_numbers(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"})
    assert host.read_cpu(tmp_path).model == "ARM implementer 0x41 part 0xd0c"


def test_a_quota_below_the_affinity_is_what_can_be_used(tmp_path: Path) -> None:
    cpu = host.read_cpu(tree(tmp_path, CGROUP_2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}))
    assert cpu.usable_cores == 0.5


def test_throttling(tmp_path: Path) -> None:
    tree(tmp_path, CGROUP_2 | {"sys/fs/cgroup/app/web/cpu.stat": "usage_usec 5\nnr_periods 10\nnr_throttled 4\n"})
    assert host.read_cpu(tmp_path).throttled_periods == 4


def test_memory(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       2048 kB\nMemAvailable:   1024 kB\nSwapTotal:       100 kB\nSwapFree:         40 kB\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        },
    )
    memory = host.read_memory(tmp_path)
    assert (memory.total_bytes, memory.available_bytes) == (2 << 20, 1 << 20)
    assert (memory.swap_total_bytes, memory.swap_used_bytes) == (100 << 10, 60 << 10)
    assert memory.transparent_huge_pages == "madvise"


@pytest.mark.parametrize(
    ("files", "container", "machine"),
    [
        ({"proc/self/cgroup": "0::/\n", "proc/cpuinfo": "flags\t: fpu sse2\n"}, "", ""),
        ({"proc/self/cgroup": "0::/\n", ".dockerenv": ""}, "docker", None),
        ({"run/.containerenv": ""}, "podman", None),
        ({"proc/self/cgroup": "0::/kubepods/besteffort/pod1\n"}, "kubepods", None),
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n", "sys/class/dmi/id/product_name": "Standard PC\n"}, None, "QEMU"),
        ({"sys/hypervisor/type": "xen\n"}, None, "xen"),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n"}, None, "hypervisor flag of the processor"),
        ({}, None, None),
    ],
)
def test_hints_of_containers_and_machines(
    tmp_path: Path, files: dict[str, str | bytes], container: str | None, machine: str | None
) -> None:
    system = host.read_system(tree(tmp_path, files))
    assert (system.container, system.virtual_machine) == (container, machine)


def test_operating_system_and_clock_source(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "etc/os-release": 'ID=x\nPRETTY_NAME="Some Linux 12 (twelve)"\n',
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        },
    )
    system = host.read_system(tmp_path)
    assert (system.os, system.clock_source) == ("Some Linux 12 (twelve)", "tsc")


MOUNTS = """\
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:5 / /data rw - xfs /dev/sdb rw
22 21 0:6 / /data/with\\040space rw - tmpfs tmpfs rw
23 20 0:7 / /over rw - ext4 /dev/sdc rw
24 20 0:8 / /over rw - overlay overlay rw
a torn line
25 20 0:9 / /broken rw -
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/x", "ext4"), ("/data", "xfs"), ("/database", "ext4"), ("/data/with space/y", "tmpfs"), ("/over/z", "overlay")],
)
def test_file_systems(tmp_path: Path, path: str, kind: str) -> None:
    assert host.read_file_system(Path(path), tree(tmp_path, {"proc/self/mountinfo": MOUNTS})) == kind


def test_file_system_without_a_mount_table(tmp_path: Path) -> None:
    assert host.read_file_system(Path("/home"), tmp_path) is None
