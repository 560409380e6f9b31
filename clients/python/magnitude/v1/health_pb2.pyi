import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from magnitude.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ModelHealth(_message.Message):
    __slots__ = ("name", "model_id", "state", "progress", "failure", "load")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_id: str
    state: _common_pb2.ModelState
    progress: float
    failure: _common_pb2.Failure
    load: _common_pb2.Load
    def __init__(self, name: _Optional[str] = ..., model_id: _Optional[str] = ..., state: _Optional[_Union[_common_pb2.ModelState, str]] = ..., progress: _Optional[float] = ..., failure: _Optional[_Union[_common_pb2.Failure, _Mapping]] = ..., load: _Optional[_Union[_common_pb2.Load, _Mapping]] = ...) -> None: ...

class MemoryUsage(_message.Message):
    __slots__ = ("mapped_bytes", "mapped_resident_bytes", "key_value_bytes", "key_value_used_bytes", "anonymous_bytes", "limit_bytes", "available_bytes")
    MAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAPPED_RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    mapped_bytes: int
    mapped_resident_bytes: int
    key_value_bytes: int
    key_value_used_bytes: int
    anonymous_bytes: int
    limit_bytes: int
    available_bytes: int
    def __init__(self, mapped_bytes: _Optional[int] = ..., mapped_resident_bytes: _Optional[int] = ..., key_value_bytes: _Optional[int] = ..., key_value_used_bytes: _Optional[int] = ..., anonymous_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., available_bytes: _Optional[int] = ...) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("version", "uptime", "models", "memory")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    version: str
    uptime: _duration_pb2.Duration
    models: _containers.RepeatedCompositeFieldContainer[ModelHealth]
    memory: MemoryUsage
    def __init__(self, version: _Optional[str] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelHealth, _Mapping]]] = ..., memory: _Optional[_Union[MemoryUsage, _Mapping]] = ...) -> None: ...
