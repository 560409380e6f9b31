"""ChatInput becomes what chat templates are written for: messages and tools as plain data."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from magnitude_service.errors import InvalidRequestError
from magnitude_service.server import bounds, limits
from magnitude_service.text.conversation import RESERVED_NAMES

if TYPE_CHECKING:
    from magnitude.v1 import common_pb2
    from magnitude_service.scheduling.session import Session
    from magnitude_service.server.served_models import ChatTemplate

ROLES = {1: "system", 2: "user", 3: "assistant", 4: "tool", 5: "developer"}
"""What templates call the contract's roles, by number."""

ASSISTANT, TOOL = 3, 4


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, checked; `path` is where it stands in the request."""

    path: str
    messages: list[dict[str, object]]
    arguments: Mapping[str, object]
    add_generation_prompt: bool

    def render(self, template: ChatTemplate, session: Session | None = None) -> list[tuple[str, bool]]:
        """The rendered text as (text, is trusted); in a session that has tokens, what follows an answer of the model.
        Blocks while the template runs. Raises InvalidRequestError, in the template's own words where it refuses the
        conversation."""
        if session is None:
            return self._render(template, self.messages)
        now = datetime.fromtimestamp(session.begin_seconds)
        if not session.settled:
            return self._render(template, self.messages, now)
        mark = f"earlier{secrets.token_hex(16)}"
        earlier: list[dict[str, object]] = [
            {"role": "user", "content": "earlier"},
            {"role": "assistant", "content": mark},
        ]
        return behind(self._render(template, [*earlier, *self.messages], now), mark, self.path)

    def _render(
        self, template: ChatTemplate, messages: list[dict[str, object]], now: datetime | None = None
    ) -> list[tuple[str, bool]]:
        try:
            segments = template.render(
                messages,
                add_generation_prompt=self.add_generation_prompt,
                arguments=self.arguments or None,
                now=now,
            )
        except InvalidRequestError as error:
            field = f"{self.path}.{error.field or 'messages'}"
            raise InvalidRequestError(error.message, remedy=error.remedy, field=field, reason=error.reason) from error
        return [(segment.text, segment.trusted) for segment in segments]


def behind(segments: list[tuple[str, bool]], mark: str, path: str) -> list[tuple[str, bool]]:
    """What stands behind `mark`. Raises InvalidRequestError where it does not stand there once: the template drops or
    changes earlier answers, so that nothing can be put behind one."""
    if sum(text.count(mark) for text, _ in segments) != 1:
        raise InvalidRequestError(
            "The model's chat template does not write earlier answers down as they are, so that a session cannot go on "
            "with a chat.",
            remedy="Send the whole conversation without a session, or go on with text or token ids.",
            field=path,
        )
    at = next(index for index, (text, _) in enumerate(segments) if mark in text)
    text, is_trusted = segments[at]
    rest = text.partition(mark)[2]
    return [*([(rest, is_trusted)] if rest else []), *segments[at + 1 :]]


def chat(message: common_pb2.ChatInput, path: str, has_template: bool) -> Chat:
    """The conversation at `path`. Raises InvalidRequestError or UnimplementedError with the path of what is wrong."""
    if not has_template:
        bounds.refuse(path, "set", "absent for a model without a chat template", "Send text or token ids.")
    if message.tools:
        bounds.unimplemented(f"{path}.tools", "tools are not offered, since their calls are not read back yet")
    if message.HasField("tool_choice"):
        bounds.unimplemented(f"{path}.tool_choice", "tools are not offered yet")
    if not message.messages:
        bounds.refuse(f"{path}.messages", "empty", "at least one message")
    bounds.count(f"{path}.messages", len(message.messages), limits.MESSAGES_MAX)
    messages = [chat_message(part, f"{path}.messages[{index}]") for index, part in enumerate(message.messages)]
    arguments: dict[str, object] = {}
    if message.template_arguments_json:
        field = f"{path}.template_arguments_json"
        arguments = bounds.json_object(field, message.template_arguments_json, limits.JSON_BYTES_MAX)
        for name in RESERVED_NAMES & arguments.keys():
            bounds.refuse(f"{field}[{name!r}]", "set", "absent: the template gets it from elsewhere")
    add_prompt = message.add_generation_prompt if message.HasField("add_generation_prompt") else True
    return Chat(path, messages, arguments, add_prompt)


def chat_message(message: common_pb2.ChatMessage, path: str) -> dict[str, object]:
    """One message in the form that templates expect."""
    role = ROLES.get(message.role)
    if role is None:
        bounds.refuse(f"{path}.role", int(message.role), f"one of 1 … {max(ROLES)}")
    if message.tool_calls and message.role != ASSISTANT:
        bounds.refuse(f"{path}.tool_calls", "set", "absent but with ROLE_ASSISTANT")
    if message.reasoning and message.role != ASSISTANT:
        bounds.refuse(f"{path}.reasoning", "set", "absent but with ROLE_ASSISTANT")
    if message.tool_call_id and message.role != TOOL:
        bounds.refuse(f"{path}.tool_call_id", "set", "absent but with ROLE_TOOL")
    result: dict[str, object] = {"role": role, "content": content(message, path)}
    for name in ("name", "tool_call_id"):
        if value := getattr(message, name):
            result[name] = bounds.length(f"{path}.{name}", value, 1, limits.NAME_BYTES_MAX)
    if message.reasoning:
        result["reasoning_content"] = message.reasoning
    if message.tool_calls:
        bounds.count(f"{path}.tool_calls", len(message.tool_calls), limits.TOOL_CALLS_MAX)
        result["tool_calls"] = [
            tool_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    return result


def content(message: common_pb2.ChatMessage, path: str) -> str:
    """The text of all parts."""
    bounds.count(f"{path}.content", len(message.content), limits.CONTENT_PARTS_MAX)
    for index, part in enumerate(message.content):
        if part.WhichOneof("part") is None:
            bounds.refuse(f"{path}.content[{index}]", "empty", "text")
    return "".join(part.text for part in message.content)


def tool_call(call: common_pb2.ToolCall, path: str) -> dict[str, object]:
    """A call in the form that templates expect."""
    name = bounds.length(f"{path}.name", call.name, 1, limits.NAME_BYTES_MAX)
    bounds.length(f"{path}.id", call.id, 0, limits.NAME_BYTES_MAX)
    arguments = bounds.json_object(f"{path}.arguments_json", call.arguments_json or "{}", limits.JSON_BYTES_MAX)
    identity = {"id": call.id} if call.id else {}
    return {**identity, "type": "function", "function": {"name": name, "arguments": arguments}}
