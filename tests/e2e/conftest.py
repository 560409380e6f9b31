"""Models of random weights, and servers of them, as their users run them: processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.client import Client
from tests.support.serving import Served, serving
from tests.support.tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_path(models: Path) -> Path:
    """A model that takes half a millisecond per token, with room for long answers."""
    return write_tiny_model(models / "tiny.gguf", tensor_type="Q8_0", context=4000)


@pytest.fixture(scope="session")
def slow_path(models: Path) -> Path:
    """A model that takes some ten milliseconds per token with scalar kernels, as `SLOW` asks for."""
    return write_tiny_model(
        models / "slow.gguf", tensor_type="Q8_0", context=8192, layers=6, embedding=512, heads=8, feed_forward=1536
    )


@pytest.fixture(scope="module")
def server(tiny_path: Path) -> Iterator[Served]:
    """A server that the tests of a module share, and leave idle."""
    with serving(tiny_path, "--text-workers", "2") as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    """A connection to the shared server that does not try again by itself."""
    with Client(server.address, timeout_seconds=60, retries=False) as client:
        yield client
