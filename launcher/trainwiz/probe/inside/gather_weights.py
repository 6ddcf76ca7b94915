"""Gather the whole weights of a checkpoint of any strategy, write them as the task does, and read them back.

Arguments: the project's folder, the checkpoint's, the one to write, the generated scripts' `trust.py`, which weights
(`average`: their average where the training keeps one, or `last`), and `trust` if the checkpoint may hold any class.
Needs neither a GPU nor other ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}
SHARDED_STAGE = "zero3"
IN_PARTS = ("colossal_zero", "gemini", "colossal_fsdp")
"""Layouts in which each rank has a part of every weight in fp32, with the names of the weights."""
PEFT_PREFIX = "base_model.model."
AVERAGE = "average"
"""Which weights are written; also the name of an average in the optimizer's state (average.py)."""
SMALL = 4 << 20
"""Parameters that a model may have beside any files."""
LEAST = 64
"""What the smallest parameter counts as: each takes kilobytes of objects."""


def main() -> None:
    project, checkpoint, output, reading = map(Path, sys.argv[1:5])
    wanted, trusted = sys.argv[5], sys.argv[6:] == ["trust"]
    sys.path[0] = str(project)
    os.chdir(project)
    os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    trust = loaded(reading)
    believed = trusted or trust.is_own(manifest)
    if not believed:
        # The manifest may name a repository of the hub as attention: with this package, transformers runs its code.
        sys.modules["kernels"] = None  # type: ignore[assignment]
    task: Any = importlib.import_module("task")

    trained = {field.name for field in dataclasses.fields(task.TaskConfig)}
    config = task.TaskConfig(**{name: value for name, value in manifest["config"].items() if name in trained})
    if manifest["layout"].startswith("zero"):
        importlib.import_module("deepspeed")  # its known classes
    try:
        if believed:
            model = task.build_model(config)
        else:
            with no_larger_than(checkpoint, trust.Unsound):
                model = task.build_model(config)
        with trust.known_classes_only(checkpoint, trusted):
            weights = gather(manifest, checkpoint, model)
            averaged = put_averages(manifest, checkpoint, model) if wanted == AVERAGE else 0
    except trust.UnknownClass as unknown:
        answer(unknown=str(unknown))
    except trust.Unsound as unsound:
        answer(unsound=str(unsound))
    save(task, config, model, dict(weights), output)  # transformers empties the mapping
    sys.stdout.write("\n" + json.dumps({**compared(weights, output), "averaged": averaged}) + "\n")


@contextlib.contextmanager
def no_larger_than(checkpoint: Path, unsound: type[Exception]) -> Iterator[None]:
    """Raise `unsound` where a model is built that has more parameters than the checkpoint's files have bytes.

    A parameter is counted before it is filled, which is when it takes memory. What `from_pretrained` loads is not
    counted: the files of another model hold it, such as the base of an adapter, which no checkpoint repeats.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook as on_parameter

    size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    numbers: dict[tuple[int, str], int] = {}
    total = 0

    def count(module: object, name: str, parameter: Any) -> None:
        nonlocal total
        if loading or parameter.is_meta:
            return
        number = max(parameter.numel(), LEAST)
        total += number - numbers.get((id(module), name), 0)
        numbers[id(module), name] = number
        if total > size + SMALL:
            raise unsound(f"manifest.json: a model of at least {total:,} parameters; its files have {size:,} bytes")

    loading: list[bool] = []
    handle = on_parameter(count)
    try:
        with from_pretrained_noted(loading):
            yield
    finally:
        handle.remove()


@contextlib.contextmanager
def from_pretrained_noted(loading: list[bool]) -> Iterator[None]:
    """While transformers loads a model from files, `loading` is not empty."""
    transformers: Any = sys.modules.get("transformers")
    if transformers is None:  # the task does without it
        yield
        return
    owner = transformers.PreTrainedModel
    before = vars(owner)["from_pretrained"]

    def noted(cls: Any, *arguments: Any, **options: Any) -> Any:
        loading.append(True)
        try:
            return before.__func__(cls, *arguments, **options)
        finally:
            loading.pop()

    owner.from_pretrained = classmethod(noted)
    try:
        yield
    finally:
        owner.from_pretrained = before


def loaded(file: Path) -> Any:
    """A module by its file; the project's own might be an older one, or a stranger's."""
    spec = importlib.util.spec_from_file_location("trainwiz_trust", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gather(manifest: dict[str, Any], checkpoint: Path, model: Any) -> dict[str, Any]:
    """Every whole weight, with the type that it had in the model."""
    import torch

    layout = manifest["layout"]
    if layout == "whole":
        from safetensors.torch import load_model

        load_model(model, checkpoint / "model.safetensors")
        return dict(model.state_dict())
    if layout == "fsdp":
        dcp: Any = importlib.import_module("torch.distributed.checkpoint")
        state = {"model": model.state_dict()}
        dcp.load(state, storage_reader=dcp.FileSystemReader(checkpoint), no_dist=True)
        return dict(state["model"])
    precision = PRECISIONS.get(manifest["config"].get("mixed_precision"))
    if precision and layout != "colossal_fsdp":  # it keeps its weights in fp32
        model.to(getattr(torch, precision))
    if layout in IN_PARTS:
        return assembled(checkpoint, manifest["world"], model)
    if layout == SHARDED_STAGE:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        whole = get_fp32_state_dict_from_zero_checkpoint(checkpoint, tag="state")
    else:
        # Up to stage 2 every rank has the whole model, and rank 0 writes it. The caller limits what is unpickled.
        whole = torch.load(checkpoint / "state" / "mp_rank_00_model_states.pt", map_location="cpu", weights_only=False)
        whole = whole["module"]
    # The engine's 16-bit weights are its fp32 weights, rounded to the nearest.
    formats = {name: value.dtype for name, value in model.state_dict().items()}
    return {name: value.to(formats.get(name, value.dtype)) for name, value in whole.items()}


def put_averages(manifest: dict[str, Any], checkpoint: Path, model: Any) -> int:
    """Give the gathered weights, which are the model's own, their averages. Return how many have one."""
    if "ema_decay" not in manifest["config"]:
        return 0
    read = averages_in_parts if manifest["layout"] == "fsdp" else averages_by_optimizer
    averages = read(manifest, checkpoint, model)
    for name, parameter in model.named_parameters():
        if name in averages:
            parameter.data.copy_(averages[name])
    return len(averages)


def averages_in_parts(_manifest: dict[str, Any], checkpoint: Path, model: Any) -> dict[str, Any]:
    """The averages in a distributed checkpoint, by the names of their weights."""
    import torch

    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    reader = dcp.FileSystemReader(checkpoint)
    saved = reader.read_metadata().state_dict_metadata
    averages = {
        name: {AVERAGE: torch.empty_like(parameter)}
        for name, parameter in model.named_parameters()
        if f"optimizer.state.{name}.{AVERAGE}" in saved
    }
    dcp.load({"optimizer": {"state": averages}}, storage_reader=reader, no_dist=True)
    return {name: state[AVERAGE] for name, state in averages.items()}


def averages_by_optimizer(manifest: dict[str, Any], checkpoint: Path, model: Any) -> dict[str, Any]:
    """The averages in an optimizer's state, which numbers the weights in the order of its groups."""
    import torch

    train: Any = importlib.import_module("train")
    settings = {field.name for field in dataclasses.fields(train.Config)}
    config = train.Config(**{name: value for name, value in manifest["config"].items() if name in settings})
    if hasattr(train, "freeze"):
        train.freeze(model, config.frozen)
    optimizer = train.build_optimizer(config, model, torch.device("cpu"))
    if hasattr(train, "hooks"):
        optimizer, _ = train.hooks.build_optimizers(config, model, optimizer)
    saved = torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True)["optimizer"]
    # Several optimizers that take turns save their states by name.
    pairs = [(optimizer, saved)] if "param_groups" in saved else [(optimizer.optimizers[n], saved[n]) for n in saved]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    averages = {}
    for each, state in pairs:
        parameters = [parameter for group in each.param_groups for parameter in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        for parameter, number in zip(parameters, numbers, strict=True):
            if AVERAGE in (kept := state["state"].get(number, {})):
                averages[names[id(parameter)]] = kept[AVERAGE]
    return averages


def assembled(checkpoint: Path, world: int, model: Any) -> dict[str, Any]:
    """Every weight from its parts on all ranks, with its type in the model."""
    import torch

    ranks = [
        torch.load(checkpoint / f"rank-{rank}.pt", map_location="cpu", weights_only=True, mmap=True)
        for rank in range(world)
    ]
    if "names" not in ranks[0]:
        refuse("unnamed")
    weights = dict(model.named_parameters())
    for i, names in enumerate(ranks[0]["names"]):
        rest = torch.cat([rank["weights"][i].flatten() for rank in ranks])
        for name in names:
            weight = weights.pop(name)
            weight.data = rest[: weight.numel()].view(weight.shape).to(weight.dtype)
            rest = rest[weight.numel() :]
    # Each rank has all of these; older train.py did not save them.
    whole = {**dict(model.named_buffers()), **weights}
    for name, value in {**ranks[0].get("buffers", {}), **ranks[0].get("untrained", {})}.items():
        whole[name].data.copy_(value)
        weights.pop(name, None)
    if weights:
        refuse(", ".join(weights))
    return dict(model.state_dict())


def refuse(missing: str) -> NoReturn:
    """Exit with the names of the weights that the checkpoint lacks; `unnamed` if it names none."""
    answer(missing=missing)


def answer(**said: str) -> NoReturn:
    """Exit with the reason why nothing is written."""
    sys.stdout.write("\n" + json.dumps(said) + "\n")
    raise SystemExit(0) from None


def save(task: Any, config: Any, model: Any, weights: dict[str, Any], output: Path) -> None:
    """Save them with the task's `save_model`; projects that never gather their weights do not have it."""
    if hasattr(task, "save_model"):
        arguments = (config, model, weights, output)
        task.save_model(*arguments[-len(inspect.signature(task.save_model).parameters) :])  # older tasks take no config
    elif hasattr(model, "save_pretrained"):
        model.save_pretrained(output, state_dict=weights)
    else:
        from safetensors.torch import save_file

        output.mkdir(parents=True)
        save_file({name: value.contiguous().clone() for name, value in weights.items()}, output / "model.safetensors")


def compared(weights: dict[str, Any], output: Path) -> dict[str, Any]:
    """Read the weights back, and compare them with the checkpoint's, in the type that they were written in.

    The files may hold fewer names (a shared weight has several); those of an adapter have peft's names.
    """
    import torch
    from safetensors import safe_open

    weights |= {PEFT_PREFIX + name.replace(".default.", "."): value for name, value in weights.items()}
    read, size, known, other = set(), 0, 0, []
    for file in sorted(output.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                value = tensors.get_tensor(name)
                read.add(name)
                known += name in weights
                size += value.numel() * value.element_size()
                if name in weights and not torch.equal(value, weights[name].cpu().to(value.dtype)):
                    other.append(name)
    return {"tensors": len(read), "size_bytes": size, "known": known, "different": other}


if __name__ == "__main__":
    main()
