"""Builds the model of task.py with weights on rank 0 alone, which sends the others their shards.

On the others, weights have shapes but no memory (the meta device) while `build_model` runs. Everything else is real
there, and the random numbers that the weights would begin with are drawn and dropped, so that buffers are the same on
all ranks. If `build_model` needs the values of weights, all ranks build the whole model, and rank 0 says why.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# feature: deepspeed
import deepspeed

# end: deepspeed
import numpy
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from checkpoints import PATIENCE

is_sent = False  # whether rank 0 alone has the weights


class Draws(TorchDispatchMode):
    """Draw the random numbers that weights without memory would get: what is drawn after them is then the same."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags and any(map(is_blank, tree_leaves(given))):
            real_args, real_kwargs = tree_map(with_memory, given)
            func(*real_args, **real_kwargs)
        return func(*args, **(kwargs or {}))


def is_blank(value: object) -> bool:
    """Return whether a value is a tensor without memory, or their device."""
    return (isinstance(value, Tensor) and value.is_meta) or value == torch.device("meta")


def with_memory(value: Any) -> Any:
    """Return a tensor of the same layout in memory that was never written to; anything else as it is."""
    if not is_blank(value):
        return value
    if not isinstance(value, Tensor):
        return torch.device("cpu")
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def drawing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch.nn.init that draws for a weight without memory, too: some of them skip it."""

    @functools.wraps(function)
    def drawn(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(with_memory(tensor), *args, **kwargs)
        return tensor if is_blank(tensor) else made

    return drawn


@contextmanager
def without_weights() -> Iterator[None]:
    """Make modules keep each parameter without its memory. One that several modules are given stays one."""
    register, blanks = nn.Module.register_parameter, WeakIdKeyDictionary()
    functions = {name: value for name, value in vars(nn.init).items() if callable(value) and name.endswith("_")}

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if type(parameter) is nn.Parameter and not parameter.is_meta:
            if parameter.device.type != "cpu":
                raise ValueError(f"{name} is on {parameter.device}")
            if parameter not in blanks:
                blanks[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                blanks[parameter].__dict__.update(parameter.__dict__)
            parameter = blanks[parameter]
        register(module, name, parameter)

    nn.Module.register_parameter = registered  # type: ignore[method-assign]
    vars(nn.init).update({name: drawing(function) for name, function in functions.items()})
    try:
        with Draws(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rank 0 shows them
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        vars(nn.init).update(functions)


def build(accelerator: Accelerator, build_model: Callable[[], nn.Module]) -> nn.Module:
    """Return the model: on rank 0 with its weights, on the others around memory that was never written to."""
    global is_sent
    if accelerator.num_processes == 1:
        return build_model()
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    model, problem = (build_model(), "") if accelerator.is_main_process else built_blank(build_model)
    group = dist.new_group(backend="gloo", timeout=PATIENCE)  # NCCL would wait for too short a time
    found: list[Any] = [None] * accelerator.num_processes
    dist.all_gather_object(found, (problem, model and kinds(model)), group=group)
    expected = found[0][1]
    problems = (problem or other(expected, kind) for problem, kind in found)
    problem = next(filter(None, problems), "")
    is_sent = not problem
    if is_sent and not accelerator.is_main_process:
        fill(model)
    if problem and accelerator.is_main_process:
        gib = sum(parameter.nbytes for parameter in model.parameters()) / 2**30
        print(
            f"build_model needs the weights on each rank ({problem}): "
            f"{accelerator.num_processes} ranks build the whole model, {gib:.2f} GiB each",
            flush=True,
        )
    if problem and not accelerator.is_main_process:
        del model
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])
        model = build_model()
    return model


def built_blank(build_model: Callable[[], nn.Module]) -> tuple[Any, str]:
    """Return the model without weights, and why it cannot be used."""
    try:
        with without_weights():
            model = build_model()
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    weights = set(map(id, model.parameters()))
    for where, module in model.named_modules():
        beside = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_modules")}
        buffers = beside.pop("_buffers")
        for name, value in {**beside, **buffers}.items():
            if any(is_blank(leaf) and id(leaf) not in weights for leaf in tree_leaves(value)):
                return None, f"{where or type(module).__name__}.{name} is computed from weights"
    return model, ""


def kinds(model: nn.Module) -> tuple[list[Any], bytes]:
    """Return what must be the same on all ranks: parameters with what they share, buffers, and what is drawn next."""
    first: dict[int, str] = {}
    names = [
        (name, tuple(p.shape), p.dtype, p.requires_grad, first.setdefault(id(p), name))
        for name, p in model.named_parameters(remove_duplicate=False)
    ]
    buffers = [(name, tuple(b.shape), b.dtype) for name, b in model.named_buffers()]
    return [*names, *buffers], torch.get_rng_state().numpy().tobytes()


def other(expected: tuple[list[Any], bytes], found: tuple[list[Any], bytes]) -> str:
    """Return in what a model differs from that of rank 0; empty: in nothing."""
    (one, drawn), (two, drawn_there) = expected, found
    names = [str(a[0]) for a, b in zip(one, two, strict=False) if a != b]
    if names or len(one) != len(two):
        return f"{names[0] if names else 'a parameter or buffer'} is otherwise without weights"
    return "" if drawn == drawn_there else "other random numbers are drawn"


def fill(model: nn.Module) -> None:
    """Give each parameter memory that was never written to, which takes no space. It stays the same object."""
    for parameter in model.parameters():
        if parameter.is_meta:
            real = nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
            real.__dict__.update(parameter.__dict__)
            torch.utils.swap_tensors(parameter, real)


# feature: fsdp
def prepare(accelerator: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Shard both, with the weights of rank 0.

    Buffers of the state dict stay out of it meanwhile, since accelerate sends parameters only. It moves the model to
    the meta device, where modules no longer share weights, and calls `tie_weights` then.
    """
    if not is_sent:
        return accelerator.prepare(model, optimizer)
    saved = {
        f"{path}.{name}".removeprefix("."): (module, name)
        for path, module in model.named_modules()
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    }
    for module, name in saved.values():
        module.register_buffer(name, module._buffers[name], persistent=False)
    first: dict[int, str] = {}
    named = list(model.named_parameters(remove_duplicate=False))
    ties = {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}

    def tie() -> None:
        for name, source in ties.items():
            path, _, own = name.rpartition(".")
            setattr(model.get_submodule(path), own, model.get_parameter(source))

    def forget(_: nn.Module, keys: Any) -> None:
        keys.unexpected_keys[:] = [key for key in keys.unexpected_keys if key not in saved]

    def of_name(name: str) -> Any:
        path, _, own = name.rpartition(".")
        return getattr(model.get_submodule(path), own)

    model.tie_weights = tie
    model.get_parameter_or_buffer = of_name  # without it, accelerate stops at a weight of the model itself
    hook = model.register_load_state_dict_post_hook(forget)  # BatchNorm adds its own to what it is given
    accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = True
    model, optimizer = accelerator.prepare(model, optimizer)
    hook.remove()
    del model.tie_weights, model.get_parameter_or_buffer
    for module, name in saved.values():
        module.register_buffer(name, module._buffers[name])
    return model, optimizer


# end: fsdp
# feature: deepspeed
def prepare(accelerator: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Shard both. DeepSpeed sends each rank the weights of rank 0."""
    if accelerator.state.deepspeed_plugin.zero3_init_flag:
        cut(accelerator, model)
    return accelerator.prepare(model, optimizer)


def cut(accelerator: Accelerator, model: nn.Module) -> None:
    """Shard the weights module by module, so that no GPU ever holds all of them."""
    settings = accelerator.state.deepspeed_plugin.deepspeed_config
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
    one: dict[str, Any] = {}
    for module in reversed(list(model.modules())):  # what is inside of another comes first
        for parameter in module.parameters(recurse=False):
            if half and parameter.is_floating_point() and not hasattr(parameter, "ds_id"):
                parameter.data = parameter.data.to(half)
        if module._parameters:
            swapper = deepspeed.zero.Init(module=module, config_dict_or_path=settings, **one).param_swapper
            one = (
                {"param_swapper": swapper} if swapper else {}
            )  # a second one would delete what the first wrote to nvme


# end: deepspeed
