"""The prompt of a request: text, a chat or ids into tokens, and whether they fit. Blocks while a template renders and
text is tokenized."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from magnitude.v1 import inference_pb2
from magnitude_service.errors import ContextLengthError
from magnitude_service.scheduling.session import NO_TOKENS, Session
from magnitude_service.server import bounds, limits
from magnitude_service.server.chat import chat
from magnitude_service.server.malformed import refuse_malformed
from magnitude_service.server.served_models import ModelDescription, Runtime, Tokenizer

IDS_AT_ONCE = 16_384
"""Ids that become a message in one go, a millisecond's work: a million of them would hold the interpreter for 60 ms."""


def prompt_tokens(
    message: inference_pb2.InferRequest,
    description: ModelDescription,
    runtime: Runtime,
    prefix: str,
    session: Session | None = None,
) -> tuple[NDArray[np.int32], Callable[[], str]]:
    """The prompt's tokens, and how to get its text."""
    tokenizer = runtime.tokenizer
    kind = message.WhichOneof("input")
    if kind == "token_ids":
        if message.HasField("tokenization"):
            bounds.refuse(f"{prefix}tokenization", "set", "absent with token_ids")
        path = f"{prefix}token_ids.ids"
        ids = bounds.token_ids(path, message.token_ids.ids, description.context_tokens, description.vocabulary_size)
        return nonempty(ids, path), lambda: tokenizer.decode(ids, render_special=True).decode("utf-8", "replace")
    if kind is None:
        if session is not None and session.settled:
            return NO_TOKENS, lambda: ""
        bounds.refuse(f"{prefix}input", "absent", "text, token_ids or chat", "Set one of text, token_ids and chat.")
    ids, text = tokenize(message, runtime, prefix, description.context_tokens, session)
    return nonempty(ids, prefix + kind), lambda: text


def tokenize(
    message: inference_pb2.InferRequest | inference_pb2.TokenizeRequest,
    runtime: Runtime,
    prefix: str = "",
    context_tokens: int | None = None,
    session: Session | None = None,
) -> tuple[NDArray[np.int32], str]:
    """Tokens of `text` or `chat`, and the text that they came from. Raises ContextLengthError for a text whose length
    alone says that it does not fit into `context_tokens`."""
    options = message.tokenization
    if message.WhichOneof("input") == "chat":
        for name in ("add_special", "parse_special"):
            if options.HasField(name):
                bounds.refuse(f"{prefix}tokenization.{name}", "set", "absent with chat: the template decides")
        conversation = chat(message.chat, f"{prefix}chat", runtime.template is not None)
        assert runtime.template is not None
        segments = conversation.render(runtime.template, session)
        check_bytes(sum(len(text.encode()) for text, _ in segments), runtime.tokenizer, context_tokens, f"{prefix}chat")
        ids = runtime.tokenizer.encode_segments(segments, add_special=session is None or not session.settled)
        return ids, "".join(text for text, _ in segments)
    goes_on = session is not None and session.settled > 0
    if goes_on and options.add_special:
        bounds.refuse(f"{prefix}tokenization.add_special", "true", "false in a session that has tokens")
    add_special = options.add_special if options.HasField("add_special") else not goes_on
    check_bytes(len(message.text.encode()), runtime.tokenizer, context_tokens, f"{prefix}text")
    ids = runtime.tokenizer.encode(message.text, parse_special=options.parse_special, add_special=add_special)
    return ids, message.text


def tokenize_response(
    message: inference_pb2.TokenizeRequest, model: str, description: ModelDescription, runtime: Runtime
) -> inference_pb2.TokenizeResponse:
    """The ids of a text or a chat, and the bytes of each where asked for. Blocks."""
    refuse_malformed(message, "")
    if message.WhichOneof("input") is None:
        bounds.refuse("input", "absent", "text or chat", "Set one of text and chat.")
    ids = tokenize(message, runtime)[0]
    response = inference_pb2.TokenizeResponse(model=model, model_id=description.model_id)
    for begin in range(0, ids.size, IDS_AT_ONCE):
        part = ids[begin : begin + IDS_AT_ONCE].tolist()
        response.token_ids.extend(part)
        if message.return_tokens:
            response.tokens.extend(map(runtime.spell, part))
    return response


def detokenize_response(
    message: inference_pb2.DetokenizeRequest, model: str, description: ModelDescription, runtime: Runtime
) -> inference_pb2.DetokenizeResponse:
    """The text of ids. Blocks."""
    refuse_malformed(message, "")
    ids = bounds.token_ids("token_ids", message.token_ids, limits.DETOKENIZED_IDS_MAX, description.vocabulary_size)
    content = runtime.tokenizer.decode(ids, render_special=not message.skip_special)
    text = content.decode("utf-8", "replace")
    return inference_pb2.DetokenizeResponse(model=model, model_id=description.model_id, text=text, content=content)


def nonempty(ids: NDArray[np.int32], path: str) -> NDArray[np.int32]:
    """The ids, if there are any: the first token is chosen after something."""
    if ids.size == 0:
        bounds.refuse(path, "empty: it comes to no token", "at least one token", "Send a prompt.")
    return ids


def check_bytes(found: int, tokenizer: Tokenizer, context_tokens: int | None, path: str) -> None:
    """Raises ContextLengthError for so many bytes that the longest tokens are too many: before they are tokenized."""
    if context_tokens is None or found <= context_tokens or found <= context_tokens * tokenizer.token_bytes_max:
        return
    raise ContextLengthError(
        f"{path} has {found} bytes; the context holds {context_tokens} tokens, of {tokenizer.token_bytes_max} bytes at "
        "most.",
        remedy="Shorten the prompt.",
        field=path,
        prompt_bytes=found,
        context_tokens=context_tokens,
    )


def check_context(prompt: int, max_tokens: int | None, context_tokens: int, prefix: str) -> None:
    """Raises ContextLengthError unless prompt and answer fit into the context."""
    wanted = 1 if max_tokens is None else max_tokens
    if prompt + wanted <= context_tokens:
        return
    left = context_tokens - prompt
    raise ContextLengthError(
        f"The prompt has {prompt} tokens and max_tokens is {'absent (at least 1)' if max_tokens is None else wanted}; "
        f"the context holds {context_tokens} together.",
        remedy=f"Set stopping.max_tokens to at most {left}." if left > 0 else "Shorten the prompt.",
        field=f"{prefix}stopping.max_tokens" if left > 0 else f"{prefix}input",
        prompt_tokens=prompt,
        context_tokens=context_tokens,
    )
