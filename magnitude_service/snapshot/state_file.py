"""State files by themselves: which manager opens a given file, and how one version is put into a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from magnitude.v1 import snapshot_pb2
from magnitude_service.errors import NotFoundError, PreconditionError
from magnitude_service.snapshot.checksum import Buffer
from magnitude_service.snapshot.compaction import create_sidecar, new_path
from magnitude_service.snapshot.manager import StateSnapshotManager
from magnitude_service.snapshot.options import SnapshotOptions
from magnitude_service.snapshot.record import Content, Kind, encode_state
from magnitude_service.snapshot.recovery import recover
from magnitude_service.snapshot.sidecar import SIDECAR_SUFFIX, model_tail_begin, sidecar_path, sidecar_tail_begin
from magnitude_service.snapshot.storage_errors import storage_errors
from magnitude_service.snapshot.tail import Tail
from magnitude_service.snapshot.vfs import FileSystem, OperatingSystem


def open_state_file(path: Path, *, read_only: bool) -> StateSnapshotManager:
    """The manager of a state file: a sidecar, or a model. A model's own tail counts if it has one, else its sidecar.

    Keeps all versions, and compacts only when told to. *Raises*: as StateSnapshotManager; NotFoundError where there is
    no file of this name.
    """
    state, model = "sidecar", path
    if path.name.endswith(SIDECAR_SUFFIX):
        model = path.with_name(path.name.removesuffix(SIDECAR_SUFFIX) + ".gguf")
        if not read_only:
            _require(path)
    else:
        _require(path)
        if _has_tail(path):
            state = "model"
        elif read_only and not sidecar_path(path, "").exists():
            raise NotFoundError(
                f"{path} has no tail, and there is no {sidecar_path(path, '').name} beside it: no session was saved.",
                remedy="Name the file of the sessions.",
                reason="STATE_FILE_NOT_FOUND",
                file=path,
            )
    options = SnapshotOptions(state=state, state_versions_kept=0, state_auto_compact=False)
    return StateSnapshotManager(model, options, read_only=read_only)


def write_state_file(
    path: Path,
    header: snapshot_pb2.StateHeader,
    blobs: Mapping[str, Buffer],
    file_system: FileSystem | None = None,
) -> None:
    """Makes a sidecar that holds one version, with its number and time as they are; whole, or not at all.

    *Raises*: PreconditionError where the name is none of a sidecar's, or the file exists already;
    whatever `storage_errors` says.
    """
    file_system = file_system or OperatingSystem()
    if not path.name.endswith(SIDECAR_SUFFIX):
        raise PreconditionError(
            f"{path} is no name of a state file.", remedy=f"Let it end in {SIDECAR_SUFFIX}.", reason="NOT_A_STATE_FILE"
        )
    if file_system.identity(path) is not None:
        raise PreconditionError(
            f"{path} exists already.", remedy="Name another file, or remove it.", reason="FILE_EXISTS", file=path
        )
    made = snapshot_pb2.StateHeader()
    made.CopyFrom(header)
    made.snapshot.stored_bytes = 0  # where it lies tells
    body = encode_state(made, [Content.of(name, data) for name, data in blobs.items()])
    being_made = new_path(path)
    try:
        create_sidecar(file_system, being_made)
        with storage_errors(being_made, "opened"):
            file = file_system.open(being_made, writable=True)
        try:
            tail = Tail(file, being_made, sidecar_tail_begin(file, being_made))
            segment = tail.append(
                Kind.SNAPSHOT, body, version=made.snapshot.version, session_id=made.snapshot.session_id
            )
            tail.commit(segment.sequence)  # now its bytes last
        finally:
            file.close()
        with storage_errors(path, "created"):
            file_system.rename(being_made, path)
            file_system.sync_folder(path.parent)  # now its name does too
    except BaseException:
        with storage_errors(being_made, "removed"):
            file_system.unlink(being_made)
        raise


def _has_tail(path: Path) -> bool:
    with storage_errors(path, "opened"):
        file = OperatingSystem().open(path, writable=False)
    try:
        begin = model_tail_begin(file, path)
        with storage_errors(path, "read"):
            return recover(file, begin, source=str(path)) is not None
    finally:
        file.close()


def _require(path: Path) -> None:
    if not path.exists():
        raise NotFoundError(
            f"{path} does not exist.", remedy="Check the name.", reason="STATE_FILE_NOT_FOUND", file=path
        )
