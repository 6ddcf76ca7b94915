"""Tensor, context and sequence parallelism against the model: its heads, its layers, the length of its sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz.config import Accelerate, DeepSpeed
from trainwiz.config.kinds import PARALLEL
from trainwiz.engines.transformers import CUT_BY_HEADS, ONE_KIND_OF_HEADS, WITHOUT_PLAN
from trainwiz.finding import Fix, Level, Violation, Violations, remedy, violation
from trainwiz.message import Message, say
from trainwiz.project import Architecture
from trainwiz.rules.registry import rule

if TYPE_CHECKING:
    from trainwiz.script import Script

_SP, _CP, _TP, _LENGTH = (f"{PARALLEL}{name}" for name in ("sp_size", "cp_size", "tp_size", "sp_seq_length"))
_AUTOTP = "tensor_parallel.autotp_size"
_MEGATRON = "megatron_lm_config.megatron_lm_"


@rule("TW387", level=Level.ERROR, field="parallelism_config")
def heads_divide_into_sequence_parallel_ranks(accelerate: Accelerate, architecture: Architecture) -> Violations:
    """sp_size must divide the attention heads, and divide or be a multiple of the key-value heads.

    Without it: every rank fails after the model is loaded, with `Attention head count 12 is not divisible by SP
    size 8` or `KV attention head count 3 is not divisible by SP size 2 or vice versa`. If the model's configuration
    has no key-value heads (GPT-2, OPT, BLOOM …), it fails with `'GPT2Config' object has no attribute
    'num_key_value_heads'`.
    Why: Ulysses gathers the sequence and gives each rank some of the heads. If there are fewer key-value heads than
    ranks, each is copied the same number of times.
    Instead: use a size that divides the heads. Context parallelism (cp_size, under FSDP 2) does not split heads.
    Source: seen with DeepSpeed 0.19.8; deepspeed/runtime/sequence_parallel/ulysses_sp.py
    """
    size = accelerate.size(_SP)
    if size < 2 or accelerate.kind != "DEEPSPEED":
        return
    heads, kv = architecture.heads, architecture.key_value_heads
    if architecture.model_type in ONE_KIND_OF_HEADS:
        yield violation(
            "{model} has type {model_type}; its configuration does not give the number of key-value heads, which "
            "Ulysses needs",
            where=_SP,
            model=architecture.name,
        )
    elif heads and heads % size:
        fitting = _sequence_sizes(heads, kv or heads, accelerate.world)
        yield _undivided(accelerate, _SP, "num_attention_heads", heads, architecture, fitting)
    elif kv and kv % size and size % kv:
        yield violation(
            "sp_size {size} and the {heads} key-value heads of {model}: one must divide the other",
            Fix(message=_sequence_sizes(heads or kv, kv, accelerate.world)),
            where=_SP,
            size=size,
            heads=kv,
            model=architecture.name,
        )


@rule("TW388", level=Level.ERROR, field="parallelism_config")
def sequence_parallel_attention_is_the_models(accelerate: Accelerate, script: Script) -> Violations:
    """sp_attn_implementation must match the attention that the script loads the model with.

    Without it: every rank fails with `core_attn_implementation='sdpa' does not match model config
    attn_implementation='flash_attention_2'` after the model is loaded.
    Why: Ulysses replaces one specific attention function; it is sdpa if the file sets none.
    Instead: use the same name in both places.
    Source: seen with DeepSpeed 0.19.8 and accelerate 1.15.0
    """
    path = f"{PARALLEL}sp_attn_implementation"
    there = script.loaded.attention
    here = accelerate.get(path, "sdpa")
    if accelerate.kind == "DEEPSPEED" and accelerate.size(_SP) > 1 and there and there != here:
        yield violation(
            "sequence parallelism replaces {here} attention, but the script loads the model with {there}",
            remedy("write {key}", {path: there}, key=f"parallelism_config_sp_attn_implementation: {there}"),
            where=path if accelerate.has(path) else _SP,
            here=str(here),
            there=there,
        )


@rule("TW389", level=Level.ERROR, field="parallelism_config")
def fixed_sequences_divide_into_ranks(accelerate: Accelerate) -> Violations:
    """For sequences of a fixed length, sp_seq_length must be set to a multiple of sp_size.

    Without it: the start fails with `when sp_seq_length_is_variable is False sp_seq_length must be provided`, or
    `Either seq_length_is_variable needs to be True or seq_length needs to be set`. A length that is not divisible
    fails in the first batch: `batch's seqlen=1000 isn't divisible by sp-size=3`.
    Why: each rank holds an equal part of every sequence.
    Instead: use a multiple of sp_size, and pad to it in the script; or set sp_seq_length_is_variable: true, which
    still needs a multiple of sp_size for each batch.
    Source: seen with DeepSpeed 0.19.8 and accelerate 1.15.0
    """
    size, length = accelerate.size(_SP), accelerate.get(_LENGTH)
    path = f"{PARALLEL}sp_seq_length_is_variable"
    if size < 2 or accelerate.kind != "DEEPSPEED" or str(accelerate.get(path, True)).lower() != "false":
        return
    if not length:
        fix = remedy("add parallelism_config_sp_seq_length, or set this to true", {path: True})
        yield violation("sp_seq_length_is_variable is false, but sp_seq_length is not set", fix, where=path)
    elif type(length) is int and length > 0 and length % size:
        yield violation(
            "sp_size {size} does not divide sp_seq_length {length}",
            remedy("write {low} or {high}", low=max(1, length // size) * size, high=(length // size + 1) * size),
            where=_LENGTH,
            size=size,
            length=length,
        )


@rule("TW390", level=Level.ERROR, field="parallelism_config")
def the_models_layers_can_be_split(accelerate: Accelerate, architecture: Architecture) -> Violations:
    """Context parallelism needs full attention; sequence parallelism does not support recurrent layers.

    Without it: prepare fails after the model is loaded, with `Context parallelism does not support attention layers
    of type ['sliding_attention']` or `Sequence parallelism does not support attention layers of type
    ['linear_attention']`. Before accelerate rejected such models, they silently trained with full attention or with
    wrong gradients.
    Why: context parallelism replaces each layer's mask with a causal one. A recurrent layer passes a state along
    the sequence, and the ranks do not exchange it.
    Instead: use a model with full attention in all layers, or do not split sequences.
    Source: seen with accelerate 1.15.0; accelerate/big_modeling.py, `_attach_context_parallel_hooks`
    """
    windows = [kind for kind in architecture.layer_types if kind != "full_attention"]
    recurrent = [kind for kind in architecture.layer_types if "linear_attention" in kind]
    for path, kind, refused in ((_CP, "FSDP", windows), (_SP, "DEEPSPEED", recurrent)):
        size = accelerate.size(path)
        if accelerate.kind == kind and size > 1 and refused:
            yield violation(
                "{model} has layers of type {kinds}; their sequences cannot be split across {size} ranks",
                remedy("write 1, and use the ranks for data parallelism"),
                where=path,
                model=architecture.name,
                kinds=", ".join(refused),
                size=size,
            )


# docs/decisions/rules.md: Attention heads are compared by model type
@rule("TW391", level=Level.ERROR, field="parallelism_config")
def heads_divide_into_tensor_parallel_ranks(accelerate: Accelerate, architecture: Architecture) -> Violations:
    """tp_size must divide the attention and key-value heads, and the model must support tensor parallelism.

    Without it: the first forward pass of every rank fails with `shape '[1, 8, -1, 16]' is invalid for input of size
    192`, after the whole model was loaded and split. A model without tensor parallel support fails with `tp_size=4
    was requested, but GPT2LMHeadModel has no tp_plan`.
    Why: the tensor parallel plan gives each rank an equal number of rows of the query, key and value projections,
    which are then read as whole heads. The numbers are not checked before that.
    Instead: use a divisor of the number of key-value heads (8 or fewer in Llama 3 and Qwen 2.5), and set
    dp_shard_size to the rest of the ranks.
    Source: seen with transformers 5.23; transformers/distributed/tensor_parallel.py
    """
    size, kind = accelerate.size(_TP), architecture.model_type
    if size < 2 or accelerate.kind in ("DEEPSPEED", "MEGATRON_LM"):
        return
    if kind in WITHOUT_PLAN:
        yield violation(
            "tp_size is {size}, but transformers has no tensor parallel plan for models of type {model_type}",
            remedy("write 1, and use the ranks for data parallelism"),
            where=_TP,
            size=size,
        )
    if kind not in CUT_BY_HEADS:
        return
    for heads, what in ((architecture.heads, "num_attention_heads"), (architecture.kv, "num_key_value_heads")):
        if heads and heads % size:
            fitting = _sizes(heads, accelerate.world, architecture.heads, architecture.kv)
            yield _undivided(accelerate, _TP, what, heads, architecture, fitting)
            return


@rule("TW392", level=Level.WARNING, field=_AUTOTP)
def heads_divide_into_autotp_ranks(deepspeed: DeepSpeed, architecture: Architecture) -> Violations:
    """tensor_parallel.autotp_size should divide the number of key-value heads.

    Without it: training works, but unevenly. Ranks get different numbers of heads, and ranks beyond the number of
    key-value heads get none: all wait for the rank with the most heads, and the memory needed is that rank's.
    Why: DeepSpeed distributes whole key-value heads, as evenly as it can.
    Instead: use a divisor of the number of key-value heads.
    Source: seen with DeepSpeed 0.19.8 on 2 CPU ranks, with the same loss as one;
    deepspeed/module_inject/tp_shard.py
    """
    size, kv = deepspeed.get(_AUTOTP), architecture.kv
    if type(size) is not int or size < 2 or not kv or kv % size == 0:
        return
    most, least = -(-kv // size), kv // size
    yield violation(
        "key-value heads of {model}: {heads}; with {size} ranks, some get {most} and others {least}",
        Fix(message=_sizes(kv, None, kv)),
        model=architecture.name,
        heads=kv,
        size=size,
        most=most,
        least=least,
    )


@rule("TW393", level=Level.ERROR, field="megatron_lm_config")
def megatrons_sizes_divide_the_model(accelerate: Accelerate, architecture: Architecture) -> Violations:
    """Megatron's tensor size must divide the attention heads; its pipeline size must divide the layers.

    Without it: every rank fails after the imports with `num_attention_heads (12) must be a multiple of
    tensor_model_parallel_size (8)`, or `num_layers must be divisible by pipeline_model_parallel_size`.
    Why: each rank of a tensor group computes equally many whole heads, each pipeline stage equally many layers.
    Instead: use sizes that divide them. If the last stage should have a different number of layers, set
    megatron_lm_decoder_last_pipeline_num_layers.
    Source: the first seen by hand with megatron-core 0.16.1 (`TransformerConfig.__post_init__`), which trainwiz's
    tests do not have; the second read there (`get_num_layers_to_build` in
    megatron/core/transformer/transformer_block.py)
    """
    if accelerate.kind != "MEGATRON_LM":
        return
    uneven = accelerate.has(f"{_MEGATRON}decoder_last_pipeline_num_layers")
    for key, count, what in (
        ("tp_degree", architecture.heads, "num_attention_heads"),
        ("pp_degree", None if uneven else architecture.layers, "num_layers"),
    ):
        path = f"{_MEGATRON}{key}"
        if count and count % accelerate.size(path):
            yield _undivided(accelerate, path, what, count, architecture, _sizes(count, accelerate.world, count))


@rule("TW394", level=Level.ERROR, field="parallelism_config")
def context_parallelism_is_fsdps(accelerate: Accelerate) -> Violations:
    """cp_size larger than 1 needs distributed_type FSDP with fsdp_version 2.

    Without it: every rank fails after the imports with `cp_size > 1 specified in the parallelism_config, but no
    fsdp_plugin was provided`, or `Using cp_size>1 requires FSDP2`.
    Why: FSDP 2 combines the gradients of the parts of a sequence when it shards them.
    Instead: set distributed_type: FSDP with fsdp_version: 2. Under DEEPSPEED, use sp_size instead of cp_size.
    Source: seen with accelerate 1.15.0; accelerate/state.py
    """
    size = accelerate.size(_CP)
    if size < 2 or not accelerate.kind.startswith(("MULTI_", "FSDP")) or accelerate.kind == "MULTI_CPU":
        return
    if accelerate.kind != "FSDP":
        yield violation("cp_size {size} needs distributed_type FSDP, not {kind}", where=_CP, size=size)
    elif accelerate.fsdp_version != 2:
        fix = remedy("write {key}", {"fsdp_config.fsdp_version": 2}, key="fsdp_version: 2")
        yield violation("cp_size {size} needs fsdp_version 2, not {fsdp_version}", fix, where=_CP, size=size)


@rule("TW395", level=Level.WARNING, field="parallelism_config")
def sequence_parallelism_is_deepspeeds(accelerate: Accelerate) -> Violations:
    """sp_size larger than 1 only takes effect under distributed_type DEEPSPEED.

    Without it: sequences are silently not split: the training runs with plain data parallelism and its memory use.
    Why: Ulysses belongs to DeepSpeed; elsewhere accelerate neither creates its groups nor checks its size.
    Instead: set distributed_type: DEEPSPEED, or use cp_size under FSDP 2.
    Source: read in accelerate 1.15.0 (`ParallelismConfig.build_device_mesh`, `_validate_accelerator`)
    """
    size = accelerate.size(_SP)
    if size > 1 and accelerate.kind.startswith("MULTI_") and accelerate.kind != "MULTI_CPU":
        fix = remedy("set distributed_type: DEEPSPEED, or delete it", {_SP: None})
        yield violation("sp_size {size} has no effect under {kind}", fix, where=_SP, size=size)


@rule("TW396", level=Level.WARNING, field="parallelism_config")
def padded_sequences_divide_into_parts(accelerate: Accelerate, script: Script) -> Violations:
    """The length that the script pads to must be a multiple of sp_size, or of 2 × cp_size.

    Without it: under DeepSpeed, the first batch fails with `batch's seqlen=1000 isn't divisible by sp-size=3`.
    Under FSDP 2, torch up to 2.9 stops with an assertion on the buffer size; later versions give the ranks unequal
    parts of a causal sequence, and all wait for the rank with the longest part.
    Why: each rank holds an equal part. With context parallelism it holds two parts, one from each end, because
    later tokens of a causal sequence cost more.
    Instead: pad to the next multiple.
    Source: seen with DeepSpeed 0.19.8; torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py
    (2.13)
    """
    for path, kind, parts in ((_SP, "DEEPSPEED", 1), (_CP, "FSDP", 2)):
        size = accelerate.size(path)
        for length, line in script.padded_to if size > 1 and accelerate.kind == kind else ():
            if length % (size * parts):
                low = length // (size * parts) * size * parts
                yield violation(
                    "line {line} of the script pads to {length} tokens, which is not a multiple of {parts}",
                    remedy("write {low} or {high}", low=max(low, size * parts), high=low + size * parts),
                    where=path,
                    length=length,
                    line=line,
                    parts=size * parts,
                )


def _undivided(
    accelerate: Accelerate, path: str, what: str, count: int, architecture: Architecture, fitting: Message
) -> Violation:
    key = path.removeprefix(PARALLEL).removeprefix(_MEGATRON)
    return violation(
        "{key} {size} does not divide {what} {count} of {model}",
        Fix(message=fitting),
        where=path,
        key=key,
        size=accelerate.size(path),
        what=what,
        count=count,
        model=architecture.name,
    )


def _sizes(most: int, world: int | None, *divided: int | None) -> Message:
    """The sizes up to `most` that divide the world and these numbers, if they are known."""
    numbers = [n for n in (world, *divided) if n]
    fitting = [size for size in range(1, most + 1) if not any(n % size for n in numbers)]
    return say("possible sizes: {sizes}", sizes=", ".join(map(str, fitting)))


def _sequence_sizes(heads: int, kv: int, world: int | None) -> Message:
    fitting = [n for n in range(1, heads + 1) if heads % n == 0 and (kv % n == 0 or n % kv == 0)]
    return say("possible sizes: {sizes}", sizes=", ".join(str(n) for n in fitting if not world or world % n == 0))
