"""What every test may use: the real models, where this machine has them. Hypothesis draws the same in every run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from magnitude_service.config import cache_folder

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


settings.register_profile("magnitude", derandomize=True, print_blob=True, deadline=None)
settings.load_profile("magnitude")


def _cached(name: str) -> Path:
    path = cache_folder("") / "models" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; `make models` fetches it")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1; `make test` fetches it first."""
    return _cached(SMOLLM2)


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """Qwen2.5-Coder-1.5B-Instruct Q4_K_M; `make models` fetches it."""
    return _cached(QWEN)
