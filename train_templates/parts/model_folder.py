"""Model folders: how a tokenizer is read from one, and everything that a trained model is saved with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor

# feature: dtype
DTYPE = "dtype"
# end: dtype
# feature: torch_dtype
DTYPE = "torch_dtype"  # its name in transformers before 4.56
# end: torch_dtype
HALF = {"BF16": torch.bfloat16, "F16": torch.float16}
"""Types by their names in safetensors files."""


# feature: tokenizer
def read_tokenizer(name: str) -> Any:
    """Return the tokenizer of a folder or a hub id. Exit if there is none.

    For some models, transformers returns a tokenizer without a vocabulary if the files are missing.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        known = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
    except OSError:
        raise  # says what is missing, or that the hub cannot be reached
    except Exception as error:  # tokenizers raises nothing more specific
        raise SystemExit(f"{name}: cannot load its tokenizer: {error}") from None
    if not known:
        raise SystemExit(
            f"{name}: no tokenizer, or an empty one; copy tokenizer.json and tokenizer_config.json from the model that "
            "it was trained from"
        )
    return tokenizer


# end: tokenizer
# feature: bytes
def byte_tokenizer(end: int, template: str | None = None) -> Any:
    """Return a tokenizer for UTF-8 bytes, with an end-of-text token behind them, for programs that expect one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Byte-level tokenizers write a byte as a printable character: itself, or one of those from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab={**letters, "<|end|>": end}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.chat_template = template
    return fast


# end: bytes
def source_dtype(name: str) -> torch.dtype:
    """Return the type of the weights in a folder or a hub id; fp32 if there is no source, or none that says it."""
    if not name:
        return torch.float32
    shape = transformers.AutoConfig.from_pretrained(name)
    said = getattr(shape, DTYPE, None) or getattr(shape.get_text_config(), DTYPE, None)
    if said is None:  # older models; those of several files say it
        file = transformers.utils.cached_file(name, "model.safetensors", _raise_exceptions_for_missing_entries=False)
        if file is None:
            return torch.float32
        with safe_open(file, "pt") as tensors:
            return HALF.get(tensors.get_slice(next(iter(tensors.keys()))).get_dtype(), torch.float32)
    return getattr(torch, said) if isinstance(said, str) else said


def save(model: Any, weights: dict[str, Tensor], folder: Path, output_dtype: str, tokenizer: Any) -> None:
    """Save all that `from_pretrained` and `pipeline` load: weights, configuration, generation settings, tokenizer.

    `output_dtype` "source" is the type that the weights had where they were loaded from.
    """
    source = output_dtype == "source"
    dtype = source_dtype(model.config.name_or_path) if source else getattr(torch, output_dtype)
    in_fp32 = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())  # some routers
    for name, weight in weights.items():
        if weight.is_floating_point() and in_fp32.isdisjoint(name.split(".")):
            weights[name] = weight.to(dtype)
    # Engines gather a weight that has two names (the embeddings are the head) as two, and it would be saved twice.
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in weights:
            weights[name] = weights[names.setdefault(id(parameter), name)]
    model.save_pretrained(folder, state_dict=weights)
    # transformers writes the type that the model was trained in.
    for shape in (model.config, *(getattr(model.config, part) for part in model.config.sub_configs)):
        shape.update({DTYPE: dtype})
    model.config.save_pretrained(folder)
    if tokenizer:
        tokenizer.save_pretrained(folder)
