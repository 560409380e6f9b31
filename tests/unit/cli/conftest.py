"""A tiny model, and a server of it that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import Served, serving
from tests.support.tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", tensor_type="Q8_0")


@pytest.fixture(scope="session")
def server(tiny_model: Path) -> Iterator[Served]:
    with serving(tiny_model) as served:
        yield served
