"""Generated from proto/magnitude/v1 by proto/generate.py. Do not edit."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio

from magnitude.v1 import inference_pb2

class InferenceServiceStub:
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...
    Infer: grpc.UnaryUnaryMultiCallable[inference_pb2.InferRequest, inference_pb2.InferResponse]
    StreamInfer: grpc.UnaryStreamMultiCallable[inference_pb2.StreamInferRequest, inference_pb2.StreamInferResponse]
    Abort: grpc.UnaryUnaryMultiCallable[inference_pb2.AbortRequest, inference_pb2.AbortResponse]
    Tokenize: grpc.UnaryUnaryMultiCallable[inference_pb2.TokenizeRequest, inference_pb2.TokenizeResponse]
    Detokenize: grpc.UnaryUnaryMultiCallable[inference_pb2.DetokenizeRequest, inference_pb2.DetokenizeResponse]
    GetLoad: grpc.UnaryUnaryMultiCallable[inference_pb2.GetLoadRequest, inference_pb2.GetLoadResponse]

class InferenceServiceServicer:
    def Infer(self, request: inference_pb2.InferRequest, context: Any) -> Awaitable[inference_pb2.InferResponse]: ...
    def StreamInfer(self, request: inference_pb2.StreamInferRequest, context: Any) -> AsyncIterator[inference_pb2.StreamInferResponse]: ...
    def Abort(self, request: inference_pb2.AbortRequest, context: Any) -> Awaitable[inference_pb2.AbortResponse]: ...
    def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Any) -> Awaitable[inference_pb2.TokenizeResponse]: ...
    def Detokenize(self, request: inference_pb2.DetokenizeRequest, context: Any) -> Awaitable[inference_pb2.DetokenizeResponse]: ...
    def GetLoad(self, request: inference_pb2.GetLoadRequest, context: Any) -> Awaitable[inference_pb2.GetLoadResponse]: ...

def add_InferenceServiceServicer_to_server(
    servicer: InferenceServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
