"""How each client's conformance program is built, and with what."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
BUILD_SECONDS_MAX = 900


def run(client: str, *command: str | Path) -> None:
    """Runs one command of a build in the client's folder; what it says is shown if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=CLIENTS / client,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"


def require(*tools: str) -> None:
    """Skips the test where a tool is not installed."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def build_python(folder: Path) -> list[str]:
    return [sys.executable, str(CLIENTS / "python/conformance/main.py")]


def build_go(folder: Path) -> list[str]:
    require("go")
    run("go", "go", "vet", "./...")
    run("go", "go", "test", "./...")
    run("go", "go", "build", "-o", folder / "conformance", "./conformance")
    return [str(folder / "conformance")]


def build_typescript(folder: Path) -> list[str]:
    require("node", "npm")
    run("typescript", "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
    run("typescript", "npm", "run", "build")
    return ["node", str(CLIENTS / "typescript/dist/conformance/main.js")]


def build_rust(folder: Path) -> list[str]:
    require("cargo")
    run("rust", "cargo", "clippy", "--quiet", "--all-targets", "--", "-D", "warnings")
    run("rust", "cargo", "test", "--quiet")
    run("rust", "cargo", "build", "--quiet", "--examples")
    return [str(CLIENTS / "rust/target/debug/examples/conformance")]


def build_java(folder: Path) -> list[str]:
    require("java", "mvn")
    classes = folder / "classpath"
    run("java", "mvn", "-q", "-B", "test-compile", "dependency:build-classpath", f"-Dmdep.outputFile={classes}")
    path = f"{CLIENTS}/java/target/classes:{CLIENTS}/java/target/test-classes:{classes.read_text().strip()}"
    return ["java", "-cp", path, "dev.magnitude.conformance.Conformance"]


def build_cpp(folder: Path) -> list[str]:
    require("cmake", "g++", "grpc_cpp_plugin")
    run("cpp", "cmake", "-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Release")
    run("cpp", "cmake", "--build", "build", "--parallel", "2")
    return [str(CLIENTS / "cpp/build/conformance")]


BUILDS: Mapping[str, Callable[[Path], list[str]]] = {
    "python": build_python,
    "go": build_go,
    "typescript": build_typescript,
    "rust": build_rust,
    "java": build_java,
    "cpp": build_cpp,
}
"""Builds a client's program, with its other tests, and returns the command that runs it."""

IN_CI = ("python", "go", "typescript")
"""Those that are quick to build; all are in `make check-clients`."""
