"""What Axolotl's own schema refuses, or takes and does otherwise."""

from __future__ import annotations

from itertools import combinations

from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.tool import switched_on
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import clash, lacking

_MICRO, _ACCUMULATION, _REAL = "micro_batch_size", "gradient_accumulation_steps", "batch_size"
_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
_LOSSES = (
    "cut_cross_entropy",
    "chunked_cross_entropy",
    "liger_cross_entropy",
    "liger_fused_linear_cross_entropy",
)
_OLD_ATTENTIONS = (
    "flash_attention",
    "flex_attention",
    "xformers_attention",
    "sdp_attention",
    "eager_attention",
    "sage_attention",
    "s2_attention",
)
_BITS = ("load_in_4bit", "load_in_8bit")


@rule("TW821", level=Level.ERROR, field=_MICRO)
def two_of_three_sizes(tool_file: ToolFile) -> Violations:
    """Axolotl needs micro_batch_size and gradient_accumulation_steps, or one of them and batch_size.

    Without it: Axolotl stops: `At least two of micro_batch_size, gradient_accumulation_steps, batch_size must be set`,
    or `please set only one of gradient_accumulation_steps or batch_size`.
    Why: two of the three determine the third.
    Instead: set micro_batch_size and gradient_accumulation_steps.
    Source: read in Axolotl 0.18.0 (`check_batch_size_fields`, `check_gas_bsz`)
    """
    given = [key for key in (_MICRO, _ACCUMULATION, _REAL) if tool_file.get(key)]
    if len(given) < 2:
        yield violation(
            "only {n} of micro_batch_size, gradient_accumulation_steps and batch_size is set; {name} needs two",
            remedy("set micro_batch_size and gradient_accumulation_steps"),
            where=given[0] if given else "base_model",
            n=len(given),
            name=tool_file.name,
        )
    elif _REAL in given and _ACCUMULATION in given:
        yield clash(tool_file, _REAL, _ACCUMULATION)


@rule("TW822", level=Level.ERROR, field=_REAL)
def the_batch_is_a_multiple(tool_file: ToolFile) -> Violations:
    """batch_size must be a multiple of micro_batch_size.

    Without it: Axolotl accumulates `batch_size // micro_batch_size` micro-batches and silently trains with a smaller
    batch.
    Why: the accumulation is a whole number.
    Instead: set gradient_accumulation_steps itself.
    Source: read in Axolotl 0.18.0 (`normalize_config`)
    """
    real, micro = tool_file.get(_REAL), tool_file.get(_MICRO)
    if type(real) is int and type(micro) is int and micro > 0 and real % micro and not tool_file.get(_ACCUMULATION):
        yield violation(
            "{real} is not a multiple of micro_batch_size {micro}: {name} trains with {product} on each GPU",
            remedy("set gradient_accumulation_steps instead"),
            real=real,
            micro=micro,
            product=real // micro * micro,
            name=tool_file.name,
        )


@rule("TW823", level=Level.ERROR, field="save_steps")
def one_schedule_of_saves(tool_file: ToolFile) -> Violations:
    """Schedule saves and evaluations by steps, by epochs, or by a strategy, but not by two of them.

    Without it: Axolotl stops: `save_strategy and save_steps mismatch`, `save_steps and saves_per_epoch are mutually
    exclusive`, and the same for evaluations.
    Why: each of them determines when to save.
    Instead: keep one.
    Source: read in Axolotl 0.18.0 (`check_saves`, `check_evals`)
    """
    for of in ("save", "eval"):
        strategy, steps, per_epoch = f"{of}_strategy", f"{of}_steps", f"{of}s_per_epoch"
        if tool_file.get(strategy) and tool_file.get(steps) and tool_file.get(strategy) != "steps":
            yield clash(tool_file, steps, strategy)
        if tool_file.get(per_epoch) and tool_file.get(steps):
            yield clash(tool_file, steps, per_epoch)
        elif of == "eval" and tool_file.get(per_epoch) and tool_file.get(strategy) not in (None, False, "", "steps"):
            yield clash(tool_file, per_epoch, strategy)


@rule("TW824", level=Level.ERROR, field="val_set_size")
def evaluations_have_data_that_can_be_split(tool_file: ToolFile) -> Violations:
    """val_set_size needs data with a length, excludes test_datasets, and must not be 0 if evaluations are requested.

    Without it: Axolotl stops: `eval_steps and eval_strategy are not supported with val_set_size == 0`, `non-zero
    val_set_size should not be used with test_datasets`, or `val_set_size is not supported with streaming datasets`.
    Why: it holds out a share of the training data.
    Instead: set a share and no test_datasets; for streams, set test_datasets.
    Source: read in Axolotl 0.18.0 (`check_evals`, `check_val_w_test_datasets`, `check_streaming_w_val_set_size`)
    """
    size, key = tool_file.get("val_set_size"), "val_set_size"
    if size:
        for other in ("test_datasets", "pretraining_dataset", "streaming"):
            if tool_file.get(other):
                yield violation(
                    "{key} cannot be combined with {other}; {name} stops",
                    remedy("remove {key}", {key: None}, key=key),
                    where=key,
                    key=key,
                    other=other,
                    name=tool_file.name,
                )
                break
    asked = next((k for k in ("eval_steps", "eval_strategy") if tool_file.get(k)), None)
    evaluates = asked and tool_file.get("eval_strategy") != "no" and not tool_file.get("test_datasets")
    if asked and evaluates and size == 0 and tool_file.has(key):
        yield clash(tool_file, asked, key)


@rule("TW825", level=Level.ERROR, field="pretraining_dataset")
def pretraining_has_an_end(tool_file: ToolFile) -> Violations:
    """pretraining_dataset needs max_steps.

    Without it: Axolotl stops: `max_steps must be set when using iterable pretraining_dataset`.
    Why: the data is streamed and has no length.
    Instead: set max_steps.
    Source: read in Axolotl 0.18.0 (`check_pretraining_w_max_steps`)
    """
    if tool_file.get("pretraining_dataset") and not tool_file.get("max_steps"):
        yield violation(
            "pretraining_dataset needs max_steps; {name} stops without it",
            remedy("set max_steps"),
            name=tool_file.name,
        )


@rule("TW826", level=Level.ERROR, field="warmup_steps")
def one_warm_up(tool_file: ToolFile) -> Violations:
    """Axolotl accepts warmup_steps or warmup_ratio, not both.

    Without it: Axolotl stops: `warmup_steps and warmup_ratio are mutually exclusive`.
    Why: both set the length of the warm-up.
    Instead: keep one.
    Source: read in Axolotl 0.18.0 (`check_warmup`)
    """
    if tool_file.get("warmup_steps") and tool_file.get("warmup_ratio"):
        yield clash(tool_file, "warmup_steps", "warmup_ratio")


@rule("TW827", level=Level.ERROR, field="adapter")
def qlora_is_in_four_bits(tool_file: ToolFile) -> Violations:
    """adapter: qlora needs load_in_4bit: true, and neither load_in_8bit nor gptq.

    Without it: Axolotl stops: `Require cfg.load_in_4bit to be True for qlora`, or `Can't load qlora in 8bit`.
    Why: QLoRA is LoRA on 4-bit weights.
    Instead: set load_in_4bit: true; or adapter: lora for 8 bits.
    Source: read in Axolotl 0.18.0 (`validate_qlora`)
    """
    if tool_file.get("adapter") != "qlora" or switched_on(tool_file.get("merge_lora")):
        return
    wrong = next((key for key in ("load_in_8bit", "gptq") if switched_on(tool_file.get(key))), None)
    if wrong:
        yield clash(tool_file, "adapter", wrong)
    elif not tool_file.get("load_in_4bit"):
        yield lacking(tool_file, "adapter", "load_in_4bit: true")


@rule("TW828", level=Level.ERROR, field="rl")
def reinforcement_does_not_pack(tool_file: ToolFile) -> Violations:
    """Preference and reinforcement training do not support sample_packing; KTO needs remove_unused_columns: false.

    Without it: Axolotl stops: `` `sample_packing: true` does not work with RLHF training ``, or
    `` Set `remove_unused_columns: False` when using kto ``.
    Why: their samples are pairs or groups, which a packed row would mix; KTO's labels are a separate column.
    Instead: remove sample_packing; for KTO set remove_unused_columns: false.
    Source: read in Axolotl 0.18.0 (`check_sample_packing_w_rl`, `check_kto_config`)
    """
    if tool_file.get("rl") and tool_file.get("sample_packing"):
        yield clash(tool_file, "sample_packing", "rl")
    if tool_file.get("rl") == "kto" and tool_file.get("remove_unused_columns") is not False:
        yield lacking(tool_file, "rl", "remove_unused_columns: false")


@rule("TW829", level=Level.ERROR, field="optimizer")
def optimizers_and_sharding(tool_file: ToolFile) -> Violations:
    """Muon, the flash_ optimizers and Q-GaLore need FSDP 2 if the model is sharded; 8-bit ones do not support it.

    Without it: Axolotl stops: `Muon optimizer is currently incompatible with DeepSpeed`, `FSDP2 not compatible with
    adamw_8bit`, or `FSDP Offload not compatible with adamw_bnb_8bit`.
    Why: they need whole matrices, or states on the GPU, which these engines do not provide.
    Instead: set fsdp_version: 2; with an 8-bit optimizer choose adamw_torch_8bit.
    Source: read in Axolotl 0.18.0 (`check_muon_deepspeed_fsdp`, `check_fsdp2_w_8bit_optimizer` and others)
    """
    optimizer, fsdp = str(tool_file.get("optimizer") or ""), tool_file.get("fsdp") or tool_file.get("fsdp_config")
    second = str(tool_file.get("fsdp_version") or tool_file.get("fsdp_config.fsdp_version") or 1) == "2"
    if optimizer in ("muon", "q_galore_adamw8bit") or optimizer.startswith("flash_"):
        if tool_file.get("deepspeed"):
            yield clash(tool_file, "optimizer", "deepspeed")
        elif fsdp and not second:
            yield lacking(tool_file, "optimizer", "fsdp_version: 2")
    elif tool_file.get("fsdp_config") and second and optimizer in ("adamw_8bit", "adamw_bnb_8bit"):
        yield violation(
            "optimizer: {optimizer} does not work under FSDP 2; {name} stops",
            remedy("set optimizer: adamw_torch_8bit", {"optimizer": "adamw_torch_8bit"}),
            optimizer=optimizer,
            name=tool_file.name,
        )
    elif "8bit" in optimizer and not second and _offloads(tool_file):
        yield violation(
            "optimizer: {optimizer} does not work with offloaded parameters; {name} stops",
            remedy("choose adamw_torch_fused, or do not offload"),
            optimizer=optimizer,
            name=tool_file.name,
        )


def _offloads(tool_file: ToolFile) -> bool:
    return any(switched_on(tool_file.get(f"fsdp_config.{key}")) for key in ("offload_params", "fsdp_offload_params"))


@rule("TW830", level=Level.ERROR, field="lora_mlp_kernel")
def kernels_of_lora(tool_file: ToolFile) -> Violations:
    """The LoRA kernels support neither 8-bit weights nor trust_remote_code.

    Without it: Axolotl stops: `lora_mlp_kernel, lora_qkv_kernel, and lora_o_kernel are not compatible with …`.
    Why: the kernels are written for layers of transformers' own models, in full precision or 4 bits.
    Instead: set the kernels to false.
    Source: read in Axolotl 0.18.0 (`check_lora_kernels_8bit`, `check_lora_kernels_trust_remote_code`)
    """
    kernel = next((key for key in _KERNELS if switched_on(tool_file.get(key))), None)
    if kernel and tool_file.get("adapter") == "lora" and switched_on(tool_file.get("load_in_8bit")):
        yield clash(tool_file, kernel, "load_in_8bit")
    if kernel and switched_on(tool_file.get("trust_remote_code")):
        yield clash(tool_file, kernel, "trust_remote_code")


@rule("TW831", level=Level.ERROR, field="cut_cross_entropy")
def one_cross_entropy(tool_file: ToolFile) -> Violations:
    """Only one implementation of the loss, and of attention, can be chosen.

    Without it: Axolotl stops: `Only one cross entropy optimization can be enabled at a time`, or `attn_implementation=…
    cannot be combined with legacy attention flags`.
    Why: each replaces the same function of the model.
    Instead: keep one.
    Source: read in Axolotl 0.18.0 (`check_cross_entropy_conflicts`, `normalize_attn_implementation`)
    """
    on = [key for key in _LOSSES if switched_on(tool_file.get(key))]
    for one, other in list(combinations(on, 2))[:1]:
        yield clash(tool_file, other, one)
    old = next((key for key in _OLD_ATTENTIONS if switched_on(tool_file.get(key))), None)
    if tool_file.get("attn_implementation") and old:
        yield clash(tool_file, old, "attn_implementation")


@rule("TW832", level=Level.ERROR, field="trl.num_generations")
def groups_fill_the_batch(tool_file: ToolFile) -> Violations:
    """GRPO's batch must be a multiple of num_generations, and num_generations at least 2.

    Without it: Axolotl stops: `GRPO: generation batch size must be divisible by trl.num_generations`.
    Why: each prompt is answered num_generations times, and the answers are compared with each other.
    Instead: raise gradient_accumulation_steps to the next multiple.
    Source: read in Axolotl 0.18.0 (`check_grpo_batch_size_divisibility`)
    """
    answers = tool_file.get("trl.num_generations")
    if tool_file.get("rl") != "grpo" or type(answers) is not int:
        return
    explicit = tool_file.get("trl.generation_batch_size")
    batch = explicit or (tool_file.get(_MICRO) or 1) * (tool_file.get(_ACCUMULATION) or 1)
    if answers < 2:
        yield violation(
            "num_generations: {answers} leaves nothing to compare an answer with; {name} stops",
            remedy("set num_generations to at least 2"),
            answers=answers,
            name=tool_file.name,
        )
    elif type(batch) is int and batch % answers:
        yield violation(
            "the batch of {batch} is not a multiple of num_generations {answers}; {name} stops",
            remedy("change gradient_accumulation_steps or num_generations"),
            batch=batch,
            answers=answers,
            name=tool_file.name,
        )


@rule("TW833", level=Level.ERROR, field="activation_offloading")
def offloading_needs_recomputation(tool_file: ToolFile) -> Violations:
    """activation_offloading and selective_checkpointing need gradient_checkpointing.

    Without it: Axolotl stops: `activation_offloading requires gradient_checkpointing`.
    Why: the checkpointed inputs are what is offloaded.
    Instead: set gradient_checkpointing: true.
    Source: read in Axolotl 0.18.0 (`check_activation_offloading_wo_gc`)
    """
    for key in ("activation_offloading", "selective_checkpointing"):
        if tool_file.get(key) and not tool_file.get("gradient_checkpointing"):
            yield lacking(tool_file, key, "gradient_checkpointing: true")


@rule("TW834", level=Level.ERROR, field="fsdp_version")
def preferences_on_quantized_weights(tool_file: ToolFile) -> Violations:
    """Under FSDP 2, DPO, IPO, KTO and ORPO cannot train on 4-bit or 8-bit weights.

    Without it: Axolotl stops: `FSDP2 does not support load_in_8bit or load_in_4bit with …`.
    Why: the reference model shares the quantized weights, which FSDP 2 cannot shard.
    Instead: use DeepSpeed, or fsdp_version: 1.
    Source: read in Axolotl 0.18.0 (`check_fsdp2_base_model_quant_rl`)
    """
    bits = next((key for key in _BITS if switched_on(tool_file.get(key))), None)
    if tool_file.get("fsdp_version") == 2 and tool_file.get("rl") in ("dpo", "ipo", "kto", "orpo") and bits:
        yield clash(tool_file, bits, "fsdp_version")
