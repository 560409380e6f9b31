"""Writes the Python of the contract: `python proto/generate.py` fills clients/python/magnitude/v1.

Messages and their types come from protoc, servicers and stubs from its grpc plugin; the types of the latter,
which the plugin does not write, from here. A test runs this again and compares every byte, so that nobody
edits what it wrote.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
PACKAGE = "magnitude/v1"
TARGET = PROTO.parent / "clients" / "python"
NOTICE = '"""Generated from proto/magnitude/v1 by proto/generate.py. Do not edit."""\n'


def generate(target: Path = TARGET) -> list[Path]:
    """Writes all files below `target` and returns them. Raises RuntimeError if protoc refuses the contract."""
    sources = sorted(str(path.relative_to(PROTO)) for path in (PROTO / PACKAGE).glob("*.proto"))
    folder = target / PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    descriptors = folder / ".descriptors"
    include = resources.files("grpc_tools") / "_proto"
    arguments = [f"-I{PROTO}", f"-I{include}", f"--python_out={target}", f"--pyi_out={target}"]
    arguments += [f"--grpc_python_out={target}", f"--descriptor_set_out={descriptors}", *sources]
    if protoc.main(["protoc", *arguments]) != 0:
        raise RuntimeError("protoc refused the contract; its message is above.")
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file
    descriptors.unlink()
    for file in files:
        stubs = target / (file.name.removesuffix(".proto") + "_pb2_grpc.py")
        if file.service:
            stubs.with_suffix(".pyi").write_text(grpc_types(file))
        else:
            stubs.unlink()
    (folder / "__init__.py").write_text(NOTICE)
    return sorted(path for path in folder.iterdir() if path.is_file())


def grpc_types(file: descriptor_pb2.FileDescriptorProto) -> str:
    """Types of one file's stubs and servicers. Every message of an rpc stands in the rpc's own file."""
    module = Path(file.name).stem + "_pb2"
    lines = [
        NOTICE,
        "from collections.abc import AsyncIterable, AsyncIterator, Awaitable",
        "from typing import Any",
        "",
        "import grpc",
        "import grpc.aio",
        "",
        f"from magnitude.v1 import {module}",
    ]
    for service in file.service:
        lines += ["", f"class {service.name}Stub:"]
        lines += ["    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ..."]
        lines += [f"    {method.name}: {multi_callable(method, module)}" for method in service.method]
        lines += ["", f"class {service.name}Servicer:"]
        lines += [f"    def {method.name}{servicer_signature(method, module)}" for method in service.method]
        lines += ["", f"def add_{service.name}Servicer_to_server("]
        lines += [f"    servicer: {service.name}Servicer, server: grpc.Server | grpc.aio.Server", ") -> None: ..."]
    return "\n".join(lines) + "\n"


def multi_callable(method: descriptor_pb2.MethodDescriptorProto, module: str) -> str:
    """Type of a stub's attribute, as `types-grpcio` has it."""
    kinds = {False: "Unary", True: "Stream"}
    kind = f"grpc.{kinds[method.client_streaming]}{kinds[method.server_streaming]}MultiCallable"
    return f"{kind}[{', '.join(messages(method, module))}]"


def servicer_signature(method: descriptor_pb2.MethodDescriptorProto, module: str) -> str:
    """Signature of a servicer's method on the asyncio server."""
    asked, answer = messages(method, module)
    asked = f"AsyncIterable[{asked}]" if method.client_streaming else asked
    answer = f"AsyncIterator[{answer}]" if method.server_streaming else f"Awaitable[{answer}]"
    return f"(self, request: {asked}, context: Any) -> {answer}: ..."


def messages(method: descriptor_pb2.MethodDescriptorProto, module: str) -> tuple[str, str]:
    """Names of what an rpc takes and gives."""
    asked, answer = (f"{module}.{name.rsplit('.', 1)[-1]}" for name in (method.input_type, method.output_type))
    return asked, answer


if __name__ == "__main__":
    for path in generate():
        sys.stdout.write(f"{path}\n")
