"""One session of a server, as an agent uses it: ask, save, and go on after a restart.

with magnitude.Client("127.0.0.1:50051") as client:
    session = client.session("agent/one")
    answer = session.infer("Chapter one. ", max_tokens=200)
    session.save(b"draft", step_number=1, step_name="write")
    more = session.infer(max_tokens=200)  # without a prompt the answer goes on
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from magnitude.errors import CallError, DataLoss
from magnitude.sessions import CHUNK_BYTES, ExportedState
from magnitude.v1 import inference_pb2, snapshot_pb2

if TYPE_CHECKING:
    from magnitude.client import Client, Prompt
    from magnitude.stream import Stream

MAGIC = b"MAGSTRM1"
LENGTHS = struct.Struct("<QQQ")
"""Bytes of the header, of the application's state and of the pages; the three follow in this order."""


class Session:
    """A session by its id; it need not exist yet. Every method raises CallError. The bytes that `save` keeps, and
    `restore` gives back, are the agent's own."""

    def __init__(self, client: Client, session_id: str, model: str = "") -> None:
        self.session_id, self.model = session_id, model
        self._client = client

    def infer(self, prompt: Prompt | None = None, **options: Any) -> inference_pb2.InferResponse:
        """Puts the prompt behind what was said, and answers. Without one the last answer goes on. `options` as of
        `Client.infer`; with `snapshot_afterwards={…}` the session is saved when the answer is complete."""
        return self._client.infer(prompt, session_id=self.session_id, model=self.model, **options)

    def stream(self, prompt: Prompt | None = None, **options: Any) -> Stream:
        """The same as it comes."""
        return self._client.stream(prompt, session_id=self.session_id, model=self.model, **options)

    def save(self, agent_state: bytes | None = None, **options: Any) -> snapshot_pb2.Snapshot:
        """Saves a new version, which then lasts. A state of more than 4 MiB is streamed. `options`: `with_pages`,
        `labels`, `step_number`, `step_name`, `expected_version`."""
        if agent_state is None or len(agent_state) <= 4 * CHUNK_BYTES:
            return self._client.sessions.save(self.session_id, agent_state, model=self.model, **options)
        return self._save_large(agent_state, **options)

    def restore(self, version: int | None = None, fidelity_min: int = 0) -> snapshot_pb2.RestoreResponse:
        """Goes back to a version, the latest where none is named. Raises PreconditionFailed where the server cannot do
        that as nearly as `fidelity_min`."""
        request = snapshot_pb2.RestoreRequest(
            snapshot=snapshot_pb2.SnapshotReference(session_id=self.session_id, version=version),
            model=self.model,
            fidelity_min=fidelity_min,  # type: ignore[arg-type]
        )
        response: snapshot_pb2.RestoreResponse = self._client.call(self._client.snapshots.Restore, request)
        return response

    def versions(self) -> list[snapshot_pb2.Snapshot]:
        """All versions, oldest first."""
        return list(self._client.sessions.list(self.session_id, model=self.model, all_versions=True))

    def delete(self, versions: Sequence[int] = ()) -> snapshot_pb2.DeleteResponse:
        """Deletes versions; all where none is named, and the session ends."""
        return self._client.sessions.delete(self.session_id, versions, model=self.model)

    def export_to(self, file: IO[bytes], version: int | None = None, *, with_pages: bool = True) -> None:
        """Writes a version, whole, into a file, when all its bytes have the SHA-256 that the server says."""
        state = self._client.sessions.export(
            self.session_id, version, model=self.model, with_pages=with_pages, checks_sha256=True
        )
        header = state.header.SerializeToString()
        file.write(MAGIC + LENGTHS.pack(len(header), len(state.agent_state), len(state.key_value)))
        for part in (header, state.agent_state, state.key_value):
            file.write(part)

    def import_from(self, file: IO[bytes], expected_version: int | None = None) -> snapshot_pb2.Snapshot:
        """Saves what `export_to` wrote as this session's next version; `restore` then makes it live."""
        front = file.read(len(MAGIC) + LENGTHS.size)
        if front[: len(MAGIC)] != MAGIC or len(front) != len(MAGIC) + LENGTHS.size:
            raise _damaged("it does not begin as one")
        lengths = LENGTHS.unpack(front[len(MAGIC) :])
        parts = [file.read(length) for length in lengths]
        if [len(part) for part in parts] != list(lengths):
            raise _damaged("it ends too early")
        try:
            header = snapshot_pb2.StateHeader.FromString(parts[0])
        except DecodeError:
            raise _damaged("its header is no StateHeader") from None
        state = ExportedState(header, parts[1], parts[2])
        return self._client.sessions.import_state(
            state, self.session_id, model=self.model, expected_version=expected_version
        )

    def _save_large(self, agent_state: bytes, **options: Any) -> snapshot_pb2.Snapshot:
        expected_version = options.pop("expected_version", None)
        if options.pop("with_pages", True) is False:
            raise ValueError("A state of more than 4 MiB is saved with the pages.")
        header = snapshot_pb2.ImportStateHeader(
            model=self.model,
            live_session_id=self.session_id,
            state=snapshot_pb2.StateHeader(snapshot=snapshot_pb2.Snapshot(**options)),
            expected_version=expected_version,
        )
        return self._client.sessions.send(header, ExportedState(header.state, agent_state))


def _damaged(what: str) -> CallError:
    return DataLoss(grpc.StatusCode.DATA_LOSS, f"The file is no exported session: {what}.", reason="INTEGRITY")
