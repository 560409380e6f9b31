"""Makes tiny/*.npz anew: what llama.cpp says of the tiny models. For developers; no test runs it.

    tests/bench/build_llama_cpp.sh                     # builds the peer once, prints the folder of its programs
    python -m tests.golden.make_tiny_vectors FOLDER    # … from the repository's root

A vector is never regenerated to make a test pass: it changes when the models do, and then README.md says so.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from magnitude_service.engine.sampling import log_softmax
from tests.golden.tiny_models import MODELS, VECTORS, sha256, tokens_of, write


def main(programs: Path) -> None:
    """Evaluates every model with the peer whose libraries lie in `programs`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_peer(programs, folder / "peer_logits")
        for model in MODELS:
            path, tokens = write(model, folder), tokens_of(model)
            command = [str(folder / "peer_logits"), str(path), *map(str, tokens)]
            raw = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            logprobs = log_softmax(np.frombuffer(raw, np.float32).reshape(len(tokens), -1)).astype(np.float32)
            digest = np.frombuffer(bytes.fromhex(sha256(path)), np.uint8)
            np.savez_compressed(VECTORS / f"{model}.npz", sha256=digest, tokens=tokens, logprobs=logprobs)
            print(f"| `{model}` | {sha256(path)} | {logprobs.shape} |")


def compile_peer(programs: Path, program: Path) -> None:
    """Builds peer_logits.cpp with the peer's headers and libraries."""
    source = programs.parents[1]
    includes = [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]
    libraries = [f"-L{programs}", f"-Wl,-rpath,{programs}", "-lllama", "-lggml", "-lggml-base"]
    command = ["g++", "-std=c++17", "-O1", *includes, str(Path(__file__).parent / "peer_logits.cpp")]
    subprocess.run([*command, "-o", str(program), *libraries], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
