"""What the rules' manual says of DeepSpeed's ops, offload and files, tried on one CPU rank. Prints one JSON object."""

import json
import os
import re
import shutil
import sysconfig
import tempfile
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")
os.environ.update(DS_ACCELERATOR="cpu", MAX_JOBS="1")

import claimed  # noqa: E402
import deepspeed  # noqa: E402
import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate import accelerator as accelerate_accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402
from deepspeed.ops.op_builder import CPUAdamBuilder  # noqa: E402

CLAIMS: dict[str, Callable[[], Any]] = {}


def claim(function: Callable[[], Any]) -> Callable[[], Any]:
    CLAIMS[function.__name__] = function
    return function


class WithoutKernel(DeepSpeedCPUAdam):
    """DeepSpeed's Adam for the host, without the op that takes minutes to build."""

    def __init__(self, groups: Any) -> None:
        defaults = {"lr": 1.0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "bias_correction": True}
        torch.optim.Optimizer.__init__(self, groups, {**defaults, "amsgrad": False})
        self.ds_opt_adam, self.opt_id = types.SimpleNamespace(destroy_adam=lambda _: None), 0


def engine(zero: dict[str, Any]) -> Any:
    """An engine for one layer that the script gives a torch optimizer."""
    model = torch.nn.Linear(8, 8)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
    }
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)[0]


def failure(do: Callable[[], Any]) -> str:
    try:
        do()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def build(folder: Path) -> str:
    """What building cpu_adam in an empty cache ends with, in its own words."""
    with mock.patch.dict(os.environ, {"TORCH_EXTENSIONS_DIR": str(folder)}):
        said = failure(lambda: CPUAdamBuilder().load(verbose=False))
    name, reason = (
        re.search("extension '(cpu_adam)", said),
        re.search(r"(c\+\+: (\w+ )?not found|fatal error: .*)", said),
    )
    return f"{name.group(1)}: {reason.group(1)}" if name and reason else said


@claim
def tw121_an_op_is_built_by_a_compiler() -> Any:
    """With a PATH that holds ninja alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ninja").symlink_to(str(shutil.which("ninja")))
        with mock.patch.dict(os.environ, {"PATH": folder}):
            return build(Path(folder))


@claim
def tw122_an_op_is_built_with_the_headers_of_python() -> Any:
    """With an interpreter whose folder of headers is empty."""
    path = sysconfig.get_path
    with tempfile.TemporaryDirectory() as folder:

        def without_headers(name: str, *rest: Any, **named: Any) -> str:
            return folder if name in ("include", "platinclude") else path(name, *rest, **named)

        with mock.patch.object(sysconfig, "get_path", without_headers):
            return build(Path(folder))


@claim
def tw312_nvme_has_no_default_place() -> Any:
    """Optimizer and parameters at stage 3, and the optimizer at stage 2, which keeps it in memory."""
    nvme = {"device": "nvme"}
    cases = (
        {"stage": 3, "offload_optimizer": nvme},
        {"stage": 3, "offload_param": nvme},
        {"stage": 2, "offload_optimizer": nvme},
    )
    return [failure(lambda zero=zero: engine(zero)) for zero in cases]


@claim
def tw315_stage_0_moves_nothing_to_the_host() -> Any:
    """Whether the host's Adam steps on the model's own weights, by stage; and what it says of one that is elsewhere."""
    made = []
    for stage in (0, 1):
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
        plugin = DeepSpeedPlugin(hf_ds_config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero})
        gloo = InitProcessGroupKwargs(backend="gloo")
        model = torch.nn.Linear(8, 8)
        with mock.patch.object(
            accelerate_accelerator, "map_pytorch_optim_to_deepspeed", lambda theirs: WithoutKernel(theirs.param_groups)
        ):
            prepared, _ = Accelerator(deepspeed_plugin=plugin, kwargs_handlers=[gloo]).prepare(
                model, torch.optim.AdamW(model.parameters())
            )
        adam = prepared.basic_optimizer
        made.append(isinstance(adam, WithoutKernel) and adam.param_groups[0]["params"][0] is model.weight)
    elsewhere = torch.nn.Parameter(torch.ones(1, device="meta"))
    elsewhere.grad = torch.ones(1, device="meta")
    return [*made, failure(WithoutKernel([elsewhere]).step)]


@claim
def tw521_a_file_that_is_gone() -> Any:
    return failure(lambda: DeepSpeedPlugin(hf_ds_config="/nowhere/ds_config.json"))


def main() -> None:
    port = str(claimed.port())
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    deepspeed.init_distributed("gloo", verbose=False)
    answers = {name: ask() for name, ask in CLAIMS.items()}
    print("\n" + json.dumps(answers))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
