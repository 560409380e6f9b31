"""Group commit, opening and repair, on a disk in memory."""

from __future__ import annotations

import threading

import pytest

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import IncompatibleVersionError, PreconditionError
from magnitude_service.snapshot import record
from magnitude_service.snapshot.record import Kind, encode_state
from magnitude_service.snapshot.tail import Tail
from tests.crash.disk import Disk, DiskFile
from tests.crash.workload import MODEL, MODEL_BYTES

BODY = encode_state(snapshot_pb2.StateHeader(), [])
BEGIN = 65_536


def new_tail() -> tuple[Disk, Tail]:
    disk = Disk.with_file(MODEL, MODEL_BYTES)
    return disk, Tail(disk.open(MODEL, writable=True), MODEL, BEGIN)


class SlowFile(DiskFile):
    """A file whose sync waits until it is let go."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk, 1)
        self.began, self.may_end, self.count = threading.Semaphore(0), threading.Semaphore(0), 0

    def fdatasync(self) -> None:
        self.count += 1
        self.began.release()
        self.may_end.acquire()
        super().fdatasync()


def test_saves_that_wait_together_share_one_sync() -> None:
    disk, tail = new_tail()
    file = tail.file = SlowFile(disk)
    first = tail.append(Kind.SNAPSHOT, BODY, version=1, session_id="a").sequence
    threads = [threading.Thread(target=tail.commit, args=(first,))]
    threads[0].start()
    file.began.acquire()  # the first sync runs
    later = [tail.append(Kind.SNAPSHOT, BODY, version=1, session_id=f"b{number}").sequence for number in range(7)]
    threads += [threading.Thread(target=tail.commit, args=(sequence,)) for sequence in later]
    for thread in threads[1:]:
        thread.start()
    file.may_end.release(8)
    for thread in threads:
        thread.join()
    assert tail.durable_through == later[-1]
    assert file.count <= 3, "the first, and one for all that came meanwhile, unless one of those came late"


def test_a_commit_of_what_is_durable_syncs_nothing() -> None:
    disk, tail = new_tail()
    header = tail.append(Kind.SNAPSHOT, BODY, version=1, session_id="a")
    tail.commit(header.sequence)
    syncs = disk.syncs
    tail.commit(header.sequence)
    assert disk.syncs == syncs


def test_segments_lie_at_multiples_of_64_kib_and_the_file_ends_with_the_last() -> None:
    disk, tail = new_tail()
    headers = [tail.append(Kind.SNAPSHOT, BODY, version=1, session_id="a") for _ in range(3)]
    assert [header.offset for header in headers] == [BEGIN + 65_536 * place for place in (1, 2, 3)]
    assert len(disk.contents[1]) == headers[-1].end


def test_foreign_bytes_behind_a_model_are_refused_and_left_alone() -> None:
    foreign = MODEL_BYTES.ljust(BEGIN, b"\0") + b"signature of somebody"
    disk = Disk.with_file(MODEL, foreign)
    with pytest.raises(PreconditionError, match="21 bytes from offset 65536 on that are no sessions of ours") as caught:
        Tail(disk.open(MODEL, writable=True), MODEL, BEGIN)
    assert caught.value.reason == "FOREIGN_TAIL"
    assert bytes(disk.contents[1]) == foreign


def test_zeros_behind_a_model_are_nobodys() -> None:
    disk = Disk.with_file(MODEL, MODEL_BYTES.ljust(200_000, b"\0"))
    Tail(disk.open(MODEL, writable=True), MODEL, BEGIN)
    assert len(disk.contents[1]) < BEGIN + 512


def test_the_first_segment_fits_into_a_sector() -> None:
    _, tail = new_tail()
    assert tail.end <= BEGIN + 512


def test_a_tail_of_a_newer_program_is_refused_and_left_alone() -> None:
    disk, tail = new_tail()
    header = tail.append(Kind.SNAPSHOT, BODY, version=1, session_id="a")
    front = bytearray(disk.contents[1][header.offset : header.offset + 256])
    front[8] = 2
    front[252:] = record.CRC.pack(record.crc32c(bytes(front[:252])))
    disk.contents[1][header.offset : header.offset + 256] = front
    before = bytes(disk.contents[1])
    with pytest.raises(IncompatibleVersionError, match="format version 2"):
        Tail(disk.open(MODEL, writable=True), MODEL, BEGIN)
    assert bytes(disk.contents[1]) == before


def test_a_copy_of_the_log_in_an_agents_bytes_is_not_taken_for_segments() -> None:
    disk, tail = new_tail()
    tail.append(Kind.SNAPSHOT, BODY, version=1, session_id="a")
    copy = bytes(disk.contents[1][BEGIN:]) * 3
    body = encode_state(snapshot_pb2.StateHeader(), [record.Content.of("agent_state", copy)])
    damaged = tail.append(Kind.SNAPSHOT, body, version=1, session_id="b")
    tail.append(Kind.SNAPSHOT, BODY, version=2, session_id="a")
    tail.commit(tail.last_sequence)
    disk.contents[1][damaged.offset + 5] ^= 1  # now all that lies in it is looked at
    again = Tail(disk.open(MODEL, writable=True), MODEL, BEGIN)
    assert {id: list(versions) for id, versions in again.table.sessions.items()} == {"a": [1, 2]}


def test_a_torn_segment_before_a_whole_one_is_made_unreadable_before_anything_is_written() -> None:
    disk, tail = new_tail()
    tail.commit(tail.append(Kind.SNAPSHOT, BODY, version=1, session_id="a").sequence)
    body = encode_state(snapshot_pb2.StateHeader(), [record.Content.of("agent_state", b"torn" * 2000)])
    torn = tail.append(Kind.SNAPSHOT, body, version=2, session_id="a")
    tail.append(Kind.SNAPSHOT, BODY, version=1, session_id="b")
    disk.contents[1][torn.offset + 5000] ^= 1
    again = Tail(disk.open(MODEL, writable=True), MODEL, BEGIN)
    assert {id: list(versions) for id, versions in again.table.sessions.items()} == {"a": [1], "b": [1]}
    assert not any(disk.contents[1][torn.offset : torn.offset + 4096])
    [finding] = again.findings
    assert (finding.session_id, finding.version) == ("a", 2)
