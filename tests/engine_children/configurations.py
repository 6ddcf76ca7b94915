"""Gives configurations to the engines themselves: what they stop with, if they stop. JSON in, JSON out.

Each case has a `how`: `launch` (accelerate's launcher prepares its command), `plugin` (a rank reads the environment
that the launcher made), `clipping` (the norm at which its engine would clip), `deepspeed` (DeepSpeed's own
configuration class), `file` (the same, given the file's name), `engine` (a whole engine on one CPU rank),
`fill` (accelerate fills every `auto` it can), `scheduler` and `optimizer` (DeepSpeed makes one), `precision`
(accelerate's against the file's), `parallelism` (a rank holds the sizes against its world), `inert` (the launch with
and without a key: it stops where nothing changes), `sequence` (DeepSpeed's groups for Ulysses), `hostfile`, `found`,
`filter` and `starter` (DeepSpeed's runner), `meet` and `alone` (torchrun's rendezvous of the machine that the file is
for, with the other machines and without them), `script` (the case's script, up to accelerate's prepare, on one CPU
rank); and with a model's config.json in `model`: `ulysses` (its attention is taken over), `split` (accelerate prepares
it for parts of sequences), `tensor` (transformers cuts it for a world of ranks that are not there, and one forward
pass is run), `context` (accelerate's state for a rank of a machine with GPUs).
"""

import argparse
import functools
import importlib
import json
import os
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"

import claimed  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from accelerate.commands import launch as launcher  # noqa: E402
from accelerate.parallelism_config import ParallelismConfig  # noqa: E402
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin  # noqa: E402
from accelerate.utils import launch as preparing  # noqa: E402
from deepspeed import comm  # noqa: E402
from deepspeed.ops.adam import fused_adam  # noqa: E402
from deepspeed.ops.op_builder import CPUAdamBuilder  # noqa: E402
from deepspeed.runtime import config as config_module  # noqa: E402
from deepspeed.runtime import lr_schedules  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from deepspeed.runtime.engine import DeepSpeedEngine  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from meeting import MET, at_once, machine  # noqa: E402
from torch.distributed import run as torchrun  # noqa: E402

from trainwiz.engines.llamafactory import OWN_ARGUMENTS  # noqa: E402

NO_DEVICE = "There are currently no available devices found"
"""Where FSDP 1 arrives on a machine without GPUs after it has taken all of its settings."""
# The port that a file leaves out may be in use by any other program here; one that is no port is still refused.
in_use = preparing.is_port_in_use
preparing.is_port_in_use = lambda port: in_use(port) and False


# What the engines compile for an update of their own, as Muon's, is not asked here: it runs as it is written.
torch.compiler.set_stance("force_eager")


# docs/decisions/rules.md: Tests of the rules fake only the lowest layer
class FusedAdamOnHost:
    """The kernel of the fused Adam by the operator of the host Adam, which is compiled already."""

    def load(self) -> Any:
        self.host = CPUAdamBuilder().load(verbose=False)
        return types.SimpleNamespace(multi_tensor_adam=self.update)

    def update(self, _chunk: int, _: torch.Tensor, lists: list[list[torch.Tensor]], lr: float, *settings: Any) -> None:
        beta1, beta2, eps, step, mode, bias_correction, decay = settings
        gradients, weights, *moments = lists
        kept = 10**6 + mode
        self.host.create_adam(kept, 0.0, 0.0, 0.0, 0.0, 0.0, mode == 1, False)
        for gradient, weight, *both in zip(gradients, weights, *moments, strict=True):
            self.host.adam_update(kept, step, lr, beta1, beta2, eps, decay, bias_correction, weight, gradient, *both)


fused_adam.FusedAdamBuilder = FusedAdamOnHost
OURS = ("ACCELERATE_", "FSDP_", "PARALLELISM_", "MEGATRON_")


def launch(case: dict[str, Any]) -> dict[str, str]:
    arguments = launcher.launch_command_parser().parse_args(["--config_file", case["accelerate"], "s.py"])
    arguments, defaults, named = launcher._validate_launch_command(arguments)
    if arguments.use_deepspeed and not arguments.cpu:
        fields = list(defaults.deepspeed_config) + (["mixed_precision"] if named else [])
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        environ = preparing.prepare_deepspeed_cmd_env(arguments)[1]
    elif (arguments.use_fsdp or arguments.use_megatron_lm or arguments.multi_gpu) and not arguments.cpu:
        environ = preparing.prepare_multi_gpu_env(arguments)
        # What torchrun does with it first.
        assert int(arguments.nproc_per_node) > 0, "no process on a machine"
    else:
        environ = preparing.prepare_simple_launcher_cmd_env(arguments)[1]
    started = {name: str(getattr(arguments, name, "")) for name in ("nproc_per_node", "nnodes", "rdzv_backend")}
    return {**environ, **started}


def inert(case: dict[str, Any]) -> None:
    with_it, without_it = launch(case), launch({"accelerate": case["without"]})
    # The list of the block's own keys, which only looks for those beside a deepspeed_config_file.
    for environ in (with_it, without_it):
        environ.pop("ACCELERATE_CONFIG_DS_FIELDS", None)
    assert with_it != without_it, "nothing changed"


def plugin(case: dict[str, Any]) -> None:
    os.environ.update({k: v for k, v in launch(case).items() if k.startswith(OURS)})
    if "ACCELERATE_USE_DEEPSPEED" in os.environ:
        made = DeepSpeedPlugin()
        for part in ("offload_optimizer", "offload_param"):
            block = made.deepspeed_config["zero_optimization"].get(part, {})
            assert (block.get("device"), block.get("nvme_path")) != ("nvme", "none"), "nvme_path is the word none"
        config = {**made.deepspeed_config, "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1}
        DeepSpeedConfig({k: v for k, v in config.items() if v != "auto"})
    else:
        FullyShardedDataParallelPlugin().set_auto_wrap_policy(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def clipping(case: dict[str, Any]) -> None:
    environ_of(case)
    made = DeepSpeedPlugin()
    config = {**made.deepspeed_config, "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1}
    clips = DeepSpeedConfig({k: v for k, v in config.items() if v != "auto"}).gradient_clipping
    assert clips == case["asked"], f"the engine clips at {clips}"


def parallelism(case: dict[str, Any]) -> None:
    environ = launch(case)
    os.environ.update({k: v for k, v in environ.items() if k.startswith(OURS)})
    seen = types.SimpleNamespace(
        num_processes=case["world"], multi_device=True, is_fsdp2=environ.get("FSDP_VERSION") == "2", distributed_type=""
    )
    ParallelismConfig()._validate_accelerator(seen)


def sequence(case: dict[str, Any]) -> None:
    from deepspeed.runtime.sequence_parallel import parallel_state_sp as groups

    made: list[Any] = []
    groups.dist = types.SimpleNamespace(
        is_initialized=lambda: True,
        get_world_size=lambda *_: case["world"],
        get_rank=lambda *_: 0,
        new_group=made.append,
    )
    size = launch(case)["PARALLELISM_CONFIG_SP_SIZE"]
    groups.initialize_sequence_parallel(int(size))


def hostfile(case: dict[str, Any]) -> None:
    from deepspeed.launcher.runner import _parse_hostfile

    _parse_hostfile(Path(case["folder"], "hostfile").read_text().splitlines())


def found(case: dict[str, Any]) -> None:
    from deepspeed.launcher.runner import fetch_hostfile

    arguments = launcher.launch_command_parser().parse_args(["--config_file", case["accelerate"], "s.py"])
    arguments, _, _ = launcher._validate_launch_command(arguments)
    assert fetch_hostfile(str(arguments.deepspeed_hostfile)), "it goes on with this machine alone"


def runner(case: dict[str, Any], *more: str) -> None:
    """DeepSpeed's runner with the arguments that accelerate gives it, on a machine without any programs."""
    from deepspeed.launcher import runner

    arguments = launcher.launch_command_parser().parse_args(["--config_file", case["accelerate"], "s.py"])
    arguments, _, _ = launcher._validate_launch_command(arguments)
    arguments.deepspeed_fields_from_accelerate_config = ""
    command, _ = preparing.prepare_deepspeed_cmd_env(arguments)
    assert command[0] == "deepspeed"
    path, os.environ["PATH"] = os.environ["PATH"], case["folder"]
    try:
        runner.main([*more, *command[1:]])
    finally:
        os.environ["PATH"] = path


def starter(case: dict[str, Any]) -> None:
    runner(case, "--no_ssh_check")


def filter(case: dict[str, Any]) -> None:
    """What a filter picks; it goes on until the first host is tried by ssh, which is not there."""
    try:
        runner(case)
    except FileNotFoundError as error:
        if "'ssh'" not in str(error):
            raise


def model_of(case: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**json.loads(Path(case["folder"], "model", "config.json").read_text()))


def environ_of(case: dict[str, Any]) -> dict[str, str]:
    environ = launch(case)
    os.environ.update({k: v for k, v in environ.items() if k.startswith(OURS)})
    return environ


def ulysses(case: dict[str, Any]) -> None:
    from deepspeed.runtime.sequence_parallel import parallel_state_sp, ulysses_sp
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    environ_of(case)
    made = ParallelismConfig()
    size, settings = made.sp_size, made.sp_handler
    config = model_of(case)
    config._attn_implementation = case.get("asked", "sdpa")
    attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
    others = types.SimpleNamespace(
        get_world_size=lambda *_: size,
        get_rank=lambda *_: 0,
        ProcessGroup=object,
        all_gather=lambda parts, mine, **_: [part.copy_(mine) for part in parts],
    )
    nothing: Any = {"register_all_to_all_group": lambda *_: None}
    groups: Any = {
        "initialize_sequence_parallel": lambda **_: None,
        "get_sequence_parallel_group": lambda: None,
        "get_sequence_parallel_world_size": lambda: size,
    }
    try:
        with mock.patch.multiple(ulysses_sp, dist=others, **nothing), mock.patch.multiple(parallel_state_sp, **groups):
            ulysses_sp.UlyssesSPAttentionHF.register_with_transformers(
                model_name_or_path=types.SimpleNamespace(config=config),
                micro_batch_size=1,
                core_attn_implementation=settings.sp_attn_implementation,
                sequence_parallel_size=size,
                seq_length=settings.sp_seq_length,
                seq_length_is_variable=settings.sp_seq_length_is_variable,
            )
            if settings.sp_seq_length and not settings.sp_seq_length_is_variable:
                rows = torch.zeros(1, settings.sp_seq_length, dtype=torch.long)
                batch = {name: rows.clone() for name in ("input_ids", "labels", "position_ids")}
                ulysses_sp.UlyssesSPDataLoaderAdapter([batch], 0, None, size, "cpu").refill()
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attention


def split(case: dict[str, Any]) -> None:
    from accelerate import big_modeling

    environ_of(case)
    made = ParallelismConfig()
    model = torch.nn.Module()
    model.config = model_of(case)
    if made.cp_size > 1:
        big_modeling._attach_context_parallel_hooks(model)
    if made.sp_size > 1:
        big_modeling._refuse_recurrent_layers_under_sequence_parallelism(model)


def tensor(case: dict[str, Any]) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.utils import initialize_distributed_mesh

    environ_of(case)
    size = ParallelismConfig().tp_size
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        config = DistributedConfig(tp_size=size, tp_plan="auto")
        # Also where torch was built for GPUs: none is visible here.
        with mock.patch.object(torch._C, "_get_accelerator", return_value=torch.device("cpu")):
            _, mesh = initialize_distributed_mesh(config)
        model = AutoModelForCausalLM.from_config(model_of(case))
        model = type(model).maybe_distribute_model(model, config, mesh)
        model(input_ids=torch.zeros(1, 8, dtype=torch.long))
    finally:
        torch.distributed.destroy_process_group()


def context(case: dict[str, Any]) -> None:
    """accelerate's state, for a rank of a machine with GPUs."""
    from accelerate import state
    from accelerate.utils import TorchDynamoPlugin

    environ = environ_of(case)
    plugin = types.SimpleNamespace(fsdp_version=int(environ.get("FSDP_VERSION", 1)))
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    on_gpus = mock.patch.object(state.PartialState, "_prepare_backend", return_value=("gloo", "MULTI_GPU"))
    state.AcceleratorState._reset_state(reset_partial_state=True)
    try:
        with on_gpus, mock.patch.dict(os.environ, {**ranks, "ACCELERATE_TORCH_DEVICE": "cpu"}):
            state.AcceleratorState(
                fsdp_plugin=plugin if environ.get("ACCELERATE_USE_FSDP") == "true" else None,
                _from_accelerator=True,
                dynamo_plugin=TorchDynamoPlugin(),
                parallelism_config=ParallelismConfig(),
            )
    finally:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def as_torchrun_gets_it(path: str, address: str | None, port: int, rank: int | None = None) -> argparse.Namespace:
    """torchrun's arguments for a machine, as accelerate hands them over."""
    arguments = launcher.launch_command_parser().parse_args(["--config_file", path, "s.py"])
    arguments, _, _ = launcher._validate_launch_command(arguments)
    arguments.main_process_ip, arguments.main_process_port = address or arguments.main_process_ip, port
    arguments.machine_rank = arguments.machine_rank if rank is None else rank
    preparing.prepare_multi_gpu_env(arguments)
    script = ["--training_script", "s.py", "--training_script_args", []]
    return launcher._filter_args(arguments, torchrun.get_args_parser(), script)


def alone(case: dict[str, Any]) -> None:
    # The address may lie outside this machine: at a port of the kernel's choice no proxy between listens.
    with socket.socket() as chosen:
        chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        chosen.bind(("127.0.0.1", 0))
        port = int(chosen.getsockname()[1])
    said = machine(as_torchrun_gets_it(case["accelerate"], None, port), seconds=1)
    assert said == MET, said


def meet(case: dict[str, Any]) -> None:
    """All at the loopback address, where they could meet."""
    path, port = case["accelerate"], int(free_port())
    own = as_torchrun_gets_it(path, "127.0.0.1", port)
    others = [rank for rank in range(int(own.nnodes)) if rank != own.node_rank][: int(own.nnodes) - 1]
    every = [own, *(as_torchrun_gets_it(path, "127.0.0.1", port, rank) for rank in others)]
    said = set(at_once([lambda one=one: machine(one, seconds=10) for one in every]))
    assert said == {MET}, sorted(said)


def script(case: dict[str, Any]) -> None:
    """Run the script, which makes an Accelerator and an optimizer, and prepare what it made."""
    import accelerate
    from accelerate.state import AcceleratorState, GradientState

    config_module.dist = comm
    # What another case may have left: groups that have ended, and who still holds them.
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    comm.comm.cdb = None
    importlib.reload(groups)
    environ = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": case["deepspeed"]}
    own = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    on_gloo = functools.partial(
        accelerate.Accelerator, kwargs_handlers=[accelerate.utils.InitProcessGroupKwargs(backend="gloo")]
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    made: dict[str, Any] = {"model": torch.nn.Linear(8, 8)}
    try:
        with mock.patch.dict(os.environ, {**environ, **own}), mock.patch.object(accelerate, "Accelerator", on_gloo):
            exec(case["script"], made)
            made["accelerator"].prepare(made["model"], made["optimizer"])
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def deepspeed(case: dict[str, Any]) -> None:
    config = json.loads(Path(case["deepspeed"]).read_text())
    # As accelerate hands it over: with a number for every `auto` of the batch.
    if config.get("train_micro_batch_size_per_gpu") == "auto":
        config["train_micro_batch_size_per_gpu"] = 1
    config = {k: v for k, v in config.items() if v != "auto"}
    for block in ("fp16", "bf16"):
        config[block] = {k: v for k, v in config.get(block, {}).items() if v != "auto"}
    world = case.get("world", 1)
    config_module.dist = types.SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: world)
    DeepSpeedConfig(config)


def file(case: dict[str, Any]) -> None:
    """As deepspeed.initialize is given a file's name."""
    config_module.dist = types.SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: 1)
    DeepSpeedConfig(case["deepspeed"])


def free_port() -> str:
    return str(claimed.port())


def engine(case: dict[str, Any]) -> None:
    """A whole engine, for one rank on the CPU, and one update."""
    import deepspeed as package

    config_module.dist = comm
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    if not torch.distributed.is_initialized():
        # Groups of another case, which have ended.
        comm.comm.cdb = None
        importlib.reload(groups)
        package.init_distributed("gloo", verbose=False)
    config = json.loads(Path(case["deepspeed"]).read_text())
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    theirs = None if "optimizer" in config else torch.optim.AdamW(model.parameters(), lr=1e-3)
    made, *_ = package.initialize(
        model=model, optimizer=theirs, config=config, model_parameters=None if theirs else model.parameters()
    )
    made.backward(made(torch.ones(1, 8, dtype=next(model.parameters()).dtype)).sum())
    made.step()


def fill(case: dict[str, Any]) -> None:
    from trainwiz.engines.accelerate import FILLED_SETTINGS

    made = DeepSpeedPlugin(hf_ds_config=case["deepspeed"])
    made.deepspeed_config_process(must_match=False, **dict.fromkeys(FILLED_SETTINGS, 1))


def precision(case: dict[str, Any]) -> None:
    made = DeepSpeedPlugin(hf_ds_config=case["deepspeed"])
    made.set_mixed_precision(case["asked"])
    for kind in ("fp16", "bf16"):
        enabled = made.deepspeed_config[kind]["enabled"] is True
        assert enabled == (case["asked"] == kind), f"{kind}.enabled {enabled} under {case['asked']}"


def scheduler(case: dict[str, Any]) -> None:
    block = json.loads(Path(case["deepspeed"]).read_text())["scheduler"]
    parameters = {k: 1 if v == "auto" else v for k, v in block.get("params", {}).items()}
    assert hasattr(lr_schedules, block["type"]), f"DeepSpeed does not recognize LR scheduler {block['type']}"
    getattr(lr_schedules, block["type"])(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1), **parameters)


def optimizer(case: dict[str, Any]) -> None:
    block = json.loads(Path(case["deepspeed"]).read_text())["optimizer"]
    engine = types.SimpleNamespace(
        optimizer_params=lambda: block["params"], optimizer_name=lambda: "sgd", zero_use_cpu_optimizer=lambda: False
    )
    try:
        DeepSpeedEngine._configure_basic_optimizer(engine, torch.nn.Linear(1, 1).parameters())
    except AttributeError:
        return  # past the check that this is about


def trainer(case: dict[str, Any]) -> None:
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    values = yaml.safe_load(Path(case["accelerate"]).read_text())
    file = values.pop("deepspeed", None)
    known = {key: value for key, value in values.items() if key in TrainingArguments.__dataclass_fields__}
    made = TrainingArguments(output_dir=case["folder"], use_cpu=True, report_to=[], **known)
    if file:
        theirs = HfTrainerDeepSpeedConfig(file)
        theirs.trainer_config_process(made)
        theirs.trainer_config_finalize(made, None, 10)


def parser(case: dict[str, Any]) -> None:
    from transformers import HfArgumentParser, Seq2SeqTrainingArguments

    values = yaml.safe_load(Path(case["accelerate"]).read_text())
    # TRL's parser is one of transformers, too, with a class for the dataset.
    known = {*OWN_ARGUMENTS, "dataset_name"} - set(Seq2SeqTrainingArguments.__dataclass_fields__)
    rest = {key: value for key, value in values.items() if key not in known}
    HfArgumentParser(Seq2SeqTrainingArguments).parse_dict({"output_dir": case["folder"], **rest})


def grpo(case: dict[str, Any]) -> None:
    from trl import GRPOConfig

    values = yaml.safe_load(Path(case["accelerate"]).read_text())
    own = {key: value for key, value in values.items() if key in GRPOConfig.__dataclass_fields__}
    GRPOConfig(output_dir=case["folder"], use_cpu=True, bf16=False, report_to="none", **own)


def main() -> None:
    results = []
    for case in json.load(sys.stdin):
        for name in [n for n in os.environ if n.startswith(OURS)]:
            del os.environ[name]
        os.chdir(case["folder"])
        try:
            globals()[case["how"]](case)
            results.append("")
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            results.append("" if NO_DEVICE in message else message)
    sys.stderr.flush()
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
