"""What DeepSpeed does with values at the border of each key: its classes, an optimizer, 150 updates of a schedule.

Configurations in, as JSON; out comes what each stopped with, empty where none did.
"""

import inspect
import json
import os
import sys
import types
import warnings
from typing import Any

warnings.simplefilter("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"

import torch  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam  # noqa: E402
from deepspeed.runtime import config as config_module  # noqa: E402
from deepspeed.runtime import lr_schedules  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402

UPDATES = 150
config_module.dist = types.SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: 1)


def optimizer(read: DeepSpeedConfig) -> torch.optim.Optimizer:
    """Two updates of what DeepSpeed would make, with torch's arithmetic in place of its kernels."""
    weight = torch.nn.Parameter(torch.ones(4))
    # Which class is made, and not a parameter of it.
    parameters = {k: v for k, v in (read.optimizer_params or {}).items() if k not in ("torch_adam", "adam_w_mode")}
    if read.optimizer_name not in ("adam", "adamw", "lion"):
        return torch.optim.SGD([weight], lr=1e-4)
    taken = [inspect.signature(kind.__init__).parameters for kind in (FusedAdam, DeepSpeedCPUAdam, torch.optim.AdamW)]
    assert parameters.keys() <= {name for each in taken for name in each}, "unexpected keyword argument"
    own = {k: v for k, v in parameters.items() if k in ("lr", "betas", "eps", "weight_decay", "amsgrad")}
    if read.optimizer_name == "lion":
        own.pop("eps", None)
    made = torch.optim.AdamW([weight], **own)
    for _ in range(2):
        weight.grad = torch.ones(4)
        made.step()
    return made


def stops(config: dict[str, Any]) -> str:
    try:
        read = DeepSpeedConfig(config)
        bool(read.gradient_clipping > 0.0)
        made = optimizer(read)
        if read.scheduler_name is not None:
            schedule = getattr(lr_schedules, read.scheduler_name)(made, **(read.scheduler_params or {}))
            for _ in range(UPDATES):
                schedule.step()
        if read.steps_per_print is not None:
            1 % read.steps_per_print
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    found = [stops(config) for config in json.load(sys.stdin)]
    sys.stderr.flush()
    print("\n" + json.dumps(found))
