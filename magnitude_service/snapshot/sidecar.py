"""The sidecar: a GGUF file of its own without tensors, and where a tail begins in any GGUF file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from magnitude_service.errors import IncompatibleVersionError, MagnitudeError, PreconditionError
from magnitude_service.formats import parse_header
from magnitude_service.snapshot.record import ALIGNMENT, aligned
from magnitude_service.snapshot.recovery import read_header
from magnitude_service.snapshot.storage_errors import storage_errors
from magnitude_service.snapshot.vfs import File

STATE_TYPE: Final = "magnitude-state"
SIDECAR_SUFFIX: Final = ".state.gguf"
_U32, _STRING = 4, 8


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


SIDECAR_HEADER: Final = b"".join(
    (
        b"GGUF",
        struct.pack("<IQQ", 3, 0, 3),  # version, tensors, keys
        _text("general.type") + struct.pack("<I", _STRING) + _text(STATE_TYPE),
        _text("general.architecture") + struct.pack("<I", _STRING) + _text(STATE_TYPE),
        _text("general.alignment") + struct.pack("<II", _U32, 32),
    )
).ljust(ALIGNMENT, b"\0")
"""The first 64 KiB of a sidecar."""


def sidecar_path(model: Path, state_dir: str) -> Path:
    """Where a model's sidecar lies: `M.state.gguf` beside it or in `state_dir`."""
    folder = Path(state_dir) if state_dir else model.parent
    return folder / (model.name.removesuffix(".gguf") + SIDECAR_SUFFIX)


def sidecar_tail_begin(file: File, path: Path) -> int:
    """Where a sidecar's tail begins. *Raises*: PreconditionError where the file is something else.

    A damaged GGUF header does no harm, as long as a segment lies where the first must.
    """
    with storage_errors(path, "read"):
        front = file.pread(len(SIDECAR_HEADER), 0)
        if front == SIDECAR_HEADER or read_header(file, ALIGNMENT, str(path)) is not None:
            return ALIGNMENT
        size = file.size()
    try:
        header = parse_header(front, source=str(path), file_bytes=size)
        found = header.metadata.text("general.type", default="") if "general.type" in header.metadata else ""
    except MagnitudeError:
        found = ""
    if found == STATE_TYPE:
        return ALIGNMENT
    raise PreconditionError(
        f"{path} is no file of sessions: its first bytes are {front[:8]!r}, and no segment lies at {ALIGNMENT}.",
        remedy="Move it away, or set --state-dir to another folder.",
        reason="NOT_A_STATE_FILE",
        file=path,
    )


def model_tail_begin(file: File, path: Path) -> int:
    """Where the tail of a model begins. *Raises*: whatever `parse_header` says; IncompatibleVersionError where a file
    is split, since its tail would be in the way of the next shard's reader."""
    with storage_errors(path, "read"):
        size = file.size()
        header = parse_header(file.map(size), source=str(path), file_bytes=size)
    if "split.count" in header.metadata:
        raise IncompatibleVersionError(
            f"{path} is a shard of a split model; sessions are not kept in one.",
            remedy="Use --state sidecar.",
            reason="SPLIT_MODEL",
            file=path,
        )
    return aligned(header.model_end)
