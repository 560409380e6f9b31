"""Streams an answer: python stream.py [ADDRESS] [PROMPT]"""

import sys

import magnitude


def main(address: str = "127.0.0.1:50051", prompt: str = "Write a haiku about rain.") -> None:
    with magnitude.Client(address) as client, client.stream([{"role": "user", "content": prompt}]) as stream:
        for text in stream.texts():
            print(text, end="", flush=True)
    assert stream.finished is not None
    timings, usage = stream.finished.timings, stream.finished.usage
    rate = usage.completion_tokens / max(timings.decode_ms, 1e-3) * 1_000
    print(f"\n{usage.prompt_tokens} + {usage.completion_tokens} tokens, {rate:.1f} tokens/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
