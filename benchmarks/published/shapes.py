"""Sizes of published models that are not in trainwiz's table, and the spellings of names in the sources.

Source: each model's config.json on the Hugging Face hub; MPT's from the configurations in mosaicml/llm-foundry.
"""

from __future__ import annotations

import re

from trainwiz import models
from trainwiz.models import Transformer

_COLUMNS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
)
_TABLE = """
qwen-1.8b              llama       2048 24 16 16  5504 151936 8192
qwen-7b                llama       4096 32 32 32 11008 151936 8192
qwen-14b               llama       5120 40 40 40 13696 152064 8192
qwen-72b               llama       8192 80 64 64 24576 152064 32768
powerlm-3b             granite     2304 40 36 36  9216  49152 4096 tied
gpt_bigcode-santacoder gpt_bigcode 2048 24 16  1  8192  49280 2048 tied
stablelm-alpha-3b      gpt_neox    4096 16 32 32 16384  50688 4096
mpt-350m               mpt         1024 24 16 16  4096  50368 2048 tied
mpt-1b                 mpt         2048 24 16 16  8192  50368 2048 tied
mpt-3b                 mpt         2560 32 20 20 10240  50368 2048 tied
mpt-7b                 mpt         4096 32 32 32 16384  50368 2048 tied
mpt-13b                mpt         5120 40 40 40 20480  50368 2048 tied
mpt-30b                mpt         7168 48 56 56 28672  50368 2048 tied
mpt-70b                mpt         8192 80 64 64 32768  50368 2048 tied
llama-2-34b            llama       8192 48 64  8 22016  32000 4096
internlm-7b            llama       4096 32 32 32 11008 103168 2048
gpt3-125m              gpt2         768 12 12 12  3072  50264 2048 tied
gpt3-355m              gpt2        1024 24 16 16  4096  50264 2048 tied
gpt3-760m              gpt2        1536 24 16 16  6144  50264 2048 tied
gpt3-1.3b              gpt2        2048 24 16 16  8192  50264 2048 tied
gpt3-2.7b              gpt2        2560 32 20 20 10240  50264 2048 tied
nanochat-d12           gpt2         768 12  6  6  3072  32768 2048
nanochat-d20           gpt2        1280 20 10 10  5120  65536 2048
modded-nanogpt-124m    gpt2         768 12  6  6  3072  50304 1024 tied
modded-nanogpt-124m-untied gpt2     768 12  6  6  3072  50304 1024
modded-nanogpt-1.5b    gpt2        1536 52 12 12  6144  50304 1024 tied
qwen1.5-1.8b           llama       2048 24 16 16  5504 151936 32768
stablecode-completion-alpha-3b gpt_neox 2560 32 32 32 10240 49152 16384
llama-1b               llama       2048 24 32 32  4096  50257 4096
ministral-8b-2410      mistral     4096 36 32  8 12288 131072 32768
olmo-3-7b              olmo3       4096 32 32 32 11008 100278 65536
nanogpt-124m           starcoder2   768 12 12 12  3072  50304 1024 tied
gpt-mha-6.9b           starcoder2  4096 32 32 32 16384  50257 512
gpt-48x4096            starcoder2  4096 48 32 32 16384  50257 2048
tinygpt-11m            starcoder2   384  6  6  6  1536     65 128
"""
"""A GPT-2 that a script writes out with nn.GELU keeps what starcoder2 keeps (under autocast a tenth less, which are
starcoder2's rotary embeddings): transformers' own GPT-2 computes GELU in five steps, and keeps each.
"""
_ALIASES = {
    "stablelm-base-alpha-3b": "stablelm-alpha-3b",
    "phi-1.5-1.3b": "phi-1_5",
    "phi-1.5": "phi-1_5",
    "gemma2-9b": "gemma-2-9b",
}


def shape(name: str, billions: float | None) -> Transformer | None:
    """The layers of a published model: by its name, else the usual ones for its size; None where neither is known."""
    plain = _plain(name)
    found = _own().get(plain) or models.known(plain) or models.known(name.rpartition("/")[2])
    for pattern, base in _TUNED:
        if found is None and (said := pattern.search(plain)):
            found = models.known(f"{base}{said[1]}b")
    if found:
        return found
    parameters = int(billions * 1e9) if billions else models.parameters_in_name(name)
    return models.of_parameters(parameters) if parameters else None


_TUNED = (
    (
        re.compile(
            r"(?:vicuna|longchat|koala|alpaca|guanaco|wizardlm|hermes|platypus\d?|beluga|open-?llama)\D*?(\d+)b"
        ),
        "llama-2-",
    ),
    (re.compile(r"(?:zephyr|openhermes|starling|neural-chat|openchat)\D*?(7)b"), "mistral-"),
)
"""What chat models of 2023 were tuned from, by their size."""


def _plain(name: str) -> str:
    last = name.rpartition("/")[2].split("(")[0].strip().lower()
    last = re.sub(r"(\d) (b|m)\b", r"\1\2", last).replace(" ", "-")
    last = re.sub(r"-v0\.[12]\b|-(instruct|hf|chat|4k|base$)", "", last).replace("gpt-2", "gpt2")
    return _ALIASES.get(last, last)


def _own() -> dict[str, Transformer]:
    found = {}
    for line in _TABLE.strip().splitlines():
        name, family, *numbers = line.split()
        config = dict(zip(_COLUMNS, map(int, numbers[: len(_COLUMNS)]), strict=True))
        tied = {"tie_word_embeddings": numbers[-1] == "tied"}
        transformer = models.of_config({"model_type": family, **config, **tied, "multi_query": family == "gpt_bigcode"})
        assert transformer is not None
        found[name] = transformer
    return found
