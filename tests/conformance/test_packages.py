"""Each client is a package of its ecosystem, which a program of somebody else's can use; its example runs as printed.

The tests of TypeScript, Rust, Java and C++ need what test_clients.py has built.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conformance.conftest import Reached
from tests.conformance.toolchains import BUILD_SECONDS_MAX, BUILDS, CLIENTS, IN_CI, ROOT, run

EXAMPLES = {
    "python": ("python examples/stream.py", " {address}"),
    "go": ("go run ./examples/stream", " -address {address}"),
    "typescript": ("npm run example", " -- {address}"),
    "rust": ("cargo run --example stream", " {address}"),
    "java": ("mvn -q test-compile exec:java", " -Dexec.args={address}"),
    "cpp": ("build/stream", " {address}"),
}
"""As the README prints it, and how another address is given."""

pytestmark = pytest.mark.timeout(BUILD_SECONDS_MAX)


def said(folder: Path, *command: str | Path) -> str:
    """What a command says on standard output, run in a folder; it must end well."""
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{' '.join(parts)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.heavy) for name in EXAMPLES]
)
def test_the_example_runs_as_the_readme_prints_it(client: str, plain: Reached, tmp_path: Path) -> None:
    BUILDS[client](tmp_path)
    printed, another = EXAMPLES[client]
    assert printed in (CLIENTS / client / "README.md").read_text(encoding="utf-8")
    command = printed.replace("python ", f"{sys.executable} ")
    told = said(CLIENTS / client, "bash", "-c", command + another.format(address=plain.address))
    assert re.search(r"^\d+ \+ \d+ tokens, [\d.]+ tokens/s$", told, re.MULTILINE), told


def test_python_is_a_typed_wheel(tmp_path: Path) -> None:
    folder = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    run("python", sys.executable, "-m", "pip", "wheel", *folder, ".")
    [wheel] = tmp_path.glob("magnitude_client-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"magnitude/client.py", "magnitude/py.typed", "magnitude/v1/inference_pb2.pyi"} <= set(names)
    assert [name for name in names if not name.startswith(("magnitude/", "magnitude_client-"))] == []


@pytest.mark.heavy
def test_go_is_a_module_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text((CLIENTS / "go/examples/stream/main.go").read_text())
    said(tmp_path, "go", "mod", "init", "example.com/other")
    said(tmp_path, "go", "mod", "edit", "-require=magnitude.dev/magnitude@v0.0.0")
    said(tmp_path, "go", "mod", "edit", f"-replace=magnitude.dev/magnitude={CLIENTS / 'go'}")
    said(tmp_path, "go", "mod", "tidy")
    said(tmp_path, "go", "build", "./...")


@pytest.mark.heavy
def test_npm_packs_code_with_types_that_another_program_imports(tmp_path: Path) -> None:
    BUILDS["typescript"](tmp_path)
    [packed] = json.loads(
        said(CLIENTS / "typescript", "npm", "pack", "--json", "--ignore-scripts", "--pack-destination", tmp_path)
    )
    names = {file["path"] for file in packed["files"]}
    assert {"README.md", "dist/src/index.js", "dist/src/index.d.ts", "dist/src/v1.d.ts"} <= names
    assert not {name for name in names if "conformance" in name or "examples" in name}
    (tmp_path / "package.json").write_text('{"type": "module", "private": true}')
    said(tmp_path, "npm", "install", "--no-audit", "--no-fund", tmp_path / packed["filename"])
    (tmp_path / "other.ts").write_text(
        'import { Client, type ClientOptions } from "@magnitude/client";\n'
        'import { InferRequestSchema } from "@magnitude/client/v1";\n'
        "const options: ClientOptions = { retries: false };\n"
        'new Client("127.0.0.1:1", options).close();\n'
        "console.log(InferRequestSchema.typeName);\n"
    )
    compiler = CLIENTS / "typescript/node_modules/.bin/tsc"
    said(tmp_path, compiler, "--strict", "--module", "nodenext", "--skipLibCheck", "--types", "", "other.ts")
    assert said(tmp_path, "node", "other.js").strip() == "magnitude.v1.InferRequest"


@pytest.mark.heavy
def test_cargo_packages_a_crate_that_builds_by_itself() -> None:
    run("rust", "cargo", "package", "--quiet", "--allow-dirty", "-p", "magnitude-client")


@pytest.mark.heavy
def test_maven_packages_classes_and_their_sources(tmp_path: Path) -> None:
    run("java", "mvn", "-q", "-B", "package")
    for kind, ending in (("", ".class"), ("-sources", ".java")):
        names = zipfile.ZipFile(CLIENTS / f"java/target/magnitude-client-0.1.0{kind}.jar").namelist()
        assert f"dev/magnitude/client/Client{ending}" in names
        assert f"dev/magnitude/v1/InferenceServiceGrpc{ending}" in names
        assert not [name for name in names if "conformance" in name]


@pytest.mark.heavy
def test_cmake_installs_a_package_that_another_program_finds(tmp_path: Path) -> None:
    BUILDS["cpp"](tmp_path)
    run("cpp", "cmake", "--install", "build", "--prefix", tmp_path / "installed")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(other LANGUAGES CXX)\n"
        "find_package(magnitude_client 0.1 REQUIRED)\n"
        f"add_executable(other {CLIENTS / 'cpp/examples/stream.cpp'})\n"
        "target_link_libraries(other PRIVATE magnitude::client)\n"
    )
    said(tmp_path, "cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}")
    said(tmp_path, "cmake", "--build", "build")


@pytest.mark.heavy
def test_make_clients_makes_the_stubs_of_java_and_cpp_too() -> None:
    """The others' are compared in test_generated.py. The recipe runs without the environment that `make` installs."""
    version = (ROOT / "buf.yaml").read_text(encoding="utf-8").split("@bufbuild/buf@")[1].split()[0]
    for command in makefile_recipe("clients"):
        said(ROOT, "bash", "-c", command.replace("$(BUF)", f"@bufbuild/buf@{version}"))
    for made in (
        "java/target/generated-sources/protobuf/java/dev/magnitude/v1/SaveRequest.java",
        "java/target/generated-sources/protobuf/grpc-java/dev/magnitude/v1/SnapshotServiceGrpc.java",
        "cpp/build/generated/magnitude/v1/snapshot.grpc.pb.h",
    ):
        assert (CLIENTS / made).stat().st_mtime >= (ROOT / "proto/magnitude/v1/snapshot.proto").stat().st_mtime


def makefile_recipe(target: str) -> list[str]:
    """The lines of a recipe."""
    after = (ROOT / "Makefile").read_text(encoding="utf-8").split(f"\n{target}:", 1)[1].split("\n")[1:]
    return [line.removeprefix("\t") for line in itertools.takewhile(lambda line: line.startswith("\t"), after)]
