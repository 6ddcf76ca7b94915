"""Documents of text: how they are read and become token ids.

After an edit of `Tokens` or `encoded`, everything is tokenized again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import model_folder

# feature: new_tokens
import new_tokens

# end: new_tokens
from encoders import Encoder, Notes
from sources import Row, Sources, text_of
from token_cache import Recipe

# feature: tokenizer
from token_cache import tokenizer_key, versions

# end: tokenizer


# feature: tokenizer
class Tokens:
    """Converts text to token ids and back, with the model's tokenizer."""

    def __init__(self, config: Any) -> None:
        self.tokenizer = model_folder.read_tokenizer(config.tokenizer_name)
        # feature: new_tokens
        new_tokens.add(self.tokenizer, config)
        # end: new_tokens
        if self.tokenizer.eos_token_id is None:
            raise SystemExit(f"the tokenizer of {config.tokenizer_name} has no end-of-text token")
        self.vocabulary = len(self.tokenizer)
        # Some tokenizers (Llama, Gemma) put a token before each text, in pretraining and at inference.
        self.begin = [i for i in self.tokenizer("")["input_ids"] if i == self.tokenizer.bos_token_id][:1]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each document, with the tokenizer's first token and the end-of-text token."""
        end = [self.tokenizer.eos_token_id]
        only_ids = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
        encoded = self.tokenizer(texts, add_special_tokens=False, **only_ids)["input_ids"]
        return [self.begin + ids + end for ids in encoded if ids]

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


# end: tokenizer
# feature: bytes
class Tokens:
    """Text as UTF-8 bytes; 256 ends a document. No vocabulary to download."""

    END = 256
    vocabulary = 257

    def __init__(self, config: Any) -> None:
        assert config.vocab_size > self.END
        self.tokenizer = model_folder.byte_tokenizer(self.END)  # does the same, for other programs

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the bytes of each document, followed by `END`."""
        return [[*text.encode(), self.END] for text in texts]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids. Bytes that are not valid UTF-8 become �."""
        return bytes(i for i in ids if i < self.END).decode(errors="replace")


# end: bytes
def embedded_documents(split: str) -> Iterator[str]:
    """Yield the language reference that comes with Python. Every tenth topic is for evaluation."""
    from pydoc_data.topics import topics

    for i, name in enumerate(sorted(topics)):
        if (i % 10 == 9) == (split == "validation"):
            yield topics[name]


def encoded(tokens: Tokens, text_column: str, rows: list[Row]) -> tuple[list[list[int]], Notes]:
    """Return the token ids of the documents in some rows. There are no notes on them."""
    return tokens.encode([text_of(row, text_column) for row in rows]), {}


def recipe(config: Any, source: str, split: str) -> Recipe:
    """Return how the documents of a source become tokens."""
    embedded = source == "embedded"

    def encoder() -> Encoder:
        tokens = Tokens(config)
        return Encoder(encode=lambda rows: encoded(tokens, config.text_column, rows), vocabulary=tokens.vocabulary)

    texts = ((f"{source}: text {n}", {"text": text}) for n, text in enumerate(embedded_documents(split), start=1))
    # feature: tokenizer
    tokenizer = [tokenizer_key(config.tokenizer_name), *versions()]
    # feature: new_tokens
    tokenizer += [config.special_tokens, config.added_tokens]
    # end: new_tokens
    # end: tokenizer
    # feature: bytes
    tokenizer = ["bytes"]
    # end: bytes
    return Recipe(
        name=source,
        rows=texts if embedded else Sources(source, split, config.max_rows, texts=True),
        decided_by=[tokenizer, *([split, sys.version] if embedded else [config.text_column])],
        code=[encoded, *([embedded_documents] if embedded else [])],
        encoder=encoder,
    )
