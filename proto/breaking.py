"""Tells what in the contract would break clients of earlier ones: `python proto/breaking.py`.

The contract as it is now is compared with that of origin/main and of the last two commits, as far as they are there: on
a branch, in a working tree and in a fresh clone of main alike, one of them is the one before. Ends with status 1 and
buf's words where one is broken.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EARLIER = ("origin/main", "HEAD", "HEAD~1")
VERSION = re.compile(r"@bufbuild/buf@[\d.]+")


def buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the version of buf that buf.yaml names."""
    version = VERSION.search((ROOT / "buf.yaml").read_text(encoding="utf-8"))
    assert version
    command = ["npx", "--yes", version[0], *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def earlier_commits() -> list[str]:
    """Those that are there and have a contract, each once."""
    found = []
    for name in EARLIER:
        commit = git("rev-parse", "--quiet", "--verify", f"{name}^{{commit}}").decode().strip()
        if commit and commit not in found and git("ls-tree", commit, "buf.yaml", "proto"):
            found.append(commit)
    return found


def breaks(commit: str) -> str:
    """What buf finds against one commit; empty if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        archive = git("archive", commit, "buf.yaml", "proto")
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        result = buf("breaking", "--against", folder)
    return result.stdout + result.stderr if result.returncode else ""


def git(*arguments: str) -> bytes:
    """What git prints; nothing where it fails, as it does outside a repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False).stdout


def main() -> int:
    for commit in earlier_commits():
        if found := breaks(commit):
            print(f"against {commit}:\n{found}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
