"""Whether a request could ever run: decided before it is queued, from the request and the limits alone."""

from __future__ import annotations

from collections import abc

from magnitude_service.engine.batch import PAGE_TOKENS, TOP_LOGPROBS_MAX
from magnitude_service.engine.sampling import SEEDS
from magnitude_service.errors import ContextLengthError, ExhaustedError, InvalidRequestError
from magnitude_service.scheduling.options import ModelLimits, SchedulingOptions
from magnitude_service.scheduling.request import Request
from magnitude_service.scheduling.sequence import RequestState


def check_request(request: Request, limits: ModelLimits, options: SchedulingOptions) -> None:
    """Raises what makes it impossible to run `request`, however empty the server is. Pages are not looked at."""
    _check_ids(request, limits.vocabulary_size)
    _check_context(request, limits.context_tokens)
    if request.session is not None and request.choices != 1:
        raise InvalidRequestError(
            f"{request.choices} choices were asked for in a session, which goes on in one way.",
            remedy="Ask for one, or leave the session out.",
        )
    if not 1 <= request.choices <= options.sequences_max:
        raise InvalidRequestError(
            f"{request.choices} choices were asked for; this server computes 1 to {options.sequences_max} at a time.",
            remedy="Ask for fewer choices, in several requests.",
        )
    if not 0 <= request.top_logprobs <= TOP_LOGPROBS_MAX:
        raise InvalidRequestError(
            f"{request.top_logprobs} likeliest tokens were asked for; 0 to {TOP_LOGPROBS_MAX} are given.",
            remedy="Ask for fewer.",
        )
    if not 0 <= request.sampling.seed < SEEDS:
        raise InvalidRequestError(
            f"The seed {request.sampling.seed} is not within 0 to 2^64 - 1.", remedy="Name another seed, or none."
        )


def check_pages(state: RequestState, pages_total: int) -> None:
    """Raises ExhaustedError for a request whose answers never fit into the key/value cache, all together."""
    if state.pages_in_all > pages_total:
        request = state.request
        answer = max(sequence.generated_max for sequence in state.sequences)
        raise ExhaustedError(
            f"The request needs {state.pages_in_all} key/value pages of {PAGE_TOKENS} tokens ({request.choices} "
            f"choices of up to {answer} tokens after a prompt of {state.prompt.size}), but the cache has "
            f"{pages_total} in all.",
            remedy="Set a smaller max_tokens, ask for fewer choices, or give the server more memory.",
            reason="KV_CACHE_EXHAUSTED",
            pages_needed=state.pages_in_all,
            pages_total=pages_total,
        )


def _check_context(request: Request, context_tokens: int) -> None:
    session_tokens = 0 if request.session is None else request.session.settled
    prompt, wanted = session_tokens + int(request.prompt.size), request.stopping.max_tokens
    if prompt == 0:
        raise InvalidRequestError("The prompt has no tokens.", remedy="Send at least one token.")
    total = prompt + (1 if wanted is None else wanted)
    if total > context_tokens:
        of_session = f" (of which {session_tokens} are the session's)" if session_tokens else ""
        asked = "an answer of at least 1 token" if wanted is None else f"max_tokens of {wanted}"
        raise ContextLengthError(
            f"A prompt of {prompt} tokens{of_session} and {asked} are {total}, but the context has {context_tokens}.",
            remedy=f"Shorten the prompt, or set max_tokens to at most {max(context_tokens - prompt, 0)}.",
            prompt_tokens=prompt,
            context_tokens=context_tokens,
        )
    least = request.stopping.min_tokens
    if least < 0 or (wanted is not None and least > wanted):
        raise InvalidRequestError(
            f"min_tokens is {least}, allowed is 0 to max_tokens ({wanted}).", remedy="Lower min_tokens."
        )


def _check_ids(request: Request, vocabulary_size: int) -> None:
    """Ids index arrays of native code: each one is looked at before it is queued."""
    if request.prompt.size:
        _check_range("the prompt", (int(request.prompt.min()), int(request.prompt.max())), vocabulary_size)
    sampling, stopping = request.sampling, request.stopping
    _check_range("logit_bias", sampling.logit_bias, vocabulary_size)
    _check_range("allowed_token_ids", sampling.allowed_token_ids or (), vocabulary_size)
    _check_range("stop_token_ids", stopping.stop_token_ids | stopping.end_token_ids, vocabulary_size)


def _check_range(name: str, ids: abc.Collection[int], vocabulary_size: int) -> None:
    for token in (min(ids), max(ids)) if ids else ():
        if not 0 <= token < vocabulary_size:
            raise InvalidRequestError(
                f"Token id {token} in {name} is outside of the vocabulary (0 to {vocabulary_size - 1}).",
                remedy="Use ids of this model's tokenizer.",
            )
