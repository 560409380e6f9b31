"""How much memory and how many processors this process may use: the machine's limits, and those of every control group.

Everything is read below a `root` folder, so that a test can build the tree of any machine. Nothing is cached and
nothing is changed. A file that is absent or unreadable sets no limit.

Source: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst; proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")

UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page below 2^63; anything this large is none."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that can still be spent, and in words which limit says so."""

    available_bytes: int
    bound: str


@dataclass(frozen=True, slots=True)
class ProcessorLimit:
    """How many threads can compute at the same time, at least 1, and in words which limit says so."""

    threads: int
    bound: str


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One group of one hierarchy; `folder` holds its files, `version` is 1 or 2."""

    version: int
    folder: Path
    name: str


def read_memory(root: Path = ROOT) -> MemoryLimit:
    """The smallest of what the machine can give and what each control group has left, never negative.

    A group has left its limit minus what it uses, where file pages on the inactive list count as unused: the kernel
    drops them before it kills anyone.
    """
    limits = [_machine_memory(root)]
    for group in control_groups("memory", root):
        limits.extend(_group_memory(group))
    return min(limits, key=lambda limit: limit.available_bytes)


def read_processors(root: Path = ROOT, affinity: int | None = None) -> ProcessorLimit:
    """The smallest of the processors that this process may run on and every quota, rounded down, at least 1.

    Rounded down, because a thread that the quota throttles holds up all others at the end of each operation.
    `affinity` is read from the system unless given.
    """
    allowed = affinity if affinity is not None else _affinity()
    limits = [ProcessorLimit(max(1, allowed), f"the process may run on {allowed} processors")]
    for group in control_groups("cpu", root):
        quota, period = _group_quota(group)
        if quota is not None and period:
            words = f"control group {group.name} has a quota of {quota / period:.2f} processors"
            limits.append(ProcessorLimit(max(1, quota // period), words))
    return min(limits, key=lambda limit: limit.threads)


def control_groups(controller: str, root: Path = ROOT) -> Iterator[ControlGroup]:
    """The groups that bound this process for `controller`, its own first, then each visible parent."""
    memberships = _memberships(root)
    for version, mount_root, mount_point in _mounts(controller, root):
        membership = memberships.get("" if version == 2 else controller)
        if membership is None:
            continue
        top = root / mount_point.relative_to("/")
        for path in _upwards(membership, mount_root):
            yield ControlGroup(version, top / path, f"/{path}" if path != PurePosixPath() else "/")


def _upwards(membership: PurePosixPath, mount_root: PurePosixPath) -> Iterator[PurePosixPath]:
    """Paths below the mount point, from the process's own group up to the mount point itself.

    In a container the membership may lie outside of what is mounted; then only the mount point can be seen.
    """
    if membership.is_relative_to(mount_root) and ".." not in membership.parts:
        path = membership.relative_to(mount_root)
        yield from (path, *path.parents) if path != PurePosixPath() else (path,)
    else:
        yield PurePosixPath()


def _memberships(root: Path) -> dict[str, PurePosixPath]:
    """Controller → path of the group that this process is in; the key of version 2 is the empty string."""
    found = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            for controller in parts[1].split(","):
                found[controller] = PurePosixPath(parts[2])
    return found


def _mounts(controller: str, root: Path) -> Iterator[tuple[int, PurePosixPath, PurePosixPath]]:
    """(version, which folder of the hierarchy is mounted, where) for each hierarchy that may hold `controller`."""
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        mount, separator, source = line.partition(" - ")
        left, right = mount.split(" "), source.split(" ")
        if not separator or len(left) < 6 or len(right) < 3:
            continue
        mount_root, mount_point = PurePosixPath(_unescape(left[3])), PurePosixPath(_unescape(left[4]))
        if right[0] == "cgroup2":
            yield 2, mount_root, mount_point
        elif right[0] == "cgroup" and controller in right[2].split(","):
            yield 1, mount_root, mount_point


def _machine_memory(root: Path) -> MemoryLimit:
    fields = _fields(root / "proc/meminfo")
    if "MemAvailable:" in fields:
        return MemoryLimit(fields["MemAvailable:"] * 1024, "MemAvailable of /proc/meminfo")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # macOS, which has no such file
    return MemoryLimit(total, "the machine's physical memory")


def _group_memory(group: ControlGroup) -> Iterator[MemoryLimit]:
    """What the group has left under each of its limits. `memory.high` does not kill, but it stalls: a limit too."""
    statistics = _fields(group.folder / "memory.stat")
    files: tuple[str, ...]
    if group.version == 2:
        files, usage_file = ("memory.max", "memory.high"), "memory.current"
        inactive = statistics.get("inactive_file", 0)
    else:
        files, usage_file = ("memory.limit_in_bytes",), "memory.usage_in_bytes"
        inactive = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    used = max(0, (_number(group.folder / usage_file) or 0) - inactive)
    for name in files:
        limit = _number(group.folder / name)
        if limit is not None and limit < UNLIMITED_BYTES:
            words = f"{name} of control group {group.name} ({limit} bytes, of which {used} are used)"
            yield MemoryLimit(max(0, limit - used), words)


def _group_quota(group: ControlGroup) -> tuple[int | None, int | None]:
    """(microseconds of processor time, per so many microseconds); no quota is None."""
    if group.version == 2:
        quota, _, period = (_read(group.folder / "cpu.max") or "").strip().partition(" ")
        return _parse(quota), _parse(period)
    return _number(group.folder / "cpu.cfs_quota_us"), _number(group.folder / "cpu.cfs_period_us")


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file whose lines are a word and a number."""
    found = {}
    for line in (_read(path) or "").splitlines():
        words = line.split()
        number = _parse(words[1]) if len(words) >= 2 else None
        if number is not None:
            found[words[0]] = number
    return found


def _number(path: Path) -> int | None:
    return _parse((_read(path) or "").strip())


def _parse(text: str) -> int | None:
    """A non-negative number; "max" and -1, which mean no limit, are None."""
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _unescape(text: str) -> str:
    r"""mountinfo writes space, tab, newline and backslash as \ooo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
