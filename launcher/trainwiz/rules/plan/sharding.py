"""How training state is spread over the ranks: strategy, ZeRO stage, FSDP, and further settings of DeepSpeed."""

from __future__ import annotations

from trainwiz import strategies
from trainwiz.config.spelling import nearest
from trainwiz.engines.deepspeed import STRICT_BLOCKS
from trainwiz.finding import Fix, Level, Violations, remedy, setting, violation
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule


@rule("TW301", level=Level.ERROR, field="strategy.zero_stage")
def deepspeed_needs_a_stage(plan: Plan) -> Violations:
    """A DeepSpeed plan must set the ZeRO stage.

    Without it: each tool uses its own default: 2 in accelerate, 0 in DeepSpeed itself. With AdamW in bf16 on 8
    ranks, that is 4.25 or 20 bytes per parameter on each rank.
    Why: the stage decides what each rank holds; an estimate for one stage does not apply to another.
    Instead: set 1 to shard the optimizer, 2 to also shard the gradients, 3 to also shard the weights, at the cost
    of communication. 0 shards nothing. In 16 bit, stage 0 also takes an empty step at startup: Adam counts this
    step, which makes the first updates of other scripts too small; the generated script undoes it.
    Source: https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training; for the empty step
    `FP16_UnfusedOptimizer.initialize_optimizer_states` in DeepSpeed 0.19.8
    """
    if strategies.of(plan).uses_deepspeed and plan.strategy.zero_stage is None:
        fix = remedy("set strategy.zero_stage to 2, or to 0, 1 or 3", {"strategy.zero_stage": 2})
        yield violation("strategy.kind is deepspeed, but strategy.zero_stage is not set", fix)


@rule("TW302", level=Level.WARNING, field="strategy.zero_stage")
def stage_needs_deepspeed(plan: Plan) -> Violations:
    """A ZeRO stage only takes effect under DeepSpeed.

    Without it: the stage is ignored, and each rank holds as much as with ddp or single.
    Why: ZeRO is a DeepSpeed feature. FSDP with full sharding is equivalent to stage 3.
    Instead: set strategy.kind to deepspeed, or remove the stage.
    Source: https://arxiv.org/abs/1910.02054
    """
    if not strategies.of(plan).uses_deepspeed and plan.strategy.zero_stage is not None:
        yield violation(
            "strategy.zero_stage {zero_stage} is ignored: strategy.kind is {kind}, not deepspeed",
            remedy("set strategy.kind to deepspeed, or leave strategy.zero_stage empty", {"strategy.zero_stage": None}),
        )


@rule("TW303", level=Level.ERROR, field="strategy.kind")
def several_ranks_need_a_strategy(plan: Plan) -> Violations:
    """The strategy single supports only one rank.

    Without it: accelerate's `distributed_type: NO` starts one process regardless of num_processes and exits with 0:
    the real batch is smaller than planned by that factor.
    Why: single shares nothing between ranks, and gradients would not be averaged.
    Instead: use ddp, deepspeed or fsdp for several ranks.
    Source: seen with accelerate 1.15: NO with 2 processes, `num_processes == 1` in the only one
    """
    if strategies.of(plan).one_rank and plan.machine.num_processes > 1:
        fix = remedy("set strategy.kind to ddp, or machine.num_processes to 1", {"strategy.kind": "ddp"})
        yield violation("strategy.kind is single, but machine.num_processes is {num_processes}", fix)


@rule("TW304", level=Level.HINT, field="strategy.kind")
def one_rank_needs_no_strategy(plan: Plan) -> Violations:
    """With a single rank, sharding and data parallelism have no benefit.

    Without it: training works, but ddp, fsdp and ZeRO without offload copy and communicate for nothing.
    Why: there is only one shard, and it contains everything.
    Instead: use single, or DeepSpeed with offload, which does help on one GPU.
    Source: https://huggingface.co/docs/transformers/perf_train_gpu_one
    """
    offloads = (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device) != ("none", "none")
    if plan.machine.num_processes == 1 and not strategies.of(plan).one_rank and not offloads:
        yield violation(
            "{strategy} has no benefit with a single rank",
            remedy(
                "set strategy.kind to single",
                {"engine": "accelerate", "strategy.kind": "single", "strategy.zero_stage": None},
            ),
            strategy=plan.strategy.label,
        )


@rule("TW305", level=Level.ERROR, field="strategy.kind")
def fsdp_needs_a_gpu(plan: Plan) -> Violations:
    """accelerate does not support FSDP on the CPU.

    Without it: with `use_cpu` it trains plain DDP; without it, each process trains alone as its own main process.
    Why: accelerate enables FSDP only if it finds the backend of an accelerator device.
    Instead: use ddp for CPU ranks, or DeepSpeed ZeRO, which also shards on CPUs.
    Source: `PartialState._prepare_backend` in accelerate 1.15; seen with 2 processes.
    """
    if strategies.of(plan).uses_fsdp and plan.machine.device == "cpu":
        fix = remedy("set strategy.kind to ddp (or to deepspeed with strategy.zero_stage 3)", {"strategy.kind": "ddp"})
        yield violation("accelerate never enables FSDP on the CPU, but machine.device is cpu", fix)


@rule("TW306", level=Level.WARNING, field="strategy.zero3_save_16bit_model")
def gathering_weights_needs_stage_3(plan: Plan) -> Violations:
    """zero3_save_16bit_model only takes effect at ZeRO stage 3.

    Without it: it is ignored. Below stage 3 every rank has the full weights, and they are saved in any case.
    Why: only stage 3 has to gather the weights before it saves them.
    Instead: leave it false.
    Source: https://www.deepspeed.ai/docs/config-json/ (stage3_gather_16bit_weights_on_model_save)
    """
    if plan.strategy.zero3_save_16bit_model and not _stage_3(plan):
        yield violation(
            "strategy.zero3_save_16bit_model is ignored with {strategy}",
            setting("strategy.zero3_save_16bit_model", False),
            strategy=plan.strategy.label,
        )


@rule("TW307", level=Level.WARNING, field="strategy.zero3_save_16bit_model")
def stage_3_saves_weights(plan: Plan) -> Violations:
    """ZeRO stage 3 writes the final model only with zero3_save_16bit_model.

    Without it: the generated script writes sharded checkpoints but no final model. Other scripts fail at the very
    end with `Cannot get 16bit model weights because stage3_gather_16bit_weights_on_model_save … is False`;
    DeepSpeed's own `save_16bit_model` silently returns False.
    Why: no rank has the full weights, and they are gathered only on request.
    Instead: set it to true, or convert a checkpoint afterwards: `python zero_to_fp32.py CHECKPOINT OUT`.
    Source: seen with accelerate 1.15; deepspeedai/DeepSpeed issues 3841, 7501
    """
    if _stage_3(plan) and not plan.strategy.zero3_save_16bit_model:
        yield violation(
            "without strategy.zero3_save_16bit_model, ZeRO 3 writes only sharded checkpoints, no final weights",
            setting("strategy.zero3_save_16bit_model", True),
        )


@rule("TW308", level=Level.WARNING, field="strategy.zero3_init")
def sharded_init_needs_stage_3(plan: Plan) -> Violations:
    """zero3_init only takes effect at ZeRO stage 3.

    Without it: it is ignored, and every rank first holds the whole model.
    Why: `zero.Init` splits the weights into stage 3 shards while the model is built. At stage 3, transformers does
    this regardless of `zero3_init_flag`, as long as accelerate keeps its DeepSpeed configuration; a model with
    random weights then starts from different weights than under any other strategy. The generated script does this
    only if the plan asks for it.
    Instead: leave it false, or use stage 3.
    Source: seen with accelerate 1.15 at stage 2; `is_deepspeed_zero3_enabled` in transformers 5.23;
    https://deepspeed.readthedocs.io/en/latest/zero3.html
    """
    if plan.strategy.zero3_init and not _stage_3(plan):
        fix = remedy("set it to false, or use ZeRO stage 3", {"strategy.zero3_init": False})
        yield violation("strategy.zero3_init is ignored with {strategy}", fix, strategy=plan.strategy.label)


@rule("TW317", level=Level.ERROR, field="deepspeed")
def deepspeed_knows_the_settings(plan: Plan) -> Violations:
    """The zero_optimization, offload, fp16 and bf16 settings in `deepspeed` must be known to DeepSpeed.

    Without it: every rank fails with pydantic's `Extra inputs are not permitted` after the model is built.
    Why: DeepSpeed parses these blocks with classes that reject unknown keys.
    Instead: spell the setting as DeepSpeed does.
    Source: seen with DeepSpeed 0.19.8
    """
    if not strategies.of(plan).uses_deepspeed:
        return
    for path, value in plan.deepspeed.items():
        block, _, name = path.rpartition(".")
        if block not in STRICT_BLOCKS or name in STRICT_BLOCKS[block] or value is None:
            continue
        near = nearest(name, STRICT_BLOCKS[block])
        fix = Fix(message=say("did you mean {key}?", key=f"{block}.{near}") if near else say("delete it"))
        yield violation("DeepSpeed does not accept {key} in {block}", fix, key=name, block=block)


@rule("TW318", level=Level.WARNING, field="deepspeed")
def settings_need_deepspeed(plan: Plan) -> Violations:
    """DeepSpeed settings only take effect under DeepSpeed.

    Without it: the settings are ignored: no ds_config.json is written.
    Why: ds_config.json is written only for strategy.kind deepspeed.
    Instead: set strategy.kind to deepspeed, or remove these settings.
    Source: trainwiz's own files
    """
    if plan.deepspeed and not strategies.of(plan).uses_deepspeed:
        fix = remedy("set strategy.kind to deepspeed, or remove the section deepspeed")
        yield violation("DeepSpeed settings are ignored: strategy.kind is {kind}", fix)


def _stage_3(plan: Plan) -> bool:
    strategy = strategies.of(plan)
    return strategy.uses_deepspeed and strategy.partitions_weights
