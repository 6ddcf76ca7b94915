"""What the rules' manual says of memory, disk and /dev/shm that are too small. Prints one JSON object.

A limit on the data of a process stands for the memory of a device or a machine. Where this runs on a /dev/shm and a
folder of 4 MiB each (`--full FOLDER`), these are asked, too; else they are None.
"""

import json
import os
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"

import claimed  # noqa: E402
import deepspeed  # noqa: E402
import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

CLAIMS: dict[str, Callable[[], Any]] = {}
LAYERS, WIDTH = 64, 512
PARAMETERS = LAYERS * WIDTH * WIDTH
SMALL_BYTES = 4 * 2**20
ENOUGH = 100  # bytes per parameter


def claim(function: Callable[[], Any]) -> Callable[[], Any]:
    CLAIMS[function.__name__] = function
    return function


def model(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def alone(layers: int) -> None:
    """Two updates of AdamW in fp32, on a single sample: what is computed with takes next to nothing."""
    updated(model(layers))


def under_ddp(layers: int) -> None:
    updated(nn.parallel.DistributedDataParallel(model(layers), gradient_as_bucket_view=True))


def updated(net: nn.Module) -> None:
    """Two updates: DDP makes its buckets anew before the second one."""
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)  # as in the generated program
    for _ in range(2):
        net(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def one_sample(layers: int) -> None:
    model(layers)(torch.ones(1, WIDTH))


def many_samples(layers: int) -> None:
    """So many that what the layers keep for the backward pass is as large as the weights."""
    model(layers)(torch.ones(1 if layers == 1 else WIDTH, WIDTH))


def offloaded(layers: int) -> None:
    """One update of an engine at ZeRO 2 in bf16 whose optimizer is in the memory of the host."""
    net = model(layers).bfloat16()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 0.0,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
            "reduce_bucket_size": WIDTH * WIDTH,
            "allgather_bucket_size": WIDTH * WIDTH,
        },
    }
    engine = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters()), config=config)[0]
    engine.backward(engine(torch.ones(1, WIDTH, dtype=torch.bfloat16)).sum())
    engine.step()


def data_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) * 1024


def within(bytes_per_parameter: int, train: Callable[[int], None]) -> str:
    """What becomes of an update that may take so many bytes for each parameter; in a child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading) as file:
            said = file.read()
        os.waitpid(child, 0)
        return said
    os.dup2(2, 1)  # what the engines print is no answer
    torch.distributed.init_process_group("gloo")
    if train is offloaded:
        deepspeed.init_distributed(dist_init_required=False)
    train(1)  # what is imported and started by the first time
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + bytes_per_parameter * PARAMETERS,) * 2)
    try:
        train(LAYERS)
        said = "done"
    except (RuntimeError, MemoryError) as error:
        out = isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "bad_alloc" in str(error)
        said = "no memory" if out else str(error)
    os.write(writing, said.encode())
    os._exit(0)


# docs/decisions/rules.md: The table of bytes per parameter was compared with real memory limits
@claim
def tw321_tw324_weights_gradients_and_moments() -> Any:
    """16 bytes per parameter, under DDP, too, where gradients are views of its buckets."""
    return [within(15, alone), within(18, alone), within(15, under_ddp), within(18, under_ddp)]


@claim
def tw328_a_model_that_is_built() -> Any:
    """4 bytes per parameter in the memory of the host, on each rank."""
    return [within(3, model), within(6, model)]


@claim
def tw323_an_offloaded_optimizer() -> Any:
    """18 bytes per parameter on the host, 4 of weights and gradients, which a GPU would hold, and what torch's Adam
    needs while it steps."""
    return [within(21, offloaded), within(ENOUGH, offloaded)]


@claim
def tw325_what_a_forward_pass_keeps() -> Any:
    """4 bytes per parameter for the weights, and 4 for the activations beside them."""
    return [within(6, one_sample), within(6, many_samples), within(10, many_samples)]


@claim
def tw503_a_checkpoint_on_a_full_disk() -> Any:
    if not (folder := small("--full")):
        return None
    engine, net = Accelerator(cpu=True), model(4)
    net, optimizer = engine.prepare(net, torch.optim.AdamW(net.parameters()))
    engine.backward(net(torch.ones(1, WIDTH)).sum())
    optimizer.step()
    try:
        engine.save_state(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Samples(Dataset[torch.Tensor]):
    """Each larger than /dev/shm."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(SMALL_BYTES)


@claim
def tw518_a_worker_without_shared_memory() -> Any:
    if not small("--full"):
        return None
    try:
        next(iter(DataLoader(Samples(), num_workers=1)))
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[-1]}"


def small(option: str) -> str:
    """The folder of 4 MiB, if there is one."""
    return sys.argv[sys.argv.index(option) + 1] if option in sys.argv else ""


def main() -> None:
    torch.set_num_threads(1)
    port = str(claimed.port())
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    answers = {name: ask() for name, ask in CLAIMS.items()}
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main()
