"""What the engines make of a configuration before and after a fix. JSON in, JSON out.

Each case has the `before` and `after` of one file in its folder, and the `how` of `configurations.py` where that is how
its engine stops; the answer says with what it stopped at each, and what it read differently.
"""

import enum
import inspect
import json
import os
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import configurations
import torch
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.lion import FusedLion
from deepspeed.runtime import config as config_module
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DeepSpeedConfig
from pydantic import BaseModel

OPTIMIZERS = {"adam": FusedAdam, "adamw": FusedAdam, "lion": FusedLion}
RAW = ("_param_dict", "elasticity_enabled", "mesh_device")


def plain(value: Any) -> Any:
    """A value of a configuration class, comparable."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name, None)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "__dict__") and not isinstance(value, enum.Enum | type):
        return plain(vars(value))
    return (
        value.value if isinstance(value, enum.Enum) else value if isinstance(value, int | float | str) else repr(value)
    )


def deepspeed(config: dict[str, Any]) -> dict[str, Any]:
    """What DeepSpeed holds after it has read a file: the fields of its classes, its schedule, its optimizer."""
    # As accelerate hands it over: with a number for every `auto` of the batch.
    config = {key: value for key, value in config.items() if value != "auto"}
    config.setdefault("train_micro_batch_size_per_gpu", 1)
    config_module.dist = types.SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: 1)
    read = DeepSpeedConfig(config)
    made = {name: plain(value) for name, value in vars(read).items() if name not in RAW}
    assert made["gradient_clipping"] >= 0  # which the engine compares before its first update
    if read.scheduler_name is not None:
        kind = getattr(lr_schedules, read.scheduler_name)
        kind(torch.optim.SGD([torch.zeros(1)], lr=1), **(read.scheduler_params or {}))
    if read.optimizer_name in OPTIMIZERS:
        inspect.signature(OPTIMIZERS[read.optimizer_name]).bind([], **(read.optimizer_params or {}))
    return made


def accelerate(path: str) -> dict[str, Any]:
    """What a launch gives its ranks, and what their plugins make of it."""
    environ = configurations.launch({"accelerate": path})
    environ.pop("ACCELERATE_CONFIG_DS_FIELDS", None)
    os.environ.update({k: v for k, v in environ.items() if k.startswith(configurations.OURS)})
    made: dict[str, Any] = dict(environ)
    if environ.get("ACCELERATE_DYNAMO_BACKEND", "NO") != "NO":
        torch.compile(torch.nn.Linear(2, 2), mode=environ["ACCELERATE_DYNAMO_MODE"])
    if environ.get("ACCELERATE_USE_DEEPSPEED"):
        made["plugin"] = plain(DeepSpeedPlugin().deepspeed_config)
        made["engine"] = deepspeed(made["plugin"])
    elif environ.get("ACCELERATE_USE_FSDP"):
        plugin = FullyShardedDataParallelPlugin()
        plugin.set_auto_wrap_policy(torch.nn.Sequential(torch.nn.Linear(2, 2)))
        made["plugin"] = {name: repr(value) for name, value in vars(plugin).items() if "policy" not in name}
    return made


def reading(case: dict[str, Any], path: str) -> Any:
    if case["how"] not in ("", "inert", "launch"):
        # These want JSON or YAML under the name that the rank is given.
        given = {**case, "deepspeed": path, "accelerate": path}
        return getattr(configurations, case["how"])(given)
    if path.endswith(".json") and not case.get("yaml"):
        return deepspeed(json.loads(Path(path).read_text()))
    return accelerate(path)


def asked(case: dict[str, Any], path: str) -> tuple[str, Any]:
    for name in [name for name in os.environ if name.startswith(configurations.OURS)]:
        del os.environ[name]
    shutil.copy(path, case["path"])
    try:
        return "", reading(case, case["path"])
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return ("" if configurations.NO_DEVICE in message else message), None


def differing(before: Any, after: Any) -> list[str]:
    """The keys whose values differ; in nested tables, with the keys above them."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"{before} → {after}"]
    both = sorted(set(before) | set(after))
    return [f"{key}: {each}" for key in both for each in differing(before.get(key), after.get(key))]


def answers() -> Iterator[dict[str, Any]]:
    for case in json.load(sys.stdin):
        os.chdir(case["folder"])
        before, after = asked(case, case["before"]), asked(case, case["after"])
        yield {"before": before[0], "after": after[0], "differ": differing(before[1], after[1])}


if __name__ == "__main__":
    found = list(answers())
    sys.stderr.flush()
    print("\n" + json.dumps(found))
