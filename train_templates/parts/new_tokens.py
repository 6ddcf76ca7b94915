"""Tokens that the plan adds to the tokenizer, and the rows of embeddings and head that the model gets for them.

A new row is the mean of the rows that the model knows, with a little noise that the token alone decides: it is the same
on every rank, whatever other tokens are added.
"""

from __future__ import annotations

# feature: loaded_weights
import hashlib

# end: loaded_weights
from typing import Any

# feature: loaded_weights
import torch

# end: loaded_weights
from tokenizers import AddedToken

# feature: loaded_weights
from torch import Tensor, nn

# end: loaded_weights
import model_folder

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
"""The roles that a special token can have: `eos_token=<|im_end|>`."""
# feature: loaded_weights
NOISE = 0.1  # of the spread of the known rows: equal rows would act as one token until their gradients differ
SOME = 4096  # rows that the spread is measured on
# end: loaded_weights


def roles(config: Any) -> dict[str, str]:
    """Return the special tokens that have a role, by role."""
    parts = (part.strip().partition("=") for part in config.special_tokens.split(","))
    return {role: token for role, _, token in parts if role in ROLES}


def add(tokenizer: Any, config: Any) -> dict[int, str]:
    """Add the tokens to the tokenizer. Return those that it did not have, by their ids."""
    known, begin = set(tokenizer.get_vocab().values()), tokenizer.bos_token_id
    plain = [part.strip() for part in config.added_tokens.split(",") if part.strip()]
    special = [part.strip() for part in config.special_tokens.split(",") if part.strip()]
    special = [token for token in special if token.partition("=")[0] not in ROLES]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special], special_tokens=True)
    named = {role: AddedToken(token, special=True, normalized=False) for role, token in roles(config).items()}
    if named:
        tokenizer.add_special_tokens(named)
    first = tokenizer("")["input_ids"][:1]
    if begin is not None and begin != tokenizer.bos_token_id and first == [begin]:
        raise SystemExit(
            f"{config.tokenizer_name}: bos_token cannot be {tokenizer.bos_token}: its tokenizer puts "
            f"{tokenizer.convert_ids_to_tokens(begin)} before each text, whatever the token is called"
        )
    return {number: token for token, number in tokenizer.get_vocab().items() if number not in known}


def enlarged(config: Any) -> tuple[Any, dict[int, str]]:
    """Return the tokenizer with the tokens of the plan, and those that it did not have."""
    tokenizer = model_folder.read_tokenizer(config.tokenizer_name)
    return tokenizer, add(tokenizer, config)


# feature: random_weights
def grow(shape: Any, config: Any) -> None:
    """Give a model of this configuration, which is built later with random weights, a row for each token."""
    tokenizer, _ = enlarged(config)
    text = shape.get_text_config()
    text.vocab_size = max(text.vocab_size, len(tokenizer))
    for role in roles(config):
        setattr(text, f"{role}_id", getattr(tokenizer, f"{role}_id"))


# end: random_weights
# feature: loaded_weights
def fit(model: Any, config: Any) -> list[str]:
    """Give the loaded model rows for the tokens that its tokenizer lacked. Return these tokens."""
    tokenizer, new = enlarged(config)
    for role in roles(config):
        number = getattr(tokenizer, f"{role}_id")
        setattr(model.config.get_text_config(), f"{role}_id", number)
        settings = getattr(model, "generation_config", None)
        if settings is not None and role == "eos_token":
            ends = settings.eos_token_id
            ends = ends if isinstance(ends, list) else [ends]
            settings.eos_token_id = sorted({end for end in [*ends, number] if end is not None})
        elif settings is not None:
            setattr(settings, f"{role}_id", number)
    if not new:
        return []
    if model.get_input_embeddings().num_embeddings <= max(new):
        model.resize_token_embeddings(max(new) + 1, mean_resizing=False)
    head = model.get_output_embeddings()
    tables = [model.get_input_embeddings().weight, *(head.parameters() if head is not None else ())]
    for table in {id(table): table for table in tables}.values():  # the head can be the embeddings
        fill(table, new)
    return list(new.values())


def fill(table: nn.Parameter, new: dict[int, str]) -> None:
    """Set the rows of new tokens in the embeddings, in the head or in its bias."""
    # feature: zero3
    if hasattr(table, "ds_id"):  # this rank has a part of it
        import deepspeed

        with deepspeed.zero.GatheredParameters([table], modifier_rank=0):
            set_rows(table.data, new)
        return
    # end: zero3
    set_rows(table.data, new)


def set_rows(rows: Tensor, new: dict[int, str]) -> None:
    """Set the rows of new tokens."""
    known = rows[: min(new)]
    mean, spread = known.mean(0, dtype=torch.float32), known[:: max(1, len(known) // SOME)].float().std(0)
    for number, token in new.items():
        seed = int.from_bytes(hashlib.blake2b(token.encode(), digest_size=7).digest())
        noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(seed)).to(rows.device)
        rows[number] = (mean + NOISE * spread * noise).to(rows.dtype)


# end: loaded_weights
# feature: lora
def refuse_untrained(model: Any, config: Any, new: list[str]) -> None:
    """Exit if new tokens have rows in a module that is frozen beside the adapter."""
    ends = {"its embeddings": model.get_input_embeddings(), "its head": model.get_output_embeddings()}
    frozen = [module for module in ends.values() if module is not None and not trains(module)]
    if not new or not frozen:
        return
    names = [name.rpartition(".")[2] for name, module in model.named_modules() if module in ends.values()]
    raise SystemExit(
        f"{config.model_name}: {', '.join(new)} would not be learned, because the embeddings or the head are frozen: "
        f"set modules_to_save to {','.join(dict.fromkeys(names))}"
    )


def trains(module: nn.Module) -> bool:
    """Return whether some weights of a module are trained."""
    return any(parameter.requires_grad for parameter in module.parameters())


# end: lora
