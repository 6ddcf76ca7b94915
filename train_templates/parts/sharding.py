"""Loads a sharded model. If its files allow it, no rank builds the whole model: each reads its own shards.

All ranks build the model in memory that was never written to, which takes no space. After `prepare` has sharded it,
each reads its rows of each tensor from the safetensors files. Where these do not hold the model's parameters by name
and shape, task.py changes some after they are loaded, or the weights are new, rank 0 alone holds the model meanwhile,
and `prepare` sends each rank its shards. An adapter is small: all ranks create it, with the same seed. Each matrix that
gets 4 bits is read and rounded by one rank, which sends the others their shards.
"""

from __future__ import annotations

import json

# feature: lora
# feature: not_sharded_4bit
import os

# end: not_sharded_4bit
# end: lora
# feature: not_sharded_4bit
from collections.abc import Callable

# end: not_sharded_4bit
# feature: sharded_4bit
from collections.abc import Callable, Iterator

# end: sharded_4bit
from functools import cache, partial
from pathlib import Path
from typing import Any

import safetensors
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator, init_empty_weights
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

# feature: lora
import adapter

# end: lora
# feature: sharded_4bit
import four_bits

# end: sharded_4bit
from checkpoints import PATIENCE

blank = ""  # the device of the empty memory that this rank builds the model in; empty: it has the weights
published = ""  # the folder of the hub, or of this machine, that the weights are in
Places = dict[str, tuple[Path, str]]
places: Places = {}  # where each parameter lies: its file, and its name there; empty: rank 0 holds the model
loaded: dict[int, Any] = {}  # the memory of the parameters as they were loaded
changed: set[int] = set()  # the memory that was written to since the model was loaded
PLAIN = {"F32", "F16", "BF16"}  # types of numbers that are cast as they are; others are quantized


class Loader:
    """A class of transformers. If this rank builds without weights, its `from_pretrained` reads only JSON."""

    def __init__(self, auto_class: Any) -> None:
        self.auto_class, self.from_config = auto_class, auto_class.from_config

    def from_pretrained(self, name: str, *, dtype: Any, attn_implementation: str | None = None, **options: Any) -> Any:
        """Return the model. If this rank builds without weights, its memory was never written to."""
        global published
        published = name
        # feature: lora
        dtype = type_of_frozen(dtype)
        # end: lora
        # feature: sharded_4bit
        spared = options.pop("spared")
        # end: sharded_4bit
        if not blank:
            # feature: not_sharded_4bit
            return self.auto_class.from_pretrained(
                name, dtype=dtype, attn_implementation=attn_implementation, **options
            )
            # end: not_sharded_4bit
            # feature: sharded_4bit
            if in_four_bits := four_bits.without_quantization(transformers.AutoConfig.from_pretrained(name), name):
                options["device_map"] = {"": "cpu"}  # no GPU holds all of them
            model, told = self.auto_class.from_pretrained(
                name, dtype=dtype, attn_implementation=attn_implementation, **options
            )
            if in_four_bits:
                four_bits.take_over(model, adapter.product_type())
            else:
                four_bits.replace(model, spared, adapter.product_type())
            return model, told
            # end: sharded_4bit
        # feature: lora
        del options["output_loading_info"]
        # end: lora
        shape = transformers.AutoConfig.from_pretrained(name, **options)
        # feature: sharded_4bit
        in_four_bits = four_bits.without_quantization(shape, name)
        # end: sharded_4bit
        with init_empty_weights():
            model = self.from_config(shape, dtype=dtype, attn_implementation=attn_implementation)
        if model.can_generate() and transformers.utils.cached_file(
            name, "generation_config.json", _raise_exceptions_for_missing_entries=False
        ):
            model.generation_config = transformers.GenerationConfig.from_pretrained(name)
        # feature: whole_model
        note_loaded(model)
        return model
        # end: whole_model
        # feature: lora
        model.tie_weights()
        # feature: sharded_4bit
        if in_four_bits:
            four_bits.replace_published(model, name, tensors_in(name), read_whole, adapter.product_type())
        else:
            four_bits.replace(model, spared, adapter.product_type())
        # end: sharded_4bit
        if blank == "cpu":
            replace(model, lambda parameter: torch.empty_like(parameter, device="cpu"))
        note_loaded(model)
        return model, {"missing_keys": set()}
        # end: lora


def note_loaded(model: nn.Module) -> None:
    """Record the memory of a model that has just been loaded."""
    changed.clear()
    loaded.update((memory(parameter), parameter.untyped_storage()) for parameter in model.parameters())


# feature: lora
def type_of_frozen(dtype: str) -> str:
    """Return the type to load the frozen weights in. Before torch 2.9, FSDP2 shards weights of one type alone."""
    recent = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
    # feature: sharded_4bit
    if not recent:
        raise SystemExit(f"torch {torch.__version__}: FSDP2 shards 4-bit weights beside an adapter in fp32 from 2.9 on")
    return dtype
    # end: sharded_4bit
    # feature: not_sharded_4bit
    if recent or dtype == "float32":
        return dtype
    if os.environ.get("RANK", "0") == "0" and not blank:
        print(f"torch {torch.__version__}: frozen weights stay in fp32; from 2.9 on, they can be {dtype}", flush=True)
    return "float32"
    # end: not_sharded_4bit


# end: lora
class Writes(TorchDispatchMode):
    """Record the memory that is written to, which holds no weights on this rank."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **(kwargs or {})}
        for argument in func._schema.arguments:
            value = given.get(argument.name) if argument.is_write else None
            written = value if isinstance(value, list | tuple) else [value]
            changed.update(memory(tensor) for tensor in written if isinstance(tensor, Tensor))
        return func(*args, **(kwargs or {}))


def memory(tensor: Tensor) -> int:
    """Return what identifies a tensor's memory, even if it holds no weights."""
    return tensor.untyped_storage()._cdata


def as_loaded(model: nn.Module) -> bool:
    """Return whether task.py left the weights that it loaded as they were."""
    own = {memory(parameter) for name, parameter in model.named_parameters() if not made_here(name)}
    return own <= loaded.keys() and not own & changed


# feature: whole_model
def made_here(_name: str) -> bool:
    """Return whether a weight is in no file by design."""
    return False


# end: whole_model
# feature: lora
def made_here(name: str) -> bool:
    """Return whether a weight is in no file because it belongs to the adapter."""
    return "lora_" in name


# end: lora
def build(accelerator: Accelerator, build_model: Callable[[], Any]) -> Any:
    """Return the model around memory for its weights; on rank 0 with them, where not all ranks read their own.

    Buffers are real on all ranks.
    """
    global blank, places
    blank = "meta"
    with torch.random.fork_rng(devices=[]), init_empty_weights(), Writes():
        model = build_model()
    blank = ""
    kept = as_loaded(model)
    # feature: whole_model
    model.tie_weights()
    # end: whole_model
    # feature: lora
    share(model)
    # end: lora
    found = found_in(model, published) if published and kept else {}
    places = found if all(gather_object([bool(found)])) else {}
    # feature: lora
    if places:  # once more, now with an adapter that has numbers
        blank = "cpu"
        model = build_model()
        blank = ""
        return model
    # end: lora
    # feature: whole_model
    if places:
        replace(model, lambda parameter: torch.empty_like(parameter, device="cpu"))
        return model
    # end: whole_model
    if published and accelerator.is_main_process:
        print(f"{published}: its files do not hold the weights as the model has them; rank 0 loads all of them")
    return held_by_first(accelerator, model, build_model)


def held_by_first(accelerator: Accelerator, model: nn.Module, build_model: Callable[[], Any]) -> Any:
    """Return the model with its weights on rank 0, and around memory for weights of the same types on the others."""
    model = build_model() if accelerator.is_main_process else model
    kinds = [{name: parameter.dtype for name, parameter in model.named_parameters()}]
    if dist.is_initialized():  # over gloo: where the model is large, NCCL would wait for too short a time
        dist.broadcast_object_list(kinds, 0, group=dist.new_group(backend="gloo", timeout=PATIENCE))
    if not accelerator.is_main_process:
        kind = {parameter: kinds[0][name] for name, parameter in model.named_parameters()}
        replace(model, lambda parameter: torch.empty_like(parameter, dtype=kind[parameter], device="cpu"))
    return model


# feature: lora
def share(model: nn.Module) -> None:
    """Make modules whose weights are the same memory share them, as they did before `init_empty_weights` saw them."""
    first: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, first.setdefault(memory(parameter), parameter))


# end: lora
def replace(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Put other memory in the place of each parameter; what modules share, they share again."""
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in shared:
                shared[parameter] = nn.Parameter(make(parameter), requires_grad=parameter.requires_grad)
            setattr(module, name, shared[parameter])


def found_in(model: Any, name: str) -> Places:
    """Return where each parameter lies. Empty if some are not there with the names and shapes that they have here."""
    with_names = list(model.named_parameters(remove_duplicate=False))
    if changed_by_loading(model) or saved_buffers(model):
        return {}
    parts = tensors_in(name)
    # feature: sharded_4bit
    packed = dict(four_bits.matrices(model))
    # end: sharded_4bit
    aliases: dict[nn.Parameter, list[str]] = {}
    for own, parameter in with_names:
        if not made_here(own):
            aliases.setdefault(parameter, []).append(own)
    found: Places = {}
    for parameter, names in aliases.items():
        saved = [own.replace(".base_layer", "") for own in names]  # of a layer with an adapter
        bare = [own.removeprefix(f"{model.base_model_prefix}.") for own in saved]
        there = [key for key in {*saved, *bare} if key in parts]
        if len(there) != 1:  # 2: shared here, but saved as two
            return {}
        path, kind, shape = parts[there[0]]
        # feature: not_sharded_4bit
        if kind not in PLAIN or shape != parameter.shape:
            return {}
        # end: not_sharded_4bit
        # feature: sharded_4bit
        matrix = packed.get(names[0])
        expected = matrix.saved_shape if matrix else parameter.shape
        if not (matrix and matrix.published) and (kind not in PLAIN or shape != expected):
            return {}
        # end: sharded_4bit
        found.update(dict.fromkeys(names, (path, there[0])))
    return found


@cache
def tensors_in(name: str) -> dict[str, tuple[Path, str, tuple[int, ...]]]:
    """Return the tensors in the safetensors files of a model: where they lie, their types and their shapes."""
    parts = {}
    for path in files_of(name):
        with safetensors.safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                part = file.get_slice(key)
                parts[key] = (path, part.get_dtype(), tuple(part.get_shape()))
    return parts


def changed_by_loading(model: Any) -> bool:
    """Return whether transformers splits, merges, renames or expands weights of this family as it loads them."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # before transformers 5
        changes = getattr(model, "_checkpoint_conversion_mapping", None)
    else:
        changes = get_model_conversion_mapping(model, add_legacy=False)
    return bool(changes) or hasattr(model.config, "quantization_config")


def saved_buffers(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the buffers that are in the state dict."""
    return [
        (module, name)
        for module in model.modules()
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    ]


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
    shard = prepare_read if places else prepare_sent
    # feature: sharded_4bit
    policy = accelerator.state.fsdp_plugin.mixed_precision_policy
    four_bits.as_numbers(model, getattr(policy, "param_dtype", None) or torch.float32)
    # end: sharded_4bit
    # feature: whole_model
    return shard(accelerator, model, optimizer)
    # end: whole_model
    # feature: lora
    with adapter.frozen_in_state():
        model, optimizer = shard(accelerator, model, optimizer)
    if places:
        adapter.measure(model)
    adapter.refuse_rows_of_zeros(model, published)
    return model, optimizer
    # end: lora


def prepare_read(accelerator: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Shard both, and make each rank read its shards of the weights."""
    number = {parameter: i for i, parameter in enumerate(model.parameters())}
    numbers = [[number[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    made = {name: parameter.detach() for name, parameter in model.named_parameters() if made_here(name)}
    replace(model, lambda parameter: torch.empty_like(parameter, device="meta"))
    regroup(optimizer, numbers, model)
    accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = False  # a model before this one may have been sent
    model, optimizer = accelerator.prepare(model, optimizer)
    read_shards(model, accelerator.device, made)
    regroup(optimizer, numbers, model)
    return model, optimizer


def regroup(optimizer: Any, numbers: list[list[int]], model: nn.Module) -> None:
    """Give each group the parameters with these numbers."""
    parameters = list(model.parameters())
    for group, own in zip(optimizer.param_groups, numbers, strict=True):
        group["params"] = [parameters[i] for i in own]


def read_shards(model: Any, device: torch.device, made: dict[str, Tensor]) -> None:
    """Give each parameter this rank's rows: from the files, or from those that were `made`, which rank 0 sends."""
    shards: dict[int, nn.Parameter] = {}
    state = model.state_dict(keep_vars=True)
    # feature: sharded_4bit
    for name, whole in packed_shards(dict(four_bits.matrices(model)), state, device):
        shards[id(state[name])] = nn.Parameter(whole, requires_grad=False)
    # end: sharded_4bit
    for name, cut in state.items():
        if id(cut) in shards:
            continue
        if name in made:
            whole = distribute_tensor(made[name].to(device, cut.dtype), cut.device_mesh, cut.placements)
        else:
            whole = rows_in_file(name, cut, device)
        shards[id(cut)] = nn.Parameter(whole, requires_grad=cut.requires_grad)
    model.load_state_dict({name: shards[id(cut)] for name, cut in state.items()}, assign=True)


# feature: sharded_4bit
def packed_shards(
    packed: dict[str, four_bits.Matrix], state: dict[str, Any], device: torch.device
) -> Iterator[tuple[str, DTensor]]:
    """Yield the shards of the matrices. In each turn every rank reads and packs one, and sends the others their shards.

    Scales depend on the whole matrix, so that no rank could pack its rows alone.
    """
    names = list(packed)
    mesh = state[names[0]].device_mesh if names else None
    for begin in range(0, len(names), mesh.size() if mesh else 1):
        turn = names[begin : begin + mesh.size()]
        mine = dict(enumerate(turn)).get(mesh.get_local_rank())
        own = None if mine is None else bytes_of(packed[mine], mine, device)
        for source, name in enumerate(turn):
            cut = state[name]
            sent = own.view(cut.dtype) if name == mine else torch.empty(cut.shape, dtype=cut.dtype, device=device)
            yield name, distribute_tensor(sent, mesh, cut.placements, src_data_rank=source)


def bytes_of(matrix: four_bits.Matrix, name: str, device: torch.device) -> Tensor:
    """Read a matrix, and round it unless its files have 4 bits."""
    if matrix.published:
        return four_bits.published(matrix, read_whole).to(device)
    return matrix.packed(read_whole(places[name][1]), device)


def read_whole(key: str) -> Tensor:
    """Read a tensor of the model's files by its name there."""
    with safetensors.safe_open(tensors_in(published)[key][0], "pt") as file:
        return file.get_tensor(key)


# end: sharded_4bit
def rows_in_file(name: str, cut: DTensor, device: torch.device) -> DTensor:
    """Read this rank's rows of a parameter. FSDP2 cuts tensors by rows, as `torch.chunk` does."""
    if cut.placements != (Shard(0),):
        raise SystemExit(f"{name} is not sharded by rows: {cut.placements}")
    path, key = places[name]
    rows = -(-cut.shape[0] // cut.device_mesh.size())
    begin = min(rows * cut.device_mesh.get_local_rank(), cut.shape[0])
    end = min(begin + rows, cut.shape[0])
    with safetensors.safe_open(path, "pt") as file:
        part = file.get_slice(key)[begin:end] if end > begin else torch.empty(cut.to_local().shape)
    if part.shape != cut.to_local().shape:
        raise SystemExit(f"{name}: read {tuple(part.shape)} for a shard of {tuple(cut.to_local().shape)}")
    # `to` copies even if the type is right: the optimizer must not use memory that a file is mapped to.
    part = part.to(device, cut.dtype, copy=True)
    return DTensor.from_local(
        part, cut.device_mesh, cut.placements, run_check=False, shape=cut.shape, stride=cut.stride()
    )


def prepare_sent(accelerator: Accelerator, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Shard both, with the weights of rank 0.

    Buffers of the state dict stay out of it meanwhile, since accelerate sends parameters only.
    """
    saved = saved_buffers(model)
    for module, name in saved:
        module.register_buffer(name, module._buffers[name], persistent=False)
    accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = True
    model, optimizer = accelerator.prepare(model, optimizer)
    for module, name in saved:
        module.register_buffer(name, module._buffers[name])
    return model, optimizer
