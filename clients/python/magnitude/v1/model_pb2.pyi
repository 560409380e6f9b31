from magnitude.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_KIND_UNSPECIFIED: _ClassVar[ModelKind]
    MODEL_KIND_GENERATION: _ClassVar[ModelKind]
    MODEL_KIND_EMBEDDING: _ClassVar[ModelKind]
    MODEL_KIND_RERANKING: _ClassVar[ModelKind]

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    CAPABILITY_CHAT: _ClassVar[Capability]
    CAPABILITY_TOOLS: _ClassVar[Capability]
    CAPABILITY_LOGPROBS: _ClassVar[Capability]
    CAPABILITY_PROMPT_LOGPROBS: _ClassVar[Capability]
    CAPABILITY_STRUCTURED_OUTPUT: _ClassVar[Capability]
    CAPABILITY_ADAPTERS: _ClassVar[Capability]
    CAPABILITY_SESSIONS: _ClassVar[Capability]
    CAPABILITY_PREFIX_REUSE: _ClassVar[Capability]
    CAPABILITY_REASONING: _ClassVar[Capability]
MODEL_KIND_UNSPECIFIED: ModelKind
MODEL_KIND_GENERATION: ModelKind
MODEL_KIND_EMBEDDING: ModelKind
MODEL_KIND_RERANKING: ModelKind
CAPABILITY_UNSPECIFIED: Capability
CAPABILITY_CHAT: Capability
CAPABILITY_TOOLS: Capability
CAPABILITY_LOGPROBS: Capability
CAPABILITY_PROMPT_LOGPROBS: Capability
CAPABILITY_STRUCTURED_OUTPUT: Capability
CAPABILITY_ADAPTERS: Capability
CAPABILITY_SESSIONS: Capability
CAPABILITY_PREFIX_REUSE: Capability
CAPABILITY_REASONING: Capability

class ModelLimits(_message.Message):
    __slots__ = ("context_tokens", "choices", "stop_strings", "top_logprobs", "running_requests", "waiting_requests", "message_bytes")
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    context_tokens: int
    choices: int
    stop_strings: int
    top_logprobs: int
    running_requests: int
    waiting_requests: int
    message_bytes: int
    def __init__(self, context_tokens: _Optional[int] = ..., choices: _Optional[int] = ..., stop_strings: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., message_bytes: _Optional[int] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "is_default", "state", "progress", "failure", "kind", "architecture", "weight_type", "parameter_count", "file_bytes", "context_tokens", "trained_context_tokens", "vocabulary_size", "model_id", "content_sha256", "chat_template", "capabilities", "limits", "bos_token_id", "end_token_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_default: bool
    state: _common_pb2.ModelState
    progress: float
    failure: _common_pb2.Failure
    kind: ModelKind
    architecture: str
    weight_type: str
    parameter_count: int
    file_bytes: int
    context_tokens: int
    trained_context_tokens: int
    vocabulary_size: int
    model_id: str
    content_sha256: str
    chat_template: str
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    limits: ModelLimits
    bos_token_id: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., is_default: _Optional[bool] = ..., state: _Optional[_Union[_common_pb2.ModelState, str]] = ..., progress: _Optional[float] = ..., failure: _Optional[_Union[_common_pb2.Failure, _Mapping]] = ..., kind: _Optional[_Union[ModelKind, str]] = ..., architecture: _Optional[str] = ..., weight_type: _Optional[str] = ..., parameter_count: _Optional[int] = ..., file_bytes: _Optional[int] = ..., context_tokens: _Optional[int] = ..., trained_context_tokens: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., model_id: _Optional[str] = ..., content_sha256: _Optional[str] = ..., chat_template: _Optional[str] = ..., capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ..., limits: _Optional[_Union[ModelLimits, _Mapping]] = ..., bos_token_id: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "path", "expected_model_id", "expected_content_sha256", "context_tokens", "return_immediately")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_IMMEDIATELY_FIELD_NUMBER: _ClassVar[int]
    model: str
    path: str
    expected_model_id: str
    expected_content_sha256: str
    context_tokens: int
    return_immediately: bool
    def __init__(self, model: _Optional[str] = ..., path: _Optional[str] = ..., expected_model_id: _Optional[str] = ..., expected_content_sha256: _Optional[str] = ..., context_tokens: _Optional[int] = ..., return_immediately: _Optional[bool] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model", "grace_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    grace_ms: int
    def __init__(self, model: _Optional[str] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("ended_requests",)
    ENDED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ended_requests: int
    def __init__(self, ended_requests: _Optional[int] = ...) -> None: ...

class ReloadModelRequest(_message.Message):
    __slots__ = ("model", "expected_model_id", "expected_content_sha256")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    model: str
    expected_model_id: str
    expected_content_sha256: str
    def __init__(self, model: _Optional[str] = ..., expected_model_id: _Optional[str] = ..., expected_content_sha256: _Optional[str] = ...) -> None: ...

class ReloadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...
