"""The GGUF header: bytes in, plain data out. No file is opened here, and no tensor is touched.

The scan itself is native (`csrc/gguf_scan.h` draws the layout); this module turns its findings into Python objects and
its refusals into errors. Source: ggml/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from magnitude_service.errors import IncompatibleVersionError, IntegrityError, UnsupportedModelError
from magnitude_service.formats import _formats
from magnitude_service.formats.metadata import Metadata
from magnitude_service.formats.string_array import StringArray
from magnitude_service.formats.tensor_types import TENSOR_TYPES, TensorType

__all__ = ["Header", "Metadata", "StringArray", "TensorInfo", "parse_header"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it."""

    name: str
    type: TensorType
    shape: tuple[int, ...]  # fastest first: shape[0] is the length of a row, in elements
    offset: int  # from the start of the file
    nbytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A sound header: every tensor lies within the file, aligned, and apart from the others."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]  # in file order
    header_bytes: int  # end of the tensor infos, before the padding
    data_offset: int  # where the data section begins
    model_end: int  # end of the last tensor (of the header, where there is none); a tail may follow


def parse_header(
    data: memoryview | bytes | NDArray[np.uint8],
    *,
    source: str,
    file_bytes: int | None = None,
    allow_invalid_magic: bool = False,
) -> Header:
    """Reads and checks the header at the start of a buffer.

    `data` may be only the beginning of a file that has `file_bytes` in all. `source` names the file in errors.
    `allow_invalid_magic` accepts another magic than GGUF's, and nothing else.
    *Raises*: IncompatibleVersionError for what is not GGUF, big-endian, version 1 or an unknown version;
    UnsupportedModelError for an unknown tensor type; IntegrityError, naming field and offset, for anything unsound.
    *Lifetime*: the metadata keeps `data` alive.
    """
    view = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    view.flags.writeable = False
    assert file_bytes is None or file_bytes >= len(view), f"a file of {file_bytes} bytes has no {len(view)} first ones"
    scan = _formats.Scan(
        view,
        file_bytes=len(view) if file_bytes is None else file_bytes,
        allows_invalid_magic=allow_invalid_magic,
        block_elements=_BLOCK_ELEMENTS,
        block_bytes=_BLOCK_BYTES,
    )
    if scan.defect is not None:
        _refuse(scan.defect, source, view)
    tensors = {
        name: TensorInfo(name, TENSOR_TYPES[type_id], shape, offset, nbytes, row_bytes)
        for name, type_id, shape, offset, nbytes, row_bytes in scan.tensors()
    }
    return Header(
        version=scan.version,
        alignment=scan.alignment,
        metadata=Metadata(scan, view[: scan.header_bytes], source),
        tensors=MappingProxyType(tensors),
        header_bytes=scan.header_bytes,
        data_offset=scan.data_offset,
        model_end=scan.model_end,
    )


def _by_id(values: Mapping[int, int]) -> NDArray[np.uint32]:
    table = np.zeros(max(values) + 1, np.uint32)
    for id, value in values.items():
        table[id] = value
    return table


_BLOCK_ELEMENTS: Final = _by_id({id: kind.block_elements for id, kind in TENSOR_TYPES.items()})
_BLOCK_BYTES: Final = _by_id({id: kind.block_bytes for id, kind in TENSOR_TYPES.items()})

_STRANGERS: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"version https://git-lfs", "It is a Git LFS pointer: fetch the file itself with `git lfs pull`."),
    (0, b"PK\x03\x04", "It is a zip archive or a PyTorch checkpoint: convert the model to GGUF."),
    (8, b'{"', "It looks like a safetensors file: convert the model to GGUF."),
    (0, b"ggjt"[::-1], "It is a model of the older GGJT format: convert the original again."),
    (0, b"ggml"[::-1], "It is a model of the older GGML format: convert the original again."),
    (0, b"<", "It looks like a web page: the download was answered with an error page."),
)
"""What people hand in instead of GGUF: where which bytes stand, and what to do then."""


def _refuse(defect: _formats.Defect, source: str, data: NDArray[np.uint8]) -> NoReturn:
    where = f"{defect.field} at offset {defect.offset} {defect.problem}"
    details: dict[str, Any] = {"file": source, "field": defect.field, "offset": defect.offset}
    match defect.kind:
        case "NOT_GGUF":
            raise IncompatibleVersionError(
                f"{source} is not a GGUF file: it begins with {data[:4].tobytes()!r}, not b'GGUF'.",
                remedy=_stranger(data[:32].tobytes()),
                **details,
            )
        case "FOREIGN_BYTE_ORDER":
            raise IncompatibleVersionError(
                f"{source} is a big-endian GGUF file: {where}. Only little-endian files are read.",
                remedy="Convert it with the gguf package's `gguf-convert-endian FILE little`.",
                **details,
            )
        case "VERSION_1":
            raise IncompatibleVersionError(
                f"{source} is a GGUF file of version 1, which has 32-bit counts. Versions 2 and 3 are read.",
                remedy="Convert the original model again with a current converter.",
                **details,
            )
        case "UNKNOWN_VERSION":
            raise IncompatibleVersionError(
                f"{source} has an unknown GGUF version: {where}. Versions 2 and 3 are read.",
                remedy="A newer magnitude may read it; if the number is absurd, the file is damaged.",
                **details,
            )
        case "UNSUPPORTED":
            raise UnsupportedModelError(
                f"{source}: {where}.", remedy="Get the model in another quantisation, such as Q4_K_M.", **details
            )
        case "LIMIT":
            raise IntegrityError(
                f"{source}: {where}.", remedy="No sound model comes near this limit; get another file.", **details
            )
    raise IntegrityError(f"{source}: {where}.", remedy="The file is damaged or cut short; fetch it again.", **details)


def _stranger(begin: bytes) -> str:
    for offset, mark, remedy in _STRANGERS:
        if begin[offset:].startswith(mark):
            return remedy
    return "Name a GGUF file; --allow-invalid-magic reads one whose magic alone was changed."
