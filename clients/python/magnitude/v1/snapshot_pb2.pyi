import datetime

from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    TOKEN_KIND_PROMPT: _ClassVar[TokenKind]
    TOKEN_KIND_GENERATED: _ClassVar[TokenKind]

class CacheRetention(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_RETENTION_UNSPECIFIED: _ClassVar[CacheRetention]
    CACHE_RETENTION_PAGES: _ClassVar[CacheRetention]
    CACHE_RETENTION_NONE: _ClassVar[CacheRetention]
    CACHE_RETENTION_PAGES_Q8_0: _ClassVar[CacheRetention]

class RestoreFidelity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESTORE_FIDELITY_UNSPECIFIED: _ClassVar[RestoreFidelity]
    RESTORE_FIDELITY_BIT_EXACT: _ClassVar[RestoreFidelity]
    RESTORE_FIDELITY_RECOMPUTED: _ClassVar[RestoreFidelity]
    RESTORE_FIDELITY_APPROXIMATE: _ClassVar[RestoreFidelity]
TOKEN_KIND_UNSPECIFIED: TokenKind
TOKEN_KIND_PROMPT: TokenKind
TOKEN_KIND_GENERATED: TokenKind
CACHE_RETENTION_UNSPECIFIED: CacheRetention
CACHE_RETENTION_PAGES: CacheRetention
CACHE_RETENTION_NONE: CacheRetention
CACHE_RETENTION_PAGES_Q8_0: CacheRetention
RESTORE_FIDELITY_UNSPECIFIED: RestoreFidelity
RESTORE_FIDELITY_BIT_EXACT: RestoreFidelity
RESTORE_FIDELITY_RECOMPUTED: RestoreFidelity
RESTORE_FIDELITY_APPROXIMATE: RestoreFidelity

class Snapshot(_message.Message):
    __slots__ = ("session_id", "version", "parent_version", "model", "model_id", "content_sha256", "create_time", "token_count", "agent_state_bytes", "key_value_bytes", "stored_bytes", "cache_type", "instruction_set", "agent_state_sha256", "labels", "step_number", "step_name", "vocabulary_id")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_TYPE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_SET_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_NAME_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    version: int
    parent_version: int
    model: str
    model_id: str
    content_sha256: str
    create_time: _timestamp_pb2.Timestamp
    token_count: int
    agent_state_bytes: int
    key_value_bytes: int
    stored_bytes: int
    cache_type: str
    instruction_set: str
    agent_state_sha256: bytes
    labels: _containers.ScalarMap[str, str]
    step_number: int
    step_name: str
    vocabulary_id: str
    def __init__(self, session_id: _Optional[str] = ..., version: _Optional[int] = ..., parent_version: _Optional[int] = ..., model: _Optional[str] = ..., model_id: _Optional[str] = ..., content_sha256: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., token_count: _Optional[int] = ..., agent_state_bytes: _Optional[int] = ..., key_value_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., cache_type: _Optional[str] = ..., instruction_set: _Optional[str] = ..., agent_state_sha256: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ..., step_number: _Optional[int] = ..., step_name: _Optional[str] = ..., vocabulary_id: _Optional[str] = ...) -> None: ...

class AgentState(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AgentValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AgentValue, _Mapping]] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.MessageMap[str, AgentValue]
    def __init__(self, values: _Optional[_Mapping[str, AgentValue]] = ...) -> None: ...

class AgentValue(_message.Message):
    __slots__ = ("content", "message", "struct")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    message: _any_pb2.Any
    struct: _struct_pb2.Struct
    def __init__(self, content: _Optional[bytes] = ..., message: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., struct: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SnapshotReference(_message.Message):
    __slots__ = ("session_id", "version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    version: int
    def __init__(self, session_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class TokenRun(_message.Message):
    __slots__ = ("kind", "count")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    kind: TokenKind
    count: int
    def __init__(self, kind: _Optional[_Union[TokenKind, str]] = ..., count: _Optional[int] = ...) -> None: ...

class SamplerState(_message.Message):
    __slots__ = ("seed", "draw", "window", "grammar_state")
    SEED_FIELD_NUMBER: _ClassVar[int]
    DRAW_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_STATE_FIELD_NUMBER: _ClassVar[int]
    seed: int
    draw: int
    window: _containers.RepeatedScalarFieldContainer[int]
    grammar_state: bytes
    def __init__(self, seed: _Optional[int] = ..., draw: _Optional[int] = ..., window: _Optional[_Iterable[int]] = ..., grammar_state: _Optional[bytes] = ...) -> None: ...

class DecoderState(_message.Message):
    __slots__ = ("pending_bytes", "held_text")
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_TEXT_FIELD_NUMBER: _ClassVar[int]
    pending_bytes: bytes
    held_text: str
    def __init__(self, pending_bytes: _Optional[bytes] = ..., held_text: _Optional[str] = ...) -> None: ...

class SessionState(_message.Message):
    __slots__ = ("state_version", "token_ids", "runs", "sampler", "decoder", "adapters", "cache_salt", "template_time_seconds")
    class AdaptersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    DECODER_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    state_version: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    runs: _containers.RepeatedCompositeFieldContainer[TokenRun]
    sampler: SamplerState
    decoder: DecoderState
    adapters: _containers.ScalarMap[str, float]
    cache_salt: str
    template_time_seconds: int
    def __init__(self, state_version: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., runs: _Optional[_Iterable[_Union[TokenRun, _Mapping]]] = ..., sampler: _Optional[_Union[SamplerState, _Mapping]] = ..., decoder: _Optional[_Union[DecoderState, _Mapping]] = ..., adapters: _Optional[_Mapping[str, float]] = ..., cache_salt: _Optional[str] = ..., template_time_seconds: _Optional[int] = ...) -> None: ...

class PageLayout(_message.Message):
    __slots__ = ("layout_version", "layers", "heads", "head_size", "page_tokens", "cache_type")
    LAYOUT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_TYPE_FIELD_NUMBER: _ClassVar[int]
    layout_version: int
    layers: int
    heads: int
    head_size: int
    page_tokens: int
    cache_type: str
    def __init__(self, layout_version: _Optional[int] = ..., layers: _Optional[int] = ..., heads: _Optional[int] = ..., head_size: _Optional[int] = ..., page_tokens: _Optional[int] = ..., cache_type: _Optional[str] = ...) -> None: ...

class StateHeader(_message.Message):
    __slots__ = ("snapshot", "session", "page_layout")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PAGE_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    session: SessionState
    page_layout: PageLayout
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., session: _Optional[_Union[SessionState, _Mapping]] = ..., page_layout: _Optional[_Union[PageLayout, _Mapping]] = ...) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("offset_bytes", "content", "crc32c")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    content: bytes
    crc32c: int
    def __init__(self, offset_bytes: _Optional[int] = ..., content: _Optional[bytes] = ..., crc32c: _Optional[int] = ...) -> None: ...

class StateEnd(_message.Message):
    __slots__ = ("agent_state_bytes", "agent_state_sha256", "key_value_bytes", "key_value_sha256")
    AGENT_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_SHA256_FIELD_NUMBER: _ClassVar[int]
    agent_state_bytes: int
    agent_state_sha256: bytes
    key_value_bytes: int
    key_value_sha256: bytes
    def __init__(self, agent_state_bytes: _Optional[int] = ..., agent_state_sha256: _Optional[bytes] = ..., key_value_bytes: _Optional[int] = ..., key_value_sha256: _Optional[bytes] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("session_id", "model", "agent_state", "cache_retention", "expected_version", "labels", "step_number", "step_name")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_FIELD_NUMBER: _ClassVar[int]
    CACHE_RETENTION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_NAME_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model: str
    agent_state: bytes
    cache_retention: CacheRetention
    expected_version: int
    labels: _containers.ScalarMap[str, str]
    step_number: int
    step_name: str
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[str] = ..., agent_state: _Optional[bytes] = ..., cache_retention: _Optional[_Union[CacheRetention, str]] = ..., expected_version: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., step_number: _Optional[int] = ..., step_name: _Optional[str] = ...) -> None: ...

class SaveResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("snapshot", "model", "session_id", "fidelity_min")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FIDELITY_MIN_FIELD_NUMBER: _ClassVar[int]
    snapshot: SnapshotReference
    model: str
    session_id: str
    fidelity_min: RestoreFidelity
    def __init__(self, snapshot: _Optional[_Union[SnapshotReference, _Mapping]] = ..., model: _Optional[str] = ..., session_id: _Optional[str] = ..., fidelity_min: _Optional[_Union[RestoreFidelity, str]] = ...) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ("snapshot", "session_id", "fidelity", "reason", "recomputed_tokens", "agent_state", "agent_state_omitted", "restore_ms")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FIDELITY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_OMITTED_FIELD_NUMBER: _ClassVar[int]
    RESTORE_MS_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    session_id: str
    fidelity: RestoreFidelity
    reason: str
    recomputed_tokens: int
    agent_state: bytes
    agent_state_omitted: bool
    restore_ms: float
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., session_id: _Optional[str] = ..., fidelity: _Optional[_Union[RestoreFidelity, str]] = ..., reason: _Optional[str] = ..., recomputed_tokens: _Optional[int] = ..., agent_state: _Optional[bytes] = ..., agent_state_omitted: _Optional[bool] = ..., restore_ms: _Optional[float] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("snapshot", "model", "return_agent_state")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RETURN_AGENT_STATE_FIELD_NUMBER: _ClassVar[int]
    snapshot: SnapshotReference
    model: str
    return_agent_state: bool
    def __init__(self, snapshot: _Optional[_Union[SnapshotReference, _Mapping]] = ..., model: _Optional[str] = ..., return_agent_state: _Optional[bool] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("snapshot", "agent_state", "agent_state_omitted")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_OMITTED_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    agent_state: bytes
    agent_state_omitted: bool
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., agent_state: _Optional[bytes] = ..., agent_state_omitted: _Optional[bool] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("model", "session_id", "labels", "all_versions", "page_size", "page_token")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ALL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    session_id: str
    labels: _containers.ScalarMap[str, str]
    all_versions: bool
    page_size: int
    page_token: str
    def __init__(self, model: _Optional[str] = ..., session_id: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., all_versions: _Optional[bool] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("snapshots", "next_page_token")
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    next_page_token: str
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("session_id", "model", "versions")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    model: str
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[str] = ..., model: _Optional[str] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("deleted_versions", "reclaimable_bytes")
    DELETED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RECLAIMABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    deleted_versions: int
    reclaimable_bytes: int
    def __init__(self, deleted_versions: _Optional[int] = ..., reclaimable_bytes: _Optional[int] = ...) -> None: ...

class CompactRequest(_message.Message):
    __slots__ = ("model", "keep_versions", "dry_run")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KEEP_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    model: str
    keep_versions: int
    dry_run: bool
    def __init__(self, model: _Optional[str] = ..., keep_versions: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CompactResponse(_message.Message):
    __slots__ = ("bytes_before", "bytes_after", "dropped_versions")
    BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    DROPPED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    bytes_before: int
    bytes_after: int
    dropped_versions: int
    def __init__(self, bytes_before: _Optional[int] = ..., bytes_after: _Optional[int] = ..., dropped_versions: _Optional[int] = ...) -> None: ...

class ExportStateRequest(_message.Message):
    __slots__ = ("model", "snapshot", "live_session_id", "cache_retention")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LIVE_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_RETENTION_FIELD_NUMBER: _ClassVar[int]
    model: str
    snapshot: SnapshotReference
    live_session_id: str
    cache_retention: CacheRetention
    def __init__(self, model: _Optional[str] = ..., snapshot: _Optional[_Union[SnapshotReference, _Mapping]] = ..., live_session_id: _Optional[str] = ..., cache_retention: _Optional[_Union[CacheRetention, str]] = ...) -> None: ...

class ExportStateResponse(_message.Message):
    __slots__ = ("header", "agent_state", "key_value", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: StateHeader
    agent_state: StateChunk
    key_value: StateChunk
    end: StateEnd
    def __init__(self, header: _Optional[_Union[StateHeader, _Mapping]] = ..., agent_state: _Optional[_Union[StateChunk, _Mapping]] = ..., key_value: _Optional[_Union[StateChunk, _Mapping]] = ..., end: _Optional[_Union[StateEnd, _Mapping]] = ...) -> None: ...

class ImportStateHeader(_message.Message):
    __slots__ = ("model", "session_id", "live_session_id", "state", "expected_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIVE_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    session_id: str
    live_session_id: str
    state: StateHeader
    expected_version: int
    def __init__(self, model: _Optional[str] = ..., session_id: _Optional[str] = ..., live_session_id: _Optional[str] = ..., state: _Optional[_Union[StateHeader, _Mapping]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class ImportStateRequest(_message.Message):
    __slots__ = ("header", "agent_state", "key_value", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    AGENT_STATE_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: ImportStateHeader
    agent_state: StateChunk
    key_value: StateChunk
    end: StateEnd
    def __init__(self, header: _Optional[_Union[ImportStateHeader, _Mapping]] = ..., agent_state: _Optional[_Union[StateChunk, _Mapping]] = ..., key_value: _Optional[_Union[StateChunk, _Mapping]] = ..., end: _Optional[_Union[StateEnd, _Mapping]] = ...) -> None: ...

class ImportStateResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...
