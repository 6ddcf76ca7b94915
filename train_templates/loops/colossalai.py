"""Train with Colossal-AI's Booster: DDP, ZeRO 1 and 2, Gemini or FSDP.

task.py holds data, model and loss; batches.py the sample order; checkpoints.py saving and resuming.

Run it with `torchrun --nproc_per_node N train.py` or `colossalai run --nproc_per_node N train.py`; `--name value`
overrides a field of `Config`. For any number of ranks and any split of the batch:

- An update's gradient is that of one big batch: losses are summed and divided by the count of the whole real batch.
- Each epoch is one permutation by (seed, epoch), cut into real batches. Each sample counts once; padding counts zero.
- The learning rate and all randomness are functions of the update, so a resumed run continues exactly.
"""

from __future__ import annotations

import argparse

# feature: no_sync
import contextlib

# end: no_sync
# feature: colossal_fsdp
import functools

# end: colossal_fsdp
import gc
import math
import os
import sys
import time

# feature: tensorboard
from collections.abc import Callable

# end: tensorboard
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import colossalai
import torch
import torch.distributed as dist

# feature: wandb
import wandb

# end: wandb
from colossalai.accelerator import get_accelerator
from colossalai.booster import Booster

# feature: colossal_ddp
from colossalai.booster.plugin import TorchDDPPlugin

# end: colossal_ddp
# feature: colossal_zero
from colossalai.booster.plugin import LowLevelZeroPlugin

# end: colossal_zero
# feature: gemini
from colossalai.booster.plugin import GeminiPlugin

# end: gemini
# feature: colossal_fsdp
from colossalai.booster.plugin import TorchFSDPPlugin
from colossalai.interface import OptimizerWrapper

# end: colossal_fsdp
# feature: fused_adamw
from colossalai.nn.optimizer import FusedAdam

# end: fused_adamw
# feature: colossal_ddp
from safetensors.torch import load_model, save_model

# end: colossal_ddp
from torch import nn

# feature: colossal_fsdp
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, MixedPrecision, StateDictType
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

# end: colossal_fsdp
# feature: tensorboard
from torch.utils.tensorboard import SummaryWriter

# end: tensorboard

# feature: own_hooks
import checks
import hooks

# end: own_hooks
import task
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
# feature: mfu
from flops import share_of_peak

# end: mfu
# feature: frequencies
from frequencies import frequencies_of, put_back

# end: frequencies
from meter import Meter
from metrics import Metrics

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
# feature: own_schedule
from schedule import SCHEDULES, learning_rate

# end: own_schedule
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
    # feature: own_optimizer
    beta1: float = 0.9  # decay of the mean of gradients; the momentum of sgd and muon
    beta2: float = 0.95  # decay of the mean of their squares
    epsilon: float = 1e-8
    rates: str = ""  # factors of the learning rate by parameter name: head=10,embed=0.1
    decays: str = ""  # weight decays, in the same form
    # end: own_optimizer
    mixed_precision: str = "no"
    # feature: colossal_zero
    zero_stage: int = 2
    # end: colossal_zero
    logging_steps: int = 10
    checkpointing_steps: int = 100  # 0: only at the end
    checkpoints_total_limit: int = 3  # complete checkpoints to keep; 0: all
    on_failed_save: str = "continue"  # or "stop": what to do when a checkpoint cannot be written
    # feature: named_run
    project: str = "train"
    run_name: str = ""
    tags: str = ""  # separated by commas
    # end: named_run
    # feature: selected
    evaluation_steps: int = 0  # updates between evaluations; 0: at the end of each epoch
    # end: selected
    # feature: best
    best_metric: str = "eval_loss"  # the checkpoint with the best value becomes the model
    best_mode: str = "min"  # or "max"
    patience: int = 0  # evaluations without improvement after which the training ends; 0: off
    # end: best


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
    if "RANK" not in os.environ:
        parser.error(f"Colossal-AI needs a launcher: torchrun --standalone --nproc_per_node {config.num_processes}")
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
def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9, weight_decay=config.weight_decay)


# end: sgd
# feature: adamw
def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW. Matrices and embeddings decay, vectors (biases, norms) do not. Each update sets the rate."""
    groups: dict[float, list[nn.Parameter]] = {config.weight_decay: [], 0.0: []}
    for parameter in model.parameters():
        groups[config.weight_decay if parameter.ndim > 1 else 0.0].append(parameter)
    listed = [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items() if parameters]
    # feature: fused_adamw
    return FusedAdam(listed, lr=0.0, betas=(0.9, 0.95))  # Gemini updates chunks of memory, and needs its own Adam
    # end: fused_adamw
    # feature: torch_adamw
    return torch.optim.AdamW(listed, lr=0.0, betas=(0.9, 0.95), fused=get_accelerator().name == "cuda")
    # end: torch_adamw


# end: adamw
# feature: colossal_ddp
LAYOUT = "whole"  # the layout of checkpoints


def boost(config: Config, model: nn.Module, optimizer: Any) -> tuple[Booster, nn.Module, Any]:
    """Set up DDP: every rank holds everything."""
    booster = Booster(
        # Gradients are views of the reduction buckets, which saves a copy of them.
        plugin=TorchDDPPlugin(gradient_as_bucket_view=True),
        mixed_precision=None if config.mixed_precision == "no" else config.mixed_precision,
    )
    model, optimizer, *_ = booster.boost(model, optimizer)
    return booster, model, optimizer


# end: colossal_ddp
# feature: colossal_zero
LAYOUT = "colossal_zero"  # the layout of checkpoints


def boost(config: Config, model: nn.Module, optimizer: Any) -> tuple[Booster, nn.Module, Any]:
    """Set up ZeRO: optimizer state, and gradients at stage 2, are sharded over the ranks. The engine clips."""
    plugin = LowLevelZeroPlugin(
        stage=config.zero_stage,
        precision="fp32" if config.mixed_precision == "no" else config.mixed_precision,
        initial_scale=2**16,  # with the default of 2^32, the first dozens of updates overflow
        max_norm=config.gradient_clipping,
    )
    booster = Booster(plugin=plugin)
    model, optimizer, *_ = booster.boost(model, optimizer)
    return booster, model, optimizer


# end: colossal_zero
# feature: gemini
LAYOUT = "gemini"  # the layout of checkpoints


def boost(config: Config, model: nn.Module, optimizer: Any) -> tuple[Booster, nn.Module, Any]:
    """Set up Gemini: chunks of weights, gradients and optimizer state are sharded over the ranks. The engine clips."""
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    plugin = GeminiPlugin(
        precision=config.mixed_precision,
        # Without this, each backward pass overwrites the gradients of the last one; with it, they take extra memory.
        enable_gradient_accumulation=config.gradient_accumulation_steps > 1,
        # A model below this size stays whole on every rank, which multiplies accumulated gradients by the ranks.
        min_chunk_size_m=min(32, n_parameters / 2**20),
        max_norm=config.gradient_clipping or math.inf,  # without a limit, no norm is measured
    )
    booster = Booster(plugin=plugin)
    model, optimizer, *_ = booster.boost(model, optimizer)
    return booster, model, optimizer


# end: gemini
# feature: colossal_fsdp
LAYOUT = "colossal_fsdp"  # the layout of checkpoints


def boost(config: Config, model: nn.Module, optimizer: Any) -> tuple[Booster, nn.Module, Any]:
    """Set up FSDP: parameters, gradients and optimizer state are sharded over all ranks, layer by layer."""
    layers = set(task.SHARDED_LAYERS or getattr(model, "_no_split_modules", None) or ())  # none: one unit for all
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    plugin = TorchFSDPPlugin(
        auto_wrap_policy=functools.partial(
            lambda_auto_wrap_policy, lambda_fn=lambda module: type(module).__name__ in layers
        ),
        mixed_precision=half if config.mixed_precision == "bf16" else None,
    )
    # Keeps the names and shapes of parameters; without them, biases would decay like matrices.
    plugin.fsdp_kwargs["use_orig_params"] = True
    booster = Booster(plugin=plugin)
    model, *_ = booster.boost(model)  # with the optimizer, it would build a new one without the groups
    return booster, model, OptimizerWrapper(optimizer)


# end: colossal_fsdp
# feature: ddp_step
def step(config: Config, model: nn.Module, optimizer: Any) -> Any:
    """Clip and update. Return the gradient norm before clipping, still on the device."""
    norm = optimizer.clip_grad_by_norm(config.gradient_clipping or math.inf)
    optimizer.step()
    return norm


# end: ddp_step
# feature: ddp_fp16_step
def step(config: Config, model: nn.Module, optimizer: Any) -> Any:
    """Clip and update. Return the gradient norm before clipping, still on the device."""
    optimizer.unscale_grad()  # clip_grad_by_norm does the same, but does not return the norm
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clipping or math.inf)
    optimizer.step()
    return norm


# end: ddp_fp16_step
# feature: engine_step
def step(config: Config, model: nn.Module, optimizer: Any) -> Any:
    """Let the engine clip and update. Return the gradient norm before clipping."""
    optimizer.step()
    return optimizer.get_grad_norm()


# end: engine_step
# feature: engine_fp16_step
def step(config: Config, model: nn.Module, optimizer: Any) -> Any:
    """Let the engine clip and update. Return the gradient norm before clipping."""
    optimizer._current_grad_norm = math.nan  # remains if the engine skips an update that overflows
    optimizer.step()
    # feature: gemini
    model.chunk_manager.accumulating_grads = False  # otherwise one skipped update would make it skip all later ones
    # end: gemini
    return optimizer.get_grad_norm() / float(loss_scaler(optimizer).scale)  # the engine measures scaled gradients


# end: engine_fp16_step
# feature: colossal_fsdp
def step(config: Config, model: nn.Module, optimizer: Any) -> Any:
    """Clip and update. Return the gradient norm before clipping, still on the device."""
    # The optimizer's clip_grad_by_norm would measure only this rank's shard.
    norm = model.unwrap().clip_grad_norm_(config.gradient_clipping or math.inf)
    optimizer.step()
    return norm


# end: colossal_fsdp
# feature: colossal_ddp
class State:
    """Weights and optimizer state, the same on every rank; any number of ranks can resume from them."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def save(self, folder: Path) -> None:
        """Write everything into a folder, on rank 0."""
        if dist.get_rank() == 0:
            scaler = None
            # feature: scaler
            scaler = self.optimizer.scaler.state_dict()  # Booster's own checkpoints omit it
            # end: scaler
            save_model(self.model.unwrap(), str(folder / "model.safetensors"))
            torch.save({"optimizer": self.optimizer.state_dict(), "scaler": scaler}, folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        """Load what `save` wrote."""
        state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        load_model(self.model.unwrap(), folder / "model.safetensors")
        self.optimizer.load_state_dict(state["optimizer"])
        # feature: scaler
        self.optimizer.scaler.load_state_dict(state["scaler"])
        # end: scaler

    # feature: after_update
    def after_update(self, config: Config, update: int) -> None:
        """Call the task's `after_update`."""
        hooks.after_update(config, self.model.unwrap(), update)

    # end: after_update
    def weight_norm(self) -> float:
        """Return the norm of all trained weights. Synchronizes with the device."""
        trained = (weight.detach() for weight in self.model.parameters() if weight.requires_grad)
        return float(sum(weight.float().square().sum() for weight in trained).sqrt())

    # feature: final_weights
    def whole_weights(self) -> dict[str, torch.Tensor]:
        """Return all weights by name, for rank 0. Call it on every rank."""
        return self.model.unwrap().state_dict()

    # end: final_weights


# end: colossal_ddp
# feature: parts
class State:
    """Each rank's shard in fp32, for the same number of ranks. Booster's checkpoints would round weights to 16 bits."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    # feature: colossal_zero
    def parts(self) -> list[torch.Tensor]:
        """Return this rank's shard of every trained weight."""
        return [parameter.data for group in self.optimizer.param_groups for parameter in group["params"]]

    def names(self) -> list[list[str]]:
        """Return the name of the weight that each shard belongs to."""
        names = {id(weight): name for name, weight in self.model.unwrap().named_parameters()}
        weights = self.optimizer.get_master_to_working_map()
        return [[names[id(weights[id(part)])]] for group in self.optimizer.param_groups for part in group["params"]]

    # end: colossal_zero
    # feature: colossal_fsdp
    def weights(self) -> list[nn.Parameter]:
        """Return this rank's shard of every weight: those that the optimizer has, then those that are not trained."""
        held = [part for group in self.optimizer.param_groups for part in group["params"]]
        known = {id(part) for part in held}
        return held + [part for part in self.model.parameters() if id(part) not in known]

    def parts(self) -> list[torch.Tensor]:
        """Return the data of these shards."""
        return [weight.data for weight in self.weights()]

    def names(self) -> list[list[str]]:
        """Return the name of the weight that each shard belongs to."""
        weights = self.model.unwrap().named_parameters()
        names = {id(weight): name.replace("_fsdp_wrapped_module.", "") for name, weight in weights}
        return [[names[id(part)]] for part in self.weights()]

    # end: colossal_fsdp
    # feature: gemini
    def parts(self) -> list[torch.Tensor]:
        """Return this rank's shard of every chunk of weights."""
        return [chunk.payload for chunk in self.model.chunk_manager.get_chunks(self.model.fp32_params)]

    def names(self) -> list[list[str]]:
        """Return the names of the weights in each chunk, in order."""
        names = {id(weight): name for name, weight in self.model.name2param.items()}
        pairs = zip(self.model.fp16_params, self.model.fp32_params, strict=True)
        masters = {id(master): names[id(weight)] for weight, master in pairs}
        chunks = self.model.chunk_manager.get_chunks(self.model.fp32_params)
        return [[masters[id(master)] for master in chunk.tensors_info] for chunk in chunks]

    # end: gemini
    # feature: untrained
    def untrained(self) -> dict[str, torch.Tensor]:
        """Return the weights that are not trained, by name: every rank has all of them, whole."""
        weights = self.model.unwrap().named_parameters()
        return {name: weight.data for name, weight in weights if not weight.requires_grad}

    # end: untrained
    def buffers(self) -> dict[str, torch.Tensor]:
        """Return this rank's buffers by name, such as the running means of a batch norm."""
        found = {}
        for place, module in self.model.unwrap().named_modules():
            for name, buffer in module.named_buffers(place, recurse=False):
                if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                    found[name.replace("_fsdp_wrapped_module.", "")] = buffer
        return found

    def save(self, folder: Path) -> None:
        """Write this rank's shards into a folder."""
        state = {
            "weights": self.parts(),
            "names": self.names(),  # so that other programs can combine the ranks' shards
            "buffers": self.buffers(),
            # feature: untrained
            "untrained": self.untrained() if dist.get_rank() == 0 else {},
            # end: untrained
            "optimizer": self.optimizer.optim.state_dict(),
            # feature: scaler
            "scaler": {k: v for k, v in vars(loss_scaler(self.optimizer)).items() if "_step" in k or k == "_scale"},
            # end: scaler
        }
        torch.save(state, folder / f"rank-{dist.get_rank()}.pt")

    def load(self, folder: Path) -> None:
        """Load what `save` wrote."""
        state = torch.load(folder / f"rank-{dist.get_rank()}.pt", map_location="cpu", weights_only=True)
        for part, saved_part in zip(self.parts(), state["weights"], strict=True):
            part.copy_(saved_part)
        for name, buffer in self.buffers().items():
            buffer.copy_(state["buffers"][name])
        # feature: untrained
        if untrained := self.untrained():
            first = torch.load(folder / "rank-0.pt", map_location="cpu", weights_only=True, mmap=True)
            for name, weight in untrained.items():
                weight.copy_(first["untrained"][name])
        # end: untrained
        self.optimizer.optim.load_state_dict(state["optimizer"])
        # feature: scaler
        scaler = loss_scaler(self.optimizer)
        vars(scaler).update(state["scaler"], _scale=state["scaler"]["_scale"].to(scaler.scale.device))
        # end: scaler
        # feature: colossal_zero
        for group in self.optimizer.param_groups:
            for part in group["params"]:  # the model's own weights are gathered from all ranks' shards
                weight = self.optimizer.get_master_to_working_map()[id(part)]
                whole = torch.empty(part.numel() * dist.get_world_size(), device=part.device)
                dist.all_gather_into_tensor(whole, part)
                weight.data.copy_(whole[: weight.numel()].view_as(weight))
        # end: colossal_zero
        # feature: gemini
        for chunk in self.model.chunk_manager.get_chunks(self.model.fp16_params):
            chunk.optim_update()  # copies the fp32 weights to the model's own
        # end: gemini

    # feature: after_update
    # feature: colossal_zero
    def after_update(self, config: Config, update: int) -> None:
        """Call the task's `after_update`, and give the optimizer's shards what it changed."""
        hooks.after_update(config, self.model.unwrap(), update)
        self.optimizer.update_master_params(self.model.unwrap())

    # end: colossal_zero
    # feature: colossal_fsdp
    def after_update(self, config: Config, update: int) -> None:
        """Call the task's `after_update` with whole weights, which are cut again afterwards."""
        with FullyShardedDataParallel.summon_full_params(self.model.unwrap()):
            hooks.after_update(config, self.model.unwrap().module, update)

    # end: colossal_fsdp
    # end: after_update
    def weight_norm(self) -> float:
        """Return the norm of all trained weights, over the shards of all ranks. Synchronizes with the device."""
        # feature: colossal_fsdp
        parts = [weight.data for weight in self.weights() if weight.requires_grad]
        # end: colossal_fsdp
        # feature: untrained
        parts = self.parts()
        # end: untrained
        total = torch.stack([part.float().square().sum() for part in parts]).sum()
        dist.all_reduce(total)
        return float(total.sqrt())

    # feature: final_weights
    # feature: colossal_zero
    def whole_weights(self) -> dict[str, torch.Tensor]:
        """Return all weights by name, for rank 0. Call it on every rank."""
        return self.model.unwrap().state_dict()

    # end: colossal_zero
    # feature: gemini
    def whole_weights(self) -> dict[str, torch.Tensor]:
        """Return all weights by name, for rank 0. Call it on every rank."""
        return self.model.state_dict(only_rank_0=True)

    # end: gemini
    # feature: colossal_fsdp
    def whole_weights(self) -> dict[str, torch.Tensor]:
        """Return all weights by name, for rank 0. Call it on every rank."""
        whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        model = self.model.unwrap()
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
            return model.state_dict()

    # end: colossal_fsdp
    # end: final_weights


# end: parts
# feature: zero_scaler
def loss_scaler(optimizer: Any) -> Any:
    """Return the scaler that keeps fp16 gradients in range."""
    return optimizer.mixed_precision_mixin.grad_scaler


# end: zero_scaler
# feature: gemini_scaler
def loss_scaler(optimizer: Any) -> Any:
    """Return the scaler that keeps fp16 gradients in range."""
    return optimizer.mix_precision_mixin.grad_scaler


# end: gemini_scaler
# feature: real_batch_mean
def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks."""
    dist.all_reduce(tensor)
    return tensor


# end: real_batch_mean
# feature: summed
@torch.no_grad()
def evaluate(config: Config, agreement: Agreement, model: nn.Module, data: Any) -> dict[str, float]:
    """Return the task's metrics over the whole evaluation set; each sample counts once, over all ranks."""
    device = get_accelerator().get_current_device()
    end = -(-len(data) // config.real_batch_size)
    batches = RealBatches(config, len(data), dist.get_rank(), 0, end)
    sums: Any = 0
    # feature: own_hooks
    outputs = hooks.Outputs(batches)
    # end: own_hooks
    model.eval()
    # feature: real_batch_mean
    mean = mean_over(model, load_batches(config, data, batches), device, summed)
    # end: real_batch_mean
    for batch, _ in agreement.unless_stopped(load_batches(config, data, batches)):
        # feature: named_tensors
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        # feature: real_batch_mean
        batch["mean"] = mean
        # end: real_batch_mean
        # end: named_tensors
        # feature: own_hooks
        batch = hooks.moved(batch, device)
        outputs.add(model, batch)
        sums = sums + checks.sums_of(model, batch)
        # end: own_hooks
        # feature: named_tensors
        sums = sums + task.evaluation_sums(model, batch).double()
        # end: named_tensors
    model.train()
    dist.all_reduce(sums)
    # feature: named_tensors
    return task.evaluation_metrics(sums.tolist())
    # end: named_tensors
    # feature: own_hooks
    return {**checks.measured("evaluation_metrics", task.evaluation_metrics(sums.tolist())), **outputs.metrics()}
    # end: own_hooks


# end: summed
# feature: tensorboard
def in_tensorboard(folder: Path, **named: str) -> Callable[..., None]:
    """Return a function that writes a record to TensorBoard."""
    writer = SummaryWriter(str(folder), **named)

    def show(record: dict[str, float], step: int) -> None:
        for name, value in record.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return show


# end: tensorboard
def train(config: Config, agreement: Agreement) -> bool:
    """Train. Return True if training finished, and False if it was stopped early."""
    torch.manual_seed(config.seed)  # the same initial weights on every rank
    device = get_accelerator().get_current_device()
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
    model = task.build_model(config)
    # feature: mfu
    useful = share_of_peak(model)
    # end: mfu
    # feature: recompute
    recompute_layers(model, task.SHARDED_LAYERS)
    # end: recompute
    # feature: named_tensors
    optimizer = build_optimizer(config, model)
    # end: named_tensors
    # feature: own_hooks
    optimizer, rates = hooks.build_optimizers(config, model, build_optimizer(config, model))
    # end: own_hooks
    # feature: engine_casts
    frequencies = frequencies_of(model)  # the plugin casts buffers, too
    # end: engine_casts
    booster, model, optimizer = boost(config, model, optimizer)
    # feature: engine_casts
    put_back(frequencies)
    # end: engine_casts
    # feature: ddp_fp16_step
    synced = model.module  # Booster's fp16 wraps DDP, and no_sync needs DDP itself
    # end: ddp_fp16_step
    # feature: bare_no_sync
    synced = model
    # end: bare_no_sync
    # feature: settled
    settle_buckets(model)
    # end: settled
    model.train()
    # feature: reference
    add_references(config, agreement, model, train_data, device)
    # feature: eval
    add_references(config, agreement, model, eval_data, device)
    # end: eval
    # end: reference

    updates_per_epoch = -(-len(train_data) // config.real_batch_size)
    total = config.n_steps or config.n_epochs * updates_per_epoch
    state = State(model, optimizer)
    checkpoints = Checkpoints(config, LAYOUT, state.save, state.load)
    # feature: names
    checkpoints.classes = getattr(train_data, "classes", None)
    # end: names
    start = checkpoints.resume(len(train_data))
    if start > total:
        raise SystemExit(f"{start} updates are already done, but the training ends after {total}")
    metrics = Metrics(config, agreement.rank == 0, start, total)
    # feature: tensorboard
    if agreement.rank == 0:
        # feature: usual_run
        metrics.track = in_tensorboard(Path(config.output_dir) / "train")
        # end: usual_run
        # feature: named_run
        metrics.track = in_tensorboard(Path(config.output_dir) / config.project, **tracker_settings(config))
        # end: named_run
    # end: tensorboard
    # feature: wandb
    if agreement.rank == 0:
        # feature: usual_run
        wandb.init(project="train", dir=config.output_dir, config=vars(config))
        # end: usual_run
        # feature: named_run
        wandb.init(project=config.project, dir=config.output_dir, config=vars(config), **tracker_settings(config))
        # end: named_run
        metrics.track = wandb.log
    # end: wandb
    # feature: selected
    # feature: summed
    evaluation = Evaluation(config, lambda: evaluate(config, agreement, model, eval_data), checkpoints, metrics, total)
    # end: summed
    # feature: gathered
    evaluation = Evaluation(
        config, lambda: measure_outputs(config, agreement, model, eval_data, device), checkpoints, metrics, total
    )
    # end: gathered
    evaluation.catch_up(start)
    # end: selected
    # feature: best
    total = start if evaluation.ended else total

    # end: best
    # feature: each_epoch

    def evaluate_after(update: int) -> bool:
        """Evaluate. Return whether a stop was requested meanwhile; a resumed run then evaluates again."""
        try:
            metrics.write({"update": update, **evaluate(config, agreement, model, eval_data)})
        except Stopped:
            return True
        return False

    if start and (start == total or start % updates_per_epoch == 0) and not agreement.reach(metrics.evaluated)[0]:
        evaluate_after(start)
    # end: each_epoch
    order = RealBatches(config, len(train_data), agreement.rank, start, total)
    meter = Meter(config, agreement, load_batches(config, train_data, order))
    # feature: mfu
    meter.flops = useful
    # end: mfu

    loss_since, updates_since = torch.zeros((), device=device), 0
    # feature: scaler
    skipped = 0  # updates that the scaler skipped because a gradient overflowed fp16
    # end: scaler
    _, stop = agreement.reach(0)
    for update in range(start, start if stop else total):
        torch.manual_seed(keyed_seed(config.seed, update, agreement.rank))  # dropout and the like
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
        micro_batches = with_mean(model, micro_batches, device, summed)
        # end: real_batch_mean
        # Booster averages over ranks, but does not divide by the accumulation. Undo that and divide by the count.
        scale = config.num_processes / count
        # feature: no_sync
        for i, (batch, _) in enumerate(micro_batches):
            # feature: named_tensors
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            # end: named_tensors
            # feature: own_hooks
            batch = hooks.moved(batch, device)
            # end: own_hooks
            boundary = (i + 1) % config.gradient_accumulation_steps == 0
            # Ranks communicate only after the last micro-batch.
            with contextlib.nullcontext() if boundary else booster.no_sync(synced, optimizer):
                # feature: named_tensors
                loss = task.loss_sum(model, batch)
                # end: named_tensors
                # feature: own_hooks
                loss = checks.scalar(task.loss_sum(model, batch))
                # end: own_hooks
                loss_since += loss.detach() / count
                booster.backward(loss * scale, optimizer)
        # end: no_sync
        # feature: repeated_backward
        for batch, _ in micro_batches:  # without no_sync, each backward reduces and adds its gradient
            # feature: named_tensors
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            # end: named_tensors
            # feature: own_hooks
            batch = hooks.moved(batch, device)
            # end: own_hooks
            # feature: named_tensors
            loss = task.loss_sum(model, batch)
            # end: named_tensors
            # feature: own_hooks
            loss = checks.scalar(task.loss_sum(model, batch))
            # end: own_hooks
            loss_since += loss.detach() / count
            booster.backward(loss * scale, optimizer)
        # end: repeated_backward
        norm = step(config, model, optimizer)
        # feature: drops_gradients
        optimizer.zero_grad()
        # end: drops_gradients
        # feature: keeps_gradients
        optimizer.zero_grad(set_to_none=False)  # gradients stay views of DDP's buckets
        # end: keeps_gradients
        # feature: after_update
        if hasattr(task, "after_update"):
            state.after_update(config, update + 1)
        # end: after_update
        # feature: scaler
        skipped += not math.isfinite(norm)
        # end: scaler
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
        # Apart from the engine, this is the only place that waits for the device.
        if due_log or due_save or done == 1 or done % updates_per_epoch == 0:
            dist.all_reduce(loss := loss_since.clone())
            mean_loss, pre_clip = float(loss) / updates_since, float(norm)
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
                    "lr": rate,
                    "grad_norm_pre_clip": pre_clip,
                    "grad_norm_post_clip": min(pre_clip, config.gradient_clipping or math.inf),
                    "weight_norm": state.weight_norm(),
                    # feature: scaler
                    "skipped_updates": skipped,
                    # end: scaler
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
        weights = state.whole_weights()
        if agreement.rank == 0:
            task.save_model(config, model.unwrap(), weights, Path(config.output_dir) / "model")
    # end: final_weights
    checkpoints.close()
    return not stop


def main() -> None:
    """Train from the command line."""
    config = read_config(sys.argv[1:])
    colossalai.launch_from_torch(seed=config.seed, verbose=False)
    # feature: numa
    bind()
    # end: numa
    agreement = Agreement()
    finished = train(config, agreement)
    gc.collect()  # before the process group is destroyed, or gloo may abort at exit
    dist.destroy_process_group()
    if agreement.rank == 0:
        print("finished" if finished else "stopped; --resume auto continues from the newest checkpoint", flush=True)
        # feature: sample
        if finished:
            print(task.sample(config, Path(config.output_dir) / "model"), flush=True)
        # end: sample
    if not finished:
        sys.exit(75)  # EX_TEMPFAIL: schedulers can tell it from a finished training


if __name__ == "__main__":
    main()
