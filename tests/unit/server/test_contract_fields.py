"""Every field that a caller can set is read or refused: a walk over the contract's requests finds what is forgotten."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from magnitude.errors import Unimplemented
from magnitude.v1 import common_pb2, health_pb2, inference_pb2, model_pb2, snapshot_pb2
from magnitude_service import server
from magnitude_service.errors import IncompatibleVersionError
from magnitude_service.server.session_messages import STATE_VERSION, check_state

REFUSED = {
    inference_pb2.InferRequest: {"truncation", "structured_output", "adapters", "cache_salt"},
    common_pb2.ChatInput: {"tools", "tool_choice"},
    snapshot_pb2.SessionState: {"adapters", "cache_salt"},
    snapshot_pb2.SamplerState: {"grammar_state"},
}
"""Fields that are not implemented: UNIMPLEMENTED in a request, INCOMPATIBLE_VERSION in a saved session."""

WHOLE_RPCS_REFUSED = {"LoadModelRequest", "UnloadModelRequest", "ReloadModelRequest"}

TOLD_BY_THE_STORE = {
    "version": "it gives the next number",
    "create_time": "it looks at its own clock",
    "agent_state_bytes": "it counts",
    "key_value_bytes": "it counts",
    "stored_bytes": "it knows",
}
"""Fields of an imported Snapshot that only tell what was."""


def requests() -> Iterator[Descriptor]:
    for module in (common_pb2, health_pb2, inference_pb2, model_pb2, snapshot_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if method.input_type.name not in WHOLE_RPCS_REFUSED:
                    yield method.input_type


def fields() -> dict[str, FieldDescriptor]:
    """Of all messages that are part of a request, "Message.field"; what a refused field holds is left out."""
    refused = {kind.DESCRIPTOR.name: names for kind, names in REFUSED.items()}
    found: dict[str, FieldDescriptor] = {}
    left = list(requests())
    while left:
        message = left.pop()
        for field in message.fields:
            name = f"{message.name}.{field.name}"
            if name in found or message.GetOptions().map_entry:
                continue
            found[name] = field
            kind = field.message_type
            if kind and kind.file.package == "magnitude.v1" and field.name not in refused.get(message.name, ()):
                left.append(kind)
    return found


FIELDS = fields()


def read_names() -> set[str]:
    """Names that the servicers read: as attributes, or as strings beside getattr and HasField."""
    names: set[str] = set()
    for path in Path(server.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


def test_every_field_of_a_request_is_read_by_the_server() -> None:
    read = read_names()
    unread = {name for name, field in FIELDS.items() if field.name not in read}
    unread -= {name for name in FIELDS if name.startswith("StateEnd.")}  # state_import.py puts their names together
    assert unread == {f"Snapshot.{name}" for name in TOLD_BY_THE_STORE if name not in read}
    assert len(FIELDS) > 100


def other_value(message: Message, field: FieldDescriptor) -> None:
    """Sets a field to what is not its default."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)["a"] = 1.0
    elif field.message_type is not None and field.is_repeated:
        getattr(message, field.name).add()
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        if field.name == "truncation":  # an empty one asks for nothing
            inner.keep_tokens = 1
    else:
        setattr(message, field.name, b"a" if field.type == FieldDescriptor.TYPE_BYTES else "a")


@pytest.mark.parametrize("field", sorted(REFUSED[inference_pb2.InferRequest]))
def test_a_field_of_a_request_that_is_not_implemented_is_refused_by_its_path(served: Any, field: str) -> None:
    request = inference_pb2.InferRequest(text="a")
    other_value(request, request.DESCRIPTOR.fields_by_name[field])
    with pytest.raises(Unimplemented) as caught:
        served.client.call(served.client.inference.Infer, request)
    assert list(caught.value.field_violations) == [field]


@pytest.mark.parametrize("field", sorted(REFUSED[common_pb2.ChatInput]))
def test_a_field_of_a_chat_that_is_not_implemented_is_refused_by_its_path(served: Any, field: str) -> None:
    request = inference_pb2.InferRequest()
    request.chat.messages.add(role=common_pb2.ROLE_USER).content.add(text="a")
    other_value(request.chat, request.chat.DESCRIPTOR.fields_by_name[field])
    with pytest.raises(Unimplemented) as caught:
        served.client.call(served.client.inference.Infer, request)
    assert list(caught.value.field_violations) == [f"chat.{field}"]


@pytest.mark.parametrize(
    ("where", "field"),
    [
        *(("", name) for name in sorted(REFUSED[snapshot_pb2.SessionState])),
        *(("sampler", name) for name in sorted(REFUSED[snapshot_pb2.SamplerState])),
    ],
)
def test_a_field_of_a_saved_session_that_is_not_implemented_is_refused_by_its_path(where: str, field: str) -> None:
    state = snapshot_pb2.SessionState(state_version=STATE_VERSION)
    check_state(state, 300)
    message = getattr(state, where) if where else state
    other_value(message, message.DESCRIPTOR.fields_by_name[field])
    with pytest.raises(IncompatibleVersionError) as caught:
        check_state(state, 300)
    assert caught.value.details["field"] == ".".join(filter(None, ("session", where, field)))
