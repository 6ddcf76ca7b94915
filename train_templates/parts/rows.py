"""Rows of tokens: the model's inputs, attention within each document, and the loss from the logits.

A document of n tokens gives n - 1 predictions: each token but the first.
"""

from __future__ import annotations

# feature: documents
import hashlib

# end: documents
# feature: flash
import inspect

# end: flash
# feature: documents
import json

# end: documents
import os

# feature: documents
import time

# end: documents
import types
from collections.abc import Callable, Iterable

# feature: unpacked
from contextlib import suppress

# end: unpacked
from pathlib import Path
from typing import Any

# feature: documents
import numpy as np

# end: documents
import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# feature: documents
from torch.utils.data import Dataset

# end: documents
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

# feature: lora
import adapter

# end: lora
# feature: documents
# feature: weighted
import mixture

# end: weighted
import packing

# feature: weighted
import source_weights

# end: weighted
# end: documents
# feature: flash
from attention import Shape, agrees, shapes_of

# end: flash
# feature: documents
# feature: fused
from head_loss import HeadLoss, can_be_fused

# end: fused
# end: documents
# feature: liger
from kernels import use_kernels

# end: liger
from logits import ends_with_head, own_logits

# feature: documents
# feature: long_rows
from long_rows import avoid_mask

# end: long_rows
# feature: long_gpu
from long_rows import block_mask

# end: long_gpu
# feature: long_cpu
from long_rows import document_bounds

# end: long_cpu
# feature: weighted
from mixture import Mixture

# end: weighted
from packing import FILES, NOTES, Selection, write_rows
from sources import hash_file
from token_cache import Tokens, retold, stoppable, tell

# end: documents
Batch = dict[str, Tensor]
IGNORED = -100  # a label that does not count; the default of cross_entropy
# feature: preset_model
DROPOUTS = {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"}
"""Settings that are 0 when training from scratch, where text is rarely seen twice and kernels for documents need it."""
# end: preset_model
LARGEST_ON_CPU = 1_000_000_000  # parameters of a model that generates a few hundred tokens within two minutes
TOO_LARGE = "no sample: the model does not fit on the GPU in 16 bits, and would take long on the CPU"
# feature: dtype
FP32 = {"dtype": torch.float32}
# end: dtype
# feature: torch_dtype
FP32 = {"torch_dtype": torch.float32}  # its name in transformers before 4.56
# end: torch_dtype


# feature: documents
class Rows(Dataset[Tensor]):
    """Rows of tokens as (inputs, labels, positions).

    A document is cut into pieces of at most `length` predictions, which fill the rows. The place of each piece depends
    only on the lengths of the pieces.
    """

    def __init__(self, tokens: Tokens, folder: Path, length: int) -> None:
        self.length, self.tokens = length, tokens.ids
        self.starts, self.sizes, self.ends = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in FILES)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Tensor:
        pieces = slice(self.ends[index - 1] if index else 0, self.ends[index])
        parts = []
        for start, size in zip(self.starts[pieces].tolist(), self.sizes[pieces].tolist(), strict=True):
            tokens = torch.from_numpy(self.tokens[start : start + size + 1].astype(np.int64))
            given, wanted = tokens[:-1], tokens[1:]
            # Tokens that are given but not learned are stored as their complement.
            labels = wanted.masked_fill(wanted < 0, IGNORED)
            parts.append(torch.stack((given.where(given >= 0, ~given), labels, torch.arange(size))))
        # feature: packed
        rest = self.length - sum(part.shape[1] for part in parts)  # padding: a document of its own that does not count
        parts.append(torch.stack((torch.zeros(rest).long(), torch.full((rest,), IGNORED), torch.arange(rest))))
        # end: packed
        return torch.cat(parts, dim=1)


def rows_of(tokens: Tokens, selection: Selection) -> Rows:
    """Return the rows, from files that the first rank of each machine writes once beside the tokens."""
    decided_by: list[Any] = [hash_file(Path(packing.__file__)), np.__version__, selection]  # packing.py: or without it
    # feature: weighted
    if isinstance(tokens, Mixture):
        decided_by += [*(hash_file(Path(part.__file__)) for part in (mixture, source_weights)), tokens.key]
    # end: weighted
    key = hashlib.blake2b(repr(decided_by).encode(), digest_size=12).hexdigest()
    folder = tokens.folder / f"rows-{key}"
    with stoppable():
        if os.environ.get("LOCAL_RANK", "0") == "0" and not folder.is_dir():
            write_rows(tokens, folder, selection)
        while not folder.is_dir():  # a collective might time out before the files are written
            time.sleep(0.05)
    said = json.loads((folder / NOTES).read_text())
    for line in retold(said["notes"], said["names"], tokens.names):
        tell(line)
    return Rows(tokens, folder, selection.length)


# feature: packed
def collate(rows: list[Tensor], counted: list[bool]) -> tuple[Batch, int]:
    """Return rows (samples, length), and the number of tokens that count.

    A row whose `counted` is false only pads the last batch of an epoch and counts zero.
    """
    inputs, labels, positions = torch.stack(rows, dim=1)
    labels[~torch.tensor(counted)] = IGNORED
    batch = {"inputs": inputs, "labels": labels, "positions": positions}
    # feature: flash
    starts = (positions.flatten() == 0).nonzero().flatten()  # of documents, over all rows
    batch["bounds"] = nn.functional.pad(starts, (0, 1), value=positions.numel()).int()
    # end: flash
    return batch, int((labels != IGNORED).sum())


# end: packed
# feature: unpacked
def collate(rows: list[Tensor], counted: list[bool]) -> tuple[Batch, int]:
    """Return documents (samples, longest), padded at the end, and the number of tokens that count.

    A document whose `counted` is false only pads the last batch of an epoch and counts zero.
    """
    longest = max(row.shape[1] for row in rows)
    inputs = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), IGNORED)
    for i, (row, counts) in enumerate(zip(rows, counted, strict=True)):
        inputs[i, : row.shape[1]] = row[0]
        if counts:
            labels[i, : row.shape[1]] = row[1]
    return {"inputs": inputs, "labels": labels}, int((labels != IGNORED).sum())


# end: unpacked
# end: documents
# feature: chosen_attention
def attention_of(config: Any) -> str:
    """Return the name of the attention to use, as transformers has it."""
    return str(config.attention)


# end: chosen_attention
# feature: flash
# feature: found_attention
def attention_of(_config: Any) -> str | None:
    """Return flash-attn's name if it is installed: it keeps documents apart. Else PyTorch's kernel does, or a mask."""
    return "flash_attention_2" if transformers.utils.is_flash_attn_2_available() else None


# end: found_attention
shared_heads: dict[str, bool] = {}
"""What the kernel must be told if several heads share keys and values, from PyTorch 2.12 on."""


def attend(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    **told: Any,
) -> tuple[Tensor, None]:
    """Attend within each document, with PyTorch's kernel. Shapes: (1, heads, positions, width) each."""
    from torch.nn.attention.varlen import varlen_attn

    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    parts = [part[0].transpose(0, 1).to(dtype) for part in (query, key, value)]
    ends, longest = told["cu_seq_lens_q"], told["max_length_q"]
    window = ((told.get("sliding_window") or 0) - 1, 0)  # positions before (-1: all) and after
    scale = told.get("scaling")
    return varlen_attn(*parts, ends, ends, longest, longest, scale=scale, window_size=window, **shared_heads)[
        None
    ], None


def kernel_agrees(shape: Shape, device: str = "cuda") -> bool:
    """Return whether the kernel exists (PyTorch 2.11) and gives the same result as a mask on two documents."""
    ends, begin = torch.tensor([0, 20, 48], device=device).int(), (torch.arange(48, device=device) >= 20) * 20

    def kernel(*parts: Tensor) -> Tensor:
        return attend(None, *parts, None, cu_seq_lens_q=ends, max_length_q=48)[0]

    try:
        from torch.nn.attention.varlen import varlen_attn

        takes = inspect.signature(varlen_attn).parameters
        shared_heads.update({"enable_gqa": True} if "enable_gqa" in takes else {})
        return agrees(kernel, shape, begin)
    except (ImportError, RuntimeError, TypeError, ValueError):
        return False


def choose_attention(model: Any) -> None:
    """Use PyTorch's kernel if it gives the same result as the model's own attention with a mask."""
    config = model.config.get_text_config()
    dropout = getattr(config, "attention_dropout", 0) or getattr(config, "attn_pdrop", 0)  # the kernel has none
    replaceable = config._attn_implementation == "sdpa" and model._supports_attention_backend
    replaceable = replaceable and config.model_type not in NEED_MASKS and not dropout
    if replaceable and torch.cuda.is_available() and all(map(kernel_agrees, set(shapes_of(config)))):
        transformers.AttentionInterface.register("by_document", attend)
        config._attn_implementation = "by_document"


# end: flash
# feature: unpacked
def given(config: Any, inputs: Tensor) -> dict[str, Any]:
    """Return the model's arguments: one document per row, which needs no mask, since padding comes last."""
    return {"input_ids": inputs}


def expect_one_document() -> None:
    """Keep transformers from looking for packed documents, for which each forward would wait for the device."""
    with suppress(ImportError):  # transformers before 4.53 does not look
        from transformers import masking_utils

        masking_utils.find_packed_sequence_indices = lambda _positions: None


# end: unpacked
# feature: packed
def given(
    config: Any,
    inputs: Tensor,
    positions: Tensor,
    # feature: flash
    bounds: Tensor,
    # end: flash
) -> dict[str, Any]:
    """Return the model's arguments. Positions restart in each document, and a mask separates documents."""
    # feature: flash
    if config._attn_implementation in ("flash_attention_2", "by_document"):
        return by_bounds(inputs, positions, bounds)
    # end: flash
    # feature: long_cpu
    if config._attn_implementation == "each_document":
        return by_bounds(inputs, positions, document_bounds(positions))
    # end: long_cpu
    place = torch.arange(inputs.shape[1], device=inputs.device)
    begin = place - positions  # where a token's document begins; different for each document of a row
    window, masks = getattr(config, "sliding_window", None), dict[str, Any]()
    # feature: long_gpu
    if config._attn_implementation == "flex_attention":
        masks["full_attention"] = block_mask(begin)
        if window:
            masks["sliding_attention"] = block_mask(begin, window)
        return by_masks(config, inputs, positions, masks)
    # end: long_gpu
    mask = (begin[:, :, None] == begin[:, None, :]) & (place[:, None] >= place)
    masks["full_attention"] = mask[:, None]
    if window:
        masks["sliding_attention"] = (mask & (place[:, None] - place < window))[:, None]
    if config._attn_implementation == "eager":  # eager attention adds the mask to the scores
        lowest = torch.finfo(torch.float32).min
        masks = {kind: torch.zeros_like(m, dtype=torch.float32).masked_fill(~m, lowest) for kind, m in masks.items()}
    return by_masks(config, inputs, positions, masks)


NEED_MASKS = {"nemotron", "phimoe"}
"""Families whose attention learns only from its mask where documents end, and how wide a window is."""
MIXING = {"doge", "moshi", "openai-gpt"}
"""Families that choose among all tokens of a row (Doge), have a window in their config and do not use it (Moshi), or
take no mask for each pair of tokens (GPT-1)."""


# feature: bounds
def by_bounds(inputs: Tensor, positions: Tensor, bounds: Tensor) -> dict[str, Any]:
    """Return the arguments that make all rows one, whose documents end at the bounds."""
    ends = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    longest = {"max_length_q": inputs.shape[1], "max_length_k": inputs.shape[1]}
    return {"input_ids": inputs.reshape(1, -1), "position_ids": positions.reshape(1, -1), **ends, **longest}


# end: bounds
MASKS_SINCE = {
    "cohere2": (4, 53),
    "gemma2": (4, 53),
    "gemma3_text": (4, 53),
    "gpt2": (4, 52),
    "gpt_bigcode": (4, 54),
    "xglm": (5, 0),
}
"""The transformers with which a family takes a mask for each pair of tokens; earlier ones stop, or mix documents."""


def by_masks(config: Any, inputs: Tensor, positions: Tensor, masks: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the mask of each kind of layer that the model has."""
    kinds = set(getattr(config, "layer_types", None) or [list(masks)[-1]])
    return {
        "input_ids": inputs,
        "position_ids": positions,
        "attention_mask": masks if len(kinds) > 1 else masks[kinds.pop()],
    }


def counts_from_padding(name: str, part: nn.Module) -> bool:
    """Return whether a module embeds positions that begin behind the number of the padding token, as RoBERTa's do."""
    return name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None


def refuse_what_mixes(model: Any) -> None:
    """Exit if the model passes information between tokens in other ways than attention with a mask."""
    from inspect import signature

    config = model.config.get_text_config()
    since = MASKS_SINCE.get(config.model_type)
    if since and tuple(map(int, transformers.__version__.split(".")[:2])) < since:
        name, needed = type(model).__name__, ".".join(map(str, since))
        raise SystemExit(
            f"{name} cannot keep packed documents apart before transformers {needed}: train without packing"
        )
    kinds = set(getattr(config, "layer_types", None) or ())
    others = kinds - {"full_attention", "sliding_attention"}
    others |= {name for name, part in model.named_modules() if counts_from_padding(name, part)}
    unmasked = NEED_MASKS if config._attn_implementation == "flash_attention_2" else set()
    others |= (MIXING | unmasked) & {config.model_type}
    if others or model._is_stateful or "position_ids" not in signature(model.forward).parameters:
        raise SystemExit(f"{type(model).__name__} cannot keep packed documents apart: train it without packing")


# end: packed
def in_chunks(
    model: Any,
    chunk: int,
    outcome: Callable[..., Tensor],
    joined: Callable[[Iterable[Tensor]], Tensor],
    length: int = 0,
) -> nn.Module:
    """Make `model(**batch)` return the outcome of logits and labels, with at most `chunk` tokens' logits in memory.

    The logits of a micro-batch (tokens × vocabulary) are often its largest tensor. They are computed in chunks, and
    recomputed for the gradient where head_loss.py does not compute it with them. This happens in the model's forward,
    because engines gather the head's weights there.
    """
    refuse_encoders(model)
    # feature: liger
    use_kernels(model)
    # end: liger
    # feature: packed
    refuse_what_mixes(model)
    # end: packed
    # feature: unpacked
    expect_one_document()
    # end: unpacked
    # feature: flash
    choose_attention(model)
    # end: flash
    # feature: long_rows
    avoid_mask(model, length, model.config.get_text_config().model_type in NEED_MASKS)
    # end: long_rows
    config = model.config.get_text_config()  # the text part of a model that also reads images
    plain = ends_with_head(model)
    if model.base_model not in set(model.children()):
        chunk = 0  # its own forward gives the logits, all at once
    if getattr(config, "output_router_logits", False) and os.environ.get("RANK", "0") == "0":
        print("the routers' auxiliary loss is left out: it would depend on how a batch is cut", flush=True)

    def forward(self: Any, inputs: Tensor, labels: Tensor, **documents: Tensor) -> Tensor:
        arguments, labels = {**given(config, inputs, **documents), "use_cache": False}, labels.flatten()
        if chunk == 0:
            return outcome(whole(**arguments).logits.flatten(0, 1), labels)
        output = self.base_model(**arguments)
        hidden = output[0].flatten(0, 1)

        def part(hidden: Tensor, labels: Tensor) -> Tensor:
            head = self.get_output_embeddings()
            return outcome(head(hidden) if plain else own_logits(self, whole, arguments, type(output), hidden), labels)

        if len(labels) <= chunk:
            return part(hidden, labels)
        # feature: fused
        if plain and can_be_fused(self.get_output_embeddings()):
            return HeadLoss.apply(hidden, self.get_output_embeddings().weight, labels, chunk)
        # end: fused
        parts = zip(hidden.split(chunk), labels.split(chunk), strict=True)
        return joined(checkpoint(part, *some, use_reentrant=False, preserve_rng_state=False) for some in parts)

    whole, model.forward = model.forward, types.MethodType(forward, model)
    return model


def refuse_encoders(model: Any) -> None:
    """Exit if the model is an encoder, which would copy the tokens it is to predict, or loses one that it needs."""
    shape, name = model.config, type(model).__name__
    if shape.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise SystemExit(f"{name} leaves out the encoder of its model: choose one that is a decoder alone")
    fills_in = shape.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or shape.model_type == "bert-generation"
    if shape.model_type == "cpmant" or (fills_in and not getattr(shape, "is_decoder", False)):
        raise SystemExit(
            f"{name} sees the tokens that it would learn to predict: choose a model that writes text, "
            'or set "is_decoder": true in its config.json'
        )


# feature: documents
def with_loss(model: Any, chunk: int, length: int = 0) -> nn.Module:
    """Make `model(**batch)` return the summed loss, with the logits of at most `chunk` tokens in memory at once.

    `length` is that of the longest row.
    """
    return in_chunks(model, chunk, cross_entropy_sum, sum, length)


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over the labels that count, in fp32 or fp64."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


# end: documents
# feature: answers
def with_log_probs(model: Any, chunk: int) -> nn.Module:
    """Make `model(inputs, labels)` return each label's log-probability: 0 where it does not count, in one dimension.

    The logits of at most `chunk` tokens are in memory at once.
    """
    return in_chunks(model, chunk, log_probs, lambda parts: torch.cat(list(parts)))


def log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each label, in fp32 or fp64."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    found = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0] - logits.logsumexp(1)
    return found * (labels != IGNORED)


# end: answers
# feature: documents
# feature: eval
def loss_and_count(loss: Tensor, batch: Batch) -> Tensor:
    """Return a summed loss and the number of labels that it sums over."""
    return torch.stack((loss, (batch["labels"] != IGNORED).sum()))


# end: eval
# end: documents
def place_for(parameters: int) -> tuple[str, torch.dtype] | None:
    """Return the device and type to generate with: a GPU with room in 16 bits, the CPU for a small model, or None."""
    if torch.cuda.is_available() and 2.5 * parameters < torch.cuda.mem_get_info()[0]:
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return "cuda", torch.bfloat16 if bf16 else torch.float16
    return ("cpu", torch.float32) if parameters <= LARGEST_ON_CPU else None


def write_on(folder: Path, tokens: list[int], length: int, source: str = "") -> list[int] | None:
    """Generate at most `length` tokens after some given ones with the trained model in a folder, within its positions.

    `source` is the base model of an adapter. Returns None if that would take too long.
    """
    shape = transformers.AutoConfig.from_pretrained(source or folder)
    with torch.device("meta"):
        place = place_for(transformers.AutoModelForCausalLM.from_config(shape).num_parameters())
    if place is None:
        return None
    device, dtype = place
    # feature: whole_model
    load = transformers.AutoModelForCausalLM.from_pretrained
    # end: whole_model
    # feature: lora
    # transformers gives the base model no rows for new tokens, and loses the lengths of DoRA.
    load = adapter.MODEL.from_pretrained
    # end: lora
    model = load(folder, **dict.fromkeys(FP32, dtype)).to(device).eval()
    if source and (Path(folder) / "generation_config.json").exists():  # of an adapter, the base's was read
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    room = getattr(model.config, "max_position_embeddings", None) or len(tokens) + length
    length = max(1, min(length, room - len(tokens)))
    ids = torch.tensor([tokens[-(room - length) :]], device=device)
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=True, temperature=0.8, top_k=40
    )
    return list(written[0, ids.shape[1] :].tolist())
