"""The ids with a role: where a text begins, where an answer ends, and what is control whatever the file says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from magnitude_service.errors import IntegrityError

if TYPE_CHECKING:
    from magnitude_service.formats.gguf import Metadata

END_TEXTS = (
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),  # Llama 3, Granite
    *("<|im_end|>", "<|endoftext|>"),  # ChatML, GPT-2
    *("<|end|>", "<|return|>", "<|call|>"),  # Phi 3, Harmony
    *("<end_of_turn>", "<end_of_utterance>"),  # Gemma, SmolVLM
    *("</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
    "<｜end▁of▁sentence｜>",  # DeepSeek
    *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),  # what code models end a filled gap with
    *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
)
"""Tokens that end an answer wherever they exist: files rarely name more than one of those that their model uses."""

GAP_TEXTS = (
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    *("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    *("<PRE>", "<MID>", "<SUF>"),
    *("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    *("<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"),
)
"""Tokens that mark the gap for a code model to fill."""

CONTROL_TEXTS = [text.encode() for text in (*END_TEXTS, *GAP_TEXTS)]
"""Tokens that are control even where a file calls them normal, as many do (Qwen2.5's `</s>`). llama.cpp does the
same, so that both read a template alike."""

END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


class Vocabulary(Protocol):
    """What this module asks of a tokenizer."""

    @property
    def adds_bos(self) -> bool: ...
    @property
    def vocabulary_size(self) -> int: ...
    def find(self, text: bytes) -> int | None: ...


@dataclass(frozen=True)
class SpecialIds:
    """The special ids of a model. `bos_id` and `eos_id` are None where the file names none."""

    bos_id: int | None
    eos_id: int | None
    eog_ids: frozenset[int]  # each ends an answer
    add_bos: bool  # a text with special tokens added begins with BOS; then there is a `bos_id`
    add_eos: bool  # and ends with EOS; then there is an `eos_id`

    @classmethod
    def from_metadata(cls, metadata: Metadata, vocabulary: Vocabulary) -> SpecialIds:
        """Reads the roles from the file, and finds the well-known texts in the vocabulary.

        *Raises*: IntegrityError for an id outside the vocabulary, or for a promise to add a token that has no id.
        """
        named = [_id(metadata, name, vocabulary.vocabulary_size) for name in END_KEYS]
        found = [vocabulary.find(text.encode()) for text in END_TEXTS]
        bos_id = _id(metadata, "bos", vocabulary.vocabulary_size)
        eos_id = named[0]
        return cls(
            bos_id=bos_id,
            eos_id=eos_id,
            eog_ids=frozenset(id for id in (*named, *found) if id is not None),
            add_bos=_adds(metadata, "bos", bos_id, default=vocabulary.adds_bos),
            add_eos=_adds(metadata, "eos", eos_id, default=False),
        )


def _id(metadata: Metadata, name: str, vocabulary_size: int) -> int | None:
    return metadata.integer(f"tokenizer.ggml.{name}_token_id", None, minimum=0, maximum=vocabulary_size - 1)


def _adds(metadata: Metadata, name: str, id: int | None, *, default: bool) -> bool:
    key = f"tokenizer.ggml.add_{name}_token"
    is_wanted = metadata.boolean(key, None)
    if is_wanted and id is None:
        raise IntegrityError(
            f"{key} is true, but there is no tokenizer.ggml.{name}_token_id.",
            remedy="Convert the model again.",
            field=key,
        )
    return default and id is not None if is_wanted is None else is_wanted
