"""From a row of published measurements to the work that trainwiz forecasts: what the row says, and how its tool trains.

A `Tool` holds what the tables of a source leave out because their tool always does it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from published.shapes import shape
from trainwiz import strategies
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.device import Work
from trainwiz.estimate.gpus import gpu_model
from trainwiz.models import Transformer
from trainwiz.models.activations import Arithmetic, Checkpointing
from trainwiz.strategies import Strategy
from trainwiz.strategies.strategy import REDUCE_BUCKET_ELEMENTS

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
    moment_bytes: int = 8
    """Of the optimizer, for each parameter, where all weights are trained."""
    first_micro_batches: int | None = None
    """How many the source looked at: with at least as much accumulation, no step has made the moments yet."""
    bucket: int = REDUCE_BUCKET_ELEMENTS
    """Elements that ZeRO reduces at once."""
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
    ("torchtune", Tool(meter="reserved", pure=True, loss_parts=8, checkpointing="full", paged_moments=True)),
    ("202412_torchtitan", Tool(meter="reserved", checkpointing="full", logit_bytes=14, halves=True)),
    # Since 2025 torchtitan compiles the loss as well: the logits and nothing in fp32.
    ("torchtitan", Tool(meter="reserved", checkpointing="full", logit_bytes=4, halves=True)),
    ("peft", Tool(meter="reserved", fused_step=False, pure_autocast=False)),
    # Under DeepSpeed (its QLoRA, and ZeRO 3) nothing autocasts: logits, their copy, softmax and gradient in 16 bits.
    ("Qwen", replace(_TRAINER, logit_bytes=14, engine_logit_bytes=8, quantized_strategy="zero2")),
    # What it says is allocated after a step grows by 4 bytes per logit: the outputs of the last micro-batch are kept
    # while the next one is computed. With 8 micro-batches in an update there are 8 P / N less than with 2: DeepSpeed
    # makes the moments in the first step.
    (
        "gist chenyaofo",
        replace(_TRAINER, meter="allocated", logit_bytes=18, bucket=500_000_000, first_micro_batches=8),
    ),
    # Its configuration says stage 3 alone: DeepSpeed's own size of a bucket.
    ("deepspeed-experiments", Tool(meter="allocated", pure=True, bucket=500_000_000)),
    ("nanotron", Tool(meter="allocated", pure=False)),
    ("ms-swift", replace(_TRAINER, pure=True, checkpointing="full")),
    ("axolotl", replace(_TRAINER, pure=True, checkpointing="full")),
    ("trainwiz", Tool(meter="reserved")),
    # Its submit_benchmarks.py took Triton's FlashAttention of 2022 until January 2024; the speed is fitted on its rows.
    ("llm-foundry", Tool(checkpointing="none", attention=0.56)),
    ("Megatron", Tool(checkpointing="none")),
    ("fms-fsdp", Tool(checkpointing="none", halves=True)),
    ("ColossalAI", Tool(meter="allocated")),
)
_LABELS = (
    ("zero3", "zero3"),
    ("zero2", "zero2"),
    ("zero1", "zero1"),
    ("gemini", "gemini"),
    ("fsdp2", "fsdp"),
    ("hsdp", "fsdp"),
    ("fsdp1", "colossal_fsdp"),
    ("fsdp", "colossal_fsdp"),
    ("ddp", "ddp"),
)
_LARGEST = 1e8
"""Nothing in a row is larger; what claims to be does not overflow."""
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
_BOUND = ("a bound", "short samples", "vary", "not stated in the table")


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


def recipe(row: Row) -> Recipe:
    """What a row says and its tool does. Raises `Unknown`."""
    tool = next((tool for name, tool in _TOOLS if name in row["source"]), Tool())
    billions = _number(row["params_b"])
    model = shape(row["model"], billions)
    if model is None:
        raise Unknown("neither the model's name nor its size says how large it is")
    if tool.untied and model.tied:
        head = model.vocab_size * model.hidden_size
        model = replace(model, tied=False, head_weights=head)
    micro, length, exact = _batch(row, model)
    strategy, degrees = _strategy(row, tool)
    if sharded := [name for name in ("tp", "pp", "ep") if degrees.get(name, 1) > 1]:
        raise Unknown(f"{' and '.join(sharded)}: trainwiz does not plan tensor, pipeline or expert parallelism")
    ranks = max(1, int(_number(row["gpus"]) or 1))
    adapter = _adapter(row["strategy"])
    pure = "pure" in row["extras"].lower() or "weights" in row["precision"] or "true" in row["precision"]
    pure = pure or (tool.pure and not row["precision"].startswith("amp"))
    if _keeps_shards_in_fp32(row, strategy, adapter):
        pure = False
    world = ranks
    paged = tool.paged_moments and not adapter and strategy.one_rank
    preference = "dpo" in row["strategy"]
    paired = preference and "packed" not in row["extras"]  # packed rows hold both answers
    accumulation = _accumulation(row, micro, ranks)
    stepped = tool.first_micro_batches is None or accumulation < tool.first_micro_batches
    work = Work(
        generates=not re.search("no vocabulary head|masked tokens only", row["extras"]),
        keeps_scores="eager attention" in row["extras"],
        parameters=model.parameters * (2 if preference else 1) + _copied_tables(row, model),
        transformer=model,
        adapted_features=_adapted_features(row, model) if adapter else None,
        adapter={"qlora": "qlora", "": "none"}.get(adapter, "lora"),
        trained=_trained(row, model, adapter),
        precision=_precision(row["precision"]),
        fused_casts=_FUSED.search(row["source"] + row["extras"]) is not None,
        weight_bytes=2 if pure or adapter else 4,
        # bitsandbytes kept the inputs of frozen matrices in four bits, too.
        frozen_mlps=adapter not in ("", "qlora")
        and not re.search("down_proj|gate_proj", row["extras"])
        and tool.checkpointing != "full",
        dropped_features=_dropped(row, model) if tool.adapter_dropout and adapter in ("lora", "qlora") else 0,
        frozen_bytes=_frozen_bytes(row) * (1 + world if adapter and _gathers_all(tool, strategy) else 1),
        moment_bytes=0 if paged or not stepped else 4 if pure or adapter else tool.moment_bytes,
        bucket=tool.bucket,
        sums_in_half=True,
        fused_step=tool.fused_step or paged,
        world=world,
        arithmetic=_arithmetic(row, tool),
        bucket_view=False,
        stream_bytes=_stream_bytes(row, strategy, whole=not (pure or adapter)),
        optimizer_offloaded="offload-opt" in row["strategy"] or "offload" in row["strategy"],
        parameters_offloaded="offload-param" in row["strategy"],
        checkpointing=_checkpointing(row, tool),
        accumulates=accumulation > 1,
        loss=_loss(row, tool, micro * length * (2 if paired else 1)),
        samples=micro * (2 if paired else 1),
        length=max(1, length // degrees.get("cp", 1)),
    )
    kind = {"": "full", "lora": "LoRA", "qlora": "QLoRA"}.get(adapter, "other adapters")
    where = (
        "one GPU"
        if ranks == 1 or strategy.one_rank
        else "FSDP"
        if strategy.partitions_weights and not strategy.zero_stage
        else "ZeRO"
    )
    layers = "layer" in row["checkpointing"]
    return Recipe(
        strategy=strategy,
        work=work,
        meter=_meter(row, tool),
        exact=exact,
        group=f"{kind}, {where}",
        context=degrees.get("cp", 1),
        compiled=any(word in row["extras"] for word in ("compile", "fused")),
        attention=_attention(row, tool),
        network=_network(row),
        watts=_number(limit[1]) if (limit := re.search(r"(?<!at most )\b(\d{2,4}) W\b", row["extras"])) else None,
        accumulation=accumulation,
        kept="none" if layers else "selective",
        share=0.5 if layers else 0.59,
        halves=tool.halves and work.checkpointing == "selective",
        machine=int((re.search(r"machine of (\d+)", row["extras"]) or [0, 8])[1]),
    )


def _attention(row: Row, tool: Tool) -> float:
    """The speed of its attention's kernels: those of Transformer Engine are cuDNN's where a row names no others."""
    named = re.search(r"flash-attn( ?\d)?", row["extras"])
    if named and not named[1]:
        return _FIRST_FLASH
    gpu = gpu_model(row["gpu"])
    later = named[1].strip() > "2" if named else _FUSED.search(row["source"] + row["extras"])
    return _LATER_FLASH.get(gpu.capability[0], 1.0) if later and gpu else tool.attention


def _meter(row: Row, tool: Tool) -> Meter:
    """A table of a tool that is not known may say what it counts."""
    if tool == Tool():
        if re.search(r"max[ _]reserved", row["extras"]):
            return "reserved"
        if re.search(r"max[ _]allocated", row["extras"]):
            return "allocated"
    return tool.meter


def _network(row: Row) -> float | None:
    """Adapters of a machine, as in 4x100Gb, shared by eight ranks."""
    said = re.search(r"(\d+)x(\d+) ?Gb", row["extras"])
    return int(said[1]) * int(said[2]) * 1e9 / 8 / 8 if said else None


def _number(text: str) -> float | None:
    found = re.match(r"\d+(\.\d+)?", text)
    return min(float(found[0]), _LARGEST) if found else None


def _batch(row: Row, model: Transformer) -> tuple[int, int, bool]:
    micro, length = _number(row["micro_batch"]), _number(row["seq_len"])
    exact = row["micro_batch"].isdigit() and row["seq_len"].isdigit()
    exact = exact and not any(word in row["extras"] + row["checkpointing"] for word in _BOUND)
    if "card's limit" in row["extras"]:
        raise Unknown("the source gives the card's limit, not what was needed")
    if not micro or micro != int(micro):
        raise Unknown("the micro-batch is missing, or is not a positive number")
    if length is None and "packed" in row["extras"]:
        length = model.max_position_embeddings
    if not length or length != int(length):
        raise Unknown("the sequence length is missing, or is not a positive number")
    return int(micro), int(length), exact


def _accumulation(row: Row, micro: int, ranks: int) -> int:
    if said := re.search(r"accum=(\d+)", row["extras"]):
        return int(said[1])
    said = re.search(r"global[ _]batch[ =](\d+)", row["extras"])
    return max(1, int(said[1]) // (micro * ranks)) if said else 1


def _strategy(row: Row, tool: Tool) -> tuple[Strategy, dict[str, int]]:
    text = row["strategy"]
    degrees = {name: int(degree) for name, degree in re.findall(r"\b(dp|tp|cp|pp|ep)=(\d+)", text)}
    label = next((label for word, label in _LABELS if word in text), "single")
    if "gptq" in text and label == "single":
        label = tool.quantized_strategy or label
    return strategies.labelled(label), degrees


def _adapter(text: str) -> str:
    for word in ("qlora", "lora", "loha", "ia3", "adapter"):
        if word in text:
            return word
    return ""


def _keeps_shards_in_fp32(row: Row, strategy: Strategy, adapter: str) -> bool:
    """Accelerate raises trained shards to fp32 under mixed precision (from 0.27 on)."""
    return not adapter and strategy.partitions_weights and "autocast" in row["precision"]


def _copied_tables(row: Row, model: Transformer) -> int:
    """peft keeps the frozen original of a module that is trained beside an adapter."""
    return model.embedding_weights + model.head_weights if "+emb" in row["strategy"] else 0


def _trained(row: Row, model: Transformer, adapter: str) -> int | None:
    if not adapter:
        return model.parameters
    if said := re.search(r"trainable=([\d,]+)", row["extras"]):
        return int(said[1].replace(",", ""))
    rank = int((re.search(r"\br=(\d+)", row["extras"]) or [0, 16])[1])
    return rank * _adapted_features(row, model) + _copied_tables(row, model)


def _adapted_features(row: Row, model: Transformer) -> int:
    trainable, rank = re.search(r"trainable=([\d,]+)", row["extras"]), re.search(r"\br=(\d+)", row["extras"])
    if trainable and rank:
        return int(trainable[1].replace(",", "")) // int(rank[1])
    attention_only = "q,k,v,o_proj" in row["extras"]
    numbers = 0
    for block in model.blocks:
        each = 2 * (model.hidden_size + block.query_size) + 2 * (model.hidden_size + block.key_value_size)
        if not attention_only:
            each += (3 if block.gated else 2) * (model.hidden_size + block.intermediate_size)
        numbers += block.count * each
    return numbers


def _dropped(row: Row, model: Transformer) -> int:
    """Input features of a layer that litgpt's adapters drop: queries, keys and values are one matrix there."""
    if "qlora.yaml" not in row["extras"]:
        return model.hidden_size
    block = model.blocks[0]
    return model.hidden_size * (3 if block.gated else 2) + block.query_size + block.intermediate_size


def _gathers_all(tool: Tool, strategy: Strategy) -> bool:
    return tool.whole_frozen and strategy.partitions_weights


def _frozen_bytes(row: Row) -> int:
    return 4 if _precision(row["precision"]) == "no" else 2


def _precision(text: str) -> str:
    if re.search("fp8|float8", text):
        return "fp8"
    return "no" if re.fullmatch(r"(tf|fp)?32(-true)?|float32|no", text.strip()) else "bf16"


def _stream_bytes(row: Row, strategy: Strategy, *, whole: bool) -> int:
    """Weights in fp32 leave the residual stream in fp32 under autocast. So does peft's prepare_model_for_kbit_training,
    which raises embeddings and norms; under FSDP the mixed precision casts them back.
    """
    plain = strategy.autocasts
    raised = "baseline-peft" in row["extras"] and plain
    return 4 if raised or (whole and plain) or _precision(row["precision"]) == "no" else 2


def _arithmetic(row: Row, tool: Tool) -> Arithmetic:
    pure = "true" in row["precision"] or "weights" in row["precision"]
    if _precision(row["precision"]) == "no":
        return "fp32"
    return "16-bit" if pure and not tool.pure_autocast else "autocast"


def _checkpointing(row: Row, tool: Tool) -> Checkpointing:
    said = row["checkpointing"].split(" ")[0]
    if said in ("none", "selective", "full"):
        return said  # type: ignore[return-value]
    return tool.checkpointing or "full"


def _loss(row: Row, tool: Tool, tokens: int) -> Loss:
    if "liger" in row["extras"]:
        return Loss()
    logits = tool.logit_bytes - (4 if "foak" in row["extras"] else 0)
    if "qlora" in row["strategy"] or "zero" in row["strategy"]:
        logits = tool.engine_logit_bytes or logits
    return Loss(logit_bytes=logits, tokens_at_once=max(1, tokens // tool.loss_parts))
