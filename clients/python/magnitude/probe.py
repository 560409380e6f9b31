"""The question of Kubernetes' probes: grpc.health.v1 in plain text, as a server's health port answers it."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from magnitude.errors import call_error

INFERENCE = "magnitude.v1.InferenceService"


def serves(address: str, service: str = INFERENCE, *, timeout_seconds: float | None = None) -> bool:
    """Whether a service serves, which it does while its model is READY; "" asks for the process alone.

    Raises CallError where nobody answers, or nobody knows the service.
    """
    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise call_error(error) from error
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
