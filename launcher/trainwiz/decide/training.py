"""Defaults that the model decides: batch, length, schedule, optimizer, records."""

from __future__ import annotations

import math
from dataclasses import replace

from trainwiz import batch, optimizers, quantities
from trainwiz.decide.amount import decide_evaluation_steps, is_own
from trainwiz.decide.candidates import Candidate
from trainwiz.decide.decision import Decision
from trainwiz.decide.fastest import fastest, label
from trainwiz.decide.host_memory import LENGTH, activation_room
from trainwiz.decide.length import updates_of
from trainwiz.decide.loss import SMALLEST_CHUNK
from trainwiz.decide.memory import smallest_gpu_bytes, work_of
from trainwiz.decide.real_batch import gpt3_row, usual_real_batch
from trainwiz.decide.size import SMALL_MODEL, size_of
from trainwiz.decide.strategy import could_fit, state_bytes
from trainwiz.errors import PlanError
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.device import needs, offloaded_activations, training_of
from trainwiz.estimate.reserve import FILLED
from trainwiz.message import Message, say
from trainwiz.models.activations import Checkpointing
from trainwiz.tasks.preference_losses import LOSSES

_ADAPTER_RATE = 2e-4
"""https://arxiv.org/abs/2305.14314 (QLoRA, table 9)."""
_ADAPTER_FACTOR = 10
"""How much higher the learning rate of adapters is than that of all weights."""
_FINE_TUNING_RATE = 2e-5
"""https://arxiv.org/abs/2307.09288 (Llama 2, section 3.1)."""
_PICTURES = 64
"""Of pictures on a GPU, where it is known how many fit: their samples are small, and a GPU is idle with few."""
_MICRO_BATCH = 8
_SMALLEST_PICTURE = 4
_BACKBONE_SIZE = 224
"""Pixels of a side, which most networks of timm were trained with."""
_BACKBONE_RATE = 1e-4
_LONGEST, _SHORTEST = 4096, 512
"""Tokens of a default sample: few documents are longer, and activations grow with it."""
_CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full", "offload")


def decide_data(d: Decision) -> None:
    """Where data comes from and who prepares it."""
    d.settle_default("data.train", say("built in; no download needed"))
    decide_pictures(d)
    d.settle_default("data.source_weights", say("each source counts in proportion to its size"))
    d.settle_default("data.weigh_by", say("the loss is averaged over it"))
    d.settle_default("data.train_on", say("prompts are only input; the model learns the answers"))
    d.settle_default("data.chat_template", say("the tokenizer's own"))
    d.settle_default("data.special_tokens", say("those of the tokenizer"))
    d.settle_default("data.added_tokens", say("the tokenizer stays as it is"))
    d.settle_default("data.max_rows", say("all of the data is read"))
    d.settle_default("data.min_tokens", say("no sample is dropped because of its length"))
    d.settle_default("data.max_tokens", say("no sample is dropped because of its length"))
    d.settle_default("data.cache_dir", say("in the project's folder"))
    ranks = max(1, d.values["machine.num_processes"] // d.values["machine.num_machines"])
    spare = d.machine.cpu.usable_cores // ranks - 1 if d.machine else 0
    if d.values["data.train"] == "embedded" or d.on_cpu or spare < 1:
        d.settle("data.num_workers", 0, say("data is read in the training process itself"))
    else:
        d.settle("data.num_workers", min(4, spare), say("spare cores per rank: {spare}", spare=spare))
    if d.task.packs:
        d.settle("data.packing", True, say("documents share a row but do not attend to each other; no space is wasted"))
    else:
        d.settle("data.packing", False, say("only causal_lm and sft support packing"))


def decide_pictures(d: Decision) -> None:
    """How large pictures are, and how training pictures are changed."""
    if d.data and d.data.picture_size and d.data.picture_size >= _SMALLEST_PICTURE:
        d.settle("data.image_size", d.data.picture_size, say("the size of the arrays, which are not resized"))
    elif d.task.backbones and d.task.shape(d.values["model.name"]) is None:
        d.settle("data.image_size", _BACKBONE_SIZE, say("what most networks of timm were trained with"))
    else:
        d.settle_default("data.image_size", say("small pictures for a small network"))
    if d.task.backbones and d.values["data.train"] != "embedded":
        d.settle("data.augmentation", "flip", say("most things look alike in a mirror; shift keeps left and right"))
    else:
        d.settle_default("data.augmentation", say("a mirrored digit is not a digit"))


def decide_length_of_samples(d: Decision) -> None:
    """The sequence length, from the model's positions."""
    if d.task.labeled:
        d.settle("batch.sequence_length", 256, say("enough to tell most texts apart"))
    elif d.on_cpu or d.values["model.name"] == "tiny":
        why = say("short enough for a CPU") if d.on_cpu else say("the model is tiny")
        d.settle("batch.sequence_length", LENGTH, why)
    else:
        d.settle("batch.sequence_length", *_length(d))


def _length(d: Decision) -> tuple[int, Message]:
    """The longest that the model was made for, within reason, and that fits with any strategy that may be chosen."""
    most = d.transformer.max_position_embeddings if d.transformer else None
    if most is None:
        length, why = 1024, say("common default; the model's maximum length is not known")
    elif most <= _LONGEST:
        length, why = most, say("the model's maximum number of positions")
    else:
        length, why = _LONGEST, say("longer than most documents; the model can take up to {most} tokens", most=most)
    wanted = length
    while length > _SHORTEST and not could_fit(d, length):
        length //= 2
    if length == wanted or not could_fit(d, length):
        return wanted, why
    return length, say("one sample of {wanted} tokens does not fit in memory next to the model state", wanted=wanted)


def decide_activations(d: Decision) -> None:
    """What the forward pass keeps: what makes updates fastest, by the forecast.

    Where there is none, as much as fits beside the model state with one sample or the given micro-batch.
    """
    if best := _fastest(d):
        d.settle("model.activation_checkpointing", best.work.checkpointing, _kept(d, best))
        return
    samples, room = d.answers.get("batch.per_device_batch_size") or 1, _bytes_left(d)
    need = {how: _sample_bytes(d, how, samples) for how in _CHECKPOINTING}
    saves = need["full"] < need["none"]
    if room is None or not saves or (d.on_cpu and need["none"] <= room):
        unknown = say("the fastest; activations are computed again only where they are known not to fit")
        d.settle("model.activation_checkpointing", "none", unknown)
        return
    shown = {"size": quantities.size(need["none"]), "room": quantities.size(max(0, room))}
    if need["none"] <= room:
        fits = say("the fastest: {size} of activations fits in the {room} left by the model state", **shown)
        d.settle("model.activation_checkpointing", "none", fits)
        return
    if need["selective"] <= room:
        less = say(
            "{kept} of activations fits in the {room} left by the model state, {size} does not; no matrix "
            "multiplication is repeated",
            kept=quantities.size(need["selective"]),
            **shown,
        )
        d.settle("model.activation_checkpointing", "selective", less)
    elif _crowded(d, samples, room) and need["offload"] <= room and (host := _host_bytes(d, samples)) is not None:
        away = say(
            "{full} of activations does not fit in the {room} left by the model state; {host} of them is kept in "
            "host memory",
            full=quantities.size(need["full"]),
            room=shown["room"],
            host=quantities.size(host),
        )
        d.settle("model.activation_checkpointing", "offload", away)
    else:
        least = say(
            "{size} of activations does not fit in the {room} left by the model state; this keeps {kept} of them, "
            "for a third more computation",
            kept=quantities.size(need["full"]),
            **shown,
        )
        d.settle("model.activation_checkpointing", "full", least)


def _fastest(d: Decision) -> Candidate | None:
    """The first row of `trainwiz plan` with the strategy that was decided."""
    name = label(d)
    return fastest(d, only=name) if name else None


def _kept(d: Decision, best: Candidate) -> Message:
    """Why this row keeps these activations."""
    how, host = best.work.checkpointing, _host_bytes(d, best.work.samples)
    whole = needs(best.strategy, replace(best.work, checkpointing="none")).activations
    room = int(FILLED * (smallest_gpu_bytes(d) or 0)) - best.need.beside
    shown = {
        "micro": best.work.samples,
        "kept": quantities.size(best.need.activations),
        "size": quantities.size(whole),
        "room": quantities.size(room),
    }
    if how == "none":
        return say("the fastest: {size} of activations fits in the {room} left by the model state", **shown)
    if how == "offload" and host is not None:
        return say(
            "fastest in the forecast: at micro-batch {micro}, {kept} of activations fits in the {room} left by "
            "the model state; {host} of them is kept in host memory",
            host=quantities.size(host),
            **shown,
        )
    if whole > room:
        return say(
            "fastest in the forecast: at micro-batch {micro}, {kept} of activations fits in the {room} left by "
            "the model state; {size} does not",
            **shown,
        )
    return say(
        "forecast to be as fast as without recomputation at micro-batch {micro}, with {kept} of activations "
        "instead of {size}",
        **shown,
    )


def _crowded(d: Decision, samples: int, room: int) -> bool:
    """Whether the layers' inputs do not fit, even with few logits in memory."""
    work = replace(work_of(d), checkpointing="full", samples=samples)
    return needs(d.strategy, replace(work, loss=Loss(tokens_at_once=SMALLEST_CHUNK))).activations > room


def _host_bytes(d: Decision, samples: int) -> int | None:
    """What offloaded activations take of a machine's memory; None where they are more than half of it, or unknown.

    Also None where there is no room for them beside offloaded state.
    """
    if d.parameters is None or d.machine is None or d.values["machine.device"] != "cuda":
        return None
    machines, memory = d.values["machine.num_machines"], d.machine.memory.total_bytes
    work = replace(work_of(d), checkpointing="offload", samples=samples)
    each = d.strategy.host_bytes_per_parameter(
        d.values["strategy.offload_optimizer_device"], d.values["strategy.offload_param_device"]
    )
    host = max(1, d.values["machine.num_processes"] // machines) * offloaded_activations(d.strategy, work)
    beside = each * training_of(work).parameters // machines
    return host if host <= min(memory // 2, memory - beside) else None


def decide_batch(d: Decision) -> None:
    """The batch equation, completed. Raises `PlanError` with the arithmetic where the answers conflict."""
    world = d.values["machine.num_processes"]
    keys = {
        "real": "batch.real_batch_size",
        "micro": "batch.per_device_batch_size",
        "accumulation": "batch.gradient_accumulation_steps",
    }
    given = {name: d.answers.get(key) for name, key in keys.items()}
    reason: Message | None = None
    best = _fastest(d)
    preferred = best.work.samples if best else _preferred_micro(d)
    if given["real"] is None and (given["micro"] is None or given["accumulation"] is None):
        # No real batch is given: ours is a multiple of everything that is.
        target, reason = usual_real_batch(d)
        ways = (given["accumulation"] or 1) * world
        while is_own(d) and preferred > 1 and preferred * ways > target:
            preferred //= 2
        step = (given["micro"] or preferred) * ways
        given["real"] = max(1, round(target / step)) * step
        if best:
            given["real"] = best.work.samples * (given["accumulation"] or best.accumulation) * world
    solved = batch.solve(world=world, preferred_micro=preferred, **given)
    if isinstance(solved, batch.Conflict):
        raise PlanError([say("{key}: {problem}", key=solved.key, problem=solved.message)])
    equation = say("{equation}: real batch = micro-batch × accumulation × ranks", equation=str(solved))
    d.settle(keys["real"], solved.real, reason or equation)
    d.settle(keys["micro"], solved.micro, _micro_reason(d, equation, solved.micro))
    d.settle(keys["accumulation"], solved.accumulation, equation)


def decide_optimizer(d: Decision) -> None:
    """The optimizer and its numbers, by the model's size."""
    row = optimizers.named(d.settle_default("optimizer.name", say("common default")))
    if row.learning_rate is not None:
        why = say("common starting point for {optimizer}", optimizer=row.name)
        d.settle("optimizer.learning_rate", row.learning_rate, why)
    elif row.rate_factor != 1:
        rate, _ = _usual_rate(d)
        why = say("{factor:g} times that of adamw, whose updates are smaller", factor=row.rate_factor)
        d.settle("optimizer.learning_rate", float(f"{rate * row.rate_factor:.3g}"), why)
    else:
        d.settle("optimizer.learning_rate", *_usual_rate(d))
    d.settle("optimizer.weight_decay", *d.task.weight_decay)
    d.settle_default("optimizer.gradient_clipping", say("common default; guards against single bad batches"))
    usual = say("the usual value of the optimizer")
    for key in ("optimizer.beta1", "optimizer.beta2", "optimizer.epsilon"):
        d.settle_default(key, usual)
    d.settle_default("optimizer.ema_decay", say("the last weights become the model"))
    d.settle_default("optimizer.rates", say("one learning rate for all parameters"))
    d.settle_default("optimizer.decays", say("matrices and embeddings decay, biases and norms do not"))


def _usual_rate(d: Decision) -> tuple[float, Message]:
    """A learning rate for adamw."""
    if d.task.compares and not d.values["model.from_scratch"]:
        loss, factor = d.values["preference.loss"], 1 if d.values["model.adapter"] == "none" else _ADAPTER_FACTOR
        rate = round(LOSSES[loss].learning_rate * factor, 10)
        return rate, say("usual with {loss}; larger ones make answers worse", loss=loss)
    if d.values["model.adapter"] != "none":
        return _ADAPTER_RATE, say("common for adapters (used by QLoRA)")
    if d.task.backbones and not d.values["model.from_scratch"]:
        return _BACKBONE_RATE, say("continues from the weights of a pretrained image network")
    if d.task.own_code or size_of(d) < SMALL_MODEL:
        return 1e-3, say("the model is small")
    if not d.values["model.from_scratch"]:
        return _FINE_TUNING_RATE, say("continues from trained weights (value used by Llama 2)")
    return gpt3_row(d)[1], say("value used by GPT-3 at a similar size")


def decide_records(d: Decision) -> None:
    """Checkpoints and logs."""
    updates = updates_of(d)
    if updates is None:
        d.settle("checkpoint.checkpointing_steps", 100, say("common default"))
        d.settle("tracking.logging_steps", 10, say("common default"))
    else:
        why = say("a quarter of {updates} updates, at most 500", updates=updates)
        d.settle("checkpoint.checkpointing_steps", min(500, max(1, math.ceil(updates / 4))), why)
        why = say("a twentieth of {updates} updates, at most 10", updates=updates)
        d.settle("tracking.logging_steps", min(10, max(1, updates // 20)), why)
    decide_evaluation_steps(d, updates)
    d.settle_default("evaluation.best_metric", say("the last weights become the model"))
    d.settle_default("evaluation.best_mode", say("the direction of known metrics is known"))
    d.settle_default("evaluation.patience", say("the schedule is planned for the whole length"))
    d.settle_default("evaluation.gather_outputs", say("sums over samples need no memory"))
    d.settle_default(
        "evaluation.generation_metrics", say("the loss needs one forward pass; generation needs one per token")
    )
    d.settle_default("evaluation.generated_answers", say("a few hundred answers compare two checkpoints"))
    d.settle_default("evaluation.max_new_tokens", say("used only with evaluation.generation_metrics"))
    d.settle_default("checkpoint.checkpoints_total_limit", say("the newest checkpoint and two to go back to"))
    d.settle_default("checkpoint.background", say("the checkpoint is then on disk before training continues"))
    d.settle_default("checkpoint.on_failed_save", say("no earlier checkpoint is lost when training continues"))
    d.settle_default("tracking.log_with", say("metrics.jsonl is always written"))
    d.settle_default("tracking.project", say("used only by trackers"))
    d.settle_default("tracking.run_name", say("the tracker chooses a name"))
    d.settle_default("tracking.tags", say("used only by trackers"))


def decide_supervision(d: Decision) -> None:
    """What happens when the training hangs or fails."""
    d.settle_default("supervision.on_hang", say("a false alarm then only prints a message; no work is lost"))
    d.settle_default("supervision.hang_limit", say("derived from the run itself"))
    d.settle_default("supervision.max_restarts", say("no automatic restart; check the failure first"))


# docs/decisions/wizard.md: Activations decide the default micro-batch, and TW325
def _preferred_micro(d: Decision) -> int:
    size = size_of(d)
    known, left = _activation_bytes(d, 1), _bytes_left(d)
    micro = _MICRO_BATCH if size < 0.5e9 else 4 if size < 3e9 or known else 1
    if known and left is not None and not d.on_cpu and d.task.samples == "pictures":
        micro = _PICTURES
    told = d.machine is not None and d.machine.memory.total_bytes  # 0: unknown
    offloads = told and d.values["model.activation_checkpointing"] == "offload"
    while known and left is not None and micro > 1:
        if _activation_bytes(d, micro) <= left and not (offloads and _host_bytes(d, micro) is None):
            break
        micro //= 2
    return micro


def _micro_reason(d: Decision, equation: Message, micro: int) -> Message:
    size, memory, state = _activation_bytes(d, micro), smallest_gpu_bytes(d), state_bytes(d)
    if not size or memory is None or state is None:
        return equation
    return say(
        "{equation}; each rank needs {state} of model state and about {size} of activations; GPU memory: {memory}",
        equation=equation,
        state=quantities.size(state),
        size=quantities.size(size),
        memory=quantities.size(memory),
    )


def _activation_bytes(d: Decision, samples: int) -> int:
    return _sample_bytes(d, d.values["model.activation_checkpointing"], samples)


def _sample_bytes(d: Decision, how: Checkpointing, samples: int = 1) -> int:
    """Activations of a micro-batch, and its logits; 0 where they are unknown."""
    if d.parameters is None:
        return 0
    return needs(d.strategy, replace(work_of(d), checkpointing=how, samples=samples)).activations


def _bytes_left(d: Decision) -> int | None:
    """What model state and the buffers beside it leave of the smallest GPU, or of a CPU rank's memory."""
    if d.on_cpu:
        return activation_room(d)
    memory = smallest_gpu_bytes(d)
    if memory is None or d.parameters is None:
        return None
    return int(FILLED * memory) - needs(d.strategy, work_of(d)).beside
