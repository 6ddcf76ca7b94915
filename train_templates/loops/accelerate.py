"""Train with accelerate: one rank, DDP, DeepSpeed ZeRO or FSDP2.

task.py holds data, model and loss; batches.py the sample order; checkpoints.py saving and resuming.

Run it with `python train.py`, `torchrun --nproc_per_node N train.py` or `accelerate launch train.py`; `--name value`
overrides a field of `Config`. For any number of ranks and any split of the batch:

- An update's gradient is that of one big batch: losses are summed and divided by the count of the whole real batch.
- Each epoch is one permutation by (seed, epoch), cut into real batches. Each sample counts once; padding counts zero.
- The learning rate and all randomness are functions of the update, so a resumed run continues exactly.
"""

from __future__ import annotations

import argparse

# feature: recut
import copy

# end: recut
import gc

# feature: deepspeed
import json

# end: deepspeed
import math

# feature: environment
import os

# end: environment
# feature: recut
import shutil

# end: recut
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

# feature: cuda
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # fewer gaps in GPU memory; read at import
# end: cuda
# feature: deepspeed_cpu
os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed reads this at import
# end: deepspeed_cpu

import torch

# feature: fsdp
import torch.distributed.checkpoint as dcp

# end: fsdp
from accelerate import Accelerator

# feature: ddp
from accelerate.utils import DistributedDataParallelKwargs

# end: ddp
# feature: deepspeed
from accelerate.utils import DeepSpeedPlugin

# end: deepspeed
# feature: deepspeed_cpu
from accelerate.utils import InitProcessGroupKwargs

# end: deepspeed_cpu
# feature: fsdp
from accelerate.utils import FullyShardedDataParallelPlugin, GradientAccumulationPlugin, convert_outputs_to_fp32

# end: fsdp
# feature: plain
from safetensors.torch import load_model, save_model

# end: plain
from torch import nn

# feature: fsdp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy

# end: fsdp

# feature: generated
import generation

# end: generated
# feature: own_hooks
import checks
import hooks

# end: own_hooks
import task

# feature: ema
from average import keep_average, swap

# end: ema
from batches import Agreement, RealBatches, check_batch, keyed_seed

# feature: each_epoch
from batches import Stopped

# end: each_epoch
# feature: named_tensors
from batches import load_batches

# end: named_tensors
# feature: real_batch_mean
# feature: eval
from batches import mean_over

# end: eval
from batches import with_mean

# end: real_batch_mean
# feature: settled
from buckets import settle_buckets

# end: settled
from checkpoints import Checkpoints

# feature: selected
from evaluation import Evaluation

# feature: gathered
from evaluation import measure_outputs

# end: gathered

# end: selected
# feature: built_first
from first_rank import build, prepare

# end: built_first
# feature: mfu
from flops import share_of_peak

# end: mfu
# feature: fp8
from fp8 import use_fp8

# end: fp8
# feature: frequencies
from frequencies import frequencies_of, put_back

# end: frequencies
# feature: frozen
from frozen import freeze

# end: frozen
from meter import Meter
from metrics import Metrics

# feature: neftune
from noise import add_noise

# end: neftune
# feature: numa
from numa import bind

# end: numa
# feature: own_optimizer
from optimizers import build_optimizer

# end: own_optimizer
# feature: recompute
from recompute import recompute_layers

# end: recompute
# feature: reference
from references import add_references

# end: reference
# feature: gathers_in_loop
from resharding import gather_anew

# end: gathers_in_loop
# feature: own_schedule
from schedule import SCHEDULES, learning_rate

# end: own_schedule
# feature: built_once
from sharding import build, prepare

# end: built_once
# feature: staged
# feature: plain
from staging import Held

# end: plain
from staging import Staged

# end: staged
# feature: own_hooks
from streams import indexed, load_batches

# end: own_hooks
# feature: named_run
from tracking import tracker_settings

# end: named_run


@dataclass
class Config(task.TaskConfig):
    """All settings of the run, including those of the task."""

    seed: int = 42
    output_dir: str = "output"
    resume: str = "none"  # "auto" continues from the newest complete checkpoint in output_dir
    trust: bool = False  # true: also resume from a checkpoint with unknown classes, which could run any code
    num_workers: int = 0  # processes per rank that load data
    # The batch equation: real_batch_size = per_device_batch_size * gradient_accumulation_steps * num_processes
    num_processes: int = 1
    real_batch_size: int = 32
    per_device_batch_size: int = 8
    gradient_accumulation_steps: int = 4
    # Length: n_steps updates, or n_epochs if n_steps is 0. Schedule, logs and checkpoints count updates.
    n_steps: int = 100
    n_epochs: int = 0
    n_warmup_steps: int = 0
    lr_scheduler_type: str = "cosine"  # constant, linear or cosine
    # feature: own_schedule
    warmup_ratio: float = 0.0  # the warm-up as a share of all updates, if n_warmup_steps is 0
    min_lr_ratio: float = 0.0  # the floor that the rate falls to, as a share of learning_rate
    decay_ratio: float = 0.1  # wsd: the share of all updates in which the rate falls
    decay_type: str = "1-sqrt"  # wsd: linear, cosine or 1-sqrt
    polynomial_power: float = 1.0  # polynomial: 1 falls in a straight line, 2 fast at first
    # end: own_schedule
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    gradient_clipping: float = 1.0  # maximum norm of the gradient; 0: off
    # feature: ema
    ema_decay: float = 0.999  # decay of the moving average of the weights, which becomes the model
    # end: ema
    # feature: own_optimizer
    beta1: float = 0.9  # decay of the mean of gradients; the momentum of sgd and muon
    beta2: float = 0.95  # decay of the mean of their squares
    epsilon: float = 1e-8
    rates: str = ""  # factors of the learning rate by parameter name: head=10,embed=0.1
    decays: str = ""  # weight decays, in the same form
    # end: own_optimizer
    mixed_precision: str = "no"
    logging_steps: int = 10
    checkpointing_steps: int = 100  # 0: only at the end
    checkpoints_total_limit: int = 3  # complete checkpoints to keep; 0: all
    on_failed_save: str = "continue"  # or "stop": what to do when a checkpoint cannot be written
    # feature: selected
    evaluation_steps: int = 0  # updates between evaluations; 0: at the end of each epoch
    # end: selected
    # feature: best
    best_metric: str = "eval_loss"  # the checkpoint with the best value becomes the model
    best_mode: str = "min"  # or "max"
    patience: int = 0  # evaluations without improvement after which the training ends; 0: off
    # end: best
    # feature: fsdp
    sync_each_batch: bool = False  # reduce gradients after each micro-batch, so that no rank holds all of them
    # end: fsdp
    # feature: deepspeed
    zero3_init: bool = False  # shard the model while building it, if it does not fit into a machine's memory
    # end: deepspeed
    # feature: tracker
    log_with: str = "tensorboard"
    # end: tracker
    # feature: own_weights
    weights: str = "bfloat16"  # dtype of the trained weights, their gradients and moments
    # end: own_weights
    # feature: frozen
    frozen: str = ""  # parameters that are not trained: parts of their names, separated by commas
    # end: frozen
    # feature: neftune
    neftune_alpha: float = 5.0  # noise on the embeddings
    # end: neftune
    # feature: named_run
    project: str = "train"
    run_name: str = ""
    tags: str = ""  # separated by commas
    # end: named_run


CHOICES = {
    "resume": ("none", "auto"),
    # feature: usual_schedule
    "lr_scheduler_type": ("constant", "linear", "cosine"),
    # end: usual_schedule
    # feature: own_schedule
    **SCHEDULES,
    # end: own_schedule
    "mixed_precision": ("no", "bf16", "fp16"),
    "on_failed_save": ("continue", "stop"),
    # feature: best
    "best_mode": ("min", "max"),
    # end: best
    # feature: saved_dtype
    "output_dtype": ("source", "float32", "bfloat16", "float16"),
    # end: saved_dtype
}


def boolean(text: str) -> bool:
    """Return the value of `true` or `false`. Raises ValueError for any other word."""
    return ("false", "true").index(text.lower()) == 1


def read_config(arguments: list[str]) -> Config:
    """Return the config with overrides from the command line; exit on an unknown name or a wrong value."""
    parser = argparse.ArgumentParser(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in fields(Config):
        kind = boolean if isinstance(field.default, bool) else type(field.default)
        choices = CHOICES.get(field.name)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default, choices=choices, help=" ")
    config = Config(**vars(parser.parse_args(arguments)))
    check_batch(config, parser.error)
    return config


# feature: usual_schedule
def learning_rate(config: Config, update: int, total: int) -> float:
    """Return the rate of update 0 … `total` - 1: a linear warm-up, then a schedule that ends after the last update."""
    if update < config.n_warmup_steps:
        return config.learning_rate * (update + 1) / config.n_warmup_steps
    progress = (update - config.n_warmup_steps) / max(1, total - config.n_warmup_steps)
    share = {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}
    return config.learning_rate * share[config.lr_scheduler_type]


# end: usual_schedule
# feature: sgd
def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9, weight_decay=config.weight_decay)


# end: sgd
# feature: adamw
def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return AdamW. Matrices and embeddings decay, vectors (biases, norms) do not. Each update sets the rate."""
    groups: dict[float, list[nn.Parameter]] = {config.weight_decay: [], 0.0: []}
    for parameter in (p for p in model.parameters() if p.requires_grad):
        shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO 3 a rank holds only a flat shard
        groups[config.weight_decay if len(shape) > 1 else 0.0].append(parameter)
    return torch.optim.AdamW(
        [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items() if parameters],
        lr=0.0,
        betas=(0.9, 0.95),
        fused=device.type in ("cuda", "cpu"),  # one kernel for all parameters; not on every device
    )


# end: adamw
# feature: compile
def compile_layers(model: nn.Module) -> None:
    """Compile each repeated layer at its first use, or the whole model if it has no such layers.

    Identical layers share their code, and ranks exchange one layer's gradients while computing the next one's.
    """
    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    for part in layers or [model]:
        part.compile()


# end: compile
# feature: deepspeed
def build_accelerator(config: Config) -> Accelerator:
    """Set up DeepSpeed from ds_config.json; the config overrides batch sizes, clipping and precision."""
    settings = json.loads(Path(__file__).with_name("ds_config.json").read_text())
    settings.setdefault("bf16", {})["enabled"] = config.mixed_precision == "bf16"
    settings.setdefault("fp16", {})["enabled"] = config.mixed_precision == "fp16"
    settings["train_micro_batch_size_per_gpu"] = config.per_device_batch_size
    settings["gradient_accumulation_steps"] = config.gradient_accumulation_steps
    settings["gradient_clipping"] = config.gradient_clipping
    os.environ.pop("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", None)  # would override the value above
    handlers: list[Any] = []
    # feature: deepspeed_cpu
    # Without this, each rank would act as if it were alone.
    handlers.append(InitProcessGroupKwargs(backend="gloo"))
    # end: deepspeed_cpu
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings, zero3_init_flag=config.zero3_init),
        mixed_precision=config.mixed_precision,
        kwargs_handlers=handlers,
        # feature: tracker
        log_with=config.log_with,
        project_dir=config.output_dir,
        # end: tracker
    )
    accelerator.gradient_accumulation_steps = config.gradient_accumulation_steps
    # feature: zero3
    if not config.zero3_init:
        accelerator.state.deepspeed_plugin.dschf = None  # tells transformers to shard the model while building it
    # end: zero3
    return accelerator


# end: deepspeed
# feature: fsdp
def build_accelerator(config: Config) -> Accelerator:
    """Set up FSDP2: parameters, gradients and optimizer state are sharded over all ranks, layer by layer."""
    if "RANK" not in os.environ:  # without a launcher: the only rank of its world
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.mixed_precision)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        # accelerate's own policy would also reduce gradients and return losses in 16 bits.
        mixed_precision_policy=half and MixedPrecisionPolicy(half, reduce_dtype=torch.float32),
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=list(task.SHARDED_LAYERS) or None,
        state_dict_type="SHARDED_STATE_DICT",
        cpu_ram_efficient_loading=False,  # or transformers would skip weights on some ranks
    )
    return Accelerator(
        fsdp_plugin=plugin,
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=config.gradient_accumulation_steps, sync_each_batch=config.sync_each_batch
        ),
        mixed_precision=config.mixed_precision,
        # feature: tracker
        log_with=config.log_with,
        project_dir=config.output_dir,
        # end: tracker
    )


# end: fsdp
# feature: plain
def build_accelerator(config: Config) -> Accelerator:
    """Set up a single rank, or DDP over several."""
    handlers: list[Any] = []
    # feature: ddp
    # Gradients are views of the reduction buckets, which saves a copy of them.
    handlers.append(DistributedDataParallelKwargs(gradient_as_bucket_view=True))
    # end: ddp
    return Accelerator(
        # feature: cpu
        cpu=True,
        # end: cpu
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        mixed_precision=config.mixed_precision,
        kwargs_handlers=handlers,
        # feature: tracker
        log_with=config.log_with,
        project_dir=config.output_dir,
        # end: tracker
    )


# end: plain
# feature: engine_backward
def backward(config: Config, accelerator: Accelerator, model: nn.Module, loss: torch.Tensor) -> Any:
    """Add a micro-batch's gradient. After the last one, clip, step and return the norm before clipping."""
    model.set_gradient_accumulation_boundary(accelerator.sync_gradients)
    model.backward(loss)
    if not accelerator.sync_gradients:
        return None
    model.step()
    return model.get_global_grad_norm()


# end: engine_backward
# feature: zero0_fp32
def backward(config: Config, accelerator: Accelerator, model: nn.Module, loss: torch.Tensor) -> Any:
    """Add a micro-batch's gradient. After the last one, clip, step and return the norm before clipping."""
    model.set_gradient_accumulation_boundary(accelerator.sync_gradients)
    model.backward(loss)
    if not accelerator.sync_gradients:
        return None
    # At stage 0 in fp32 the engine keeps no norm, so it is measured here, before clipping.
    norm = sum(p.grad.float().square().sum() for p in model.parameters() if p.grad is not None).sqrt()
    model.step()
    return norm


# end: zero0_fp32
# feature: plain_backward
def backward(config: Config, accelerator: Accelerator, model: nn.Module, loss: torch.Tensor) -> Any:
    """Add a micro-batch's gradient. After the last one, clip and return the norm before clipping, on the device."""
    accelerator.backward(loss)
    if not accelerator.sync_gradients:
        return None
    # feature: turns
    hooks.average_gradients(accelerator, model)
    # end: turns
    return accelerator.clip_grad_norm_(model.parameters(), config.gradient_clipping or math.inf)


# end: plain_backward
# feature: zero3
def weight_norm(accelerator: Accelerator, model: nn.Module) -> float:
    """Return the norm of all trained weights, from the shards of all ranks. Synchronizes with the device."""
    total = torch.zeros((), device=accelerator.device)
    for parameter in (p for p in model.parameters() if p.requires_grad):
        part = parameter.ds_tensor
        filled = parameter.ds_numel - accelerator.process_index * part.numel()  # the last shards are padded
        total += part[: max(0, filled)].to(total.device).float().square().sum()
    return float(accelerator.reduce(total).sqrt())


# end: zero3
# feature: fsdp
def weight_norm(accelerator: Accelerator, model: nn.Module) -> float:
    """Return the norm of all trained weights, over all shards. Synchronizes with the device."""
    trained = (p.detach() for p in model.parameters() if p.requires_grad)
    return float(sum(part.float().square().sum().full_tensor() for part in trained).sqrt())


# end: fsdp
# feature: whole_weights
def weight_norm(accelerator: Accelerator, model: nn.Module) -> float:
    """Return the norm of all trained weights. Synchronizes with the device."""
    return float(sum(p.detach().float().square().sum() for p in model.parameters() if p.requires_grad).sqrt())


# end: whole_weights
# feature: summed
@torch.no_grad()
def evaluate(config: Config, accelerator: Accelerator, agreement: Agreement, model: Any, data: Any) -> dict[str, float]:
    """Return the task's metrics over the whole evaluation set; each sample counts once, over all ranks."""
    end = -(-len(data) // config.real_batch_size)
    batches = RealBatches(config, len(data), accelerator.process_index, 0, end)
    sums: Any = 0
    # feature: own_hooks
    outputs = hooks.Outputs(batches)
    # end: own_hooks
    # feature: turns
    model = hooks.bare(model)
    # end: turns
    model.eval()
    # feature: own_hooks
    # feature: plain
    unchanged = checks.Unchanged(model)
    # end: plain
    # end: own_hooks
    # feature: real_batch_mean
    mean = mean_over(model, load_batches(config, data, batches), accelerator.device, accelerator.reduce)
    # end: real_batch_mean
    for batch, _ in agreement.unless_stopped(load_batches(config, data, batches)):
        # feature: named_tensors
        batch = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in batch.items()}
        # feature: real_batch_mean
        batch["mean"] = mean
        # end: real_batch_mean
        # end: named_tensors
        # feature: own_hooks
        batch = hooks.moved(batch, accelerator.device)
        outputs.add(model, batch)
        sums = sums + checks.sums_of(model, batch)
        # end: own_hooks
        # feature: named_tensors
        sums = sums + task.evaluation_sums(model, batch).double()
        # end: named_tensors
    # feature: own_hooks
    # feature: plain
    unchanged.check()
    # end: plain
    # end: own_hooks
    model.train()
    # feature: named_tensors
    # feature: generated
    written = generation.metrics(config, agreement, model, data, accelerator.device)
    # end: generated
    # end: named_tensors
    # feature: gathers_anew
    gather_anew(model)
    # end: gathers_anew
    # feature: named_tensors
    # feature: loss_alone
    return task.evaluation_metrics(accelerator.reduce(sums).tolist())
    # end: loss_alone
    # feature: generated
    return {**task.evaluation_metrics(accelerator.reduce(sums).tolist()), **written}
    # end: generated
    # end: named_tensors
    # feature: own_hooks
    found = checks.measured("evaluation_metrics", task.evaluation_metrics(accelerator.reduce(sums).tolist()))
    return {**found, **outputs.metrics()}
    # end: own_hooks


# end: summed
# feature: plain
def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DDP. Accelerate's `unwrap_model` and `get_state_dict` would import DeepSpeed."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def build_checkpoints(config: Config, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> Checkpoints:
    """The main process saves the full state; any number of ranks can resume from it."""
    bare = unwrapped(model)

    # feature: unstaged
    def save_state(folder: Path) -> None:
        if accelerator.is_main_process:
            scaler = accelerator.scaler.state_dict() if accelerator.scaler else None
            save_model(bare, str(folder / "model.safetensors"))
            torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler}, folder / "optimizer.pt")

    # end: unstaged
    # feature: staged
    def state() -> list[dict[str, Any]]:
        scaler = accelerator.scaler.state_dict() if accelerator.scaler else None
        moments = {"optimizer": optimizer.state_dict(), "scaler": scaler}
        return [dict(bare.state_dict()), moments] if accelerator.is_main_process else []

    def write_state(folder: Path, copied: list[dict[str, Any]]) -> None:
        if copied:
            save_model(Held(copied[0]), str(folder / "model.safetensors"))
            torch.save(copied[1], folder / "optimizer.pt")

    # end: staged

    def load_state(folder: Path) -> None:
        state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        load_model(bare, folder / "model.safetensors")
        optimizer.load_state_dict(state["optimizer"])
        if accelerator.scaler:
            accelerator.scaler.load_state_dict(state["scaler"])

    # feature: unstaged
    return Checkpoints(config, "whole", save_state, load_state)
    # end: unstaged
    # feature: staged
    staged = Staged(state, write_state)
    checkpoints = Checkpoints(config, "whole", staged.copy, load_state)
    checkpoints.write_state = staged.write
    return checkpoints
    # end: staged


# end: plain
# feature: fsdp
def build_checkpoints(config: Config, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> Checkpoints:
    """Each rank saves its shards by parameter name; any number of ranks can resume from them."""

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer.optimizer)
        scaler = {"scaler": accelerator.scaler.state_dict()} if accelerator.scaler else {}
        return {"model": weights, "optimizer": moments, **scaler}

    # feature: unstaged
    def save_state(folder: Path) -> None:
        dcp.save(state(), storage_writer=dcp.FileSystemWriter(folder, sync_files=False))  # `Checkpoints` syncs them

    # end: unstaged
    # feature: staged
    def write_state(folder: Path, copied: dict[str, Any]) -> None:
        writer = dcp.FileSystemWriter(folder, sync_files=False)  # `Checkpoints` syncs the files
        dcp.save(copied, storage_writer=writer, process_group=checkpoints.group)  # the training uses the other group

    # end: staged

    def load_state(folder: Path) -> None:
        dcp.load(read := state(), storage_reader=dcp.FileSystemReader(folder))
        set_state_dict(model, optimizer.optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
        if accelerator.scaler:
            accelerator.scaler.load_state_dict(read["scaler"])

    # feature: unstaged
    return Checkpoints(config, "fsdp", save_state, load_state)
    # end: unstaged
    # feature: staged
    staged = Staged(state, write_state)
    checkpoints = Checkpoints(config, "fsdp", staged.copy, load_state)
    checkpoints.write_state = staged.write
    return checkpoints
    # end: staged


# end: fsdp
# feature: deepspeed
def build_checkpoints(config: Config, accelerator: Accelerator, model: Any, optimizer: Any) -> Checkpoints:
    """DeepSpeed saves its own files, one or more for each rank."""

    def save_state(folder: Path) -> None:
        try:
            # feature: whole_model
            model.save_checkpoint(folder, "state")
            # end: whole_model
            # feature: lora
            model.save_checkpoint(folder, "state", exclude_frozen_parameters=True)
            # end: lora
        except Exception as error:
            # The other ranks wait for this one inside the engine; when it exits, the launcher ends them.
            raise SystemExit(f"rank {accelerator.process_index}: the checkpoint was not saved: {error}") from None

    def load_state(folder: Path) -> None:
        # feature: recut
        if whole := checkpoints.put_together(folder):
            decays = [group["weight_decay"] for group in optimizer.param_groups]
            model._config.load_universal_checkpoint = True
            model.load_checkpoint(whole, "state")
            model._config.load_universal_checkpoint = False
            # Stage 3 copies the first group's values to all groups and shares one step count among all states.
            for group, decay in zip(optimizer.param_groups, decays, strict=True):
                group["weight_decay"] = decay
            for state in optimizer.state.values():
                state["step"] = copy.deepcopy(state["step"])
            checkpoints.first(shutil.rmtree, whole)
            return
        # end: recut
        if model.load_checkpoint(folder, "state")[0] is None:
            raise FileNotFoundError(f"{folder} contains no DeepSpeed state")

    layout = f"zero{model.zero_optimization_stage()}"
    # feature: as_saved
    return Checkpoints(config, layout, save_state, load_state)
    # end: as_saved
    # feature: recut
    checkpoints = Checkpoints(config, layout, save_state, load_state)
    return checkpoints
    # end: recut


# end: deepspeed
def train(config: Config, accelerator: Accelerator) -> bool:
    """Train. Return True if training finished, and False if it was stopped early."""
    agreement = Agreement()  # first, so that a stop request is noticed while data and model load
    torch.manual_seed(config.seed)  # the same initial weights on every rank
    # feature: named_tensors
    train_data = task.load_train_data(config)
    # end: named_tensors
    # feature: own_hooks
    checks.check_task()
    hooks.seed(config.seed)
    train_data = indexed(task.load_train_data(config), config)
    # end: own_hooks
    agreement.same(len(train_data), "samples of the training data")
    if len(train_data) == 0:
        raise SystemExit("the training data is empty; look at load_train_data in task.py")
    # feature: eval
    # feature: named_tensors
    eval_data = task.load_eval_data(config)
    # end: named_tensors
    # feature: own_hooks
    eval_data = indexed(task.load_eval_data(config), config, ends=True)
    # end: own_hooks
    agreement.same(len(eval_data), "samples of the evaluation data")
    if len(eval_data) == 0:
        raise SystemExit("the evaluation data is empty; look at load_eval_data in task.py")
    # end: eval
    # feature: built_by_all
    model = task.build_model(config)
    # end: built_by_all
    # feature: built_apart
    model = build(accelerator, lambda: task.build_model(config))
    # end: built_apart
    # feature: frozen
    freeze(model, config.frozen)
    # end: frozen
    # feature: own_weights
    frequencies = frequencies_of(model)
    model.to(getattr(torch, config.weights))
    put_back(frequencies)
    # end: own_weights
    # feature: neftune
    add_noise(model, config.neftune_alpha, config.sequence_length)
    # end: neftune
    # feature: fsdp
    model.forward = convert_outputs_to_fp32(model.forward)  # of the whole model; layers exchange 16-bit values
    # Some text models also name the layers of their family's vision models, for which accelerate would stop.
    kinds = {type(part).__name__ for part in model.modules()}
    model._no_split_modules = [name for name in getattr(model, "_no_split_modules", None) or () if name in kinds]
    # end: fsdp
    # feature: mfu
    useful = share_of_peak(model)
    # end: mfu
    # feature: fp8
    use_fp8(model)
    # end: fp8
    # feature: recompute
    recompute_layers(model, task.SHARDED_LAYERS)
    # end: recompute
    # feature: compile
    compile_layers(model)
    # end: compile
    # feature: named_tensors
    optimizer = build_optimizer(config, model, accelerator.device)
    # end: named_tensors
    # feature: own_hooks
    optimizer, rates = hooks.build_optimizers(config, model, build_optimizer(config, model, accelerator.device))
    # end: own_hooks
    # feature: ema
    keep_average(optimizer, config.ema_decay)
    # end: ema
    # feature: engine_casts
    frequencies = frequencies_of(model)  # DeepSpeed before 0.19 casts buffers, too
    # end: engine_casts
    # feature: built_by_all
    # feature: one_turn
    model, optimizer = accelerator.prepare(model, optimizer)
    # end: one_turn
    # feature: turns
    model, optimizer = hooks.prepare(accelerator, model, optimizer)
    # end: turns
    # end: built_by_all
    # feature: built_apart
    model, optimizer = prepare(accelerator, model, optimizer)
    # end: built_apart
    # feature: engine_casts
    put_back(frequencies)
    # end: engine_casts
    # feature: plain
    # feature: one_turn
    if accelerator.scaler is None:  # then accelerate's wrapper only adds a disk lookup to each step
        optimizer = optimizer.optimizer
    # end: one_turn
    # end: plain
    # feature: settled
    settle_buckets(model)
    # end: settled
    model.train()
    # feature: zero0_16bit
    for state in optimizer.state.values():
        state.get("step", torch.zeros(())).zero_()  # DeepSpeed takes an empty first step, which Adam counts
    # end: zero0_16bit
    # feature: reference
    add_references(config, agreement, model, train_data, accelerator.device)
    # feature: eval
    add_references(config, agreement, model, eval_data, accelerator.device)
    # end: eval
    # feature: gathers_anew
    gather_anew(model)
    # end: gathers_anew
    # end: reference

    updates_per_epoch = -(-len(train_data) // config.real_batch_size)
    total = config.n_steps or config.n_epochs * updates_per_epoch
    checkpoints = build_checkpoints(config, accelerator, model, optimizer)
    # feature: names
    checkpoints.classes = getattr(train_data, "classes", None)
    # end: names
    start = checkpoints.resume(len(train_data))
    if start > total:
        raise SystemExit(f"{start} updates are already done, but the training ends after {total}")
    metrics = Metrics(config, accelerator.is_main_process, start, total)
    # feature: usual_run
    accelerator.init_trackers("train", config=vars(config))
    # end: usual_run
    # feature: named_run
    named = {config.log_with: tracker_settings(config)}
    accelerator.init_trackers(config.project, config=vars(config), init_kwargs=named)
    # end: named_run
    # feature: tracker
    metrics.track = accelerator.log
    # end: tracker
    # feature: selected
    # feature: summed
    evaluation = Evaluation(
        config, lambda: evaluate(config, accelerator, agreement, model, eval_data), checkpoints, metrics, total
    )
    # end: summed
    # feature: gathered
    evaluation = Evaluation(
        config,
        lambda: measure_outputs(config, agreement, model, eval_data, accelerator.device),
        checkpoints,
        metrics,
        total,
    )
    # end: gathered
    # feature: ema
    evaluation.optimizer = optimizer
    # end: ema
    evaluation.catch_up(start)
    # end: selected
    # feature: best
    total = start if evaluation.ended else total

    # end: best
    # feature: each_epoch

    def evaluate_after(update: int) -> bool:
        """Evaluate. Return whether a stop was requested meanwhile; a resumed run then evaluates again."""
        try:
            metrics.write({"update": update, **evaluate(config, accelerator, agreement, model, eval_data)})
        except Stopped:
            return True
        return False

    if start and (start == total or start % updates_per_epoch == 0) and not agreement.reach(metrics.evaluated)[0]:
        evaluate_after(start)
    # end: each_epoch
    order = RealBatches(config, len(train_data), accelerator.process_index, start, total)
    meter = Meter(config, agreement, load_batches(config, train_data, order))
    # feature: mfu
    meter.flops = useful
    # end: mfu

    loss_since, updates_since = torch.zeros((), device=accelerator.device), 0
    # feature: fp16
    skipped: Any = 0  # updates that the scaler skipped because a gradient overflowed fp16
    # end: fp16
    # On a CPU, `torch.manual_seed` formats the stack for each device that may start later, which takes 0.2 ms.
    seed_generators = torch.default_generator.manual_seed if accelerator.device.type == "cpu" else torch.manual_seed
    _, stop = agreement.reach(0)
    for update in range(start, start if stop else total):
        seed_generators(keyed_seed(config.seed, update, accelerator.process_index))  # dropout and the like
        # feature: named_tensors
        rate = learning_rate(config, update, total)
        for group in optimizer.param_groups:
            # feature: one_rate
            group["lr"] = rate
            # end: one_rate
            # feature: own_optimizer
            group["lr"] = rate * group["factor"]
            # end: own_optimizer
        # end: named_tensors
        # feature: own_hooks
        rate = hooks.set_rates(config, optimizer, rates, update, total, learning_rate(config, update, total))
        # end: own_hooks
        micro_batches = meter.fetch()
        count, stop = agreement.reach(sum(n for _, n in micro_batches))
        if count == 0:
            raise SystemExit(f"update {update + 1}: nothing in the real batch counts; look at collate in task.py")
        # feature: real_batch_mean
        micro_batches = with_mean(model, micro_batches, accelerator.device, accelerator.reduce)
        # end: real_batch_mean
        # The engine divides by the accumulation steps and averages over ranks. Undo both, and divide by the count.
        scale = config.gradient_accumulation_steps * config.num_processes / count
        # feature: one_turn
        for batch, _ in micro_batches:
            # feature: named_tensors
            batch = {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in batch.items()}
            # end: named_tensors
            # feature: own_hooks
            batch = hooks.moved(batch, accelerator.device)
            # end: own_hooks
            with accelerator.accumulate(model):  # ranks communicate only after the last micro-batch
                # feature: named_tensors
                loss = task.loss_sum(model, batch)
                # end: named_tensors
                # feature: own_hooks
                loss = checks.scalar(task.loss_sum(model, batch))
                # end: own_hooks
                loss_since += loss.detach() / count
                norm = backward(config, accelerator, model, loss * scale)
        optimizer.step()
        # feature: drops_gradients
        optimizer.zero_grad()
        # end: drops_gradients
        # feature: keeps_gradients
        optimizer.zero_grad(set_to_none=False)  # gradients stay views of DDP's buckets
        # end: keeps_gradients
        # end: one_turn
        # feature: turns
        for _ in hooks.turns(accelerator, model, optimizer):  # one for each optimizer
            for batch, _ in micro_batches:
                batch = hooks.moved(batch, accelerator.device)
                with accelerator.accumulate(model):  # ranks communicate only after the last micro-batch
                    loss = hooks.loss_sum(accelerator, model, batch, optimizer, count)
                    loss_since += loss.detach() / count
                    norm = backward(config, accelerator, model, loss * scale)
            optimizer.step()
            optimizer.zero_grad()
        # end: turns
        # feature: after_update
        hooks.after_update(config, model, update + 1)
        # end: after_update
        # feature: fp16
        # feature: engine_backward
        skipped += accelerator.optimizer_step_was_skipped
        # end: engine_backward
        # feature: plain_backward
        skipped += ~torch.isfinite(norm)  # on the device; accelerate sees no skip of a fused optimizer
        # end: plain_backward
        # end: fp16
        updates_since, done = updates_since + 1, update + 1
        meter.count += count
        metrics.bar.update()

        last = stop or done == total
        due_log = last or done % config.logging_steps == 0
        due_save = last or (config.checkpointing_steps > 0 and done % config.checkpointing_steps == 0)
        # feature: selected
        due_eval = evaluation.due(done, stop)
        due_log = due_log or due_eval
        # end: selected
        looks = due_log or due_save or done == 1 or done % updates_per_epoch == 0
        # feature: engine_backward
        looks = looks or not model.was_step_applied()  # DeepSpeed skips an update whose gradient is not finite
        # end: engine_backward
        if looks:  # this is the only place that waits for the device
            mean_loss, pre_clip = float(accelerator.reduce(loss_since)) / updates_since, float(norm)
            if done == 1 and mean_loss == 0:
                raise SystemExit("update 1: the loss is 0, so there is nothing to learn: are all labels alike?")
            if not math.isfinite(mean_loss):
                raise SystemExit(f"update {done}: the loss is {mean_loss}; the newest checkpoint is from before")
            if not math.isfinite(pre_clip) and config.mixed_precision != "fp16":  # its scaler skips such updates
                raise SystemExit(f"update {done}: the gradient is {pre_clip}; the newest checkpoint is from before")
        if due_log:
            metrics.write(
                {
                    "update": done,
                    "epoch": done / updates_per_epoch,
                    "loss": mean_loss,
                    # feature: turns
                    **hooks.losses_of_turns(accelerator, optimizer, updates_since),
                    # end: turns
                    "lr": rate,
                    "grad_norm_pre_clip": pre_clip,
                    "grad_norm_post_clip": min(pre_clip, config.gradient_clipping or math.inf),
                    # feature: weight_norm
                    "weight_norm": weight_norm(accelerator, model),
                    # end: weight_norm
                    # feature: fp16
                    "skipped_updates": int(skipped),
                    # end: fp16
                    **meter.record(),
                }
            )
            loss_since, updates_since = torch.zeros_like(loss_since), 0
        paused = time.perf_counter()
        # feature: selected
        if due_eval and evaluation.run(done):
            due_save = True
        stop = stop or evaluation.stopped
        # end: selected
        if due_save and (failures := checkpoints.save(done)):
            metrics.write({"update": done, "failed_saves": failures})
        # feature: each_epoch
        if not stop and (done == total or done % updates_per_epoch == 0) and evaluate_after(done):
            stop = True
            if not due_save and (failures := checkpoints.save(done)):
                metrics.write({"update": done, "failed_saves": failures})
        # end: each_epoch
        meter.began += time.perf_counter() - paused  # saving and evaluating do not count as training time
        # feature: unchosen
        if stop:
            break
        # end: unchosen
        # feature: best
        if stop or evaluation.ended:
            break
        # end: best
    metrics.bar.close()

    # feature: final_weights
    if not stop:
        # feature: best
        checkpoints.go_back(evaluation.best_update)
        # end: best
        # feature: ema
        swap(optimizer)
        # end: ema
        # feature: plain
        bare = unwrapped(model)
        weights = bare.state_dict()
        # end: plain
        # feature: divided
        bare = accelerator.unwrap_model(model)
        weights = accelerator.get_state_dict(model)
        # end: divided
        # feature: zero3
        accelerator.state.deepspeed_plugin.dschf = None  # from here on, transformers loads whole models
        # end: zero3
        if accelerator.is_main_process:
            task.save_model(config, bare, weights, Path(config.output_dir) / "model")
    # end: final_weights
    checkpoints.close()
    return not stop


def main() -> None:
    """Train from the command line."""
    config = read_config(sys.argv[1:])
    accelerator = build_accelerator(config)
    # feature: numa
    bind()
    # end: numa
    if accelerator.num_processes != config.num_processes:
        raise SystemExit(f"planned for {config.num_processes} ranks, but {accelerator.num_processes} are running")
    finished = train(config, accelerator)
    accelerator.free_memory()
    gc.collect()  # before the process group is destroyed, or gloo may abort at exit
    accelerator.end_training()
    if accelerator.is_main_process:
        print("finished" if finished else "stopped; --resume auto continues from the newest checkpoint", flush=True)
        # feature: sample
        if finished:
            print(task.sample(config, Path(config.output_dir) / "model"), flush=True)
        # end: sample
    if not finished:
        sys.exit(75)  # EX_TEMPFAIL: schedulers can tell it from a finished training


if __name__ == "__main__":
    main()
