"""The tokens of a request depend on the request alone: not on who else is served, nor on how the answer is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from magnitude.client import Client
from magnitude.v1 import inference_pb2
from tests.support.serving import serving

REQUESTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1e-9},
    {"temperature": 1, "seed": 7},
    {"temperature": 2, "seed": 2**64 - 1, "top_k": 0, "top_p": 1, "min_p": 0},
    {"temperature": 0.8, "seed": 7, "n": 4},
    {"temperature": 1, "seed": 3, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"temperature": 1, "seed": 3, "typical_p": 0.7, "logit_bias": {70: 4.0}, "min_tokens": 5},
)
PROMPTS = ("hello", "the " * 90, "Once upon a time " * 40)
Answer = list[tuple[str, list[int], list[float]]]


def returns(**options: Any) -> dict[str, Any]:
    return {
        "max_tokens": 24,
        "return_options": inference_pb2.ReturnOptions(token_ids=True, logprobs=2),
        **options,
    }


def unary(client: Client, prompt: str, options: dict[str, Any]) -> Answer:
    """Text, tokens and log-probabilities of each choice."""
    choices = client.infer(prompt, **returns(**options)).choices
    return [(c.text, list(c.token_ids), [entry.logprob for entry in c.logprobs]) for c in choices]


def streamed(client: Client, prompt: str, options: dict[str, Any]) -> Answer:
    """The same from the deltas of a stream."""
    found: Answer = [("", [], []) for _ in range(options.get("n", 1))]
    for event in client.stream(prompt, **returns(**options)):
        if event.HasField("delta"):
            text, tokens, logprobs = found[event.delta.index]
            tokens += event.delta.token_ids
            logprobs += [entry.logprob for entry in event.delta.logprobs]
            found[event.delta.index] = (text + event.delta.text, tokens, logprobs)
    return found


@contextmanager
def crowd(client: Client, prompt: str) -> Iterator[None]:
    """Eight other streams that come and go while the context lasts."""
    stopped = threading.Event()

    def work(seed: int) -> None:
        while not stopped.is_set():
            for _ in client.stream(prompt * (seed + 1), max_tokens=7 + 3 * seed, seed=seed, temperature=seed % 2):
                if stopped.is_set():
                    return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("options", REQUESTS, ids=str)
def test_a_request_gives_the_same_alone_and_in_a_crowd_whole_and_streamed(
    client: Client, options: dict[str, Any]
) -> None:
    alone = [unary(client, prompt, options) for prompt in PROMPTS]
    assert all(tokens for answer in alone for _, tokens, _ in answer)
    assert [streamed(client, prompt, options) for prompt in PROMPTS] == alone
    with crowd(client, "hell on the "):
        for _ in range(2):
            assert [unary(client, prompt, options) for prompt in PROMPTS] == alone
            assert [streamed(client, prompt, options) for prompt in PROMPTS] == alone


def test_four_choices_of_a_seed_differ_and_come_again(client: Client) -> None:
    options = {"temperature": 1.0, "seed": 11, "n": 4}
    answer = unary(client, "hello", options)
    assert len({tuple(tokens) for _, tokens, _ in answer}) == 4
    assert unary(client, "hello", options) == answer
    assert unary(client, "hello", {**options, "seed": 12}) != answer
    assert unary(client, "hello", {**options, "n": 1}) == answer[:1], "the first choice is that of n = 1"


def test_without_a_seed_answers_differ_and_the_seed_used_gives_them_again(client: Client) -> None:
    first, second = (client.infer("hello", temperature=1, max_tokens=24, ignore_eos=True) for _ in range(2))
    assert first.seed_used != second.seed_used
    assert first.choices[0].text != second.choices[0].text
    again = client.infer("hello", temperature=1, max_tokens=24, ignore_eos=True, seed=first.seed_used)
    assert again.choices[0].text == first.choices[0].text


def test_a_temperature_next_to_nothing_is_greedy(client: Client) -> None:
    greedy, nearly = (unary(client, "hello", {"temperature": value, "seed": 5}) for value in (0, 1e-9))
    assert [tokens for _, tokens, _ in greedy] == [tokens for _, tokens, _ in nearly]


def test_prompts_are_cut_into_steps_without_a_trace(tiny_path: Path, client: Client) -> None:
    """Another chunking of the same prompt, and another number of threads, give the same bits."""
    options = {"temperature": 1.0, "seed": 4}
    prompt = PROMPTS[2]
    expected = unary(client, prompt, options)
    flags = ("--rows-max", "17", "--output-rows-max", "17", "--threads", "2")
    with serving(tiny_path, *flags) as served, Client(served.address) as other:
        assert unary(other, prompt, options) == expected


@pytest.mark.model
def test_smollm2_answers_the_same_alone_and_among_others(smollm2_path: Path) -> None:
    chat = [{"role": "user", "content": "Name three colours."}]
    with serving(smollm2_path, "--context-tokens", "2048") as served, Client(served.address) as client:
        ask = returns(temperature=0, max_tokens=12)
        alone = client.infer(chat, **ask).choices[0]
        with crowd(client, "Tell me about the sea. "):
            crowded = client.infer(chat, **ask).choices[0]
    assert alone == crowded
    assert alone.text
