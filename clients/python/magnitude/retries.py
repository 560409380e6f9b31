"""Which calls are made again, and when; the table is in clients/README.md.

What changes nothing, or the same thing twice, gRPC itself repeats as `SERVICE_CONFIG` says. Any other call is repeated
by the client, and only where the server refused it for now: an error with RetryInfo says that nothing was done, and
how long to wait.
"""

from __future__ import annotations

import json

from magnitude.errors import CallError
from magnitude.v1 import inference_pb2

ATTEMPTS_MAX = 4

REPEATED = {
    "InferenceService": (),
    "ModelService": ("ListModels", "GetModel"),
    "HealthService": (),
    "SnapshotService": ("Restore", "Get", "List", "Compact", "ExportState"),
}
"""The methods that gRPC repeats, by service; none named: all of them."""


def method_names() -> list[dict[str, str]]:
    """The same as a service config has it."""
    names: list[dict[str, str]] = []
    for name, methods in REPEATED.items():
        service = {"service": f"magnitude.v1.{name}"}
        names += [{**service, "method": method} for method in methods] or [service]
    return names


SERVICE_CONFIG = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            {
                "name": method_names(),
                "retryPolicy": {
                    "maxAttempts": ATTEMPTS_MAX,
                    "initialBackoff": "0.2s",
                    "maxBackoff": "5s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
                },
            }
        ],
    }
)
"""Retries as grpc does them, over all addresses of a name. The server's pushback, which is the delay of its RetryInfo,
says how long to wait, or that it is of no use."""


def attempts_max(request: inference_pb2.InferRequest) -> int:
    """How often a request of a session is tried. What fails in saving it afterwards fails when the session has the
    answer already: whether there was one cannot be told, so that such a request is never made again."""
    return 1 if request.HasField("snapshot_afterwards") else ATTEMPTS_MAX


def delay_seconds(error: CallError, attempts_left: int, seconds_left: float | None) -> float | None:
    """How long to wait before a call that changes something is made again; None: it is not. A wait that would not end
    before the deadline is none: the refusal says more than that the time is over."""
    delay = error.retry_after_seconds
    if delay is None or not attempts_left or (seconds_left is not None and delay >= seconds_left):
        return None
    return delay
