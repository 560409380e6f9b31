"""ModelService: which models there are. Loading and unloading answer UNIMPLEMENTED for now."""

from __future__ import annotations

from typing import Any, NoReturn

from magnitude.v1 import common_pb2, model_pb2, model_pb2_grpc
from magnitude_service.errors import MagnitudeError, UnimplementedError
from magnitude_service.server import limits
from magnitude_service.server.malformed import refuse_malformed
from magnitude_service.server.served_models import ModelDescription, ServedModel, ServedModels


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Describes the models."""

    def __init__(self, models: ServedModels, message_bytes_max: int) -> None:
        self._models = models
        self._message_bytes_max = message_bytes_max

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:
        """All models, without their templates."""
        found = [self._described(model) for model in self._models]
        for message in found:
            message.ClearField("chat_template")
        return model_pb2.ListModelsResponse(models=found)

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:
        """One model."""
        refuse_malformed(request, "")
        return model_pb2.GetModelResponse(model=self._described(self._models.find(request.model)))

    async def LoadModel(self, request: model_pb2.LoadModelRequest, context: Any) -> model_pb2.LoadModelResponse:
        """Not yet."""
        not_yet("LoadModel", "Start the server with the model.")

    async def UnloadModel(self, request: model_pb2.UnloadModelRequest, context: Any) -> model_pb2.UnloadModelResponse:
        """Not yet."""
        not_yet("UnloadModel", "Stop the server.")

    async def ReloadModel(self, request: model_pb2.ReloadModelRequest, context: Any) -> model_pb2.ReloadModelResponse:
        """Not yet."""
        not_yet("ReloadModel", "Restart the server.")

    def _described(self, model: ServedModel) -> model_pb2.Model:
        message = model_pb2.Model(
            name=model.name,
            is_default=model is self._models.default,
            state=state(model),
            content_sha256=model.content_sha256,
            failure=failure(model.failure),
        )
        if message.state == common_pb2.MODEL_STATE_LOADING:
            message.progress = model.progress
        if model.description is not None:
            describe(message, model.description, model)
            message.limits.message_bytes = self._message_bytes_max
        return message


def describe(message: model_pb2.Model, description: ModelDescription, model: ServedModel) -> None:
    """Fills in what is known once the header is parsed."""
    message.kind = model_pb2.MODEL_KIND_GENERATION
    for name in ("architecture", "weight_type", "parameter_count", "file_bytes", "context_tokens"):
        setattr(message, name, getattr(description, name))
    for name in ("trained_context_tokens", "vocabulary_size", "model_id", "chat_template"):
        setattr(message, name, getattr(description, name))
    message.capabilities.extend([model_pb2.CAPABILITY_LOGPROBS, model_pb2.CAPABILITY_PROMPT_LOGPROBS])
    message.limits.context_tokens = description.context_tokens
    message.limits.choices = limits.CHOICES_MAX
    message.limits.stop_strings = limits.STOP_STRINGS_MAX
    message.limits.top_logprobs = limits.TOP_LOGPROBS_MAX
    message.limits.running_requests = description.running_requests_max
    message.limits.waiting_requests = description.waiting_requests_max
    if model.runtime is None:
        return
    if model.runtime.states is not None:
        message.capabilities.append(model_pb2.CAPABILITY_SESSIONS)
    if model.runtime.template is not None:
        message.capabilities.append(model_pb2.CAPABILITY_CHAT)
    tokenizer = model.runtime.tokenizer
    message.end_token_ids.extend(sorted(tokenizer.eog_ids))
    if tokenizer.bos_id is not None:
        message.bos_token_id = tokenizer.bos_id


def state(model: ServedModel) -> common_pb2.ModelState:
    """The state by the contract's name."""
    return common_pb2.ModelState.Value(f"MODEL_STATE_{model.state.value}")  # type: ignore[return-value]


def failure(error: MagnitudeError | None) -> common_pb2.Failure | None:
    """Why a model is FAILED."""
    if error is None:
        return None
    return common_pb2.Failure(
        code=error.code, reason=error.reason, message=error.message, remedy=error.remedy, details=error.details
    )


def not_yet(rpc: str, remedy: str) -> NoReturn:
    """Raises UnimplementedError for an rpc of the contract."""
    raise UnimplementedError(f"{rpc} is not implemented yet.", remedy=remedy, rpc=rpc)
