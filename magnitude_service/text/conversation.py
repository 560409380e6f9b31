"""Checks a conversation before a template sees it: bounded depth, text that UTF-8 can carry, known shapes.

Every complaint names the field by its path, such as `messages[2].content[0].text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnitude_service.errors import InvalidRequestError, UnimplementedError

MESSAGES_MAX = 4096
DEPTH_MAX = 64
"""Nesting of tools, tool calls and template arguments. JSON parsers of Python give up at about a thousand."""

INTEGER_BITS_MAX = 1024

RESERVED_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"}
    | {"self", "range", "dict", "namespace"}
)
"""Variables that template arguments may not replace."""


def checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Plain copies of the messages. *Raises*: InvalidRequestError naming the field that is wrong."""
    if len(messages) > MESSAGES_MAX:
        raise _wrong("messages", f"has {len(messages)} messages; {MESSAGES_MAX} are allowed.")
    return [_checked_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def checked_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A plain copy of the template's further variables. *Raises*: InvalidRequestError."""
    for name in arguments:
        if name in RESERVED_NAMES or not name.isidentifier():
            raise _wrong(f"arguments.{name}"[:100], "is a name that template arguments cannot have.")
    checked = checked_value(arguments, "arguments")
    assert isinstance(checked, dict)
    return checked


def checked_value(value: Any, path: str, depth: int = 0) -> Any:
    """A copy made of dict, list, str, int, float, bool and None. *Raises*: InvalidRequestError."""
    if depth > DEPTH_MAX:
        raise _wrong(path[:200], f"is nested deeper than {DEPTH_MAX} levels.")
    if isinstance(value, str):
        return _checked_text(value, path)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if value.bit_length() > INTEGER_BITS_MAX:
            raise _wrong(path, f"is an integer of {value.bit_length()} bits; {INTEGER_BITS_MAX} are allowed.")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _wrong(path, f"has a key of type {type(key).__name__}; keys are texts.")
            _checked_text(key, f"a key of {path}")
        return {key: checked_value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [checked_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise _wrong(path, f"is of type {type(value).__name__}, which JSON does not have.")


def _checked_message(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    checked = checked_value(message, path)
    if not isinstance(checked, dict):
        raise _wrong(path, "is not a message with named fields.")
    if not isinstance(checked.get("role"), str) or not checked["role"]:
        raise _wrong(f"{path}.role", "is missing or not a text.")
    content = checked.get("content")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{path}.content[{index}]")
    elif content is not None and not isinstance(content, str):
        raise _wrong(f"{path}.content", "is neither a text nor a list of parts.")
    calls = checked.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise _wrong(f"{path}.tool_calls", "is not a list of calls.")
    return checked


def _check_part(part: Any, path: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise UnimplementedError(f"{path} is of type '{kind[:50]}'.", remedy="Send text parts only.", field=path)
    if kind != "text" or not isinstance(part.get("text"), str):
        raise _wrong(path, 'is not a part of the form {"type": "text", "text": …}.')


def _checked_text(text: str, path: str) -> str:
    if "\0" in text:
        raise _wrong(path, f"holds NUL at character {text.index(chr(0))}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise _wrong(path, f"holds the surrogate U+{code:04X} at character {error.start}.") from None
    return text


def _wrong(path: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {what}", remedy="Change it and send the request again.", field=path)
