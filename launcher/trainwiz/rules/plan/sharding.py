"""How training state is spread over the ranks: strategy, ZeRO stage, FSDP."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz import strategies
from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule


@rule("TW301", level=Level.ERROR, field="strategy.zero_stage")
def deepspeed_needs_a_stage(plan: Plan) -> Iterator[Violation]:
    """A DeepSpeed plan says which ZeRO stage.

    Without it: each tool takes its own default: accelerate 2, DeepSpeed itself 0. With AdamW in bf16 on 8 ranks that is
    4.25 or 20 bytes per parameter on each.
    Why: the stage decides what a rank holds; an estimate for one stage says nothing about another.
    Instead: 1 shards the optimizer, 2 the gradients as well, 3 the weights as well, at the price of communication.
    0 shards nothing, and in 16 bit it takes an empty step when it starts: Adam counts it, and other scripts' first
    updates are too small; the generated one takes it back.
    Source: https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training; for the empty step
    `FP16_UnfusedOptimizer.initialize_optimizer_states` in DeepSpeed 0.19.8
    """
    if strategies.of(plan).uses_deepspeed and plan.strategy.zero_stage is None:
        yield violation(
            "strategy.kind is deepspeed, and strategy.zero_stage is not given",
            remedy("set strategy.zero_stage 2, or 0, 1 or 3", {"strategy.zero_stage": 2}),
        )


@rule("TW302", level=Level.WARNING, field="strategy.zero_stage")
def stage_needs_deepspeed(plan: Plan) -> Iterator[Violation]:
    """A ZeRO stage means something under DeepSpeed only.

    Without it: the stage is ignored, and each rank holds what ddp or single holds.
    Why: ZeRO is DeepSpeed's. FSDP's full shard does what stage 3 does.
    Instead: strategy.kind deepspeed, or no stage.
    Source: https://arxiv.org/abs/1910.02054
    """
    if not strategies.of(plan).uses_deepspeed and plan.strategy.zero_stage is not None:
        yield violation(
            "strategy.zero_stage {stage} is ignored: strategy.kind is {kind}, not deepspeed",
            remedy("set strategy.kind deepspeed, or leave strategy.zero_stage empty", {"strategy.zero_stage": None}),
            stage=plan.strategy.zero_stage,
            kind=plan.strategy.kind,
        )


@rule("TW303", level=Level.ERROR, field="strategy.kind")
def several_ranks_need_a_strategy(plan: Plan) -> Iterator[Violation]:
    """The strategy single has one rank.

    Without it: accelerate's `distributed_type: NO` starts one process, whatever num_processes says, and exits with 0:
    the real batch is that many times smaller than planned.
    Why: single shares nothing: no gradient would be averaged.
    Instead: ddp, deepspeed or fsdp for several ranks.
    Source: seen with accelerate 1.15: NO with 2 processes, `num_processes == 1` in the only one
    """
    if strategies.of(plan).one_rank and plan.machine.num_processes > 1:
        yield violation(
            "strategy.kind is single, but machine.num_processes is {ranks}",
            remedy("set strategy.kind ddp, or machine.num_processes 1", {"strategy.kind": "ddp"}),
            ranks=plan.machine.num_processes,
        )


@rule("TW304", level=Level.HINT, field="strategy.kind")
def one_rank_needs_no_strategy(plan: Plan) -> Iterator[Violation]:
    """One rank has nobody to share with.

    Without it: it trains; ddp, fsdp and ZeRO without offload copy and communicate for nothing.
    Why: there is one shard, which is the whole.
    Instead: single; or DeepSpeed with offload, which does help one GPU.
    Source: https://huggingface.co/docs/transformers/perf_train_gpu_one
    """
    offloads = (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device) != ("none", "none")
    if plan.machine.num_processes == 1 and not strategies.of(plan).one_rank and not offloads:
        yield violation(
            "{strategy} over one rank shares nothing",
            remedy(
                "set strategy.kind single",
                {"engine": "accelerate", "strategy.kind": "single", "strategy.zero_stage": None},
            ),
            strategy=plan.strategy.label,
        )


@rule("TW305", level=Level.ERROR, field="strategy.kind")
def fsdp_needs_a_gpu(plan: Plan) -> Iterator[Violation]:
    """accelerate has no FSDP on the CPU.

    Without it: with `use_cpu` it trains plain DDP; without, each process trains alone as its own main process.
    Why: accelerate enables FSDP only where it found an accelerator's backend.
    Instead: ddp for CPU ranks, or DeepSpeed ZeRO, which shards on CPUs as well.
    Source: `PartialState._prepare_backend` in accelerate 1.15; seen with 2 processes.
    """
    if strategies.of(plan).uses_fsdp and plan.machine.device == "cpu":
        yield violation(
            "accelerate never enables FSDP on the CPU; machine.device is cpu",
            remedy("set strategy.kind ddp (or deepspeed with strategy.zero_stage 3)", {"strategy.kind": "ddp"}),
        )


@rule("TW306", level=Level.WARNING, field="strategy.zero3_save_16bit_model")
def gathering_weights_needs_stage_3(plan: Plan) -> Iterator[Violation]:
    """zero3_save_16bit_model means something at ZeRO stage 3 only.

    Without it: it is ignored. Below stage 3 every rank has the whole weights, and they are saved in any case.
    Why: only stage 3 must gather them first.
    Instead: leave it false.
    Source: https://www.deepspeed.ai/docs/config-json/ (stage3_gather_16bit_weights_on_model_save)
    """
    if plan.strategy.zero3_save_16bit_model and not _stage_3(plan):
        yield violation(
            "strategy.zero3_save_16bit_model is ignored with {strategy}",
            remedy("set it false", {"strategy.zero3_save_16bit_model": False}),
            strategy=plan.strategy.label,
        )


@rule("TW307", level=Level.WARNING, field="strategy.zero3_save_16bit_model")
def stage_3_saves_weights(plan: Plan) -> Iterator[Violation]:
    """ZeRO stage 3 writes plain weights only with zero3_save_16bit_model.

    Without it: the generated script writes sharded checkpoints and no final model. Other scripts fail at the very end:
    `Cannot get 16bit model weights because stage3_gather_16bit_weights_on_model_save … is False`, and DeepSpeed's own
    `save_16bit_model` returns False without a word.
    Why: no rank has the whole weights; gathering them must be asked for.
    Instead: set it true. Or convert a checkpoint afterwards: `python zero_to_fp32.py CHECKPOINT OUT`.
    Source: seen with accelerate 1.15; deepspeedai/DeepSpeed issues 3841, 7501
    """
    if _stage_3(plan) and not plan.strategy.zero3_save_16bit_model:
        yield violation(
            "ZeRO 3 without strategy.zero3_save_16bit_model writes sharded checkpoints only, no final weights",
            remedy("set strategy.zero3_save_16bit_model true", {"strategy.zero3_save_16bit_model": True}),
        )


@rule("TW308", level=Level.WARNING, field="strategy.zero3_init")
def sharded_init_needs_stage_3(plan: Plan) -> Iterator[Violation]:
    """zero3_init means something at ZeRO stage 3 only.

    Without it: it is ignored, and every rank first holds the whole model.
    Why: `zero.Init` cuts the weights while the model is built, for the shards of stage 3. At stage 3, transformers does
    so whatever `zero3_init_flag` says, as long as accelerate keeps its DeepSpeed configuration; a model from random
    weights then starts from others than under any other strategy. The generated script does it only where the plan
    says so.
    Instead: leave it false, or use stage 3.
    Source: seen with accelerate 1.15 at stage 2; `is_deepspeed_zero3_enabled` in transformers 5.23;
    https://deepspeed.readthedocs.io/en/latest/zero3.html
    """
    if plan.strategy.zero3_init and not _stage_3(plan):
        yield violation(
            "strategy.zero3_init is ignored with {strategy}",
            remedy("set it false, or use ZeRO stage 3", {"strategy.zero3_init": False}),
            strategy=plan.strategy.label,
        )


def _stage_3(plan: Plan) -> bool:
    strategy = strategies.of(plan)
    return strategy.uses_deepspeed and strategy.partitions_weights
