"""The contract: what is generated is what protoc makes of it, and it keeps to its own rules."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor

from magnitude.v1 import common_pb2, health_pb2, inference_pb2, model_pb2, snapshot_pb2

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "clients/python/magnitude/v1"
FILES: list[FileDescriptor] = [
    module.DESCRIPTOR for module in (common_pb2, health_pb2, inference_pb2, model_pb2, snapshot_pb2)
]
BUF_LINT_FAILED = 100
NETWORK_FAULTS = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "network")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto/generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_python_is_what_the_contract_generates(tmp_path: Path) -> None:
    made = generator().generate(tmp_path)
    assert {path.name for path in made} == {path.name for path in GENERATED.iterdir() if path.is_file()}
    for path in made:
        assert (GENERATED / path.name).read_bytes() == path.read_bytes(), f"{path.name}: run `python proto/generate.py`"


def buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the version of buf that buf.yaml names."""
    version = re.search(r"@bufbuild/buf@([\d.]+)", (ROOT / "buf.yaml").read_text())
    assert version
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("npx is not installed; it fetches buf")
    command = [npx, "--yes", f"@bufbuild/buf@{version.group(1)}", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    if result.returncode not in (0, BUF_LINT_FAILED) and any(fault in result.stderr for fault in NETWORK_FAULTS):
        pytest.skip("npx cannot reach the npm registry")
    return result


def test_buf_finds_nothing_to_complain_about() -> None:
    result = buf("lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_buf_would_format_nothing_otherwise() -> None:
    result = buf("format", "--diff", "--exit-code")
    assert result.returncode == 0, result.stdout + result.stderr


def test_lint_is_the_standard_category_without_exceptions() -> None:
    text = (ROOT / "buf.yaml").read_text()
    assert "- STANDARD" in text
    assert "except" not in text
    assert "ignore" not in text
    assert not [path for path in (ROOT / "proto").rglob("*.proto") if "buf:lint:ignore" in path.read_text()]


def test_every_rpc_that_the_design_names_is_there() -> None:
    found = {
        service.name: {method.name for method in service.methods}
        for file in FILES
        for service in file.services_by_name.values()
    }
    assert found == {
        "InferenceService": {"Infer", "StreamInfer", "Abort", "Tokenize", "Detokenize", "GetLoad"},
        "ModelService": {"ListModels", "GetModel", "LoadModel", "UnloadModel", "ReloadModel"},
        "HealthService": {"Health"},
        "SnapshotService": {
            *("Save", "Restore", "Get", "List", "Delete", "Compact"),
            *("ExportState", "ImportState"),
        },
    }


def numbers() -> list[FieldDescriptor]:
    """Every singular scalar field that is a number, of messages that callers fill in."""
    asked = re.compile(r"(Request|Parameters|Options|Scale|Truncation)$")
    messages = [message for file in FILES for message in file.message_types_by_name.values()]
    kinds = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_MESSAGE, FieldDescriptor.CPPTYPE_ENUM)
    return [
        field
        for message in messages
        if asked.search(message.name)
        for field in message.fields
        if not field.is_repeated and field.cpp_type not in (*kinds, FieldDescriptor.CPPTYPE_BOOL)
    ]


@pytest.mark.parametrize("field", numbers(), ids=lambda field: field.full_name)
def test_a_number_in_a_request_tells_absence_from_zero(field: FieldDescriptor) -> None:
    assert field.has_presence


def test_units_stand_in_names() -> None:
    for file in FILES:
        for message in file.message_types_by_name.values():
            for field in message.fields:
                is_time = re.search(r"(time|limit|delay|interval|timeout|duration)", field.name)
                if is_time and field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_DOUBLE):
                    assert field.name.endswith(("_ms", "_seconds", "_tokens")), field.full_name


def test_no_field_has_the_name_of_an_accessor_that_java_makes_for_another() -> None:
    """Java is built by `make check-clients` only: `text_bytes` beside a string `text` does not compile there."""
    for file in FILES:
        for message in file.message_types_by_name.values():
            names = {field.name for field in message.fields}
            for field in message.fields:
                made = {f"{field.name}_bytes"} if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else set()
                made |= {f"{field.name}_count", f"{field.name}_list"} if field.is_repeated else set()
                assert not names & made, f"{field.full_name}: {names & made}"
