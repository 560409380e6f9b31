"""`magnitude infer`: from a server and in this process, the same words; nothing else on standard output."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from magnitude_service.cli.infer import split_settings
from tests.support.serving import MAGNITUDE, Served, environment, magnitude

SPEEDS = r"\[prompt \d+ tokens, .+; answer \d+ tokens, .+\]\n"
QUESTION = ("--temperature", "0", "--max-tokens", "8", "hello")


def test_a_server_and_this_process_answer_alike_and_print_nothing_else(server: Served, tiny_model: Path) -> None:
    asked = magnitude("infer", "--address", server.address, *QUESTION)
    inside = magnitude("infer", "--model", tiny_model, "--threads", "1", *QUESTION)
    for done in (asked, inside):
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(SPEEDS, done.stderr)
    assert asked.stdout == inside.stdout != "\n"


def test_the_instruction_set_can_be_forced_in_this_process(tiny_model: Path) -> None:
    done = magnitude("infer", "--model-path", tiny_model, *QUESTION, MAGNITUDE_CPU_ISA="scalar")
    assert done.returncode == 0, done.stderr


def test_the_server_is_named_by_variable_or_by_host_and_port(server: Served) -> None:
    host, port = server.address.rsplit(":", 1)
    assert magnitude("infer", *QUESTION, MAGNITUDE_ADDRESS=server.address).returncode == 0
    assert magnitude("infer", "--host", host, "--port", port, *QUESTION, MAGNITUDE_ADDRESS="nowhere:1").returncode == 0


def test_a_prompt_comes_from_standard_input_and_raw_leaves_out_the_template(server: Served) -> None:
    flags = ("--address", server.address, "--max-tokens", "1")
    raw = magnitude("infer", *flags, "--raw", "-", given="hello")
    chat = magnitude("infer", *flags, "-", given="hello")
    tokens = [int(re.search(r"prompt (\d+)", done.stderr)[1]) for done in (raw, chat)]  # type: ignore[index]
    assert 0 < tokens[0] < tokens[1]


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--temperature", "-1"], 64, "temperature is -1"),
        (["--max-tokens", "100000"], 64, "context"),
        (["--timeout", "1", "--max-tokens", "400"], 75, "The answer took longer than --timeout allows. Raise it."),
    ],
)
def test_what_the_server_refuses_is_one_line_with_the_status_of_its_kind(
    server: Served, flags: list[str], status: int, words: str
) -> None:
    done = magnitude("infer", "--address", server.address, *flags, "hello")
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_nobody_at_the_address_is_said_with_what_to_do() -> None:
    done = magnitude("infer", "--address", "127.0.0.1:1", "--timeout", "20000", "hello")
    assert done.returncode == 75
    assert done.stderr.startswith("magnitude: Nobody answers at 127.0.0.1:1 (")
    assert done.stderr.endswith(
        "Start a server with `magnitude serve --model FILE`, or answer here with `--model FILE`.\n"
    )
    assert done.stderr.count("\n") == 1


def test_a_model_that_cannot_be_loaded_is_said_as_serve_says_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no model")
    done = magnitude("infer", "--model", tmp_path / "m.gguf", "hello")
    assert done.returncode == 65
    assert done.stderr.startswith(f"magnitude: {tmp_path / 'm.gguf'}")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_ends_an_answer_at_once_and_without_a_traceback(tiny_model: Path) -> None:
    flags = ["--model", str(tiny_model), "--threads", "1", "--executor", "native", "--max-tokens", "400"]
    command = [*MAGNITUDE, "infer", *flags, "--temperature", "1.5", "hello"]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode in (130, 0), errors  # 0: the tiny model was faster than the signal
    assert "Traceback" not in errors


def test_settings_and_flags_of_the_command_are_told_apart() -> None:
    arguments = ["--threads", "2", "--temperature", "-1", "--no-mmap", "hi there", "--timeout", "5", "--", "--port"]
    settings, rest = split_settings(arguments)
    assert settings == {"threads": "2", "mmap": False}
    assert rest == ["--temperature", "-1", "hi there", "--timeout", "5", "--", "--port"]
