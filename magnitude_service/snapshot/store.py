"""One state file, opened: who may write it, what it holds, and who in this process reads from it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from magnitude_service.errors import MagnitudeError, NotFoundError, PreconditionError, UnavailableError
from magnitude_service.snapshot.compaction import create_sidecar, new_path
from magnitude_service.snapshot.options import SnapshotOptions
from magnitude_service.snapshot.recovery import Finding, recover
from magnitude_service.snapshot.saved_state import SavedState, StateReader
from magnitude_service.snapshot.sidecar import model_tail_begin, sidecar_path, sidecar_tail_begin
from magnitude_service.snapshot.storage_errors import check_in_place, storage_errors
from magnitude_service.snapshot.table import Entry, Table
from magnitude_service.snapshot.tail import Tail
from magnitude_service.snapshot.vfs import File, FileSystem

OPENINGS_MAX = 8
"""How often a file may be replaced while we open it, before we give up."""


class Store:
    """`lock` guards everything here; it is never held while a sync is waited for."""

    def __init__(
        self,
        model: Path,
        options: SnapshotOptions,
        file_system: FileSystem,
        *,
        clock: Callable[[], int] = time.time_ns,
        read_only: bool = False,
    ) -> None:
        """*Raises*: NotFoundError where there is nothing to read; PreconditionError where another process writes the
        file, or it is not ours; whatever `storage_errors` says."""
        self.lock = threading.RLock()
        self.options, self.file_system, self.clock = options, file_system, clock
        self.is_sidecar = options.state == "sidecar"
        self.path = sidecar_path(model, options.state_dir) if self.is_sidecar else model
        self.tail: Tail | None = None
        self._is_closed = self._was_displaced = False
        self._held: weakref.WeakSet[SavedState] = weakref.WeakSet()
        if read_only:
            self._open_for_reading()
        else:
            self._open_for_writing()

    @property
    def table(self) -> Table:
        """What is live, as of now. Raises UnavailableError after `close`."""
        self._require_open()
        return self.tail.table if self.tail else self._table

    @property
    def findings(self) -> list[Finding]:
        """What was not as it should be when the file was opened."""
        return self.tail.findings if self.tail else self._findings

    def writer(self) -> Tail:
        """The log, to be written to. Raises PreconditionError (READ_ONLY), and as `check_in_place`; UnavailableError
        after `close`."""
        self._require_open()
        if self.tail is None:
            raise PreconditionError(
                f"{self.path} was opened for reading only.", reason="READ_ONLY", remedy="Ask the server that writes it."
            )
        if self._was_displaced:  # it costs as much as a short save to look each time; `check_in_place` does
            self.check_in_place()
        return self.tail

    def check_in_place(self, *, is_quick: bool = False) -> None:
        """To be called, with the lock held, before anything is acknowledged: it lasts where the file has its name then.
        Raises PreconditionError (STATE_FILE_REPLACED); nothing more is written until it has its name again.

        `is_quick`: a file that was moved away, or has another name beside, is left for the next check to find.
        """
        assert self.tail is not None, "only a writer has anything to acknowledge"
        if self._is_closed or (is_quick and self.tail.file.is_linked()):  # `close` makes all durable that was written
            return
        self._was_displaced = True
        check_in_place(self.file_system, self.path, self.tail.identity)
        self._was_displaced = False

    def replace(self, tail: Tail, failure: MagnitudeError | None = None) -> None:
        """Goes over to the file that compaction made; views of the old one stay as they are. `failure`: the new file
        has the name, but whether for good is not known. The old one is to be closed without the lock: to free a large
        file takes time."""
        old = self.tail
        assert old is not None, "only a writer compacts"
        self.tail, self.reader = tail, StateReader(tail.file, self.path)
        if failure is not None:
            tail.fail(failure)
        old.retire(failure)

    def view(self, entry: Entry, passed_over: tuple[int, ...] = ()) -> SavedState:
        """A version with views of its blobs, not checked yet. In a model's tail, whose segments may turn into holes,
        remembers who holds it."""
        saved = self.reader.view(entry, passed_over)
        if not self.is_sidecar:
            self._held.add(saved)
        return saved

    def held(self) -> set[int]:
        """Numbers of the segments of a model's tail that somebody in this process holds."""
        return {saved.sequence for saved in self._held}

    def refresh(self) -> None:
        """A reader looks whether the file has grown, or was replaced."""
        self._require_open()
        if self.tail is not None:
            return
        with storage_errors(self.path, "read"):
            is_same = self.file_system.identity(self.path) == self._file.identity()
            if is_same and self._file.size() == self._size:
                return
        self._file.close()
        self._open_for_reading()

    def close(self) -> None:
        """Makes all saves durable, writes an index where there is something new, and gives back the lock. Views
        outlive it. *Raises*: whatever `Tail.commit` raises; the file is closed even so."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.tail is None:
            self._file.close()
            return
        try:
            self.tail.commit(self.tail.last_sequence)
            if self.tail.since_index:
                with contextlib.suppress(MagnitudeError):  # it only saves the next opening some time
                    self.tail.write_index()
        finally:
            self.tail.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnavailableError(f"{self.path} is closed.", remedy="Load the model again.", reason="CLOSED")

    def _open_for_writing(self) -> None:
        for _ in range(OPENINGS_MAX):
            file = self._open_file(writable=True)
            try:
                with storage_errors(self.path, "locked"):
                    if not file.lock():
                        raise locked(self.path, file)
                    is_current = self.file_system.identity(self.path) == file.identity()
                if is_current:  # else compaction replaced it between opening and locking
                    self._begin(file)
                    return
            except BaseException:
                file.close()
                raise
            file.close()
        raise PreconditionError(
            f"{self.path} was replaced {OPENINGS_MAX} times while it was opened.",
            remedy="Stop the process that replaces it again and again.",
            reason="STATE_FILE_REPLACED",
            file=self.path,
        )

    def _begin(self, file: File) -> None:
        if self.is_sidecar:
            with storage_errors(self.path, "opened"):
                self.file_system.unlink(new_path(self.path))  # of a compaction that was killed
            begin = sidecar_tail_begin(file, self.path)
        else:
            begin = model_tail_begin(file, self.path)
        self.tail = Tail(file, self.path, begin, clock=self.clock)
        self.reader = StateReader(file, self.path)

    def _open_file(self, *, writable: bool) -> File:
        with storage_errors(self.path, "opened for writing" if writable else "opened"):
            if self.is_sidecar and writable and self.file_system.identity(self.path) is None:
                create_sidecar(self.file_system, self.path)
            return self.file_system.open(self.path, writable=writable)

    def _open_for_reading(self) -> None:
        self._file = self._open_file(writable=False)
        try:
            begin = (sidecar_tail_begin if self.is_sidecar else model_tail_begin)(self._file, self.path)
            with storage_errors(self.path, "read"):
                self._size = self._file.size()
                recovered = recover(self._file, begin, source=str(self.path))
        except BaseException:
            self._file.close()
            raise
        self._table = recovered.table if recovered else Table()
        self._findings = recovered.findings if recovered else []
        self.reader = StateReader(self._file, self.path)


def locked(path: Path, file: File) -> PreconditionError:
    """What to say to the second writer of a file."""
    owner = _lock_owner(file)
    return PreconditionError(
        f"{path} is written by another process{f' (pid {owner})' if owner else ''}; a state file has one writer.",
        remedy="Stop that one, or set --state-dir to another folder; reading is possible meanwhile.",
        reason="STATE_FILE_LOCKED",
        file=path,
        **({"pid": owner} if owner else {}),
    )


def _lock_owner(file: File) -> int:
    """The process that holds a file's lock, as far as the system tells; 0 where it does not."""
    try:
        device, inode = file.identity()
        wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == wanted:
                return int(fields[4])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def session_not_found(session_id: str) -> NotFoundError:
    """No version of this session is kept."""
    return NotFoundError(
        f"There is no saved session {session_id}.",
        remedy="`magnitude state list` shows those that there are.",
        reason="SESSION_NOT_FOUND",
        session_id=session_id,
    )
