"""A model's state file, opened when it is first needed: a server that saves nothing makes no file and takes no lock."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from magnitude_service.errors import MagnitudeError, NotFoundError, UnavailableError
from magnitude_service.snapshot.manager import StateSnapshotManager
from magnitude_service.snapshot.options import SnapshotOptions
from magnitude_service.snapshot.sidecar import sidecar_path
from magnitude_service.snapshot.statistics import StateStatistics
from magnitude_service.snapshot.upkeep import UpkeepThread

LOG = logging.getLogger(__name__)


class LazyManager:
    """Any thread may use it. What cannot be opened is tried again at the next call; nothing but the call fails."""

    def __init__(self, model: Path, options: SnapshotOptions) -> None:
        self._model, self._options = model, options
        self._lock = threading.Lock()  # guards all below
        self._writer: StateSnapshotManager | None = None
        self._reader: StateSnapshotManager | None = None
        self._upkeep: UpkeepThread | None = None
        self._is_closed = False

    @property
    def folder(self) -> Path:
        """Where the state file lies, and what is on its way into it."""
        return sidecar_path(self._model, self._options.state_dir).parent

    def writer(self) -> StateSnapshotManager:
        """The one that saves; its file is made where there is none. Raises what StateSnapshotManager raises."""
        with self._lock:
            self._require_open()
            if self._writer is None:
                self._writer = StateSnapshotManager(self._model, self._options)
                self._upkeep = UpkeepThread(self._writer.maintain, self._options.state_sync_interval_seconds)
                self._upkeep.start()
                if self._reader is not None:
                    self._reader.close()
                    self._reader = None
            return self._writer

    def reader(self) -> StateSnapshotManager | None:
        """One that reads, also what another process writes or nobody can; None where nothing was ever saved."""
        with self._lock:
            self._require_open()
            if self._writer is not None:
                return self._writer
            if self._reader is None:
                try:
                    self._reader = StateSnapshotManager(self._model, self._options, read_only=True)
                except NotFoundError:
                    return None
            return self._reader

    def open_what_is_there(self) -> None:
        """Opens a sidecar that exists, so that its upkeep goes on; a failure is logged, and told to whoever saves."""
        if self._options.state != "sidecar" or not sidecar_path(self._model, self._options.state_dir).exists():
            return
        try:
            self.writer()
        except UnavailableError:
            pass  # closed meanwhile
        except MagnitudeError as error:
            LOG.warning("sessions cannot be saved: %s", error)

    def statistics(self) -> StateStatistics:
        """Of the file, where it is open for saving. Raises UnavailableError where it is not."""
        writer = self._writer
        if writer is None:
            raise UnavailableError(
                f"{sidecar_path(self._model, self._options.state_dir)} is not open for saving.",
                remedy="Save a session: that opens it.",
                reason="CLOSED",
            )
        return writer.statistics()

    def close(self) -> None:
        """Ends the upkeep, makes all saves durable and gives the file back. What was restored stays valid."""
        with self._lock:
            self._is_closed = True
            if self._upkeep is not None and self._writer is not None:
                self._writer.interrupt()
                self._upkeep.stop()
            for manager in (self._reader, self._writer):
                if manager is not None:
                    manager.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnavailableError(
                "The server is shutting down.",
                remedy="Ask again in a moment: another one may take its place.",
                reason="DRAINING",
                retry_after_seconds=1.0,
            )
