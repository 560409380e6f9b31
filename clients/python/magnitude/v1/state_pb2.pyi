from magnitude.v1 import snapshot_pb2 as _snapshot_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoredBlob(_message.Message):
    __slots__ = ("name", "offset_bytes", "length_bytes", "crc32c")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset_bytes: int
    length_bytes: int
    crc32c: int
    def __init__(self, name: _Optional[str] = ..., offset_bytes: _Optional[int] = ..., length_bytes: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class StoredState(_message.Message):
    __slots__ = ("header", "blobs", "padding", "contents")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    header: _snapshot_pb2.StateHeader
    blobs: _containers.RepeatedCompositeFieldContainer[StoredBlob]
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    contents: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[_snapshot_pb2.StateHeader, _Mapping]] = ..., blobs: _Optional[_Iterable[_Union[StoredBlob, _Mapping]]] = ..., padding: _Optional[_Iterable[bytes]] = ..., contents: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DeletedVersions(_message.Message):
    __slots__ = ("session_id", "versions")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[str] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class StoredDeletion(_message.Message):
    __slots__ = ("deletions",)
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    deletions: _containers.RepeatedCompositeFieldContainer[DeletedVersions]
    def __init__(self, deletions: _Optional[_Iterable[_Union[DeletedVersions, _Mapping]]] = ...) -> None: ...

class StoredIndex(_message.Message):
    __slots__ = ("session_ids", "versions", "sequences", "offsets", "lengths", "times_ns", "dead_sequences", "dead_offsets", "dead_lengths", "dead_since_ns", "given_session_ids", "given_versions")
    SESSION_IDS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TIMES_NS_FIELD_NUMBER: _ClassVar[int]
    DEAD_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DEAD_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DEAD_SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_SESSION_IDS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    session_ids: _containers.RepeatedScalarFieldContainer[str]
    versions: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    times_ns: _containers.RepeatedScalarFieldContainer[int]
    dead_sequences: _containers.RepeatedScalarFieldContainer[int]
    dead_offsets: _containers.RepeatedScalarFieldContainer[int]
    dead_lengths: _containers.RepeatedScalarFieldContainer[int]
    dead_since_ns: _containers.RepeatedScalarFieldContainer[int]
    given_session_ids: _containers.RepeatedScalarFieldContainer[str]
    given_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_ids: _Optional[_Iterable[str]] = ..., versions: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., times_ns: _Optional[_Iterable[int]] = ..., dead_sequences: _Optional[_Iterable[int]] = ..., dead_offsets: _Optional[_Iterable[int]] = ..., dead_lengths: _Optional[_Iterable[int]] = ..., dead_since_ns: _Optional[_Iterable[int]] = ..., given_session_ids: _Optional[_Iterable[str]] = ..., given_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class StoredLog(_message.Message):
    __slots__ = ("creator",)
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    creator: str
    def __init__(self, creator: _Optional[str] = ...) -> None: ...
