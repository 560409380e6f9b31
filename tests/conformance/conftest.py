"""The servers that clients are held against, of a small random model: two places to run and one to wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.serving import Served, serving
from tests.support.tiny_models import write_tiny_model

PLACES = ("--sequences-max", "2", "--waiting-max", "1")


@dataclass(frozen=True)
class Secured:
    """A server that speaks TLS only, and wants a token."""

    address: str
    authority: Path
    token: str


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", tensor_type="Q8_0", context=16_384)


@pytest.fixture(scope="package")
def server(model: Path) -> Iterator[Served]:
    with serving(model, *PLACES) as served:
        yield served


@pytest.fixture(scope="package")
def secured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secrets")
    authority, token = Authority(folder), "conformance-token-0123456789abcdef"
    pair = authority.issue("server")
    (folder / "tokens").write_text(f"{token}\n")
    (folder / "tokens").chmod(0o600)
    own = write_tiny_model(folder / "tiny.gguf", tensor_type="Q8_0")
    flags = ("--tls-certificate", pair.certificate, "--tls-key", pair.key, "--token-file", folder / "tokens")
    with serving(own, *PLACES, *map(str, flags)) as served:
        yield Secured(served.address, authority.file, token)
