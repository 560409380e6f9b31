"""Limits are read from fake trees: each test writes the files of one kind of machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude_service.allocator.machine import control_groups, read_memory, read_processors

GIB = 1 << 30
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNTS = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    meminfo = "MemTotal:       33554432 kB\nMemFree:  1024 kB\nMemAvailable:   16777216 kB"
    return write(tmp_path, {"proc/meminfo": meminfo})


@pytest.fixture
def v2(root: Path) -> Path:
    return write(root, {"proc/self/mountinfo": V2_MOUNT, "proc/self/cgroup": "0::/kube/pod/app"})


@pytest.fixture
def v1(root: Path) -> Path:
    membership = "5:cpu,cpuacct:/kube/app\n4:memory:/kube/app\n1:name=systemd:/"
    return write(root, {"proc/self/mountinfo": V1_MOUNTS, "proc/self/cgroup": membership})


def test_without_control_groups_memory_is_what_the_machine_has_available(root: Path) -> None:
    limit = read_memory(root)
    assert limit.available_bytes == 16 * GIB
    assert limit.bound == "MemAvailable of /proc/meminfo"


def test_inactive_file_pages_of_a_group_count_as_free(v2: Path) -> None:
    group = "sys/fs/cgroup/kube/pod/app/"
    stat = f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file 5"
    write(v2, {group + "memory.max": str(8 * GIB), group + "memory.current": str(5 * GIB), group + "memory.stat": stat})
    limit = read_memory(v2)
    assert limit.available_bytes == 5 * GIB
    assert "memory.max of control group /kube/pod/app" in limit.bound
    assert str(8 * GIB) in limit.bound


def test_a_parent_group_binds_when_it_has_less_left_than_its_child(v2: Path) -> None:
    write(v2, {"sys/fs/cgroup/kube/pod/app/memory.max": str(8 * GIB), "sys/fs/cgroup/kube/memory.max": str(10 * GIB)})
    write(v2, {"sys/fs/cgroup/kube/memory.current": str(9 * GIB)})
    limit = read_memory(v2)
    assert limit.available_bytes == GIB
    assert "control group /kube (" in limit.bound


def test_memory_high_is_a_limit_because_it_stalls_whoever_passes_it(v2: Path) -> None:
    write(v2, {"sys/fs/cgroup/kube/pod/app/memory.max": "max", "sys/fs/cgroup/kube/pod/app/memory.high": str(GIB)})
    assert read_memory(v2).available_bytes == GIB


def test_a_group_over_its_limit_has_nothing_left_rather_than_less(v2: Path) -> None:
    group = "sys/fs/cgroup/kube/pod/app/"
    write(v2, {group + "memory.max": "1000", group + "memory.current": "5000"})
    assert read_memory(v2).available_bytes == 0


def test_version_1_uses_the_hierarchical_count_of_inactive_file_pages(v1: Path) -> None:
    group = "sys/fs/cgroup/memory/kube/app/"
    stat = f"inactive_file 7\ntotal_inactive_file {GIB}"
    files = {"memory.limit_in_bytes": str(4 * GIB), "memory.usage_in_bytes": str(3 * GIB), "memory.stat": stat}
    write(v1, {group + name: text for name, text in files.items()})
    assert read_memory(v1).available_bytes == 2 * GIB


def test_version_1_spells_no_limit_as_a_huge_number(v1: Path) -> None:
    write(v1, {"sys/fs/cgroup/memory/kube/app/memory.limit_in_bytes": "9223372036854771712"})
    assert read_memory(v1).bound == "MemAvailable of /proc/meminfo"


def test_version_1_parent_binds_too(v1: Path) -> None:
    write(v1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(3 * GIB)})
    limit = read_memory(v1)
    assert limit.available_bytes == 3 * GIB
    assert "control group / (" in limit.bound


def test_quota_is_rounded_down_and_never_below_one_thread(v2: Path) -> None:
    path = "sys/fs/cgroup/kube/pod/app/cpu.max"
    write(v2, {path: "390000 100000"})
    assert read_processors(v2, affinity=16).threads == 3
    write(v2, {path: "50000 100000"})
    limit = read_processors(v2, affinity=16)
    assert limit.threads == 1
    assert limit.bound == "control group /kube/pod/app has a quota of 0.50 processors"


def test_affinity_binds_when_it_is_smaller_than_the_quota(v2: Path) -> None:
    write(v2, {"sys/fs/cgroup/kube/pod/app/cpu.max": "800000 100000"})
    limit = read_processors(v2, affinity=3)
    assert limit.threads == 3
    assert limit.bound == "the process may run on 3 processors"


def test_quota_of_a_parent_group_binds(v2: Path) -> None:
    write(v2, {"sys/fs/cgroup/kube/pod/app/cpu.max": "max 100000", "sys/fs/cgroup/kube/cpu.max": "200000 100000"})
    assert read_processors(v2, affinity=16).threads == 2


def test_version_1_quota_of_minus_one_is_no_quota(v1: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/kube/app/"
    write(v1, {group + "cpu.cfs_quota_us": "-1", group + "cpu.cfs_period_us": "100000"})
    assert read_processors(v1, affinity=5).threads == 5
    write(v1, {group + "cpu.cfs_quota_us": "250000"})
    assert read_processors(v1, affinity=5).threads == 2


def test_a_container_that_sees_only_its_own_group_reads_the_mount_point(root: Path) -> None:
    mount = "30 23 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw"
    write(root, {"proc/self/mountinfo": mount, "proc/self/cgroup": "0::/docker/ab"})
    write(root, {"sys/fs/cgroup/memory.max": str(2 * GIB)})
    assert read_memory(root).available_bytes == 2 * GIB


@pytest.mark.parametrize("membership", ["0::/../../other", "0::/somewhere/else"])
def test_a_membership_outside_of_the_mount_falls_back_to_the_mount_point(root: Path, membership: str) -> None:
    mount = "30 23 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw"
    write(root, {"proc/self/mountinfo": mount, "proc/self/cgroup": membership})
    write(root, {"sys/fs/cgroup/memory.max": str(2 * GIB)})
    assert read_memory(root).available_bytes == 2 * GIB


def test_mount_points_with_spaces_are_unescaped(root: Path) -> None:
    mount = r"30 23 0:26 / /sys/fs/my\040groups rw - cgroup2 cgroup2 rw"
    write(root, {"proc/self/mountinfo": mount, "proc/self/cgroup": "0::/a"})
    assert [group.name for group in control_groups("memory", root)] == ["/a", "/"]
    assert next(control_groups("memory", root)).folder == root / "sys/fs/my groups/a"


@pytest.mark.parametrize("text", ["", "garbage", "-5", "1e9", "99999999999999999999999999", "max extra"])
def test_files_that_make_no_sense_set_no_limit(v2: Path, text: str) -> None:
    write(v2, {"sys/fs/cgroup/kube/pod/app/memory.max": text, "sys/fs/cgroup/kube/pod/app/cpu.max": text})
    assert read_memory(v2).bound == "MemAvailable of /proc/meminfo"
    assert read_processors(v2, affinity=4).threads == 4


def test_a_period_of_zero_is_no_quota(v2: Path) -> None:
    write(v2, {"sys/fs/cgroup/kube/pod/app/cpu.max": "1000 0"})
    assert read_processors(v2, affinity=4).threads == 4


def test_truncated_proc_files_are_survived(root: Path) -> None:
    write(root, {"proc/self/mountinfo": "30 23\n - cgroup2\n30 23 0:26 / /x rw -", "proc/self/cgroup": "0:\n::\nx"})
    assert read_memory(root).available_bytes == 16 * GIB


def test_this_machine_has_memory_and_a_processor() -> None:
    assert read_memory().available_bytes > 0
    assert read_processors().threads >= 1
