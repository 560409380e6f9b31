"""Reads a tail from disk into a Table: the steps of FORMAT.md, "Recovery". Changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError

from magnitude.v1 import state_pb2
from magnitude_service.snapshot.checksum import crc32c
from magnitude_service.snapshot.record import (
    ALIGNMENT,
    END_MARK_BYTES,
    HEADER_BYTES,
    PAGE_BYTES,
    Kind,
    SegmentHeader,
    aligned,
    encode_end,
    glue_of,
    parse_end_mark,
    parse_envelope,
    parse_header,
)
from magnitude_service.snapshot.table import FREE_AT_ONCE, Dead, Table, entry_of, table_of
from magnitude_service.snapshot.vfs import File

M = TypeVar("M", state_pb2.StoredIndex, state_pb2.StoredDeletion)

READ_BYTES = 1 << 20
"""What is read of a blob at once, to be checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, where, and in words."""

    offset: int
    problem: str
    session_id: str = ""
    version: int = 0


@dataclass(slots=True)
class Recovered:
    """A log as it was found. `end` is the byte behind the last whole segment; `torn` are segments before it that were
    never acknowledged and must not be taken for whole ones later."""

    table: Table
    log_id: int
    end: int
    last_sequence: int
    durable_through: int
    replayed: int  # segments behind the index
    index: SegmentHeader | None = None
    torn: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    used_index: bool = False


def recover(file: File, tail_begin: int, *, source: str = "") -> Recovered | None:
    """The log whose first segment lies at `tail_begin`; None where there is no segment at all.

    *Raises*: OSError; IncompatibleVersionError where a newer program wrote a segment.
    """
    size = file.size()
    return _from_index(file, tail_begin, size, source) or _from_all_headers(file, tail_begin, size, source)


def read_header(file: File, offset: int, source: str = "") -> SegmentHeader | None:
    """The header at an offset, where a right one is."""
    return parse_header(file.pread(HEADER_BYTES, offset), offset, source=source)


def _from_index(file: File, tail_begin: int, size: int, source: str) -> Recovered | None:
    """Steps 1, 3 and 4: None where anything at all is not as it should be."""
    if size < tail_begin + HEADER_BYTES + END_MARK_BYTES:
        return None
    mark = parse_end_mark(file.pread(END_MARK_BYTES, size - END_MARK_BYTES))
    last = mark and read_header(file, mark.offset, source)
    if mark is None or last is None or last.end != size or last[1:4] != tuple(mark):
        return None
    index_offset = last.offset if last.kind == Kind.INDEX else last.index_offset
    index = read_header(file, index_offset, source) if index_offset >= tail_begin else None
    if index is None or index.kind != Kind.INDEX or index.log_id != last.log_id:
        return None
    table = _read_table(file, index)
    if table is None:
        return None
    headers, position = [], aligned(index.end)
    while position < size:
        header = read_header(file, position, source)
        if header is None or header.log_id != index.log_id or header.end > size:
            return None
        headers.append(header)
        position = aligned(header.end)
    if headers and headers[-1].end != size:
        return None
    return _replay(file, table, index, headers, [])


def _from_all_headers(file: File, tail_begin: int, size: int, source: str) -> Recovered | None:
    """Steps 2, 3 and 4."""
    headers, findings = _all_headers(file, tail_begin, size, source)
    if not headers:
        return None
    sound_offsets = {header.offset: header for header in headers}
    for place in range(len(headers) - 1, -1, -1):
        index = headers[place]
        table = _read_table(file, index) if index.kind == Kind.INDEX else None
        if table is None:
            continue
        for entry in list(table.entries()):
            found = sound_offsets.get(entry.offset)
            if found is None or found.sequence != entry.sequence:
                table.delete(entry.session_id, [entry.version], index.time_ns)
                findings.append(
                    Finding(entry.offset, "the segment of a live version is damaged", entry.session_id, entry.version)
                )
        return _replay(file, table, index, headers[place + 1 :], findings, headers)
    return _replay(file, Table(), None, headers, findings, headers)


def _all_headers(file: File, tail_begin: int, size: int, source: str) -> tuple[list[SegmentHeader], list[Finding]]:
    """Every right header that lies where one may, in file order; and where bytes lie that belong to none."""
    headers: list[SegmentHeader] = []
    findings: list[Finding] = []
    position, is_lost = tail_begin, False
    while position < size:
        header = read_header(file, position, source)
        if header is not None and headers:
            is_ours = header.log_id == headers[0].log_id and header.sequence > headers[-1].sequence
            header = header if is_ours else None
        if header is not None and header.end <= size:
            headers.append(header)
            position, is_lost = aligned(header.end), False
            continue
        data = file.next_data(position)
        if data is None:
            break
        if data < aligned(position + 1):
            if not is_lost and any(file.pread(PAGE_BYTES, position)):
                findings.append(Finding(position, "no segment begins where one should: torn or damaged"))
                is_lost = True
            data = aligned(position + 1)
        position = data // aligned(1) * aligned(1)
    return headers, findings


def _replay(
    file: File,
    table: Table,
    index: SegmentHeader | None,
    headers: list[SegmentHeader],
    findings: list[Finding],
    all_headers: list[SegmentHeader] | None = None,
) -> Recovered:
    known = [*([index] if index else []), *headers]
    durable = max(header.durable_through for header in all_headers or known)
    recovered = Recovered(
        table,
        known[0].log_id,
        index.end if index else known[0].offset,
        max(header.sequence for header in all_headers or known),
        durable,
        len(headers),
        index,
        findings=findings,
        used_index=all_headers is None,
    )
    for header in headers:
        problem = verify_segment(file, header) if header.sequence > durable else None
        if problem is not None:
            recovered.torn.append(header.offset)
            findings.append(Finding(header.offset, f"torn: {problem}", header.session_id, header.version))
            continue
        apply(table, file, header, recovered)
    recovered.torn = [offset for offset in recovered.torn if offset < recovered.end]
    return recovered


def apply(table: Table, file: File, header: SegmentHeader, recovered: Recovered) -> None:
    """Step 4 for one segment."""
    recovered.end = header.end
    if header.kind == Kind.SNAPSHOT:
        table.add(entry_of(header), header.floor)
        return
    if header.kind == Kind.DELETION:
        body = read_envelope(file, header)
        deletion = _parsed(state_pb2.StoredDeletion, body)
        if deletion is None:
            recovered.findings.append(Finding(header.offset, "a deletion is damaged: what it deleted comes back"))
        for each in deletion.deletions if deletion else ():
            table.delete(each.session_id, each.versions, header.time_ns)
    if header.kind != Kind.LOG:  # needed no longer than until the next index
        since_ns = header.time_ns if header.kind == Kind.DELETION else FREE_AT_ONCE
        table.waste(Dead(header.sequence, header.offset, header.length, since_ns))


def read_envelope(file: File, header: SegmentHeader) -> bytes | None:
    """The envelope of a segment; None where its CRC is wrong."""
    envelope = file.pread(header.envelope_bytes, header.offset + HEADER_BYTES)
    return envelope if crc32c(envelope) == header.envelope_crc else None


def verify_segment(file: File, header: SegmentHeader) -> str | None:
    """Checks every byte of a segment; says what is wrong."""
    read = _reader_of(file, header)
    envelope = read(header.envelope_bytes, HEADER_BYTES)
    if crc32c(envelope) != header.envelope_crc or len(envelope) != header.envelope_bytes:
        return "the checksum of its envelope is wrong"
    end = encode_end(header)
    if read(len(end), header.length - len(end)) != end:
        return "its end mark is wrong"
    if header.kind != Kind.SNAPSHOT:
        return None if header.envelope_bytes == header.body_bytes else "it has bytes behind its envelope"
    state = parse_envelope(envelope, header)
    if state is None:
        return "its envelope does not fit its body"
    for blob, glue_offset, glue in glue_of(state.blobs, header):
        if read(len(glue), glue_offset) != glue:
            return f"the padding before {blob.name} is wrong"
        crc, end_of_blob = 0, blob.offset_bytes + blob.length_bytes
        for begin in range(blob.offset_bytes, end_of_blob, READ_BYTES):
            crc = crc32c(read(min(READ_BYTES, end_of_blob - begin), begin), crc)
        if crc != blob.crc32c:
            return f"the checksum of {blob.name} is wrong"
    return None


def _reader_of(file: File, header: SegmentHeader) -> Callable[[int, int], bytes]:
    """Reads bytes of a segment, counted from its start; a small one is read at once."""
    if header.length > ALIGNMENT:
        return lambda count, offset: file.pread(count, header.offset + offset)
    block = file.pread(header.length, header.offset)
    return lambda count, offset: block[offset : offset + count]


def _read_table(file: File, index: SegmentHeader) -> Table | None:
    body = read_envelope(file, index)
    found = _parsed(state_pb2.StoredIndex, body)
    return table_of(found) if found is not None and index.envelope_bytes == index.body_bytes else None


def _parsed(kind: type[M], body: bytes | None) -> M | None:
    try:
        return None if body is None else kind.FromString(body)
    except DecodeError:
        return None
