"""From a row of published measurements to the work that trainwiz forecasts: what the row says, and how its tool trains.

A `Tool` holds what the tables of a source leave out because their tool always does it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from published import spelling
from published.shapes import shape
from trainwiz import strategies
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.device import Work
from trainwiz.estimate.gpus import gpu_model
from trainwiz.models import Transformer
from trainwiz.models.activations import Checkpointing
from trainwiz.models.adapted import EVERYWHERE
from trainwiz.models.kept import Arithmetic
from trainwiz.strategies import Strategy, Training
from trainwiz.strategies.strategy import LIVE_ELEMENTS, REDUCE_BUCKET_ELEMENTS

Row = Mapping[str, str]
Meter = Literal["allocated", "reserved", "device"]
"""What a source calls peak: tensors (torch.cuda.max_memory_allocated), the allocator's blocks, or all that nvidia-smi
shows."""


class Unknown(Exception):
    """The row does not say enough; the message names what is missing."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """How a source's tool trains."""

    meter: Meter = "device"
    fused_step: bool = True
    pure: bool = False
    """Weights, gradients and moments are in 16 bits where the row does not say otherwise."""
    logit_bytes: int = 12
    """Of each token and word: logits in 16 bits and fp32, softmax or gradient. 14 where the 16-bit logits stay, too."""
    engine_logit_bytes: int | None = None
    """The same under DeepSpeed and for QLoRA, where its tool computes the loss in another way."""
    compiled_logit_bytes: int | None = None
    """The same where the loss is compiled."""
    whole_logit_bytes: int | None = None
    """The same where a row says that the loss is not chunked."""
    moment_bytes: int = 8
    """Of the optimizer, for each parameter, where all weights are trained."""
    first_micro_batches: int | None = None
    """How many the source looked at: with at least as much accumulation, no step has made the moments yet."""
    bucket: int = REDUCE_BUCKET_ELEMENTS
    """Elements that ZeRO reduces at once."""
    live: int = LIVE_ELEMENTS
    """Elements that ZeRO 3 keeps gathered (`stage3_max_live_parameters`)."""
    prefetch: int = REDUCE_BUCKET_ELEMENTS
    """Elements that ZeRO 3 gathers ahead at once."""
    saves_gathered: bool = False
    """ZeRO 3's linear layers are PyTorch's own, which keep gathered weights for the backward pass."""
    quantized_strategy: str | None = None
    """What trains GPTQ models on one GPU, where that is not plain PyTorch."""
    loss_parts: int = 1
    """Chunks that the loss of a micro-batch is cut into."""
    checkpointing: Checkpointing | None = None
    """Where a row does not say it."""
    pure_autocast: bool = True
    """16-bit weights are used under autocast all the same."""
    paged_moments: bool = False
    """The moments of full fine-tuning are paged to the host (bitsandbytes' PagedAdamW)."""
    adapter_dropout: bool = False
    """Adapters have dropout: on queries and values, or in its qlora.yaml recipes on all matrices."""
    untied: bool = False
    """The head has weights of its own, also where the model shares the embedding's."""
    attention: float = 1.0
    """The speed of its attention's kernels, of FlashAttention 2."""
    halves: bool = False
    """Its selective checkpointing computes every second matrix or layer again."""
    whole_frozen: bool = False
    """FSDP frees gathered weights that are frozen only at the end of the backward pass."""
    half_loss: bool = False
    """The loss is computed in the type of the weights: what is counted in 16 bits is twice as large in fp32."""


_TRAINER = Tool(fused_step=False)
_TOOLS: tuple[tuple[str, Tool], ...] = (
    # transformers copied the logits to fp32 inside the model until 4.45.
    ("refs/a100_80gb.csv", replace(_TRAINER, meter="allocated", logit_bytes=14)),
    ("fms-acceleration", replace(_TRAINER, meter="allocated")),
    (
        "litgpt",
        Tool(
            meter="allocated",
            fused_step=False,
            pure=True,
            logit_bytes=10,
            checkpointing="none",
            pure_autocast=False,
            paged_moments=True,
            adapter_dropout=True,
            untied=True,
            whole_frozen=True,
        ),
    ),
    # Its loss in eight chunks has the 16-bit logits of all tokens and one chunk: 2 + 12 / 8 bytes, compiled 2 + 4 / 8.
    (
        "torchtune",
        Tool(
            meter="allocated",
            pure=True,
            pure_autocast=False,
            logit_bytes=4,
            compiled_logit_bytes=3,
            whole_logit_bytes=12,
            checkpointing="full",
            paged_moments=True,
        ),
    ),
    # thunder/benchmarks/benchmark_litgpt.py: weights in bf16, and no autocast.
    ("lightning-thunder", Tool(meter="allocated", pure=True, pure_autocast=False, checkpointing="none", untied=True)),
    ("202412_torchtitan", Tool(meter="reserved", checkpointing="full", logit_bytes=14, halves=True)),
    # Since 2025 torchtitan compiles the loss as well: the logits and nothing in fp32.
    ("torchtitan", Tool(meter="reserved", checkpointing="full", logit_bytes=4, halves=True)),
    ("peft", Tool(meter="reserved", fused_step=False, pure_autocast=False)),
    # Under DeepSpeed (its QLoRA, and ZeRO 3) nothing autocasts: logits, their copy, softmax and gradient in 16 bits.
    ("Qwen", replace(_TRAINER, logit_bytes=14, engine_logit_bytes=8, quantized_strategy="zero2")),
    # What it says is allocated after a step grows by 4 bytes per logit: the outputs of the last micro-batch are kept
    # while the next one is computed. With 8 micro-batches in an update there are 8 P / N less than with 2: DeepSpeed
    # makes the moments in the first step.
    # Its author's configurations of ZeRO 3 (OpenLM's default.hocon of 2023, CCA-Attention's stage3_fast.json of 2025)
    # both set the last three.
    (
        "gist chenyaofo",
        replace(
            _TRAINER,
            meter="allocated",
            logit_bytes=18,
            bucket=500_000_000,
            first_micro_batches=8,
            live=30_000_000,
            prefetch=30_000_000,
            saves_gathered=True,
        ),
    ),
    # Its configuration says stage 3 alone: DeepSpeed's own size of a bucket.
    ("deepspeed-experiments", Tool(meter="allocated", pure=True, bucket=500_000_000)),
    # Its examples of 2024 train with transformers 4.44.
    ("Liger-Kernel", replace(_TRAINER, meter="allocated", logit_bytes=14)),
    ("nanotron", Tool(meter="allocated", pure=False)),
    ("ms-swift", replace(_TRAINER, pure=True, checkpointing="full")),
    ("axolotl", replace(_TRAINER, pure=True, checkpointing="full")),
    ("trainwiz", Tool(meter="reserved")),
    # Its loss has logits in fp32 at hand to the end of the backward pass, and none in 16 bits.
    # Its loss stays in 16 bits, and drops the logits: logits, softmax and two gradients (src/models/llama3.py).
    (
        "universal-llm-trainer",
        replace(_TRAINER, meter="reserved", pure=True, pure_autocast=False, logit_bytes=8, half_loss=True),
    ),
    ("finetuning_comp", replace(_TRAINER, meter="allocated")),
    # Liger's cross-entropy behind a copy in fp32, whose gradient takes its place.
    ("halo", Tool(meter="allocated", pure=True, pure_autocast=False, logit_bytes=8)),
    ("prime-rl", Tool(meter="reserved", logit_bytes=16)),
    # Its submit_benchmarks.py took Triton's FlashAttention of 2022 until January 2024; the speed is fitted on its rows.
    ("llm-foundry", Tool(checkpointing="none", attention=0.56)),
    ("Megatron", Tool(checkpointing="none")),
    ("fms-fsdp", Tool(checkpointing="none", halves=True)),
    # Its loss gets the engine's logits in fp16: they, their copy, softmax and gradient stay in 16 bits.
    ("ColossalAI-Pytorch-lightning", Tool(meter="allocated", fused_step=False, engine_logit_bytes=8)),
    ("ColossalAI", Tool(meter="allocated")),
)
_FIRST_FLASH = 0.5
"""The speed of FlashAttention 1, of its successor: https://arxiv.org/abs/2307.08691, section 4.1."""
_FUSED = re.compile("Megatron|NeMo|nemo|Transformer ?Engine")
"""What trains with Transformer Engine."""
_LATER_FLASH = {9: 1.6, 10: 3.6}
"""The speed of kernels written for a GPU (FlashAttention 3 and 4, cuDNN), of FlashAttention 2, by compute capability.

Hopper: 1.5 to 2 times forward, 1.5 to 1.75 backward (https://arxiv.org/abs/2407.08608, abstract and section 4.1).
Blackwell: 1,418 TFLOP/s forward and 1,118 to 1,209 backward, of 313 to 346
(https://github.com/Dao-AILab/flash-attention/pull/2280 and issues/1589).
"""
_FUSED_LAYERS = r"fused(?![ _-]*(?:adam|optim|step|cross|linear|loss|head|lm|ce))"
_EARLY = (
    r"(?:low[ _-])?memory recipe|optimi[sz]er(?: step)? (?:fused )?in(?:to)?(?: the)? (?:backward|bwd)"
    r"|optimizer_in_bwd|opt_in_bwd"
)
_MATRICES = 7
"""Of a layer: q, k, v, o, gate, up, down."""
_RECOMPUTES = r"(?:gradient|activation)[ _]?(?:checkpoint|recomput)\w*"
_NO_LOGITS = r"liger|fused[ _-]*linear[ _-]*cross|cut[ _-]*cross|\bcce\b"
_COMPILED_LOSS, _NO_GRADIENT = 4, 2
"""Bytes of each logit where the compiler fuses the loss: the logits and their gradient in 16 bits. A compiled model
that returns its logits beside the loss gets a gradient of zeros for them, which it adds.
"""
_SINGLE_CONSTANTS = (4.5 - 4.127) / 8
"""Bytes of a weight by which constants in fp32 are larger than quantized ones."""
_BOUND = ("a bound", "short samples", "vary", "not stated in the table", "contradicts")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A row, understood."""

    strategy: Strategy
    work: Work
    meter: Meter
    exact: bool
    """Batch and length are those of the measurement, not bounds or guesses."""
    group: str
    context: int
    """Ranks that share a sample (context parallelism)."""
    compiled: bool
    """By torch.compile, or its layers are fused as far."""
    attention: float
    """The speed of its attention's kernels, of FlashAttention 2."""
    halves: bool
    """Its selective checkpointing computes every second matrix or layer again: halfway between none and all."""
    kept: Checkpointing
    """What the other half keeps: every layer's tensors, or the results of its matrices."""
    share: float
    """Of those bytes: half of the layers, or four of Llama's seven matrices (the largest among them) and attention."""
    accumulation: int
    """Micro-batches of an update."""
    network: float | None
    """Bytes per second and rank between machines, where a row says what connects them."""
    watts: float | None
    """What each GPU may draw, where a row says that it is less than usual."""
    machine: int
    """Ranks of a machine, where a row has more than one."""
    replicas: int
    """Groups of ranks that hold the same shards, each within a machine (HSDP)."""
    steps_early: bool
    """The optimizer steps inside the backward pass: no gradient outlives its layer."""
    tensor_cores: bool
    """Products in fp32 run as TF32."""
    returned: int
    """Bytes of the logits that the model returns, where the loop holds them to the end of the update."""
    cached: int
    """Bytes of the keys and values of all layers that a model of transformers returns for generating (`use_cache`)."""
    casts: int
    """Bytes of frozen weights in 16 bits: autocast casts those in fp32 once more for each use, and the backward pass
    needs each cast.
    """
    constants: int
    """Bytes that the constants of weights in 4 bits take in fp32, one of each 64, where they are not quantized, too."""
    wide_head: bool
    """The head is computed in fp32."""


class _WholeWeights:
    """FSDP that frees what it gathered at the end of the backward pass: SHARD_GRAD_OP, reshard_after_forward=False."""

    layers_at_once = 0
    gathered_bytes: int | None = None
    """Of a gathered weight; None: those that it is computed with."""

    def loss_buffer_bytes(self, training: Training) -> int:
        """All layers, beside what is outside of them."""
        layers = training.model_parameters - training.root
        each = training.compute_bytes if self.gathered_bytes is None else self.gathered_bytes
        return super().loss_buffer_bytes(training) + each * layers  # type: ignore[misc]

    def link_bytes(self, training: Training, accumulation: int) -> float:
        """Weights are gathered once in each micro-batch."""
        spared = training.ring_share * training.compute_bytes * accumulation * training.model_parameters
        return super().link_bytes(training, accumulation) - spared  # type: ignore[misc]


def _strategy(said: spelling.Sharding, extras: str) -> Strategy:
    found = strategies.labeled(said.label)
    if found.keeps_inputs_of_frozen_layers and "use_reentrant False" in extras:
        found = type("Rerun", (type(found),), {"keeps_inputs_of_frozen_layers": False})()
    if not said.gathered:
        return found
    in_fp8 = re.search(r"(fp8|float8)[ _-]all[ _-]?gather", extras)
    again = re.search(r"cast again in backward|recompute_fp8_weight", extras)
    each = 0 if again else 1 if in_fp8 else None
    return type("Gathered", (_WholeWeights, type(found)), {"gathered_bytes": each})()


def recipe(row: Row) -> Recipe:
    """What a row says and its tool does. Raises `Unknown`."""
    tool = next((tool for name, tool in _TOOLS if name in row["source"]), Tool())
    model = shape(row["model"], spelling.billions(row["params_b"]))
    if model is None:
        raise Unknown("neither the model's name nor its size says how large it is")
    if tool.untied and model.tied:
        head = model.vocab_size * model.hidden_size
        model = replace(model, tied=False, head_weights=head)
    model = _as_it_was(row, model)
    micro, length, exact = _batch(row, model)
    world = spelling.world(row["gpus"], row["gpu"], f"{row['strategy']} {row['extras']}")
    said = spelling.sharding(_way(row, tool), world.ranks)
    context = _context(row)
    return _understood(row, tool, model, _Shape(micro, length, exact, world, said, context))


def _as_it_was(row: Row, model: Transformer) -> Transformer:
    """Before transformers 5, each expert was made of linear layers, which were quantized and had adapters as such."""
    if spelling.has(row["extras"], r"transformers[ =v]*5"):
        return model
    blocks = (replace(block, joined_weights=0, joined_features=0) for block in model.blocks)
    return replace(model, blocks=tuple(blocks))


@dataclass(frozen=True)
class _Shape:
    """Numbers of a row."""

    micro: int
    length: int
    exact: bool
    world: spelling.World
    said: spelling.Sharding
    context: int


def _understood(row: Row, tool: Tool, model: Transformer, shape: _Shape) -> Recipe:
    strategy, adapter = _strategy(shape.said, row["extras"]), spelling.adapter(row["strategy"])
    work = _work(row, tool, model, shape, strategy, adapter)
    one = shape.world.ranks == 1 or strategy.one_rank
    sharded = strategy.partitions_weights and not strategy.zero_stage
    kind = {"": "full", "lora": "LoRA", "qlora": "QLoRA"}.get(adapter, "other adapters")
    layers, extras = "layer" in row["checkpointing"], row["extras"]
    limit = re.search(r"(?<!at most )\b(\d{2,4}) W\b", extras)
    return Recipe(
        strategy=strategy,
        work=work,
        meter=_meter(row, tool),
        exact=shape.exact,
        group=f"{kind}, {'one GPU' if one else 'FSDP' if sharded else 'ZeRO'}",
        context=shape.context,
        compiled=work.compiled or spelling.has(extras, _FUSED_LAYERS),
        attention=_attention(row, tool),
        network=_network(row, shape.world.machine),
        watts=float(limit[1]) if limit else None,
        accumulation=spelling.accumulation(extras, shape.micro, shape.length, shape.world.ranks),
        kept="none" if layers else "selective",
        share=0.5 if layers else 0.59,
        halves=tool.halves and work.checkpointing == "selective",
        machine=shape.world.machine,
        replicas=shape.world.ranks // work.world,
        steps_early=spelling.has(extras, _EARLY),
        tensor_cores=spelling.tensor_cores_in_fp32(row["precision"]),
        returned=work.tokens * model.vocab_size * _returned_bytes(row, work) if _holds(row) else 0,
        cached=work.tokens * _cached_bytes(model) if spelling.has(extras, "use_cache") else 0,
        casts=2 * (model.parameters - model.embedding_weights) if _casts_frozen(work, strategy) else 0,
        constants=int(_SINGLE_CONSTANTS * model.linear_weights) if _quantized_once(row) else 0,
        wide_head=_raised(row),
    )


def _quantized_once(row: Row) -> bool:
    return "no double quantization" in row["extras"]


def _holds(row: Row) -> bool:
    return re.search("holds its outputs|keeps logits of the last", row["extras"]) is not None


def _returned_bytes(row: Row, work: Work) -> int:
    """transformers returned logits in fp32 until 4.45."""
    old = re.search(r"transformers 4\.([0-3]\d|4[0-4])", row["extras"]) or "logits in fp32" in row["extras"]
    return 4 if old or work.arithmetic == "fp32" else 2


def _cached_bytes(model: Transformer) -> int:
    """Of one token: a key and a value in 16 bits."""
    return sum(2 * 2 * block.count * block.key_value_size for block in model.blocks)


def _casts_frozen(work: Work, strategy: Strategy) -> bool:
    """Where nothing is computed again: otherwise one layer's casts are there at once."""
    wide = work.frozen_bytes == 4 and work.arithmetic == "autocast" and work.adapter == "lora"
    return wide and work.checkpointing == "none" and strategy.one_rank


def _work(row: Row, tool: Tool, model: Transformer, shape: _Shape, strategy: Strategy, adapter: str) -> Work:
    extras, ranks, how = row["extras"], shape.world.ranks, spelling.precision(row["precision"])
    pure = _pure(row, tool, strategy, adapter)
    paired = "dpo" in row["strategy"].lower() and "packed" not in extras  # packed rows hold both answers
    accumulation = spelling.accumulation(extras, shape.micro, shape.length, ranks)
    world = min(ranks, shape.world.machine) if shape.said.within else ranks
    moments, stepped = _moments(row, tool, strategy, adapter), accumulation < (tool.first_micro_batches or 10**6)
    offloads = _offloads(row, strategy)
    wide = adapter and re.search(r"adapters? (in )?fp32|fp32 shards", f"{row['precision']} {extras}")
    return Work(
        generates=not re.search("no vocabulary head|masked tokens only", extras),
        keeps_scores=spelling.has(extras, "eager attention"),
        parameters=model.parameters * (2 if "dpo" in row["strategy"].lower() else 1) + _copied_tables(row, model),
        transformer=model,
        adapted_features=_adapted_features(row, model) if adapter else None,
        adapter={"qlora": "qlora", "": "none"}.get(adapter, "lora"),
        trained=_trained(row, model, adapter),
        precision=how,
        fused_casts=_FUSED.search(row["source"] + extras) is not None,
        weight_bytes=2 if (pure or adapter) and not wide else 4,
        targets=_targets(row, tool, adapter),
        # bitsandbytes kept the inputs of frozen matrices in four bits, too.
        keeps_frozen_inputs=adapter == "qlora" and not spelling.has(extras, r"transformers[ =v]*5"),
        dropped_features=_dropped(row, tool, model) if adapter in ("lora", "qlora") else 0,
        frozen_bytes=_frozen_bytes(row) * (1 + world if adapter and _gathers_all(tool, strategy) else 1),
        moment_bytes=moments if stepped else 0,
        bucket=tool.bucket,
        live=tool.live,
        prefetch=tool.prefetch,
        saves_gathered=tool.saves_gathered,
        sums_in_half=True,
        fused_step=tool.fused_step or not moments,
        world=world,
        arithmetic=_arithmetic(row, tool, strategy),
        bucket_view=False,
        stream_bytes=_stream_bytes(row, strategy, whole=not (pure or adapter)),
        optimizer_offloaded=offloads[0],
        parameters_offloaded=offloads[1],
        checkpointing=_checkpointing(row, tool),
        compiled=_compiled(row),
        fused_layers=spelling.has(extras, r"fused cross-entropy, norms|liger (?:rms)?norm"),
        accumulates=accumulation > 1,
        loss=_loss(row, tool, shape.micro * shape.length * (2 if paired else 1), model),
        samples=shape.micro * (2 if paired else 1),
        length=max(1, shape.length // shape.context),
    )


def _way(row: Row, tool: Tool) -> str:
    """The strategy in words; what trains GPTQ models on one GPU of some sources is not plain PyTorch."""
    text = row["strategy"]
    if "gptq" in text.lower() and tool.quantized_strategy and not re.search("fsdp|zero", text.lower()):
        return tool.quantized_strategy
    return text


def _context(row: Row) -> int:
    """Ranks that share a sample. Raises `Unknown` for what trainwiz does not plan."""
    degrees = spelling.degrees(row["strategy"])
    more = re.findall(r"\b(?:tp|pp|ep|cp)\s?=\s?\d+", row["extras"].lower())
    degrees = {**spelling.degrees(" ".join(more)), **degrees}
    if sharded := [name for name in ("tp", "pp", "ep") if degrees.get(name, 1) > 1]:
        raise Unknown(f"{' and '.join(sharded)}: trainwiz does not plan tensor, pipeline or expert parallelism")
    return degrees.get("cp", 1)


def _pure(row: Row, tool: Tool, strategy: Strategy, adapter: str) -> bool:
    """Whether what is trained is in 16 bits. Accelerate raises trained shards to fp32 under mixed precision."""
    said = row["precision"]
    if not adapter and strategy.partitions_weights and "autocast" in said:
        return False
    return spelling.has(row["extras"], "pure") or spelling.pure(said) or (tool.pure and not spelling.mixed(said))


def _moments(row: Row, tool: Tool, strategy: Strategy, adapter: str) -> int:
    """Bytes of each trained parameter; moments have the type of the weights, but for those in 8 bits and less."""
    named = spelling.moment_bytes(f"{row['strategy']} {row['extras']}")
    if named is None and tool.paged_moments and not adapter and strategy.one_rank and "cumulative" not in row["extras"]:
        return 0
    kept = tool.moment_bytes if named is None else named
    half = (_pure(row, tool, strategy, adapter) or adapter) and not _fp32_adapter(row, adapter)
    return kept // 2 if half and kept > 2 else kept


def _fp32_adapter(row: Row, adapter: str) -> bool:
    text = f"{row['precision']} {row['extras']}"
    return bool(adapter) and re.search(r"adapters? (in )?fp32|fp32 shards", text) is not None


def _offloads(row: Row, strategy: Strategy) -> tuple[bool, bool]:
    """Whether the optimizer and the weights are in host memory. FSDP has one switch for both."""
    words = re.sub(r"activations?[ _-]*(cpu[ _-]*)?off-?load\w*", "", row["strategy"].lower())
    if "offload" not in words and "infinity" not in words:
        return False, False
    weights = re.search(r"off-?load[ _-]*(all|param|weight|model)|(param|weight)\w*[ _-]*off-?load|infinity", words)
    alone = strategy.uses_fsdp or not strategy.uses_deepspeed
    optimizer_alone = re.search(r"off-?load[ _-]*opt|optimi[sz]er[ _-]*off-?load", words)
    return True, bool(weights) or (alone and not optimizer_alone)


def _attention(row: Row, tool: Tool) -> float:
    """The speed of its attention's kernels: those of Transformer Engine are cuDNN's where a row names no others."""
    named = re.search(r"flash-attn( ?\d)?", row["extras"])
    if named and not named[1]:
        return _FIRST_FLASH
    gpu = gpu_model(row["gpu"])
    later = named[1].strip() > "2" if named else _FUSED.search(row["source"] + row["extras"])
    return _LATER_FLASH.get(gpu.capability[0], 1.0) if later and gpu else tool.attention


def _meter(row: Row, tool: Tool) -> Meter:
    """A table may say what it counts; that of a tool that is not known, in any words."""
    said = re.search(r"peak\w*\s*(?:=|is|:)\s*(?:\w+ ){0,2}?(active|allocated|reserved|nvidia-smi)", row["extras"])
    text = said[1] if said else row["extras"] if tool == Tool() or "max " in row["extras"] else ""
    if said and said[1] == "nvidia-smi":
        return "device"
    if re.search(r"max[\w ]*reserved|^reserved|memory_reserved|peak[\w ]*reserved", text) and "nvidia-smi" not in text:
        return "reserved"
    if re.search(r"max[\w ]*alloc|^a(?:ctive|llocated)|memory_allocated|peak[\w ]*alloc|active", text):
        return "allocated"
    return tool.meter


def _network(row: Row, machine: int) -> float | None:
    """Adapters of a machine, as in 4x100Gb, shared by its ranks."""
    said = re.search(r"(\d+)x(\d+) ?Gb", row["extras"])
    return int(said[1]) * int(said[2]) * 1e9 / 8 / machine if said else None


def _batch(row: Row, model: Transformer) -> tuple[int, int, bool]:
    micro, length = spelling.amount(row["micro_batch"]), spelling.amount(row["seq_len"])
    exact = all(said is not None and said.exact for said in (micro, length))
    exact = exact and not any(word in row["extras"] + row["checkpointing"] for word in _BOUND)
    if "card's limit" in row["extras"]:
        raise Unknown("the source gives the card's limit, not what was needed")
    if not micro or micro.value < 1 or micro.value != int(micro.value):
        raise Unknown("the micro-batch is missing, or is not a positive number")
    tokens = length.value if length else model.max_position_embeddings if "packed" in row["extras"] else None
    if not tokens or tokens < 1 or tokens != int(tokens):
        raise Unknown("the sequence length is missing, or is not a positive number")
    return int(micro.value), int(tokens), exact


def _copied_tables(row: Row, model: Transformer) -> int:
    """peft keeps the frozen original of a module that is trained beside an adapter."""
    return model.embedding_weights + model.head_weights if "+emb" in row["strategy"] else 0


def _trained(row: Row, model: Transformer, adapter: str) -> int | None:
    if not adapter:
        return model.parameters
    said = spelling.trainable(row["extras"])
    features = _adapted_features(row, model, all_experts=True)
    found = (spelling.rank(row["extras"]) or 16) * features + _copied_tables(row, model)
    return min(model.parameters, found if said is None else said)


def _adapted_features(row: Row, model: Transformer, *, all_experts: bool = False) -> int:
    """Features that enter and leave the matrices with adapters: of a token's experts, or of all, each with its own."""
    trainable, rank = spelling.trainable(row["extras"]), spelling.rank(row["extras"])
    if trainable and rank:
        return trainable // rank
    chosen, numbers, hidden = spelling.modules(row["extras"]), 0, model.hidden_size
    for block in model.blocks:
        outer = len(chosen & {"q", "o"}) * (hidden + block.query_size)
        shared = len(chosen & {"k", "v"}) * (hidden + block.key_value_size)
        gate = block.gated and "gate" in chosen
        inner = (len(chosen & {"up", "down"}) + gate) * (hidden + block.intermediate_size)
        if all_experts:
            inner = inner * block.mlp_weights // max(1, block.active_mlp_weights)
        numbers += block.count * (outer + shared + inner)
    return numbers


def _targets(row: Row, tool: Tool, adapter: str) -> str:
    """peft's own choice of matrices for a Llama, and litgpt's, is queries and values."""
    named = spelling.modules(row["extras"])
    everywhere = adapter == "qlora" or re.search("all[ -]linear", row["extras"]) or tool.checkpointing == "full"
    if len(named) == _MATRICES and not spelling.names_modules(row["extras"]):
        return EVERYWHERE if everywhere else "q_proj,v_proj"
    return EVERYWHERE if len(named) == _MATRICES else ",".join(f"{name}_proj" for name in sorted(named))


def _dropped(row: Row, tool: Tool, model: Transformer) -> int:
    """Input features of a layer that its adapters drop, each for itself; in litgpt queries, keys and values are one
    matrix.
    """
    block = model.blocks[0]
    if not tool.adapter_dropout:
        chosen = spelling.modules(row["extras"]) if re.search(r"dropout 0?\.0*[1-9]", row["extras"]) else frozenset()
        outer = len(chosen & {"q", "k", "v", "up"}) + (block.gated and "gate" in chosen)
        return (
            outer * model.hidden_size
            + ("o" in chosen) * block.query_size
            + ("down" in chosen) * block.intermediate_size
        )
    if "qlora.yaml" not in row["extras"]:
        return model.hidden_size
    return model.hidden_size * (3 if block.gated else 2) + block.query_size + block.intermediate_size


def _gathers_all(tool: Tool, strategy: Strategy) -> bool:
    return tool.whole_frozen and strategy.partitions_weights


def _raised(row: Row) -> bool:
    """peft's prepare_model_for_kbit_training makes fp32 of what is not in four bits; only autocast computes in 16."""
    return "prepare_model_for_kbit_training" in row["extras"] and "no autocast" in row["extras"]


def _frozen_bytes(row: Row) -> int:
    if spelling.eight_bits(row["strategy"]):
        return 1
    wide = spelling.precision(row["precision"]) == "no" or re.search(r"frozen weights in fp32", row["extras"])
    return 4 if wide or _raised(row) else 2


def _stream_bytes(row: Row, strategy: Strategy, *, whole: bool) -> int:
    """Weights in fp32 leave the residual stream in fp32 under autocast. So does peft's prepare_model_for_kbit_training,
    which raises embeddings and norms; under FSDP the mixed precision casts them back.
    """
    plain = strategy.autocasts
    raised = "baseline-peft" in row["extras"] and plain
    raised = raised or _raised(row)
    return 4 if raised or (whole and plain) or spelling.precision(row["precision"]) == "no" else 2


def _arithmetic(row: Row, tool: Tool, strategy: Strategy) -> Arithmetic:
    if spelling.precision(row["precision"]) == "no" or _raised(row):
        return "fp32"
    if strategy.uses_deepspeed and strategy.zero_stage and "Megatron" not in row["source"] + row["strategy"]:
        return "16-bit"
    adapter = spelling.adapter(row["strategy"])
    return "16-bit" if spelling.pure(row["precision"]) and (not adapter or not tool.pure_autocast) else "autocast"


def _checkpointing(row: Row, tool: Tool) -> Checkpointing:
    """Of a row that says nothing, what its tool does, and full where nobody says: it hardly changes the speed's order,
    and a model that is fine-tuned seldom fits without.
    """
    extras = row["extras"]
    said = spelling.checkpointing(row["checkpointing"])
    if said is None and re.search(_RECOMPUTES, extras, re.IGNORECASE):
        said = "full" if spelling.has(extras, _RECOMPUTES) else "none"
    found = said or tool.checkpointing or "full"
    away = spelling.has(f"{row['strategy']} {extras}", r"activations?[ _-]*(cpu[ _-]*)?off-?load")
    away = away or (_cumulative(row) and spelling.adapter(row["strategy"]))
    return "offload" if found == "full" and away else found


def _cumulative(row: Row) -> bool:
    """Of a table whose rows add one technique each, the last ones: adapters come after compiling and offloading."""
    return "cumulative" in row["extras"]


def _compiled(row: Row) -> bool:
    said = spelling.has(row["extras"], r"compiled?\b|inductor")
    return said or (_cumulative(row) and bool(spelling.adapter(row["strategy"])))


def _loss(row: Row, tool: Tool, tokens: int, model: Transformer) -> Loss:
    extras = row["extras"]
    if spelling.has(extras, _NO_LOGITS) and not spelling.has(extras, "whole head"):
        return Loss()
    logits = (_compiled(row) and tool.compiled_logit_bytes) or tool.logit_bytes
    if spelling.has(extras, "compiled loss"):
        logits = _COMPILED_LOSS + (_NO_GRADIENT if "returns its logits" in extras else 0)
    logits -= 4 if "foak" in extras else 0
    logits += 2 if model.changed_logits else 0
    if re.search("qlora|zero|gemini", row["strategy"].lower()):
        logits = tool.engine_logit_bytes or logits
    logits *= 2 if _raised(row) and tool.half_loss else 1
    said = re.search(r"loss in (?:(\d{1,4}) chunks|chunks of (\d{1,7})( words)?)", extras)
    parts = tool.loss_parts
    if said and said[3]:
        parts = max(1, model.vocab_size // max(1, int(said[2])))
    elif said and said[2]:
        parts = max(1, tokens // max(1, int(said[2])))
    elif said and not tool.whole_logit_bytes:
        parts = max(1, int(said[1]))
    elif spelling.has(extras, "whole loss"):
        parts, logits = 1, tool.whole_logit_bytes or logits
    elif spelling.has(extras, r"chunked[ _-]*(cross|ce\b|loss|nll)"):
        parts = 1 if tool.whole_logit_bytes else max(8, parts)
    return Loss(logit_bytes=logits, tokens_at_once=max(1, tokens // parts))
