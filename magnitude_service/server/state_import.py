"""A state on the wire, to here: its bytes go to a nameless file beside the state file, and are saved when all came.

So a state of any size takes disk, not memory, until it is whole; and of a stream that breaks off nothing is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import tempfile
from typing import IO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import IntegrityError, InvalidRequestError, PreconditionError
from magnitude_service.scheduling.session import Session
from magnitude_service.server import bounds, convert, limits
from magnitude_service.server.served_models import Runtime, ServedModel, ServedModels
from magnitude_service.server.session_messages import check_page_values, check_pages, check_state
from magnitude_service.server.sessions import Sessions
from magnitude_service.server.state_store import SaveOptions
from magnitude_service.server.text_workers import TextWorkers

KEY_VALUE_BYTES_MAX = (1 << 31) - (64 << 20) - limits.AGENT_STATE_BYTES_MAX
"""What a segment of the state file has room for beside the rest."""

ORDER = ("header", "agent_state", "key_value", "end")


class Blob:
    """Bytes that come in pieces, in a file without a name."""

    def __init__(self, name: str, bytes_max: int, folder: str) -> None:
        self.name, self.size = name, 0
        self.digest = hashlib.sha256()
        self._bytes_max, self._folder = bytes_max, folder
        self._file: IO[bytes] | None = None

    def add(self, chunk: snapshot_pb2.StateChunk) -> None:
        """Appends a piece. *Raises*: InvalidRequestError for a gap or too much, IntegrityError for a wrong checksum,
        PreconditionError where the disk does not take it. Blocks."""
        content = chunk.content
        bounds.size(f"{self.name}.content", len(content), limits.CHUNK_BYTES_MAX)
        if chunk.offset_bytes != self.size:
            allowed = f"{self.size}, where the last one ended"
            bounds.refuse(f"{self.name}.offset_bytes", chunk.offset_bytes, allowed, "Send the chunks in order.")
        bounds.size(self.name, self.size + len(content), self._bytes_max)
        if google_crc32c.value(content) != chunk.crc32c:
            raise IntegrityError(
                f"The checksum of {self.name} at {chunk.offset_bytes} is wrong.",
                remedy="Send it again.",
                field=self.name,
            )
        self.digest.update(content)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115, closed by `close`
            self._file.write(content)
            self._file.flush()  # here a full disk is heard of
        except OSError as error:
            raise PreconditionError(
                f"{self._folder} takes no file of {self.size + len(content):,} bytes: {error.strerror}.",
                remedy="Free space, or make the folder writable.",
                reason="STORAGE_FULL" if error.errno == 28 else "READ_ONLY" if error.errno in (13, 30) else "STORAGE",
            ) from error
        self.size += len(content)

    def view(self) -> NDArray[np.uint8]:
        """All of them. *Lifetime*: the mapping outlives the file."""
        if self._file is None:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._file.fileno(), self.size, prot=mmap.PROT_READ), np.uint8)

    def close(self) -> None:
        """Gives the file back."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk did not take is not kept anyway
                self._file.close()
            self._file = None


class StateImport:
    """One stream of ImportState, message by message."""

    def __init__(self, models: ServedModels, sessions: Sessions, storage: TextWorkers) -> None:
        self._models, self._sessions, self._storage = models, sessions, storage
        self._stage = -1
        self._header = snapshot_pb2.ImportStateHeader()
        self._end: snapshot_pb2.StateEnd | None = None
        self._model: ServedModel | None = None
        self._blobs: dict[str, Blob] = {}

    async def take(self, message: snapshot_pb2.ImportStateRequest) -> None:
        """The next message. *Raises*: InvalidRequestError for one out of order; whatever `Blob.add` raises."""
        part = message.WhichOneof("part") or ""
        stage = ORDER.index(part) if part in ORDER else -1
        is_again = stage == self._stage and part in ("agent_state", "key_value")
        if stage < 0 or (stage <= self._stage and not is_again) or (self._stage < 0 and stage != 0):
            bounds.refuse("part", part or "absent", "header, agent_state, key_value and end, in this order", "Reorder.")
        self._stage = stage
        if part == "header":
            self._begin(message.header)
        elif part == "end":
            self._end = message.end
        else:
            await self._storage.run(self._blobs[part].add, getattr(message, part))

    async def commit(self) -> snapshot_pb2.Snapshot:
        """Saves what came as a new version. *Raises*: InvalidRequestError for a stream without an end; IntegrityError
        where sizes or hashes are not those of the end; whatever saving raises."""
        if self._end is None or self._model is None:
            raise InvalidRequestError(
                "The stream ended before its end message: nothing is kept.",
                remedy="Send the state again, with `end` as the last message.",
                field="end",
            )
        for name, blob in self._blobs.items():
            bytes_sent, hash_sent = getattr(self._end, f"{name}_bytes"), getattr(self._end, f"{name}_sha256")
            if bytes_sent != blob.size or (hash_sent or hashlib.sha256().digest()) != blob.digest.digest():
                raise IntegrityError(
                    f"{blob.size} bytes of {name} came, which are not the {bytes_sent} that the end speaks of.",
                    remedy="Send the state again.",
                    field=f"end.{name}_sha256",
                )
        if self._header.WhichOneof("target") == "live_session_id":
            return await self._commit_live(self._model)
        return await self._sessions.finish(self._storage.run(self._save, self._model))

    def close(self) -> None:
        """Gives back what is not saved."""
        for blob in self._blobs.values():
            blob.close()

    def _begin(self, header: snapshot_pb2.ImportStateHeader) -> None:
        """Checks the header; only then are bytes taken."""
        target = header.WhichOneof("target")
        if target is None:
            bounds.refuse("header.target", "absent", "session_id or live_session_id", "Name a session.")
        convert.checked_session_id(getattr(header, target), f"header.{target}")
        model = self._models.find(header.model)
        description, _, _, store = self._sessions.parts(model)
        if target == "session_id":
            if not header.state.HasField("session"):
                bounds.refuse("header.state.session", "absent", "what ExportState sent", "Send the header as it came.")
            check_state(header.state.session, description.vocabulary_size, "header.state.session")
        snapshot = header.state.snapshot
        bounds.labels(
            "header.state.snapshot.labels",
            snapshot.labels,
            limits.LABELS_MAX,
            limits.LABEL_KEY_BYTES_MAX,
            limits.LABEL_VALUE_BYTES_MAX,
        )
        bounds.length("header.state.snapshot.step_name", snapshot.step_name, 0, limits.STEP_NAME_BYTES_MAX)
        has_pages = target == "session_id" and header.state.HasField("page_layout")
        folder = str(store.folder)
        self._blobs = {
            "agent_state": Blob("agent_state", limits.AGENT_STATE_BYTES_MAX, folder),
            "key_value": Blob("key_value", KEY_VALUE_BYTES_MAX if has_pages else 0, folder),
        }
        self._header, self._model = header, model

    def _save(self, model: ServedModel) -> snapshot_pb2.Snapshot:
        """Saves the state as a version of a session that need not be live. Blocks."""
        _, _, pages, store = self._sessions.parts(model)
        agent_state, key_value = self._blobs["agent_state"].view(), self._blobs["key_value"].view()
        header = snapshot_pb2.StateHeader()
        header.CopyFrom(self._header.state)
        snapshot = header.snapshot
        snapshot.session_id, snapshot.parent_version = self._header.session_id, 0
        snapshot.token_count = len(header.session.token_ids)
        snapshot.agent_state_sha256 = self._blobs["agent_state"].digest.digest()
        if header.HasField("page_layout"):
            check_pages(header.page_layout, key_value.nbytes, snapshot.token_count, pages)
            check_page_values(header.page_layout, key_value, pages)
        return store.writer().save(
            header,
            agent_state=agent_state,
            key_value=key_value if key_value.nbytes else None,
            expected_version=self._header.expected_version if self._header.HasField("expected_version") else None,
        )

    async def _commit_live(self, model: ServedModel) -> snapshot_pb2.Snapshot:
        """Saves a live session with the agent state that came."""
        runtime: Runtime = self._sessions.parts(model)[1]
        session: Session = runtime.engine.sessions.hold(self._header.live_session_id, "an import")
        given = self._header.state.snapshot
        options = SaveOptions(
            agent_state=self._blobs["agent_state"].view(),
            labels=dict(given.labels),
            step_number=given.step_number if given.HasField("step_number") else None,
            step_name=given.step_name,
            expected_version=self._header.expected_version if self._header.HasField("expected_version") else None,
        )
        return await self._sessions.finish(self._sessions.save_and_release(model, session, options))
