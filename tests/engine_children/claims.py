"""What the rules' manual says of the engines, asked of the engines themselves. Prints one JSON object."""

import contextlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import ProjectConfiguration  # noqa: E402

CLAIMS: dict[str, Callable[[], Any]] = {}


def claim(function: Callable[[], Any]) -> Callable[[], Any]:
    CLAIMS[function.__name__] = function
    return function


def fresh(**environ: str) -> None:
    """Forget what accelerate has seen, and show it another environment."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    for name in [n for n in os.environ if n.startswith(("ACCELERATE_", "FSDP_")) or n in RANK]:
        del os.environ[name]
    os.environ.update(environ)


RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
SECOND_OF_TWO = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@contextlib.contextmanager
def second_of_two() -> Iterator[None]:
    """A group of two ranks, of which this is the second, without the first."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@claim
def tw131_torch_compile_needs_a_compiler() -> Any:
    from torch._inductor import config

    compiled = torch.compile(lambda x: torch.sin(x) * 0.731)
    with tempfile.TemporaryDirectory() as empty, config.patch({"cpp.cxx": (None, f"{empty}/g++")}):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        compiled(torch.zeros(4))


@claim
def tw201_accelerate_says_fp16_and_computes_fp32() -> Any:
    fresh()
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    with accelerator.autocast():
        return [accelerator.mixed_precision, str(model(torch.ones(1, 2)).dtype)]


@claim
def tw205_fp8_without_torchao_stops() -> Any:
    part = Path(__file__).parents[2] / "train_templates" / "parts" / "fp8.py"
    namespace: dict[str, Any] = {"__name__": "fp8"}
    exec(part.read_text(), namespace)
    namespace["use_fp8"](torch.nn.Linear(16, 16))


@claim
def tw203_emulated_bf16_counts_as_supported() -> Any:
    return inspect.signature(torch.cuda.is_bf16_supported).parameters["including_emulation"].default


@claim
def tw104_tw105_without_cuda_each_rank_is_alone() -> Any:
    fresh(**SECOND_OF_TWO)
    with second_of_two():
        accelerator = Accelerator()
        return [torch.distributed.get_world_size(), accelerator.num_processes, accelerator.is_main_process]


@claim
def tw317_deepspeed_stops_at_an_unknown_setting() -> Any:
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig({"train_batch_size": 1, "zero_optimization": {"stage": 2, "reduce_buket_size": 100}})


@claim
def tw305_fsdp_is_not_enabled_on_the_cpu() -> Any:
    fresh(**SECOND_OF_TWO, ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    with second_of_two():
        accelerator = Accelerator()
        return [str(accelerator.distributed_type), accelerator.num_processes]


@claim
def tw301_nobody_agrees_on_a_stage() -> Any:
    from accelerate.utils import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig

    fresh()
    return [DeepSpeedPlugin().zero_stage, DeepSpeedConfig({"train_batch_size": 1}).zero_config.stage]


@claim
def tw303_no_starts_one_process() -> Any:
    from accelerate.commands import launch

    file = Path(sys.argv[1]) / "no.yaml"
    file.write_text("distributed_type: 'NO'\nmixed_precision: 'no'\nnum_processes: 2\nnum_machines: 1\n")
    launch.simple_launcher = lambda arguments: started.append(arguments.num_processes)
    started: list[int] = []
    launch.launch_command(launch.launch_command_parser().parse_args(["--config_file", str(file), "train.py"]))
    return started


@claim
def tw308_transformers_shards_whatever_the_flag_says() -> Any:
    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations import is_deepspeed_zero3_enabled

    fresh()
    plugin = DeepSpeedPlugin(zero_stage=3, zero3_init_flag=False)
    before = is_deepspeed_zero3_enabled()
    plugin.set_deepspeed_weakref()
    with_plugin = is_deepspeed_zero3_enabled()
    plugin.dschf = None
    return [before, with_plugin, is_deepspeed_zero3_enabled()]


@claim
def tw557_zero_init_takes_no_device_map() -> Any:
    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations.accelerate import check_and_set_device_map

    fresh()
    plugin = DeepSpeedPlugin(zero_stage=3, zero3_init_flag=True)
    plugin.set_deepspeed_weakref()
    try:
        return check_and_set_device_map({"": "cpu"})
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        plugin.dschf = None


@claim
def tw316_other_optimizers_become_adam() -> Any:
    from accelerate.utils import deepspeed

    class Replaced:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

    class Adam(Replaced):
        pass

    class Adagrad(Replaced):
        pass

    import deepspeed.ops.adagrad as adagrad
    import deepspeed.ops.adam as adam

    adam.DeepSpeedCPUAdam, adagrad.DeepSpeedCPUAdagrad = Adam, Adagrad
    weights = [torch.nn.Parameter(torch.ones(1))]
    kinds = (torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adafactor, torch.optim.Adagrad)
    return [type(deepspeed.map_pytorch_optim_to_deepspeed(kind(weights, lr=0.1))).__name__ for kind in kinds]


@claim
def tw401_deepspeed_stops_at_a_wrong_product() -> Any:
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1})


@claim
def tw416_absent_clipping_is_1() -> Any:
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig({"train_batch_size": 1}).gradient_clipping


@claim
def tw403_a_learned_position_too_many() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_positions=8, n_embd=4, n_layer=1, n_head=1, vocab_size=5))
    model(torch.zeros(1, 9, dtype=torch.long))


@claim
def tw501_a_limit_of_0_is_none_or_all() -> Any:
    """What is left of the others while the third checkpoint is written: by accelerate, by the generated script."""
    fresh()
    seen: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder, "checkpoints")
        naming = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=0)
        engine = Accelerator(cpu=True, project_config=naming)
        engine.prepare(torch.nn.Linear(1, 1))
        engine.register_save_state_pre_hook(lambda *_: seen.append(sorted(p.name for p in there.iterdir())))
        for _ in range(3):
            engine.save_state()
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, sys.argv[1])
        import train
        from checkpoints import Checkpoints

        def save_state(aside: Path) -> None:
            seen.append(sorted(p.name for p in aside.parent.glob("checkpoint-????????")))
            (aside / "state").touch()

        config = train.Config(output_dir=folder, checkpoints_total_limit=0)
        mine = Checkpoints(config, "whole", save_state, lambda _: None)
        mine.resume(1)
        for update in (1, 2, 3):
            mine.save(update)
    return [seen[2], seen[5]]


@claim
def tw115_a_missing_tracker_is_dropped() -> Any:
    from accelerate.tracking import filter_trackers

    fresh()
    Accelerator(cpu=True)
    return [importlib.util.find_spec("comet_ml") is None, len(filter_trackers("comet_ml"))]


@claim
def tw123_a_lock_is_waited_for() -> Any:
    from torch.utils.file_baton import FileBaton

    lock = Path(sys.argv[1]) / "lock"
    lock.touch()
    waiting = threading.Thread(target=FileBaton(str(lock), wait_seconds=0.01).wait, daemon=True)
    waiting.start()
    waiting.join(0.3)
    still_there = waiting.is_alive()
    lock.unlink()
    waiting.join(5)
    return [still_there, waiting.is_alive()]


@claim
def tw413_the_rate_arrives_too_late() -> Any:
    sys.path.insert(0, sys.argv[1])
    import train

    def curve(warmup: int) -> list[float]:
        config = types.SimpleNamespace(learning_rate=1.0, n_warmup_steps=warmup, lr_scheduler_type="cosine")
        return [train.learning_rate(config, update, 100) for update in range(100)]

    return [max(curve(200)), curve(100).index(1.0)]


def launched(**values: Any) -> str:
    """Ranks per machine as accelerate gives them to torchrun."""
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    arguments = launch_command_parser().parse_args(["--multi_gpu", "--mixed_precision", "no", *words, "train.py"])
    arguments.gpu_ids, arguments.dynamo_backend = "all", "no"
    prepare_multi_gpu_env(arguments)
    return str(arguments.nproc_per_node)


@claim
def tw611_three_ranks_on_two_machines_are_two() -> Any:
    fresh()
    return launched(num_machines=2, num_processes=3, machine_rank=0, main_process_ip="10.0.0.1", main_process_port=1)


@claim
def tw612_one_rank_on_two_machines_is_none() -> Any:
    fresh()
    return launched(num_machines=2, num_processes=1, machine_rank=0, main_process_ip="10.0.0.1", main_process_port=1)


results: dict[str, Any] = {}
for name, ask in CLAIMS.items():
    try:
        results[name] = ask()
    except Exception as error:
        results[name] = f"{type(error).__name__}: {error}"
print("\n" + json.dumps(results))
