"""What an operator may say about how model files are held in memory."""

from __future__ import annotations

from dataclasses import dataclass

from magnitude_service.options import Options, option


@dataclass(frozen=True, slots=True)
class LoaderOptions(Options):
    """How a model file is opened and held."""

    mmap: bool = option(
        True,
        "Compute from the mapped file; --no-mmap copies it into private memory first: slower, and memory is used up.",
    )
    populate: bool = option(
        False, "Read the whole file into the page cache at start: a slower start, and no waiting for the disk later."
    )
    mlock: bool = option(
        False, "Pin the weights in memory, so that they are never dropped; needs RLIMIT_MEMLOCK to allow it."
    )
    verify: bool = option(
        False, "Hash every byte of the model before it is READY and compare with the hash that is kept of it."
    )
    allow_invalid_magic: bool = option(False, "Accept a file with another magic than GGUF's, and nothing else.")
