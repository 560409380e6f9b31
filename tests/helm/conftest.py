"""The programs that check the chart: in CI they must be there, elsewhere their tests are left out without them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chart_tools import FOLDER, KUBERNETES, QUICK

SLOW = {"helm", "etcd", "kube-apiserver", *(f"schemas/v{version}" for version in KUBERNETES if version not in QUICK)}
"""What CI does without."""


@pytest.fixture(scope="session")
def program() -> Callable[[str], Path]:
    """Where something stands that `make chart-tools` has fetched: a program, or a folder of schemas."""

    def found(name: str) -> Path:
        path = FOLDER / name
        if not path.exists():
            left_out = pytest.fail if "CI" in os.environ and name not in SLOW else pytest.skip
            left_out(f"{path} is not there; `make check-chart` fetches it")
        return path

    return found
