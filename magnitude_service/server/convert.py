"""Protobuf into Request; parts of it are parameters.py's, prompt.py's and chat.py's. The way back is answers.py.

Every field is read in these and nowhere else. What is out of bounds is refused with its path, its value and its bound;
what is not built yet is refused with UNIMPLEMENTED and its path. Nothing is ignored.
"""

from __future__ import annotations

import re
import secrets

from magnitude.v1 import inference_pb2, snapshot_pb2
from magnitude_service.scheduling.request import Request
from magnitude_service.scheduling.session import Session, TextState
from magnitude_service.server import bounds, limits
from magnitude_service.server.malformed import refuse_malformed
from magnitude_service.server.parameters import sampling_parameters, stopping_parameters
from magnitude_service.server.prepared import Prepared, Returns
from magnitude_service.server.prompt import check_context, prompt_tokens
from magnitude_service.server.served_models import ModelDescription, Runtime
from magnitude_service.server.state_store import SaveOptions

REQUEST_ID = re.compile(f"[A-Za-z0-9_.:/-]{{1,{limits.REQUEST_ID_BYTES_MAX}}}")
SHA256 = re.compile("[0-9A-Fa-f]{64}")
EXACT_REUSE = (0, inference_pb2.PREFIX_REUSE_EXACT, inference_pb2.PREFIX_REUSE_NONE)


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
    held. Raises InvalidRequestError, ContextLengthError and UnimplementedError, each with the path of its field.
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
