"""Protobuf into Request: the only file that knows both. The way back is answers.py.

Every field is read here and nowhere else. What is out of bounds is refused with its path, its value and its bound;
what is not built yet is refused with UNIMPLEMENTED and its path. Nothing is ignored.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

from magnitude.v1 import inference_pb2, snapshot_pb2
from magnitude_service.errors import ContextLengthError
from magnitude_service.scheduling.request import Request, SamplingParameters, StoppingParameters
from magnitude_service.scheduling.session import NO_TOKENS, Session, TextState
from magnitude_service.server import bounds, limits
from magnitude_service.server.chat import chat
from magnitude_service.server.generation import Prepared, Returns
from magnitude_service.server.served_models import ModelDescription, Runtime, Tokenizer
from magnitude_service.server.state_store import SaveOptions

REQUEST_ID = re.compile(f"[A-Za-z0-9_.:/-]{{1,{limits.REQUEST_ID_BYTES_MAX}}}")
SHA256 = re.compile("[0-9A-Fa-f]{64}")
EXACT_REUSE = (0, inference_pb2.PREFIX_REUSE_EXACT, inference_pb2.PREFIX_REUSE_NONE)


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of `sampling`: low…high, its default, and whether `low` itself is out."""

    name: str
    low: float
    high: float
    default: float
    above: bool = False


SAMPLING: tuple[Bound, ...] = (
    Bound("temperature", 0, 2, 0.8),
    Bound("top_k", 0, 1_000_000, 40),
    Bound("top_p", 0, 1, 0.95, above=True),
    Bound("min_p", 0, 1, 0.05),
    Bound("typical_p", 0, 1, 1, above=True),
    Bound("repetition_penalty", 0, 10, 1, above=True),
    Bound("penalty_window", 0, 65_536, 64),
    Bound("presence_penalty", -2, 2, 0),
    Bound("frequency_penalty", -2, 2, 0),
)
"""Bounds and defaults; the contract's comments say the same. Defaults are llama.cpp's."""

BIAS_MAX = 100.0

IDS_AT_ONCE = 16_384
"""Ids that become a message in one go, a millisecond's work: a million of them would hold the interpreter for 60 ms."""


def prepare(
    message: inference_pb2.InferRequest,
    description: ModelDescription,
    runtime: Runtime,
    *,
    deadline_seconds: float | None,
    streams: bool,
    prefix: str = "",
    session: Session | None = None,
) -> Prepared:
    """A checked request. Blocks while its template renders and its text is tokenized.

    `deadline_seconds` is on the monotonic clock; `prefix` stands before every path; `session`, where one is named, is
    held. Raises InvalidRequestError,
    ContextLengthError and UnimplementedError, each with the path of its field.
    """
    vocabulary_size = description.vocabulary_size
    refuse_malformed(message, prefix)
    refuse_unimplemented(message, prefix)
    metadata = bounds.labels(
        f"{prefix}metadata",
        message.metadata,
        limits.METADATA_ENTRIES_MAX,
        limits.METADATA_KEY_BYTES_MAX,
        limits.METADATA_VALUE_BYTES_MAX,
    )
    returns = return_options(message.return_options, f"{prefix}return_options.", streams)
    sampling = sampling_parameters(message.sampling, vocabulary_size, f"{prefix}sampling.", session)
    stopping = stopping_parameters(message.stopping, description, runtime.tokenizer, f"{prefix}stopping.")
    choices = message.sampling.n if message.sampling.HasField("n") else 1
    bounds.number(f"{prefix}sampling.n", choices, 1, 1 if session is not None else limits.CHOICES_MAX)
    priority = bounds.number(f"{prefix}priority", message.priority, -limits.PRIORITY_MAX, limits.PRIORITY_MAX)
    request_id = name_request(message.request_id, f"{prefix}request_id")
    history = 0 if session is None else session.settled
    prompt, text = prompt_tokens(message, description, runtime, prefix, session)
    check_context(history + prompt.size, stopping.max_tokens, description.context_tokens, prefix)
    request = Request(
        request_id,
        prompt,
        sampling,
        stopping,
        choices=choices,
        top_logprobs=max(returns.logprobs or 0, returns.prompt_logprobs or 0),
        prompt_logprobs=returns.prompt_logprobs is not None,
        priority=int(priority),
        deadline_seconds=deadline_seconds,
        session=session,
    )
    return Prepared(
        request,
        stop_strings=tuple(message.stopping.stop_strings),
        include_stop=message.stopping.include_stop,
        returns=returns,
        echo=text() if message.return_options.echo else "",
        metadata=metadata,
        text=session.text if session is not None and prompt.size == 0 else TextState(),
    )


def refuse_malformed(message: Message, path: str) -> None:
    """Raises for the first string that holds U+0000, and for the first enum value that the contract does not have."""
    for field, value in message.ListFields():
        where = f"{path}{field.name}"
        if field.type == FieldDescriptor.TYPE_ENUM:
            if field.enum_type is not None and value not in field.enum_type.values_by_number:
                bounds.refuse(where, value, "a value of the enum", f"Use one of {field.enum_type.name}.")
        elif field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        elif not field.is_repeated:
            refuse_malformed_value(value, where)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in value:
                refuse_malformed_value(key, f"{where}[{key!r}]")
                refuse_malformed_value(value[key], f"{where}[{key!r}]")
        else:
            for index, entry in enumerate(value):
                refuse_malformed_value(entry, f"{where}[{index}]")


def refuse_malformed_value(value: object, path: str) -> None:
    """The same for one value."""
    if isinstance(value, Message):
        refuse_malformed(value, f"{path}.")
    elif isinstance(value, str) and (index := value.find("\0")) >= 0:
        bounds.refuse(path, f"holding U+0000 at character {index}", "without it", "Remove the character.")


def refuse_unimplemented(message: inference_pb2.InferRequest, prefix: str) -> None:
    """Raises UnimplementedError for the first field that asks for what is not built yet."""
    asked = (
        ("truncation", message.truncation.strategy > inference_pb2.TRUNCATION_STRATEGY_NONE, "prompts are not cut yet"),
        ("structured_output", message.HasField("structured_output"), "the form of answers cannot be set yet"),
        ("adapters", len(message.adapters) > 0, "adapters are not loaded yet"),
        ("cache_salt", message.cache_salt != "", "pages are not shared between requests yet"),
        ("prefix_reuse", message.prefix_reuse not in EXACT_REUSE, "pages are not shared between requests yet"),
    )
    for field, is_asked, why in asked:
        if is_asked:
            bounds.unimplemented(prefix + field, why)
    if message.HasField("truncation") and (
        message.truncation.HasField("prompt_tokens_max") or message.truncation.HasField("keep_tokens")
    ):
        bounds.unimplemented(f"{prefix}truncation", "prompts are not cut yet")


def session_name(message: inference_pb2.InferRequest, prefix: str) -> str:
    """The session's id; "" where none is named."""
    name = message.session_id and checked_session_id(message.session_id, f"{prefix}session_id")
    if not name and message.HasField("snapshot_afterwards"):
        bounds.refuse(f"{prefix}snapshot_afterwards", "set", "absent without session_id", "Name a session.")
    return name


def checked_session_id(name: str, path: str) -> str:
    """The id of a session, if it is one."""
    if not REQUEST_ID.fullmatch(name):
        most = limits.REQUEST_ID_BYTES_MAX
        bounds.refuse(path, repr(name), f"1 … {most} letters, digits and -_.:/", "Name a session.")
    return name


def save_options(message: inference_pb2.SnapshotAfterwards | snapshot_pb2.SaveRequest, prefix: str = "") -> SaveOptions:
    """What a save is told beside the session."""
    bounds.size(f"{prefix}agent_state", len(message.agent_state), limits.AGENT_STATE_INLINE_BYTES_MAX)
    bounds.length(f"{prefix}step_name", message.step_name, 0, limits.STEP_NAME_BYTES_MAX)
    labels = bounds.labels(
        f"{prefix}labels",
        message.labels,
        limits.LABELS_MAX,
        limits.LABEL_KEY_BYTES_MAX,
        limits.LABEL_VALUE_BYTES_MAX,
    )
    expected = message.expected_version if isinstance(message, snapshot_pb2.SaveRequest) else 0
    is_expected = isinstance(message, snapshot_pb2.SaveRequest) and message.HasField("expected_version")
    return SaveOptions(
        agent_state=message.agent_state if message.HasField("agent_state") else None,
        keeps_pages=message.cache_retention != snapshot_pb2.CACHE_RETENTION_NONE,
        pages_type="q8_0" if message.cache_retention == snapshot_pb2.CACHE_RETENTION_PAGES_Q8_0 else "",
        labels=labels,
        step_number=message.step_number if message.HasField("step_number") else None,
        step_name=message.step_name,
        expected_version=expected if is_expected else None,
    )


def name_request(name: str, path: str) -> str:
    """The request's name, made up if it has none."""
    if not name:
        return secrets.token_hex(8)
    if not REQUEST_ID.fullmatch(name):
        bounds.refuse(path, repr(name), f"1 … {limits.REQUEST_ID_BYTES_MAX} letters, digits and -_.:/")
    return name


def expected_hash(value: str, path: str) -> str:
    """A SHA-256 in hexadecimal, or ""."""
    if value and not SHA256.fullmatch(value):
        bounds.refuse(path, repr(value), "64 hexadecimal digits")
    return value


def return_options(message: inference_pb2.ReturnOptions, path: str, streams: bool) -> Returns:
    """What the answer carries beside its text."""
    if message.prompt_progress and not streams:
        bounds.refuse(f"{path}prompt_progress", "true", "false but in StreamInfer", "Call StreamInfer for progress.")
    top: dict[str, int | None] = {"logprobs": None, "prompt_logprobs": None}
    for name in top:
        if message.HasField(name):
            top[name] = int(bounds.number(path + name, getattr(message, name), 0, limits.TOP_LOGPROBS_MAX))
    return Returns(
        token_ids=message.token_ids,
        prompt_token_ids=message.prompt_token_ids,
        timings=message.timings if message.HasField("timings") else True,
        prompt_progress=message.prompt_progress,
        **top,
    )


def sampling_parameters(
    message: inference_pb2.SamplingParameters, vocabulary_size: int, path: str, session: Session | None = None
) -> SamplingParameters:
    """How a token is chosen. Without a seed the session's goes on, or one is drawn."""
    kept = None if session is None else session.seed
    numbers = {}
    for bound in SAMPLING:
        given = getattr(message, bound.name) if message.HasField(bound.name) else bound.default
        numbers[bound.name] = bounds.number(path + bound.name, given, bound.low, bound.high, above=bound.above)
    bounds.count(f"{path}logit_bias", len(message.logit_bias), limits.LOGIT_BIAS_ENTRIES_MAX)
    for token, bias in message.logit_bias.items():
        bounds.token_id(f"{path}logit_bias[{token}]", token, vocabulary_size)
        bounds.number(f"{path}logit_bias[{token}]", bias, -BIAS_MAX, BIAS_MAX)
    allowed = token_ids(
        message.allowed_token_ids, limits.ALLOWED_TOKEN_IDS_MAX, vocabulary_size, f"{path}allowed_token_ids"
    )
    return SamplingParameters(
        **numbers,  # type: ignore[arg-type]
        seed=message.seed if message.HasField("seed") else secrets.randbits(64) if kept is None else kept,
        logit_bias=dict(message.logit_bias),
        allowed_token_ids=frozenset(allowed.tolist()) if allowed.size else None,
    )


def stopping_parameters(
    message: inference_pb2.StoppingParameters, description: ModelDescription, tokenizer: Tokenizer, path: str
) -> StoppingParameters:
    """When an answer ends; stop strings are matched above."""
    max_tokens = message.max_tokens if message.HasField("max_tokens") else None
    most = description.context_tokens if max_tokens is None else max_tokens
    bounds.number(f"{path}min_tokens", message.min_tokens, 0, most)
    bounds.count(f"{path}stop_strings", len(message.stop_strings), limits.STOP_STRINGS_MAX)
    for index, text in enumerate(message.stop_strings):
        bounds.length(f"{path}stop_strings[{index}]", text, 1, limits.STOP_STRING_BYTES_MAX)
    if message.HasField("time_limit_ms"):
        bounds.number(f"{path}time_limit_ms", message.time_limit_ms, 1, limits.TIME_LIMIT_MS_MAX)
    stops = token_ids(
        message.stop_token_ids, limits.STOP_TOKEN_IDS_MAX, description.vocabulary_size, f"{path}stop_token_ids"
    )
    return StoppingParameters(
        max_tokens=max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=frozenset(stops.tolist()),
        end_token_ids=frozenset() if message.ignore_eos else tokenizer.eog_ids,
        time_limit_seconds=message.time_limit_ms / 1_000 if message.HasField("time_limit_ms") else None,
    )


def token_ids(ids: Sequence[int], count_max: int, vocabulary_size: int, path: str) -> NDArray[np.int32]:
    """The ids as an array, if they are few enough and the vocabulary has them."""
    bounds.count(path, len(ids), count_max)
    array = np.fromiter(ids, np.int64, len(ids))
    if (bad := np.flatnonzero(array >= vocabulary_size)).size:
        bounds.token_id(f"{path}[{bad[0]}]", int(array[bad[0]]), vocabulary_size)
    return array.astype(np.int32)


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
        ids = token_ids(message.token_ids.ids, description.context_tokens, description.vocabulary_size, path)
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
    ids = token_ids(message.token_ids, limits.DETOKENIZED_IDS_MAX, description.vocabulary_size, "token_ids")
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
