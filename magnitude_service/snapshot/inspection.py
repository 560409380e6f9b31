"""Looks at a state file without changing it: every byte of every segment checked, or its structure line by line."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from magnitude.v1 import state_pb2
from magnitude_service.errors import MagnitudeError
from magnitude_service.snapshot.record import (
    END_MARK_BYTES,
    HEADER_BYTES,
    Kind,
    SegmentHeader,
    aligned,
    parse_end_mark,
    parse_envelope,
)
from magnitude_service.snapshot.recovery import Finding, read_envelope, read_header, recover, verify_segment
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
    """A line for each segment that has a right header, live or dead, and for each stretch without one; below a
    segment's, indented, one for each of its parts."""
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
                    yield from _part_lines(file, header)
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


def _part_lines(file: File, header: SegmentHeader) -> Iterator[str]:
    """Where envelope, blobs and end mark lie; a part that cannot be read ends the list."""

    def line(offset: int, what: str) -> str:
        return f"  {header.offset + offset:#014x}  {what}"

    yield line(HEADER_BYTES, f"envelope of {header.envelope_bytes:,} bytes, CRC {header.envelope_crc:08x}")
    envelope = read_envelope(file, header)
    if envelope is None:
        yield line(HEADER_BYTES, "its bytes have another CRC")
        return
    if header.kind == Kind.SNAPSHOT:
        stored = parse_envelope(envelope, header)
        if stored is None:
            yield line(HEADER_BYTES, "it does not fit its body")
            return
        for blob in stored.blobs:
            yield line(blob.offset_bytes, f"{blob.name} of {blob.length_bytes:,} bytes, CRC {blob.crc32c:08x}")
    else:
        yield from (line(HEADER_BYTES, said) for said in _said(header, envelope))
    is_right = parse_end_mark(file.pread(END_MARK_BYTES, header.end - END_MARK_BYTES)) is not None
    yield line(header.length - END_MARK_BYTES, "end mark" if is_right else "no right end mark")


def _said(header: SegmentHeader, envelope: bytes) -> Iterator[str]:
    """What a segment without blobs says, in words."""
    try:
        if header.kind == Kind.LOG:
            yield f"begun by {state_pb2.StoredLog.FromString(envelope).creator}"
        elif header.kind == Kind.DELETION:
            for each in state_pb2.StoredDeletion.FromString(envelope).deletions:
                versions = f"versions {', '.join(map(str, each.versions))}" if each.versions else "all versions"
                yield f"deletes {versions} of {each.session_id}"
        else:
            index = state_pb2.StoredIndex.FromString(envelope)
            yield f"lists {len(index.session_ids):,} live versions and {len(index.dead_sequences):,} dead segments"
    except DecodeError:
        yield "it is no message of its kind"


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
