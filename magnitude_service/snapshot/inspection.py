"""Looks at a state file without changing it: every byte of every segment checked, or each segment in a line."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from magnitude_service.errors import MagnitudeError
from magnitude_service.snapshot.record import Kind, SegmentHeader, aligned
from magnitude_service.snapshot.recovery import Finding, read_header, recover, verify_segment
from magnitude_service.snapshot.sidecar import SIDECAR_SUFFIX, model_tail_begin, sidecar_tail_begin
from magnitude_service.snapshot.storage_errors import storage_errors
from magnitude_service.snapshot.vfs import File, FileSystem, OperatingSystem


def check(path: Path, file_system: FileSystem | None = None) -> list[Finding]:
    """All that is wrong with a state file; empty for a sound one. Reads every byte of its live versions.

    *Raises*: NotFoundError; PreconditionError where it is none; IncompatibleVersionError.
    """
    file = _open(path, file_system or OperatingSystem())
    try:
        begin = _tail_begin(file, path)
        with storage_errors(path, "read"):
            recovered = recover(file, begin, source=str(path))
            if recovered is None:
                return []
            findings = list(recovered.findings)
            for entry in recovered.table.in_file_order():
                header = read_header(file, entry.offset, str(path))
                is_there = header is not None and header.sequence == entry.sequence
                problem = verify_segment(file, header) if header and is_there else "its header is damaged"
                if problem is not None:
                    findings.append(Finding(entry.offset, problem, entry.session_id, entry.version))
            return findings
    finally:
        file.close()


def dump(path: Path, file_system: FileSystem | None = None) -> Iterator[str]:
    """A line for each segment that has a right header, live or dead, and for each stretch without one."""
    file = _open(path, file_system or OperatingSystem())
    try:
        position = _tail_begin(file, path)
        with storage_errors(path, "read"):
            recovered = recover(file, position, source=str(path))
            live = {entry.sequence for entry in recovered.table.entries()} if recovered else set()
            size = file.size()
            while position < size:
                header = read_header(file, position, str(path))
                if header is not None:
                    yield _line(header, live)
                    position = aligned(header.end)
                    continue
                data = file.next_data(position)
                if data is None or data >= aligned(position + 1):
                    following = size if data is None else data // aligned(1) * aligned(1)
                    yield f"{position:#014x}  hole of {following - position:,} bytes"
                    position = following
                else:
                    yield f"{position:#014x}  no segment"
                    position = aligned(position + 1)
    finally:
        file.close()


def _line(header: SegmentHeader, live: set[int]) -> str:
    when = datetime.datetime.fromtimestamp(header.time_ns / 1e9, datetime.UTC).isoformat(timespec="milliseconds")
    kind = Kind(header.kind)
    what = ""
    if kind is Kind.SNAPSHOT:
        state = "live" if header.sequence in live else "dead"
        what = f"  {header.session_id} version {header.version}, floor {header.floor}, {state}"
    return (
        f"{header.offset:#014x}  number {header.sequence}, durable through {header.durable_through}, {when}  "
        f"{kind.name} of {header.length:,} bytes{what}"
    )


def _open(path: Path, file_system: FileSystem) -> File:
    with storage_errors(path, "opened"):
        return file_system.open(path, writable=False)


def _tail_begin(file: File, path: Path) -> int:
    if path.name.endswith(SIDECAR_SUFFIX):
        return sidecar_tail_begin(file, path)
    try:
        return model_tail_begin(file, path)
    except MagnitudeError:
        return sidecar_tail_begin(file, path)
