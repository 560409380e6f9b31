"""The README is true: its tables follow from the code, its Python runs, its commands and targets exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import json_format, message_factory

from magnitude.v1 import health_pb2, inference_pb2
from tests.support import readme
from tests.support.serving import Served, magnitude, serving
from tests.support.tiny_models import write_tiny_model

TEXT = readme.README.read_text(encoding="utf-8")
CLIENT_TEXT = (readme.ROOT / "clients/python/README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "M.gguf", tensor_type="Q8_0")
    with serving(model) as served:
        yield served


def test_the_generated_parts_are_up_to_date() -> None:
    assert readme.generated(TEXT) == TEXT, "run `make readme`"


@pytest.mark.parametrize("text", [TEXT, CLIENT_TEXT], ids=["README", "clients/python/README"])
def test_the_python_runs_as_it_stands(text: str, server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = readme.python_snippets(text)
    assert len(snippets) >= 2
    if text is CLIENT_TEXT:  # its second snippet goes on with the client of the first, which `with` has closed
        snippets[1] = "client = magnitude.Client('127.0.0.1:50051')\n" + snippets[1] + "client.close()\n"
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet.replace("127.0.0.1:50051", server.address), "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert "INVALID_REQUEST" in out
    assert "sampling.temperature" in out


def test_every_magnitude_command_of_it_is_accepted(tmp_path: Path, server: Served) -> None:
    """Each with a small model for M.gguf and our server's address; `serve` only as a dry run."""
    model = write_tiny_model(tmp_path / "M.gguf", tensor_type="Q8_0")
    commands = re.findall(r"^magnitude (serve|infer|inspect) (.*)$", TEXT, re.MULTILINE)
    assert len(commands) >= 5
    for command, rest in commands:
        arguments = [str(model) if word == "M.gguf" else word for word in shlex.split(rest, comments=True)]
        if command == "serve" and not {"--dry-run", "--validate-config"} & set(arguments):
            arguments.append("--dry-run")
        if command == "infer":
            arguments += ["--max-tokens", "2"]
        done = magnitude(command, *arguments, MAGNITUDE_ADDRESS=server.address, MAGNITUDE_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, (command, arguments, done.stderr)


def test_what_it_sends_by_grpcurl_is_a_request_of_the_contract() -> None:
    calls = re.findall(r"^grpcurl -plaintext (?:-d '(.*?)' \\\n +)?\S+ magnitude\.v1\.(\w+)/(\w+)$", TEXT, re.MULTILINE)
    assert len(calls) == TEXT.count("\ngrpcurl ") == 2
    services = {
        service.name: service
        for file in (inference_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
    }
    for body, service, method in calls:
        request = services[service].methods_by_name[method].input_type
        json_format.Parse(body or "{}", message_factory.GetMessageClass(request)())


def test_every_source_that_it_pulls_is_one() -> None:
    from magnitude_service.loader.sources import parse_sources

    pulls = re.findall(r"^magnitude pull (.*)$", TEXT, re.MULTILINE)
    assert len(pulls) >= 4
    for rest in pulls:
        assert parse_sources(shlex.split(rest, comments=True)[:1])


def test_every_target_that_it_names_exists() -> None:
    makefile = (readme.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", TEXT)) | set(re.findall(r"^make ([a-z-]+)", TEXT, re.MULTILINE))
    assert {"run", "test", "lint"} <= named <= targets


def test_every_dependency_has_its_licence_in_it_and_in_the_project_file() -> None:
    project = (readme.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = project.split("dependencies = [\n", 1)[1].split("\n]", 1)[0]
    licences = TEXT.split("## Licences", 1)[1].lower()
    names = re.findall(r'^  "([a-z0-9-]+)', block, re.MULTILINE)
    assert len(names) > 8
    for name in names:
        if name != "magnitude-client":
            assert name.removeprefix("grpcio-").removesuffix("-checking") in licences, name


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) < 200
