"""Train many models one after another in one world of ranks, resume each, export it, load it again: what differs?

Arguments: a JSON list of jobs (`output`, `by_hand`, and `config`: values of Config). Runs in the folder of a generated
project. Rank 0 writes `output`/findings.json for each job.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import math
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[0] = ""

import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402


def main() -> None:
    train: Any = importlib.import_module("train")
    accelerator = train.build_accelerator(train.Config())
    gc.freeze()
    for job in json.loads(Path(sys.argv[1]).read_text()):
        output = Path(job["output"])
        output.mkdir(parents=True, exist_ok=True)
        try:
            config = dataclasses.replace(train.Config(), **job["config"])
            if plugin := getattr(accelerator.state, "fsdp_plugin", None):
                plugin.transformer_cls_names_to_wrap = None  # it keeps those of the first model
            trained(train, accelerator, config, output)
            found = list(exported(config, output)) if accelerator.is_main_process else []
            if accelerator.is_main_process and job["by_hand"]:
                found += by_hand(train, config, output)
        except (Exception, SystemExit):
            found = [traceback.format_exc()]
        if accelerator.is_main_process:
            (output / "findings.json").write_text(json.dumps(found))
        accelerator.wait_for_everyone()
        accelerator.free_memory()
        gc.freeze()  # what is still there stays: no later job looks through it
    accelerator.end_training()


def trained(train: Any, accelerator: Any, base: Any, output: Path) -> None:
    """Two updates at once, and the second of them again from the checkpoint after the first."""
    train.train(dataclasses.replace(base, output_dir=str(output / "whole")), accelerator)
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    if accelerator.is_main_process:
        name = "checkpoints/checkpoint-00000001"
        shutil.copytree(output / "whole" / name, output / "again" / name)
    accelerator.wait_for_everyone()
    train.train(dataclasses.replace(base, output_dir=str(output / "again"), resume="auto"), accelerator)


def by_hand(train: Any, config: Any, output: Path) -> Iterator[str]:
    """Compare losses and norms with those of a loop of PyTorch alone, which takes each real batch at once."""
    task, batches = importlib.import_module("task"), importlib.import_module("batches")
    whole = {"num_processes": 1, "gradient_accumulation_steps": 1, "per_device_batch_size": config.real_batch_size}
    config = dataclasses.replace(config, **whole)
    torch.manual_seed(config.seed)
    model, data = task.build_model(config).train(), task.load_train_data(config)
    optimizer = train.build_optimizer(config, model, torch.device("cpu"))
    updates = batches.RealBatches(config, len(data), 0, 0, config.n_steps)
    records = [json.loads(line) for line in (output / "whole" / "metrics.jsonl").open()]
    written = [record for record in records if "loss" in record]
    for record, (batch, count) in zip(written, batches.load_batches(config, data, updates), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(config, record["update"] - 1, config.n_steps)
        (loss := task.loss_sum(model, batch) / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        for name, value in (("loss", float(loss)), ("grad_norm_pre_clip", float(norm))):
            if not math.isclose(record[name], value, rel_tol=1e-4):
                yield f"{name} of update {record['update']} is {record[name]}, by hand {value}"


def exported(config: Any, output: Path) -> Iterator[str]:
    """Export the last checkpoint, and compare: both trainings, the export, and what transformers loads of it."""
    from trainwiz.probe.inside import gather_weights

    task: Any = importlib.import_module("task")
    written = [json.loads(line).get("eval_answers") for line in (output / "whole" / "metrics.jsonl").open()]
    yield from () if any(written) else ("nothing was written in the evaluation",)
    checkpoint = output / "whole" / "checkpoints" / "checkpoint-00000002"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    model = task.build_model(config)
    weights = dict(gather_weights.gather(manifest, checkpoint, model))
    gather_weights.save(task, config, model, dict(weights), output / "exported")
    whole, names = tensors(output / "whole" / "model"), tensors(output / "exported")
    yield from differences("resumed", whole, tensors(output / "again" / "model"))
    yield from differences("exported", whole, names)
    with torch.no_grad():
        yield from loaded(config, model, weights, output / "exported")
    source = tensors(Path(config.model_name))
    if (output / "exported" / "config.json").exists():
        # The biases of some routers stay in fp32, as DeepSeek publishes them.
        types = {name: weight.dtype for name, weight in names.items() if not name.endswith("e_score_correction_bias")}
        yield from (f"{name} is {kind}" for name, kind in types.items() if kind != torch.bfloat16)
        yield from (f"{name} is in one of source and export" for name in source.keys() ^ names.keys())


def loaded(config: Any, model: Any, weights: dict[str, Any], folder: Path) -> Iterator[str]:
    """What another program loads gives what the trained weights give, rounded to the type of the source."""
    import transformers

    if not any("lora_" in name for name in weights):
        weights = {name: weight.to(torch.bfloat16).float() for name, weight in weights.items()}
    model.load_state_dict(weights)
    model.forward = type(model).forward.__get__(model)  # without the loss
    ids = torch.arange(40)[None]
    trained, read, source = (
        each.eval()(ids).logits
        for each in (
            model.float(),
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            transformers.AutoModelForCausalLM.from_pretrained(config.model_name, dtype="float32"),
        )
    )
    if not torch.equal(read, trained):
        yield f"logits are {float((read - trained).abs().max())} apart"
    if torch.allclose(read[..., : source.shape[-1]], source):  # it may have more tokens than its source
        yield "logits are those of the source"


def tensors(folder: Path) -> dict[str, Any]:
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as content:
            found |= {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    return found


def differences(what: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    if not one:
        yield f"{what}: nothing was written"
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            yield f"{what}: {name} is only in one of them"
        elif one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name]):
            yield f"{what}: {name} differs"


if __name__ == "__main__":
    main()
