"""Puts a build of the kernels with sanitizers in place of the installed one, wherever this folder is on Python's path.

`make check-sanitizers` names the build in MAGNITUDE_TEST_KERNELS and runs the kernels' tests so, children included.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

KERNELS = "magnitude_service.kernels._kernels"


class SanitizedKernels:
    """A finder for one module."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != KERNELS:
            return None
        return importlib.util.spec_from_file_location(name, os.environ["MAGNITUDE_TEST_KERNELS"])


sys.meta_path.insert(0, SanitizedKernels)
