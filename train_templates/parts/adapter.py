"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685): small matrices trained beside a frozen model."""

from __future__ import annotations

import functools
import os
import re

from collections.abc import Iterator

# feature: built_once
from contextlib import contextmanager

# end: built_once
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

# feature: onto_device
from accelerate import PartialState

# end: onto_device

# feature: enlarged_base
from safetensors.torch import save_file

# end: enlarged_base
from torch import Tensor

# feature: packed_experts
import experts

# end: packed_experts
# feature: judges
import heads

# end: judges
# feature: merged
import model_folder

# end: merged
# feature: new_tokens
import new_tokens

# end: new_tokens
# feature: writes
KIND, MODEL = "CAUSAL_LM", peft.AutoPeftModelForCausalLM
# end: writes
# feature: judges
KIND, MODEL = "SEQ_CLS", peft.AutoPeftModelForSequenceClassification
# end: judges
# feature: built_once
in_state = False  # whether state dicts include the frozen weights
# end: built_once
OF_PEFT = r"\.(base_layer|lora_[AB]|modules_to_save|original_module)\b"
TAKEN_APART = ("x_proj", "dt_proj", "out_proj")
"""Layers of Mamba whose weights some families or kernels use without calling the layer."""
CLIPPED = "correction_coefs"
"""The layer of Gemma 3n whose weight is clipped before it is used."""


# feature: qlora
def product_type() -> torch.dtype:
    """Return the type that products with 4-bit weights are computed in. Cards before Ampere have no bf16."""
    if not torch.cuda.is_available():
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


# end: qlora
# feature: whole_4bit
def in_four_bits(spared: list[str]) -> dict[str, Any]:
    """Return arguments that load the frozen model in 4-bit NormalFloat (https://arxiv.org/abs/2305.14314)."""
    from accelerate import PartialState
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=product_type(),
        llm_int8_skip_modules=spared,
    )
    return {"quantization_config": settings, "device_map": {"": PartialState().device}}


# end: whole_4bit
def build(loader: Any, config: Any, **arguments: Any) -> Any:
    """Return the frozen pretrained model, of a class of transformers, with an adapter to train.

    `modules_to_save` and a new head are trained in full.
    """
    whole = [name for name in config.modules_to_save.split(",") if name]
    # feature: judges
    whole += heads_of(loader, config)
    head, arguments = arguments, heads.loading(config.model_name, arguments)
    # end: judges
    # feature: qlora
    spared = [*whole, *heads_of(loader, config)]  # of the layers that get 4 bits
    # end: qlora
    # feature: whole_4bit
    arguments |= in_four_bits(spared)
    # end: whole_4bit
    # feature: sharded_4bit
    arguments["spared"] = spared
    # end: sharded_4bit
    # feature: onto_device
    arguments["device_map"] = {"": PartialState().device}  # tensor by tensor, so no rank has all in host memory
    # end: onto_device
    arguments |= {"dtype": config.frozen_dtype, "output_loading_info": True}
    # feature: packed_as_read
    with experts.packed_as_read(config.modules_to_save):
        model, loaded = loader.from_pretrained(config.model_name, **arguments)
    # end: packed_as_read
    # feature: plainly_read
    model, loaded = loader.from_pretrained(config.model_name, **arguments)
    # end: plainly_read
    lacking = {name for name in loaded["missing_keys"] if not any(f".{part}." in f".{name}" for part in whole)}
    if lost := sorted(lacking & {name for name, _ in model.named_parameters()}):
        raise SystemExit(
            f"{config.model_name}: it has no {', '.join(lost)}, which would stay random and not be saved: "
            "name their module in modules_to_save"
        )
    # feature: judges
    heads.fit(model, config.model_name, head)
    # end: judges
    # feature: new_tokens
    new = new_tokens.fit(model, config)
    # end: new_tokens
    add(model, config, whole)
    # feature: packed_experts
    experts.pack_experts(model, spared)
    # end: packed_experts
    # feature: built_by_all
    refuse_rows_of_zeros(model, config.model_name)
    # end: built_by_all
    # feature: new_tokens
    new_tokens.refuse_untrained(model, config, new)
    # end: new_tokens
    return model


def heads_of(loader: Any, config: Any) -> list[str]:
    """Return the names of the modules with weights above the body of the model."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name)
    with torch.device("meta"):
        model = loader.from_config(shape)
    parts = ((name, part) for name, part in model.named_children() if name != model.base_model_prefix)
    return [name for name, part in parts if next(part.parameters(), None) is not None]


def add(model: Any, config: Any, whole: list[str]) -> None:
    """Freeze the model and add an adapter, which is trained in fp32. Checkpoints leave out the rest."""
    everywhere = config.lora_targets == "all-linear"
    left_out = out_of_reach(model)
    settings = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=config.lora_targets if everywhere else config.lora_targets.split(","),
        exclude_modules=(left_out or None) if everywhere else None,
        lora_dropout=config.lora_dropout,
        use_rslora=config.lora_rslora,  # https://arxiv.org/abs/2312.03732
        use_dora=config.lora_dora,  # https://arxiv.org/abs/2402.09353
        modules_to_save=whole or None,
        task_type=KIND,
    )
    model.add_adapter(settings)
    if everywhere:
        tell_what_is_left_out(model, left_out)
    else:
        refuse_out_of_reach(model, config, left_out)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if missing := [name for name in whole if not any(f"{name}.modules_to_save." in found for found in trained)]:
        raise SystemExit(f"{config.model_name}: no module of this name to train in full: {', '.join(missing)}")
    # feature: writes
    ends = [trains(model.get_input_embeddings()), trains(model.get_output_embeddings())]
    tied = model.config.get_text_config().tie_word_embeddings
    if tied and any(ends) and not all(ends):
        raise SystemExit(
            f"{config.model_name}: its embeddings are its head, and modules_to_save names one of both: "
            "name both, which are then trained apart, or none"
        )
    # feature: built_once
    if tied and all(ends):
        untie(model)
    # end: built_once
    # end: writes
    for parameter in trained.values():
        parameter.data = parameter.data.float()
    leave_out_frozen(model)


def leave_out_frozen(model: Any) -> None:
    """Leave the frozen weights out of state dicts; they can be loaded again."""

    def leave_out(_module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        # feature: built_once
        if in_state:
            return
        # end: built_once
        for name in [name for name in state if name.startswith(prefix) and not is_trained(name)]:
            del state[name]

    def not_missing(_module: Any, keys: Any) -> None:
        # The same rule as above: a list of frozen parameters would contain only one of the names of a shared weight.
        keys.missing_keys[:] = [name for name in keys.missing_keys if is_trained(name)]

    model.register_state_dict_post_hook(leave_out)
    model.register_load_state_dict_post_hook(not_missing)


# feature: built_once
@contextmanager
def frozen_in_state() -> Iterator[None]:
    """Include the frozen weights in state dicts."""
    global in_state
    in_state = True
    try:
        yield
    finally:
        in_state = False


# end: built_once


def out_of_reach(model: Any) -> list[str]:
    """Return the linear layers whose adapter would have no effect, or fail.

    Mamba's layers pass their weights directly to kernels, which bypasses an adapter. So does Gemma 3n with a weight
    that it clips first: DDP would wait for gradients that never come. Some routers return more than one tensor.
    """
    found = list[str]()
    for name, part in model.named_modules():
        if hasattr(part, "A_log") and hasattr(part, "D"):
            found += [f"{name}.{own}" for own in TAKEN_APART if hasattr(part, own)]
        found += [f"{name}.{CLIPPED}"] * hasattr(part, CLIPPED)
        found += [name] * (isinstance(part, torch.nn.Linear) and "Router" in type(part).__name__)
    return found


def refuse_out_of_reach(model: Any, config: Any, layers: list[str]) -> None:
    """Exit if `lora_targets` names layers whose adapter would not be trained. Print those that kernels may bypass."""
    adapted = {name for name, part in model.named_modules() if hasattr(part, "lora_A")}
    named = sorted({name.rpartition(".")[2] for name in layers if name in adapted})
    if wrong := [name for name in named if name not in TAKEN_APART]:
        raise SystemExit(
            f"{config.model_name}: an adapter of {', '.join(wrong)} would not be trained, since the model does not "
            "compute with what the layer returns: leave it out of lora_targets"
        )
    if named and os.environ.get("RANK", "0") == "0":
        say_once(f"the adapters of {', '.join(named)} have no effect where Mamba's kernels are installed")


def tell_what_is_left_out(model: Any, left_out: list[str]) -> None:
    """Print which layers have no adapter: those that cannot have one, and those that peft does not adapt.

    Of some mixtures, peft adapts routed experts and no other layers of the same names.
    """
    for name, part in model.base_model.named_modules(prefix=model.base_model_prefix):
        if isinstance(part, torch.nn.Linear) and name not in left_out and not re.search(OF_PEFT, name):
            left_out.append(name)
    for name, part in model.named_modules():
        if type(part).__module__.startswith("transformers.models.") and ".base_layer" not in name:
            left_out += [f"{name}.{own}" for own, weight in part.named_parameters(recurse=False) if weight.dim() == 3]
    if left_out and os.environ.get("RANK", "0") == "0":
        parts = sorted({".".join(name.split(".")[-2:]) for name in left_out})
        say_once(f"no adapter for {len(left_out)} weights: {', '.join(parts)}")


@functools.cache
def say_once(line: str) -> None:
    """Print a line, also where the model is built more than once."""
    print(line, flush=True)


def lengths(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the layers that DoRA adapts: the name, the layer, and the module that holds the lengths of its rows."""
    for name, layer in model.named_modules():
        if found := getattr(layer, "lora_magnitude_vector", None):
            yield name, layer, found["default"]


def refuse_rows_of_zeros(model: Any, name: str) -> None:
    """Stop if DoRA would divide by zero: by the length of a row of zeros, which some published weights have."""
    zeros = {layer: int((local(dora.weight) == 0).sum()) for layer, _, dora in lengths(model)}
    # feature: built_once
    from accelerate.utils import gather_object

    zeros = {layer: sum(found[layer] for found in gather_object([zeros])) for layer in zeros}
    # end: built_once
    if wrong := {layer: rows for layer, rows in zeros.items() if rows}:
        first, rows = next(iter(wrong.items()))
        raise SystemExit(
            f"{name}: DoRA divides by the length of each row, and {len(wrong)} layers have rows of zeros "
            f"({first}: {rows}): set lora_dora to false, or lora_targets to layers without such rows"
        )


# feature: built_by_all
def local(weight: Tensor) -> Tensor:
    """Return the weight, which each rank has as a whole."""
    return weight


# end: built_by_all
# feature: built_once
def local(weight: Any) -> Tensor:
    """Return this rank's part of a sharded weight."""
    return weight.to_local()


def measure(model: Any) -> None:
    """Let DoRA begin with the lengths of the rows that were read, as if it had been added to them."""
    from torch.distributed.tensor import distribute_tensor

    for _, layer, dora in lengths(model):
        weight, target = layer.get_base_layer().weight.full_tensor(), dora.weight
        with torch.no_grad():
            found = dora.get_weight_norm(weight, torch.zeros((), dtype=weight.dtype, device=weight.device), 1)
            target.copy_(distribute_tensor(found.to(target.dtype), target.device_mesh, target.placements))


# end: built_once
def is_trained(name: str) -> bool:
    """Return whether a weight belongs to the adapter, or to a module that is trained in full."""
    return "lora_" in name or ".modules_to_save." in name


# feature: writes
def trains(module: Any) -> bool:
    """Return whether some weights of a module are trained."""
    return any(parameter.requires_grad for parameter in module.parameters())


# feature: built_once
def untie(model: Any) -> None:
    """Give the head its own frozen weights: FSDP2 cannot shard weights that two of its groups share."""
    model.config.get_text_config().tie_word_embeddings = False
    for part in model.get_output_embeddings().modules():
        for name, frozen in [(name, p) for name, p in part.named_parameters(recurse=False) if not p.requires_grad]:
            setattr(part, name, torch.nn.Parameter(frozen.detach().clone(), requires_grad=False))


# end: built_once
# end: writes
def save(model: Any, weights: dict[str, Tensor], folder: Path, output_dtype: str, tokenizer: Any) -> None:
    """Save the adapter in the format of peft, which names its base model, and the tokenizer it was trained with.

    The adapter stays in fp32. `output_dtype` is the type of the merged model.
    """
    trained = {name: part for name, part in weights.items() if is_trained(name)}
    # feature: usual_base
    model.save_pretrained(folder, state_dict=trained)
    # end: usual_base
    # feature: enlarged_base
    # If the model has more rows than its base, `save_pretrained` would save the embeddings a second time.
    parts = peft.get_peft_model_state_dict(model, trained, save_embedding_layers=False)
    model.peft_config["default"].save_pretrained(str(folder))
    named = {f"base_model.model.{name}": part.contiguous() for name, part in parts.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    # end: enlarged_base
    # feature: writes
    model.generation_config.save_pretrained(folder)
    # end: writes
    if tokenizer:
        tokenizer.save_pretrained(folder)
    # feature: merged
    # Also save the merged model, which loads without peft.
    # feature: writes
    merged = load(folder).merge_and_unload()
    merged.generation_config = model.generation_config
    # end: writes
    # feature: judges
    known = ("id2label", "label2id", "problem_type", "pad_token_id")
    merged = load(folder, **{name: getattr(model.config, name) for name in known}).merge_and_unload()
    # end: judges
    # feature: writes
    shape = merged.config.get_text_config()
    shape.tie_word_embeddings &= merged.get_input_embeddings().weight is merged.get_output_embeddings().weight
    # end: writes
    model_folder.save(merged, merged.state_dict(), folder.with_name("merged"), output_dtype, tokenizer)
    # end: merged


# feature: loaded_adapter
def load(folder: Path, **shape: Any) -> Any:
    """Return the base model with the adapter from a folder, in fp32; `shape` is what the base's configuration lacks."""
    # feature: judges
    shape["ignore_mismatched_sizes"] = True  # the base may have had another head
    # end: judges
    return MODEL.from_pretrained(folder, dtype="float32", **shape)


# end: loaded_adapter
