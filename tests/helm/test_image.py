"""The image, built and run as no Docker engine need be there for: by buildah, on a base made by debootstrap.

`make check-image` runs it as root on a Debian; the first time it takes minutes, and on a busy machine many.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.client import Client

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "image"
BASE = "localhost/magnitude-base:12"
IMAGE = "localhost/magnitude:test"
BYTES_OVER_BASE_MAX = 250_000_000


def buildah(*arguments: str) -> str:
    """What one command says. Its store is our own: nothing of the machine's is touched."""
    store = ("--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run"))
    done = subprocess.run(["buildah", *store, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base() -> str:
    """A Debian without anything, kept in the store."""
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is missing: apt-get install buildah debootstrap")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if BASE not in buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            subprocess.run(["debootstrap", "--variant=minbase", "bookworm", f"{scratch}/root"], check=True)
            subprocess.run(["tar", "-C", f"{scratch}/root", "-cf", f"{scratch}/root.tar", "."], check=True)
            container = buildah("from", "scratch")
            buildah("add", "--quiet", container, f"{scratch}/root.tar", "/")
            buildah("commit", "--quiet", "--rm", container, BASE)
    return BASE


@pytest.fixture(scope="module")
def image(base: str) -> str:
    """Our image on it. pip is told of this machine's certificates, which stay outside."""
    arguments = ["--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE_IMAGE={base}"]
    certificates = os.environ.get("PIP_CERT")
    if certificates:
        inside = "/run/certificates.crt"
        arguments += ["--volume", f"{certificates}:{inside}:ro", "--build-arg", f"PIP_CERT={inside}"]
    buildah("bud", "--quiet", *arguments, "--tag", IMAGE, str(ROOT))
    return IMAGE


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[str]:
    """A container of it."""
    name = buildah("from", image)
    yield name
    buildah("rm", name)


def inside(container: str, *command: str) -> list[str]:
    """The arguments that run a command in the container, as its user."""
    store = ["--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run")]
    return ["buildah", *store, "run", "--isolation", "chroot", container, "--", *command]


def output(container: str, *command: str) -> str:
    return subprocess.run(inside(container, *command), stdout=subprocess.PIPE, text=True, check=True).stdout


def config(image: str) -> dict[str, object]:
    return json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]


def bytes_of(image: str) -> int:
    """The size of its layers, unpacked."""
    name = buildah("from", image)
    try:
        mounted = buildah("mount", name)
        return int(
            subprocess.run(["du", "-sb", mounted], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0]
        )
    finally:
        buildah("rm", name)


def test_it_is_small_over_its_base(base: str, image: str) -> None:
    over = bytes_of(image) - bytes_of(base)
    print(f"{over} bytes over the base")
    assert over < BYTES_OVER_BASE_MAX


def test_it_says_how_it_is_run_and_asked(image: str) -> None:
    found = config(image)
    assert found["User"] == "10001:10001"
    assert found["Entrypoint"] == ["magnitude"]
    assert found["Cmd"] == ["serve", "--host", "0.0.0.0"]
    assert found["StopSignal"] == "SIGTERM"
    health = found["Healthcheck"]
    assert isinstance(health, dict)
    assert health["Test"][:3] == ["CMD", "magnitude", "health"]
    assert health["StartPeriod"] == 900 * 10**9


def test_no_variable_of_it_is_a_setting(image: str) -> None:
    assert [name for name in config(image)["Env"] if name.startswith("MAGNITUDE_")] == []  # type: ignore[attr-defined]


def test_there_is_no_compiler_in_it_and_nobody_is_root(container: str) -> None:
    assert output(container, "id", "-u").strip() == "10001"
    names = ("cc", "c++", "gcc", "g++", "ld", "as", "make", "cmake", "ninja")
    script = f"for name in {' '.join(names)}; do command -v $name || true; done"
    assert output(container, "sh", "-c", script) == ""
    assert output(container, "find", "/opt", "/var/lib/magnitude", "-perm", "-4000") == ""
    assert output(container, "find", "/opt/magnitude", "-writable", "-not", "-type", "l") == ""


def test_what_is_in_it_is_written_down_with_its_licences(container: str) -> None:
    bill = json.loads(output(container, "cat", "/opt/magnitude/share/sbom.cdx.json"))
    assert bill["bomFormat"] == "CycloneDX"
    components = {each["name"]: each for each in bill["components"]}
    assert {"magnitude-service", "magnitude-client", "grpcio", "numpy", "protobuf", "Jinja2"} <= components.keys()
    assert [name for name, each in components.items() if not each.get("licenses")] == []
    licences = output(container, "find", "/opt/magnitude/share/licences", "-type", "f").splitlines()
    assert "/opt/magnitude/share/licences/LICENSE" in licences
    assert any("/nanobind/" in name for name in licences)


@contextlib.contextmanager
def served(container: str, model: Path) -> Iterator[str]:
    """The address of a server in the container, which shares the network with us."""
    flags = ("--port", "0", "--threads", "1", "--model", f"/tmp/{model.name}")
    buildah("copy", "--chmod", "0444", container, str(model), f"/tmp/{model.name}")
    with subprocess.Popen(
        inside(container, "magnitude", "serve", *flags), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            found = re.match(r"ready on (\S+): ", process.stdout.readline())
            assert found
            yield found[1]
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def test_it_answers_a_request_and_its_own_client_sees_that_it_is_ready(container: str, smollm2_path: Path) -> None:
    with served(container, smollm2_path) as address:
        done = output(container, "magnitude", "health", "--address", address)
        assert re.match(r"\S+  READY  ", done)
        with Client(address, timeout_seconds=60) as client:
            answer = client.infer("The capital of France is", max_tokens=4, temperature=0)
            assert "Paris" in answer.choices[0].text
    nobody = subprocess.run(
        inside(container, "magnitude", "health", "--address", address), capture_output=True, text=True
    )
    assert nobody.returncode == 75
    assert "Nobody answers" in nobody.stderr
