"""Where `magnitude state` finds sessions: in a state file, or at a server that answers for one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from magnitude_service.errors import InvalidRequestError, PreconditionError

if TYPE_CHECKING:
    from magnitude.client import Client
    from magnitude_service.cli.connection import Connection
    from magnitude_service.snapshot import StateSnapshotManager

AGENT_STATE, KEY_VALUE = "agent_state", "key_value"


class Exported(NamedTuple):
    """One version: a StateHeader, and its blobs by name."""

    header: Any
    blobs: Mapping[str, Any]


class Source(Protocol):
    """What both can do. Versions are messages `Snapshot`. Methods raise MagnitudeError, or CallError of the client."""

    def list(self, session_id: str, labels: Mapping[str, str], all_versions: bool) -> Iterator[Any]:
        """Versions, ordered by session and version."""

    def show(self, session_id: str, version: int | None) -> Any:
        """One version, the latest where none is named."""

    def export(self, session_id: str, version: int | None) -> Exported:
        """The same, whole, every byte of it checked."""

    def take(self, state: Exported, session_id: str) -> Any:
        """Saves a state as the next version of a session; returns that."""

    def compact(self, keep_versions: int | None, dry_run: bool) -> Any:
        """Gives space back; returns bytes_before, bytes_after and dropped_versions."""


class FileSource:
    """A state file, by itself."""

    def __init__(self, manager: StateSnapshotManager) -> None:
        self._manager = manager

    def list(self, session_id: str, labels: Mapping[str, str], all_versions: bool) -> Iterator[Any]:
        """See Source."""
        token = ""
        while True:
            page = self._manager.list(
                session_id, labels=labels, all_versions=all_versions, page_size=1000, page_token=token
            )
            yield from page.snapshots
            token = page.next_page_token
            if not token:
                return

    def show(self, session_id: str, version: int | None) -> Any:
        """See Source."""
        return self._manager.get(session_id, version)

    def export(self, session_id: str, version: int | None) -> Exported:
        """See Source."""
        saved = self._manager.restore(session_id, version)
        return Exported(saved.header, saved.blobs)

    def take(self, state: Exported, session_id: str) -> Any:
        """See Source."""
        header = type(state.header)()
        header.CopyFrom(state.header)
        header.snapshot.session_id = session_id
        header.snapshot.parent_version = 0  # a number of another file's; here it grows from the latest
        blobs = dict(state.blobs)
        return self._manager.save(
            header,
            agent_state=blobs.pop(AGENT_STATE, b""),
            key_value=blobs.pop(KEY_VALUE, None),
            parts={name.removeprefix("agent/"): data for name, data in blobs.items()},
        )

    def compact(self, keep_versions: int | None, dry_run: bool) -> Any:
        """See Source."""
        return self._manager.compact(keep_versions, dry_run=dry_run)


class ServerSource:
    """A server. Its contract knows the application's bytes and the pages; further parts stay in their file."""

    def __init__(self, client: Client, model: str) -> None:
        self._sessions, self._model = client.sessions, model

    def list(self, session_id: str, labels: Mapping[str, str], all_versions: bool) -> Iterator[Any]:
        """See Source."""
        return self._sessions.list(session_id, model=self._model, labels=labels, all_versions=all_versions)

    def show(self, session_id: str, version: int | None) -> Any:
        """See Source."""
        return self._sessions.get(session_id, version, model=self._model).snapshot

    def export(self, session_id: str, version: int | None) -> Exported:
        """See Source."""
        state = self._sessions.export(session_id, version, model=self._model, checks_sha256=True)
        blobs = {AGENT_STATE: state.agent_state, KEY_VALUE: state.key_value}
        return Exported(state.header, {name: data for name, data in blobs.items() if data or name == AGENT_STATE})

    def take(self, state: Exported, session_id: str) -> Any:
        """See Source. Raises InvalidRequestError where the state has parts that the contract has no place for."""
        from magnitude.sessions import ExportedState

        further = sorted(state.blobs.keys() - {AGENT_STATE, KEY_VALUE})
        if further:
            raise InvalidRequestError(
                f"The state has parts beside the agent state ({', '.join(further)}); a server takes none.",
                remedy="Import it into the state file while no server writes it.",
                field="agent_state",
            )
        contents = [bytes(state.blobs.get(name, b"")) for name in (AGENT_STATE, KEY_VALUE)]
        return self._sessions.import_state(ExportedState(state.header, *contents), session_id, model=self._model)

    def compact(self, keep_versions: int | None, dry_run: bool) -> Any:
        """See Source."""
        return self._sessions.compact(keep_versions, model=self._model, dry_run=dry_run)


def state_file(name: str) -> Path:
    """The path of a file that may hold sessions. *Raises*: PreconditionError (NOT_A_STATE_FILE) for what is there and
    is no regular file; one that is not there is for whoever opens it."""
    path = Path(name)
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe" if path.is_fifo() else "no regular file"
        raise PreconditionError(
            f"{path} is {kind}; sessions lie in a regular file.",
            remedy="Name M.state.gguf, or a model with a tail.",
            reason="NOT_A_STATE_FILE",
            file=path,
        )
    return path


@contextlib.contextmanager
def source(connection: Connection, file: str | None, address: str, model: str, *, read_only: bool) -> Iterator[Source]:
    """The file where one is named, else the server. Raises MagnitudeError, for a call that failed too."""
    if file is not None:
        from magnitude_service.snapshot.state_file import open_state_file

        with open_state_file(state_file(file), read_only=read_only) as manager:
            yield FileSource(manager)
        return
    from magnitude_service.config import quieten_grpc

    quieten_grpc()
    from magnitude.errors import CallError
    from magnitude_service.cli.infer import as_ours

    try:
        with connection.client(address) as client:
            yield ServerSource(client, model)
    except CallError as error:
        raise as_ours(error, address, "name a state file") from error
