"""Hostile model files are refused by name, in under 100 ms and 50 MB, by the loader that serves users."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attacks.gguf.hostile_files import Attack, attacks, write_all

SECONDS_MAX = 0.1
BYTES_MAX = 50_000_000

# One process for all files: a file that costs memory or time shows by what the process has spent when it is done.
PROBE = """
import json, re, sys, time
from magnitude_service.errors import MagnitudeError
from magnitude_service.loader import MMapModelLoader
loader, base = MMapModelLoader(), None
for path in sys.stdin.read().splitlines():
    spent = []
    for _ in range(3):
        begin = time.process_time()
        try:
            loader.load(path).close()
            found = ("accepted", "")
        except MagnitudeError as error:
            found = (type(error).__name__, str(error))
        spent.append(time.process_time() - begin)
    # Not ru_maxrss, which a process inherits from the one that started it.
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
    base = base or peak
    print(json.dumps([*found, min(spent), peak - base]), flush=True)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, float, int]]:
    """Error class, text, seconds of CPU and growth of the process by name of the attack."""
    written = write_all(tmp_path_factory.mktemp("hostile"))
    # The first file shows what a process weighs that has loaded anything at all.
    paths = "\n".join(str(path) for _, path in written)
    probe = subprocess.run(
        [sys.executable, "-c", PROBE], input=paths, capture_output=True, text=True, timeout=100, check=False
    )
    assert probe.returncode == 0, f"the process died: {probe.returncode}\n{probe.stdout[-300:]}\n{probe.stderr}"
    lines = [json.loads(line) for line in probe.stdout.splitlines()]
    return {attack.name: tuple(line) for (attack, _), line in zip(written, lines, strict=True)}  # type: ignore[misc]


@pytest.mark.parametrize("attack", list(attacks()), ids=lambda attack: attack.name)
def test_it_is_refused_by_name_quickly_and_in_little_memory(
    attack: Attack, results: dict[str, tuple[str, str, float, int]]
) -> None:
    error, text, seconds, grown = results[attack.name]
    assert error == attack.error.__name__, text
    assert attack.message in text
    assert seconds < SECONDS_MAX
    assert grown < BYTES_MAX


def test_attacks_have_names_of_their_own() -> None:
    names = [attack.name for attack in attacks()]
    assert len(set(names)) == len(names) > 70


def test_allow_invalid_magic_forgives_the_magic_and_nothing_else(tmp_path: Path) -> None:
    from magnitude_service.errors import MagnitudeError
    from magnitude_service.loader import LoaderOptions, MMapModelLoader

    loader = MMapModelLoader(LoaderOptions(allow_invalid_magic=True))
    path = tmp_path / "m.gguf"
    for attack in attacks():
        content = attack.build()
        if content[:4] == b"GGUF" and len(content) < 1 << 20:
            path.write_bytes(b"MAGN" + content[4:])
            with pytest.raises(MagnitudeError) as raised:
                loader.load(path)
            assert attack.message in str(raised.value)
