"""What became of a request, into protobuf.

Spelling the tokens of log-probabilities takes a while where many are asked for, so that these functions may run beside
the event loop: they change nothing but what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnitude.v1 import common_pb2, inference_pb2
from magnitude_service.scheduling.load import Load
from magnitude_service.scheduling.request import PromptProgress, TokenLogprobs
from magnitude_service.server.answer import ChoiceEnd, Piece
from magnitude_service.server.generation import Generation
from magnitude_service.server.served_models import ServedModel


def infer_response(generation: Generation, model: ServedModel) -> inference_pb2.InferResponse:
    """Everything at once, when the request has ended."""
    prepared = generation.prepared
    pieces = generation.take_pieces()
    answers = zip(generation.answers, pieces, strict=True)
    return inference_pb2.InferResponse(
        request_id=generation.request_id,
        model=model.name,
        model_id=model_id(model),
        content_sha256=model.content_sha256,
        choices=[choice(generation, index, answer.end, piece) for index, (answer, piece) in enumerate(answers)],
        seed_used=prepared.request.sampling.seed,
        usage=usage(generation),
        timings=timings(generation),
        prompt_token_ids=prompt_token_ids(generation),
        prompt_logprobs=prompt_logprobs(generation, generation.take_progress()),
        metadata=prepared.metadata,
    )


def started(generation: Generation, model: ServedModel) -> inference_pb2.StreamInferResponse:
    """The first event of a stream."""
    prepared = generation.prepared
    event = inference_pb2.StreamStarted(
        request_id=generation.request_id,
        model=model.name,
        model_id=model_id(model),
        content_sha256=model.content_sha256,
        seed_used=prepared.request.sampling.seed,
        usage=inference_pb2.Usage(prompt_tokens=prompt_count(generation)),
        prompt_token_ids=prompt_token_ids(generation),
        metadata=prepared.metadata,
    )
    return inference_pb2.StreamInferResponse(started=event)


def progress(generation: Generation, event: PromptProgress | None) -> inference_pb2.StreamInferResponse | None:
    """How far the prompt is, if that is new and asked for."""
    returns = generation.prepared.returns
    if event is None or not (returns.prompt_progress or (returns.prompt_logprobs is not None and event.logprobs)):
        return None
    logprobs = prompt_logprobs(generation, event)
    first_index = logprobs_begin(generation, event) if logprobs else 0
    return inference_pb2.StreamInferResponse(
        prompt_progress=inference_pb2.PromptProgress(
            done_tokens=event.done, total_tokens=event.total, first_index=first_index, logprobs=logprobs
        )
    )


def deltas(generation: Generation, pieces: Sequence[Piece]) -> list[inference_pb2.StreamInferResponse]:
    """What was added to each choice, where something is to be shown."""
    returns = generation.prepared.returns
    events = []
    for index, piece in enumerate(pieces):
        shows_tokens = piece.token_ids and (returns.token_ids or returns.logprobs is not None)
        if piece.text or shows_tokens:
            delta = inference_pb2.StreamDelta(
                index=index,
                text=piece.text,
                token_ids=piece.token_ids if returns.token_ids else (),
                logprobs=token_logprobs(generation, piece),
            )
            events.append(inference_pb2.StreamInferResponse(delta=delta))
    return events


def finished(generation: Generation) -> inference_pb2.StreamInferResponse:
    """The last event of a stream that succeeds."""
    ends = [choice_end(index, answer.end) for index, answer in enumerate(generation.answers)]
    return inference_pb2.StreamInferResponse(
        finished=inference_pb2.StreamFinished(ends=ends, usage=usage(generation), timings=timings(generation))
    )


def choice(generation: Generation, index: int, end: ChoiceEnd | None, piece: Piece) -> inference_pb2.Choice:
    """One whole answer."""
    return inference_pb2.Choice(
        index=index,
        text=piece.text,
        token_ids=piece.token_ids if generation.prepared.returns.token_ids else (),
        logprobs=token_logprobs(generation, piece),
        end=choice_end(index, end),
    )


def choice_end(index: int, end: ChoiceEnd | None) -> inference_pb2.ChoiceEnd:
    """How a choice ended."""
    assert end is not None, "a request ends when all its choices have"
    reason = inference_pb2.FinishReason.Value(f"FINISH_REASON_{end.reason.value}")
    message = inference_pb2.ChoiceEnd(index=index, finish_reason=reason)  # type: ignore[arg-type]
    if end.stop_string is not None:
        message.stop_string = end.stop_string
    elif end.stop_token_id is not None:
        message.stop_token_id = end.stop_token_id
    return message


def usage(generation: Generation) -> inference_pb2.Usage:
    """What the request cost."""
    return inference_pb2.Usage(
        prompt_tokens=prompt_count(generation),
        cached_tokens=generation.finished.cached_tokens if generation.finished else 0,
        completion_tokens=sum(answer.tokens_kept for answer in generation.answers),
    )


def timings(generation: Generation) -> inference_pb2.Timings | None:
    """How long each part took, unless that is not wanted."""
    if generation.finished is None or not generation.prepared.returns.timings:
        return None
    seconds = generation.finished.timings
    return inference_pb2.Timings(
        queue_ms=seconds.queue * 1_000,
        prefill_ms=seconds.prefill * 1_000,
        first_token_ms=seconds.first_token * 1_000,
        decode_ms=seconds.decode * 1_000,
        total_ms=seconds.total * 1_000,
    )


def prompt_token_ids(generation: Generation) -> list[int]:
    """The prompt's tokens, where asked for."""
    wanted = generation.prepared.returns.prompt_token_ids
    return generation.prepared.request.prompt.tolist() if wanted else []


def token_logprobs(generation: Generation, piece: Piece) -> list[inference_pb2.TokenLogprobs]:
    """One entry per token of the piece, where asked for."""
    top = generation.prepared.returns.logprobs
    if top is None:
        return []
    pairs = zip(piece.token_ids, piece.logprobs, strict=True)
    return [logprobs_entry(generation.spell, token, found, top) for token, found in pairs]


def prompt_count(generation: Generation) -> int:
    """Tokens of the prompt and of the session that it continues."""
    return generation.session_tokens + int(generation.prepared.request.prompt.size)


def logprobs_begin(generation: Generation, event: PromptProgress) -> int:
    """Index in the prompt of the first entry: token 0, which without a session has no log-probability, goes with
    token 1."""
    return 0 if event.first == 1 and not generation.session_tokens else event.first


def prompt_logprobs(generation: Generation, event: PromptProgress | None) -> list[inference_pb2.TokenLogprobs]:
    """One entry per prompt token that the event covers, where asked for."""
    top = generation.prepared.returns.prompt_logprobs
    if top is None or event is None or not event.logprobs:
        return []
    tokens = generation.prepared.request.prompt.tolist()
    found: list[TokenLogprobs | None] = [None] * (event.first - logprobs_begin(generation, event))
    found += event.logprobs
    covered = tokens[logprobs_begin(generation, event) :]
    return [
        logprobs_entry(generation.spell, token, entry, top)
        for token, entry in zip(covered, found, strict=False)  # the event covers a run of the prompt
    ]


def logprobs_entry(
    spell: Callable[[int], bytes], token: int, found: TokenLogprobs | None, top: int
) -> inference_pb2.TokenLogprobs:
    """A token's log-probability and its `top` likeliest rivals."""
    entry = inference_pb2.TokenLogprobs(token_id=token, token=spell(token))
    if found is None:
        return entry
    entry.logprob = found.logprob
    for rival, logprob in found.top[:top]:
        entry.top.add(token_id=rival, logprob=logprob, token=spell(rival))
    return entry


def model_id(model: ServedModel) -> str:
    """The model's id, "" before it is known."""
    return model.description.model_id if model.description else ""


def load(found: Load) -> common_pb2.Load:
    """How busy a model is."""
    return common_pb2.Load(
        running_requests=found.running,
        waiting_requests=found.waiting,
        pages_used=found.pages_used,
        pages_total=found.pages_total,
        tokens_per_second=found.tokens_per_second,
    )
