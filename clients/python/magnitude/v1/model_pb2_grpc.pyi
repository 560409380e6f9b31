"""Generated from proto/magnitude/v1 by proto/generate.py. Do not edit."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio

from magnitude.v1 import model_pb2

class ModelServiceStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    ListModels: grpc.UnaryUnaryMultiCallable[model_pb2.ListModelsRequest, model_pb2.ListModelsResponse]
    GetModel: grpc.UnaryUnaryMultiCallable[model_pb2.GetModelRequest, model_pb2.GetModelResponse]
    LoadModel: grpc.UnaryUnaryMultiCallable[model_pb2.LoadModelRequest, model_pb2.LoadModelResponse]
    UnloadModel: grpc.UnaryUnaryMultiCallable[model_pb2.UnloadModelRequest, model_pb2.UnloadModelResponse]
    ReloadModel: grpc.UnaryUnaryMultiCallable[model_pb2.ReloadModelRequest, model_pb2.ReloadModelResponse]

class ModelServiceServicer:
    def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> Awaitable[model_pb2.ListModelsResponse]: ...
    def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> Awaitable[model_pb2.GetModelResponse]: ...
    def LoadModel(self, request: model_pb2.LoadModelRequest, context: Any) -> Awaitable[model_pb2.LoadModelResponse]: ...
    def UnloadModel(self, request: model_pb2.UnloadModelRequest, context: Any) -> Awaitable[model_pb2.UnloadModelResponse]: ...
    def ReloadModel(self, request: model_pb2.ReloadModelRequest, context: Any) -> Awaitable[model_pb2.ReloadModelResponse]: ...

def add_ModelServiceServicer_to_server(
    servicer: ModelServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
