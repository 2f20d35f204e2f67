"""How many tokens a text has, by the tokenizer of a model, without loading the model."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

from resilisim.chat.local.gguf_file import fingerprint, read_gguf_vocabulary
from resilisim.errors import InvalidInputError, MissingExtraError

TOKENIZER_FILE = "tokenizer.json"  # what a model's folder has beside its weights
KEPT_COUNTS = 65_536  # texts whose number of tokens is remembered: prompts and replies come again
_CONTROL = 3  # type of a token that is a mark, such as the end of a message


class TokenCounter:
    """Counts tokens.

    Args:
        path: A GGUF file, a `tokenizer.json` as Hugging Face models have it, or a folder that holds one.

    Attributes:
        name: What the tokenizer is called: its file and a hash of it.

    Raises:
        InvalidInputError: There is no such file, or it holds no tokenizer that can be read.
        MissingExtraError: The package `tokenizers` is not installed.
    """

    def __init__(self, path: Path) -> None:
        path = path / TOKENIZER_FILE if path.is_dir() else path
        if not path.is_file():
            raise InvalidInputError(f"tokenizer {str(path)!r} does not exist: expected a GGUF file or a tokenizer.json")
        try:
            tokenizers: Any = importlib.import_module("tokenizers")
        except ImportError as error:
            raise MissingExtraError(
                f"counting tokens needs 'tokenizers' ({error}): pip install 'resilisim[datasets]'"
            ) from error
        self._tokenizer = _of_gguf(path, tokenizers) if path.suffix == ".gguf" else _of_json(path, tokenizers)
        self._count = functools.lru_cache(maxsize=KEPT_COUNTS)(self._encoded_length)
        self.name = f"{path.name} {fingerprint([path])}"

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without marks that a model puts around it."""
        return self._count(text)

    def _encoded_length(self, text: str) -> int:
        readable = text.encode("utf-8", "replace").decode()  # halves of characters are no text to anybody else
        return len(self._tokenizer.encode(readable, add_special_tokens=False).ids)


def _of_json(path: Path, tokenizers: Any) -> Any:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        reason = " ".join(str(error).split())[:200]
        raise InvalidInputError(f"tokenizer {str(path)!r} cannot be read: {reason}") from None


def _of_gguf(path: Path, tokenizers: Any) -> Any:
    """Build the byte-level tokenizer of SmolLM2: each digit a token, then the merges of the file."""
    facts = read_gguf_vocabulary(path)
    if (facts.get("model"), facts.get("pre")) != ("gpt2", "smollm"):
        raise InvalidInputError(
            f"tokenizer {str(path)!r} is of the kind {facts.get('pre')!r}: expected 'smollm', or the model's "
            f"{TOKENIZER_FILE} in its place"
        )
    tokens, kinds, merges = facts["tokens"], facts["token_type"], facts["merges"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [tuple(merge.split(" ", 1)) for merge in merges])
    )
    before = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = before.Sequence(
        [before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])
    return tokenizer
