"""The model, which no rank builds as a whole where its files allow that: each reads its own shards of the weights.

All ranks build it around memory that nothing was written to, which takes no space. After `prepare` has cut it, each
reads its rows of each tensor from the safetensors files. Where these do not hold the model's parameters by name and
shape, task.py changes some after they are loaded, or the weights are new, rank 0 alone holds the model meanwhile, and
`prepare` sends each rank its shards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers
from accelerate import Accelerator, init_empty_weights
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode

empty = False  # whether this rank builds the model without its weights
published = ""  # the folder of the hub, or of this machine, that the weights are in
Places = dict[str, tuple[Path, str]]
places: Places = {}  # where each parameter lies: its file, and its name there; empty: rank 0 holds the model
loaded: dict[int, Any] = {}  # the memory of the parameters as they were loaded
changed: set[int] = set()  # the memory that was written to since the model was loaded
PLAIN = {"F32", "F16", "BF16"}  # types of numbers that are cast as they are; others are quantized


def loader(auto_class: Any) -> Callable[..., Any]:
    """Return the class's `from_pretrained`; where this rank builds without weights, one that reads JSON alone."""

    def load(name: str, *, dtype: torch.dtype, attn_implementation: str | None = None, **options: Any) -> Any:
        global published
        published = name
        if not empty:
            return auto_class.from_pretrained(name, dtype=dtype, attn_implementation=attn_implementation, **options)
        shape = transformers.AutoConfig.from_pretrained(name, **options)
        model = auto_class.from_config(shape, dtype=dtype, attn_implementation=attn_implementation)
        if model.can_generate() and transformers.utils.cached_file(
            name, "generation_config.json", _raise_exceptions_for_missing_entries=False
        ):
            model.generation_config = transformers.GenerationConfig.from_pretrained(name)
        changed.clear()
        loaded.update((memory(parameter), parameter.untyped_storage()) for parameter in model.parameters())
        return model

    return load


class Writes(TorchDispatchMode):
    """Note the memory that is written to, which on this rank has no numbers in it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **(kwargs or {})}
        for argument in func._schema.arguments:
            value = given.get(argument.name) if argument.is_write else None
            written = value if isinstance(value, list | tuple) else [value]
            changed.update(memory(tensor) for tensor in written if isinstance(tensor, Tensor))
        return func(*args, **(kwargs or {}))


def memory(tensor: Tensor) -> int:
    """Return what tells a tensor's memory from that of others, which is there also without numbers in it."""
    return tensor.untyped_storage()._cdata


def as_loaded(model: nn.Module) -> bool:
    """Return whether task.py left the weights that it loaded as they were."""
    own = {memory(parameter) for parameter in model.parameters()}
    return own <= loaded.keys() and not own & changed


def build(accelerator: Accelerator, build_model: Callable[[], Any]) -> Any:
    """Return the model around memory for its weights; on rank 0 with them, where not all ranks read their own.

    Buffers are real on all ranks.
    """
    global empty, places
    empty = True
    with torch.random.fork_rng(devices=[]), init_empty_weights(), Writes():
        model = build_model()
    empty = False
    kept = as_loaded(model)
    model.tie_weights()
    found = found_in(model, published) if published and kept else {}
    places = found if all(gather_object([bool(found)])) else {}
    if accelerator.is_main_process and not places:
        if published:
            print(f"{published}: its files do not hold the weights as the model has them; rank 0 loads all of them")
        return build_model()
    replace(model, lambda parameter: torch.empty_like(parameter, device="cpu"))
    return model


def replace(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Put other memory in the place of each parameter; what modules share, they share again."""
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in shared:
                shared[parameter] = nn.Parameter(make(parameter), requires_grad=parameter.requires_grad)
            setattr(module, name, shared[parameter])


def found_in(model: Any, name: str) -> Places:
    """Return where each parameter lies. Empty if some do not lie there by the names and shapes that they have here."""
    with_names = list(model.named_parameters(remove_duplicate=False))
    if changed_by_loading(model) or model.state_dict().keys() - {own for own, _ in with_names}:
        return {}
    parts = {}
    for path in files_of(name):
        with safetensors.safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                part = file.get_slice(key)
                parts[key] = (path, part.get_dtype(), tuple(part.get_shape()))
    aliases: dict[nn.Parameter, list[str]] = {}
    for own, parameter in with_names:
        aliases.setdefault(parameter, []).append(own)
    found: Places = {}
    for parameter, names in aliases.items():
        bare = [own.removeprefix(f"{model.base_model_prefix}.") for own in names]
        there = [key for key in {*names, *bare} if key in parts]
        if len(there) != 1:  # 2: shared here, but saved as two
            return {}
        path, kind, shape = parts[there[0]]
        if kind not in PLAIN or shape != parameter.shape:
            return {}
        found.update(dict.fromkeys(names, (path, there[0])))
    return found


def changed_by_loading(model: Any) -> bool:
    """Return whether transformers splits, merges, renames or expands weights of this family as it loads them."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # before transformers 5
        changes = getattr(model, "_checkpoint_conversion_mapping", None)
    else:
        changes = get_model_conversion_mapping(model, add_legacy=False)
    return bool(changes) or hasattr(model.config, "quantization_config")


def files_of(name: str) -> list[Path]:
    """Return the safetensors files of a model. Empty if it has none."""
    found = partial(transformers.utils.cached_file, name, _raise_exceptions_for_missing_entries=False)
    if whole := found("model.safetensors"):
        return [Path(whole)]
    index = found("model.safetensors.index.json")
    names = set(json.loads(Path(index).read_text())["weight_map"].values()) if index else set()
    files = [found(part) for part in sorted(names)]
    return [Path(file) for file in files if file] if all(files) else []


def prepare(accelerator: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Shard both."""
    if not places:
        return prepare_sent(accelerator, model, optimizer)
    number = {parameter: i for i, parameter in enumerate(model.parameters())}
    numbers = [[number[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    replace(model, lambda parameter: torch.empty_like(parameter, device="meta"))
    regroup(optimizer, numbers, model)
    model, optimizer = accelerator.prepare(model, optimizer)
    read_shards(model, accelerator.device)
    regroup(optimizer, numbers, model)
    return model, optimizer


def regroup(optimizer: Any, numbers: list[list[int]], model: nn.Module) -> None:
    """Give each group the parameters with these numbers."""
    parameters = list(model.parameters())
    for group, own in zip(optimizer.param_groups, numbers, strict=True):
        group["params"] = [parameters[i] for i in own]


def read_shards(model: Any, device: torch.device) -> None:
    """Read this rank's rows of each parameter. FSDP2 cuts tensors by rows, as `torch.chunk` does."""
    shards: dict[int, nn.Parameter] = {}
    state = model.state_dict(keep_vars=True)
    for name, cut in state.items():
        if id(cut) in shards:
            continue
        if cut.placements != (Shard(0),):
            raise SystemExit(f"{name} is cut in another way than by rows: {cut.placements}")
        path, key = places[name]
        rows = -(-cut.shape[0] // cut.device_mesh.size())
        begin = min(rows * cut.device_mesh.get_local_rank(), cut.shape[0])
        end = min(begin + rows, cut.shape[0])
        with safetensors.safe_open(path, "pt") as file:
            part = file.get_slice(key)[begin:end] if end > begin else torch.empty(cut.to_local().shape)
        if part.shape != cut.to_local().shape:
            raise SystemExit(f"{name}: read {tuple(part.shape)} for a shard of {tuple(cut.to_local().shape)}")
        # `to` copies also what has the right type: memory that a file is mapped to is not for the optimizer.
        part = part.to(device, cut.dtype, copy=True)
        whole = DTensor.from_local(
            part, cut.device_mesh, cut.placements, run_check=False, shape=cut.shape, stride=cut.stride()
        )
        shards[id(cut)] = nn.Parameter(whole, requires_grad=cut.requires_grad)
    model.load_state_dict({name: shards[id(cut)] for name, cut in state.items()}, assign=True)


def prepare_sent(accelerator: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Shard both, with the weights of rank 0.

    Buffers of the state dict stay out of it meanwhile, since accelerate sends parameters only.
    """
    saved = [
        (module, name)
        for module in model.modules()
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    ]
    for module, name in saved:
        module.register_buffer(name, module._buffers[name], persistent=False)
    accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = True
    model, optimizer = accelerator.prepare(model, optimizer)
    for module, name in saved:
        module.register_buffer(name, module._buffers[name])
    return model, optimizer
