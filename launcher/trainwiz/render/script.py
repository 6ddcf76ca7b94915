"""The training program: `train.py`, `task.py` and the parts that every engine shares, cut from the templates.

A template is a real program. Rendering does two things to it and nothing else: it drops the optional regions
(`# feature: eval` … `# end: eval`) that the plan does not want, and sets the literals of the config dataclass by
their position in the syntax tree. Values go in as `repr` of typed, validated ones: an answer can never become code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Set

from trainwiz import optimizers, strategies, tasks, vocabulary
from trainwiz.engines.liger import FAMILIES
from trainwiz.estimate import loading
from trainwiz.estimate.datasheets import MODELS
from trainwiz.fields import set_literals, with_constant
from trainwiz.plan import Plan, defaults
from trainwiz.render import imports
from trainwiz.render.artifact import Artifact
from trainwiz.render.settings import settings
from trainwiz.tasks import generation
from trainwiz.tasks.preference_losses import LOSSES

_REGION = re.compile(r"^\s*# (feature|end): (\w+)\s*$")
PARTS = ("batches.py", "checkpoints.py", "manifest.py", "meter.py", "metrics.py", "trust.py")
"""What every engine's loop shares."""
_HOOKS, _FLOPS, _KERNELS = "hooks.py", "flops.py", "kernels.py"

# docs/decisions/loop.md: Uncommon options have separate modules
OPTIONAL = {
    "adapter.py": "lora",
    "attention.py": "mfu",
    "augmentation.py": "augmented_samples",
    "average.py": "ema",
    "buckets.py": "settled",
    "chat_template.py": "own_template",
    "column_names.py": "own_columns",
    "evaluation.py": "selected",
    "experts.py": "packed_experts",
    "first_rank.py": "built_first",
    "flops.py": "mfu",
    "four_bits.py": "sharded_4bit",
    "fp8.py": "fp8",
    "frequencies.py": "frequencies",
    "frozen.py": "frozen",
    "generation.py": "generated",
    "mixture.py": "mixed",
    "head_loss.py": "fused",
    "heads.py": "own_head",
    "kernels.py": "liger",
    "long_rows.py": "long_rows",
    "new_tokens.py": "new_tokens",
    "nf4.py": "packed_experts",
    "noise.py": "neftune",
    "numa.py": "numa",
    "optimizers.py": "own_optimizer",
    "recompute.py": "recompute",
    "python_questions.py": "embedded_talks",
    "references.py": "reference",
    "resharding.py": "gathers_anew",
    "schedule.py": "own_schedule",
    "scores.py": "scores",
    "sharding.py": "built_once",
    "source_weights.py": "weighted",
    "staging.py": "staged",
    "tracking.py": "named_run",
}
"""Parts that only some plans have, each with the region that asks for it."""
USUAL_SCHEDULES = ("constant", "linear", "cosine")
"""What train.py itself has, without a floor and with a warm-up that is counted; schedule.py has the others."""


def scripts(plan: Plan, templates: Mapping[str, str]) -> tuple[Artifact, ...]:
    """`train.py` (the loop of the plan's engine), `task.py` (data, model and loss of the plan's task), and `PARTS`."""
    wanted, values = features(plan), settings(plan)
    loop = _cut(templates[f"train_templates/loops/{plan.engine}.py"], wanted)
    parts = (*PARTS, *tasks.of(plan).parts, *optional_parts(wanted))
    task = _cut(templates[f"train_templates/tasks/{plan.task}.py"], wanted)
    return (
        Artifact("train.py", set_literals(loop, "Config", values)),
        Artifact("task.py", set_literals(task, "TaskConfig", values)),
        *(Artifact(name, _part(name, plan, templates, wanted)) for name in parts),
    )


def _part(name: str, plan: Plan, templates: Mapping[str, str], wanted: Set[str]) -> str:
    text = _cut(templates[f"train_templates/parts/{name}"], wanted)
    if name == _FLOPS:
        half = plan.precision.mixed_precision != "no"
        peaks = {gpu.pattern: round((gpu.half_flops if half else gpu.single_flops) / 1e12, 1) for gpu in MODELS}
        return with_constant(text, "PEAK_TFLOPS", peaks)
    if name == _KERNELS:
        return with_constant(text, "FAMILIES", FAMILIES)
    if name != _HOOKS:
        return text
    refused = strategies.of(plan).refused_hooks(plan)
    return with_constant(text, "REFUSED", {hook: str(why) for hook, why in refused.items()})


def optional_parts(wanted: Set[str]) -> tuple[str, ...]:
    """The files that these regions ask for, beside those of every plan of the task."""
    return tuple(name for name, region in OPTIONAL.items() if region in wanted)


def features(plan: Plan) -> frozenset[str]:
    """The optional regions that the plan wants."""
    strategy, task = strategies.of(plan), tasks.of(plan)
    gathered = strategy.saves_final_weights(plan)
    precision = plan.precision.mixed_precision
    # Compiled layers are fused by the compiler.
    usable = plan.machine.device == "cuda" and plan.engine == "accelerate" and not plan.model.compile
    liger = plan.model.kernels == "liger" and task.generative and usable
    chosen = {
        precision: True,
        "dtype": plan.engine == "accelerate",
        "torch_dtype": plan.engine == "colossalai",  # it needs transformers 4.51
        "eval": plan.data.eval is not None,
        "cuda": plan.machine.device == "cuda",
        # fp16 needs the scale of the loss before gradients are rounded, and ZeRO 3 gathers weights by a module's call.
        "fused": task.packs and strategy.fuses_head_loss and precision != "fp16",
        "mfu": plan.machine.device == "cuda" and task.packs,
        "numa": _binds_to_node(plan),
        "environment": plan.machine.device == "cuda" or strategy.uses_deepspeed,
        "compile": plan.model.compile,
        "uncompiled": not plan.model.compile,
        "liger": liger,
        "compiled_loss": plan.model.compile or liger,
        "uncompiled_loss": not (plan.model.compile or liger),
        "recompute": plan.model.activation_checkpointing != "none",
        "recomputed": plan.model.activation_checkpointing != "none",
        "keeps_activations": plan.model.activation_checkpointing == "none",
        "full": plan.model.activation_checkpointing == "full",
        "selective": plan.model.activation_checkpointing == "selective",
        "offload": plan.model.activation_checkpointing == "offload",
        "kept_on_device": plan.model.activation_checkpointing != "offload",
        "final_weights": gathered,
        "sample": gathered,
        "saved_dtype": task.from_hub,
        "labels": task.labeled,
        "background": plan.checkpoint.background,
        "foreground": not plan.checkpoint.background,
        "staged": plan.checkpoint.background and strategy.copies_state,
        "unstaged": not (plan.checkpoint.background and strategy.copies_state),
        "plain_samples": True,
        "built_once": loading.built_once(plan),
        "built_first": loading.built_first(plan),
        "built_apart": loading.built_once(plan) or loading.built_first(plan),
        "built_by_all": not (loading.built_once(plan) or loading.built_first(plan)),
        "onto_device": loading.loaded_onto_device(plan),
        **strategy.regions(plan),
        **_hook_features(plan),
        **_row_features(plan),
        **_preference_features(plan),
        **_model_features(plan),
        **_picture_features(plan),
        **_evaluation_features(plan),
        **_schedule_features(plan),
        **_optimizer_features(plan),
        **_tracker_features(plan),
        "own_weights": plan.precision.weights != "float32" and strategy.keeps_trained_dtype,
        "frozen": plan.model.frozen is not None and strategy.own_parameters,
        "neftune": plan.model.neftune_alpha > 0 and task.generative and plan.engine == "accelerate",
    }
    chosen["divided"] = not chosen.get("plain", False)
    # docs/decisions/loop.md: Rotary frequencies stay in fp32
    chosen["frequencies"] = chosen["own_weights"] or chosen.get("engine_casts", False)
    # docs/decisions/loop.md: Gradients stay in DDP's buckets between updates
    chosen["keeps_gradients"] = chosen.get("settled", False) and not task.own_code
    chosen["drops_gradients"] = not chosen["keeps_gradients"]
    # docs/decisions/loop.md: FSDP2 gathers weights anew after an evaluation
    forward_alone = chosen["eval"] or chosen.get("reference", False)
    chosen["gathers_anew"] = chosen.get("fsdp", False) and forward_alone
    in_loop = chosen["summed"] or chosen.get("reference", False)
    chosen["gathers_in_loop"] = chosen["gathers_anew"] and in_loop
    unwanted = {name for name, is_wanted in task.regions.items() if not is_wanted}
    wanted = {name for name, is_wanted in {**chosen, **task.regions}.items() if is_wanted}
    return frozenset(wanted - unwanted)


# docs/decisions/launching.md: Each rank binds itself to the NUMA node of its GPU
def _binds_to_node(plan: Plan) -> bool:
    how, places = (
        plan.machine.numa_binding,
        (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device),
    )
    offloads = plan.model.activation_checkpointing == "offload" or any(place != "none" for place in places)
    return plan.machine.device == "cuda" and (how == "always" or (how == "auto" and offloads))


def _hook_features(plan: Plan) -> dict[str, bool]:
    """What a task of the user's own code may decide beside data, model and loss."""
    strategy, own = strategies.of(plan), tasks.of(plan).own_code
    return {
        "own_hooks": own,
        "named_tensors": not own,
        "own_optimizers": own,
        "after_update": own and "after_update" not in strategy.refused_hooks(plan),
        "turns": own and strategy.takes_turns,
        "one_turn": not (own and strategy.takes_turns),
    }


def _row_features(plan: Plan) -> dict[str, bool]:
    task = tasks.of(plan)
    embedded = vocabulary.EMBEDDED in (plan.data.train, plan.data.eval)
    packed = plan.data.packing and task.packs
    weighted = plan.data.source_weights is not None and task.weighs
    # The kernels for documents without a mask compute in 16 bits, on GPUs only.
    half = plan.machine.device == "cuda" and plan.precision.mixed_precision in ("bf16", "fp16", "fp8")
    attention = plan.model.attention
    flash = packed and half and attention in ("auto", "flash_attention_2")
    # transformers 4.51, which colossalai needs, makes its masks otherwise.
    long_rows = packed and plan.engine == "accelerate" and attention in ("auto", "flex_attention")
    long_cpu, long_gpu = (long_rows and plan.machine.device == device for device in ("cpu", "cuda"))
    return {
        "packed": packed,
        "unpacked": task.generative and not packed,
        "flash": flash,
        "attention": flash or attention != "auto",
        "found_attention": attention == "auto",
        "chosen_attention": attention != "auto",
        # docs/decisions/tasks.md: Weights of sources repeat samples after a part is held out
        "weighted": weighted,
        "unweighted": not weighted,
        "mixed": weighted and (task.generative or task.pairs),  # tables of the token cache
        "identified": weighted or plan.data.eval is not None,
        "sampled": weighted and not (task.generative or task.pairs),
        "answers_learned": plan.data.train_on == "answers" or not task.packs,
        "all_learned": plan.data.train_on == "all" and task.packs,
        "own_columns": plan.data.columns is not None and task.chats,
        "plain_columns": plan.data.columns is None or not task.chats,
        "own_template": plan.data.chat_template is not None and task.chats,
        "long_rows": long_cpu or long_gpu,
        "long_cpu": long_cpu,
        "long_gpu": long_gpu,
        "bounds": flash or long_cpu,
        "embedded_data": embedded,
        "embedded_talks": embedded and task.chats,
        "own_data": not embedded,
    }


def _preference_features(plan: Plan) -> dict[str, bool]:
    if tasks.of(plan).pairs:
        return {"prompts": plan.data.eval is not None}
    if not tasks.of(plan).compares:
        return {}
    loss = LOSSES[plan.preference.loss]
    return {
        "answers": True,
        plan.preference.loss: True,
        "prompts": not loss.two_answers or plan.data.eval is not None,
        "torch_functions": loss.real_batch_mean,
        **loss.regions,
    }


def _picture_features(plan: Plan) -> dict[str, bool]:
    """How training pictures are changed."""
    how = plan.data.augmentation
    if not tasks.of(plan).backbones:
        return {}
    return {
        "augmented_samples": how != "none",
        "keyed_samples": how != "none",
        "plain_samples": how == "none",
        "shifted": how in ("shift", "flip"),
        "cropped": how in ("crop", "color"),
        "mirrored": how in ("flip", "crop", "color"),
        "colored": how == "color",
    }


def _evaluation_features(plan: Plan) -> dict[str, bool]:
    evaluation, task = plan.evaluation, tasks.of(plan)
    on, region = plan.data.eval is not None, task.gathered_region
    best = on and evaluation.best_metric is not None
    gathered = on and evaluation.gather_outputs and task.gathered_metrics is not None
    averaged = plan.optimizer.ema_decay > 0 and strategies.of(plan).own_parameters
    written = generation.chosen(evaluation.generation_metrics)
    marked = task.packs and not (task.talks and plan.data.train_on == "all")  # where an answer begins
    generated = on and bool(written) and marked and plan.engine == "accelerate"
    selected = on and (best or gathered or averaged or evaluation.evaluation_steps > 0)
    return {
        "selected": selected,
        "ema": averaged,
        "last_weights": not averaged,
        "each_epoch": on and not selected,
        "best": best,
        "unchosen": not best,
        "gathered": gathered,
        "summed": on and not gathered,
        "generated": generated,
        "loss_alone": not generated,
        "asked": task.talks,
        "halved": not task.talks,
        "partitioned_weights": strategies.of(plan).partitions_weights and plan.engine == "accelerate",
        "copied_weights": not strategies.of(plan).partitions_weights or plan.engine != "accelerate",
        "compared_words": bool({"bleu", "rouge"} & written.keys()),
        **{name: name in written for name in generation.METRICS},
        "scores": gathered and bool(region),
        "areas": gathered and "eval_auc" in (task.gathered_metrics or {}),
        **({region: gathered} if region else {}),
    }


def _optimizer_features(plan: Plan) -> dict[str, bool]:
    """adamw and sgd as train.py has them, or the optimizer as optimizers.py builds it."""
    chosen = plan.optimizer
    further = (chosen.beta1, chosen.beta2, chosen.epsilon, chosen.rates, chosen.decays)
    row = optimizers.named(chosen.name)
    own = not row.in_loop or any(value is not None for value in further)
    features = {"own_optimizer": own, "one_rate": not own, "spared_vectors": not row.decays_vectors}
    if not own or not row.in_loop:
        return {**features, chosen.name: True}
    compiled = strategies.of(plan).compiles_optimizer and chosen.name in strategies.of(plan).optimizers
    return {**features, "fused_adamw": False, f"own_{'fused_' if compiled else ''}{chosen.name}": True}


def _tracker_features(plan: Plan) -> dict[str, bool]:
    tracking, tracker = plan.tracking, plan.tracking.log_with
    on = tracker in vocabulary.TRACKERS[plan.engine]
    named = on and (tracking.project != defaults()["tracking.project"] or bool(tracking.run_name or tracking.tags))
    return {tracker: on, "tracker": on, "named_run": named, "usual_run": on and not named}


def _schedule_features(plan: Plan) -> dict[str, bool]:
    schedule = plan.schedule
    usual = schedule.lr_scheduler_type in USUAL_SCHEDULES and not (schedule.warmup_ratio or schedule.min_lr_ratio)
    return {"usual_schedule": usual, "own_schedule": not usual}


def _model_features(plan: Plan) -> dict[str, bool]:
    task = tasks.of(plan)
    preset = task.shape(plan.model.name) is not None
    from_shape = preset and plan.model.from_scratch
    without_tokenizer = from_shape and (plan.model.name == "tiny" or plan.data.train == vocabulary.EMBEDDED)
    reads_bytes = without_tokenizer and (task.generative or task.pairs)
    adapted = task.adapters and plan.model.adapter != "none" and not plan.model.from_scratch
    quantized = adapted and plan.model.adapter == "qlora"
    new_tokens = not without_tokenizer and task.from_hub and bool(plan.data.special_tokens or plan.data.added_tokens)
    return {
        "preset_model": from_shape,
        "random_weights": plan.model.from_scratch,
        "pretrained_model": not plan.model.from_scratch and not adapted,
        "whole_model": not adapted,
        "lora": adapted,
        "writes": task.generative,
        "judges": not task.generative,
        "loaded_adapter": adapted and (plan.model.merge_adapter or not task.generative),
        "loaded_weights": not plan.model.from_scratch,
        # docs/decisions/tasks.md: A classifier's head stays for the same classes only
        "own_head": not plan.model.from_scratch and task.auto_class == "AutoModelForSequenceClassification",
        "new_tokens": new_tokens,
        "enlarged_base": new_tokens and adapted,
        "usual_base": not (new_tokens and adapted),
        "qlora": quantized,
        # docs/decisions/loop.md: QLoRA under FSDP2 packs each matrix into one parameter
        "sharded_4bit": quantized and loading.built_once(plan),
        "whole_4bit": quantized and not loading.built_once(plan),
        # docs/decisions/tasks.md: Experts are packed as they are read
        "packed_experts": quantized and strategies.of(plan).packs_experts,
        "packed_as_read": quantized and strategies.of(plan).packs_experts and not loading.built_once(plan),
        "plainly_read": not (quantized and strategies.of(plan).packs_experts) or loading.built_once(plan),
        "not_sharded_4bit": not (quantized and loading.built_once(plan)),
        "merged": adapted and plan.model.merge_adapter,
        "config_model": plan.model.from_scratch and not preset,
        "named_model": not from_shape,
        "bytes": reads_bytes,
        "hashes": without_tokenizer and not reads_bytes,
        "tokenizer": not without_tokenizer,
    }


def drop_regions(source: str, wanted: Set[str]) -> str:
    """The source without the regions that are not wanted, and without any region's marks.

    Regions nest. Raises `ValueError` for one that is left open or closed in the wrong order.
    """
    kept: list[str] = []
    open_regions: list[str] = []
    for number, line in enumerate(source.splitlines(), start=1):
        mark = _REGION.match(line)
        if mark is None:
            if all(name in wanted for name in open_regions):
                kept.append(line)
        elif mark[1] == "feature":
            open_regions.append(mark[2])
        elif not open_regions or open_regions.pop() != mark[2]:
            raise ValueError(f"line {number}: `end: {mark[2]}` does not close the innermost region")
    if open_regions:
        raise ValueError(f"never closed: {', '.join(open_regions)}")
    return "\n".join(kept) + "\n"


def _cut(source: str, wanted: Set[str]) -> str:
    return _cut_to(source, frozenset(wanted & _regions(source)))


@functools.cache
def _regions(source: str) -> frozenset[str]:
    return frozenset(mark[2] for line in source.splitlines() if (mark := _REGION.match(line)))


# Plans that differ elsewhere share most of their files: imports are sorted once.
@functools.lru_cache(maxsize=512)
def _cut_to(source: str, wanted: frozenset[str]) -> str:
    text = drop_regions(source, wanted)
    # What stood between two dropped regions was blank: one blank line inside a block, two between definitions.
    text = re.sub(r"\n{3,}(?=[ \t]|import |from )", "\n\n", text)
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    return imports.joined(text.rstrip("\n") + "\n")
