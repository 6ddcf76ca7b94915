"""What the rules' manual says of GPUs, asked of torch and accelerate on a machine without any. Prints one JSON object.

The lowest seam is faked: how many GPUs there are and of which capability, as the driver would answer. What torch and
accelerate make of the answer is theirs. No kernel runs.
"""

import contextlib
import json
import os
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate import state as accelerate_state  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import TorchDynamoPlugin  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

CLAIMS: dict[str, Callable[[], Any]] = {}


def claim(function: Callable[[], Any]) -> Callable[[], Any]:
    CLAIMS[function.__name__] = function
    return function


@contextlib.contextmanager
def gpus(count: int, capability: tuple[int, int] = (8, 0), architectures: tuple[str, ...] = ()) -> Iterator[None]:
    """What the driver answers, and what this build of torch was compiled for."""
    properties = types.SimpleNamespace(name="GPU", major=capability[0], minor=capability[1], multi_processor_count=1)
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "set_device": lambda _: None,
        "get_device_name": lambda *_: "GPU",
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: list(architectures),
    }
    with mock.patch.multiple(torch.cuda, **answers), mock.patch.object(torch.version, "cuda", "12.8"):
        yield


@contextlib.contextmanager
def rank(number: int) -> Iterator[None]:
    """One of two ranks, without the other."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=number, world_size=2)
    try:
        with mock.patch.dict(os.environ, {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}):
            yield
    finally:
        torch.distributed.destroy_process_group()


@claim
def tw107_tw601_ranks_share_the_gpus_that_are_seen() -> Any:
    """As many as there should be, and one less."""
    devices = []
    for count in (2, 1):
        for number in (0, 1):
            with gpus(count), rank(number):
                devices.append(str(Accelerator().device))
    return devices


@claim
def tw760_a_fixed_gpu_is_that_of_every_rank() -> Any:
    devices = []
    for number in (0, 1):
        with gpus(2), rank(number):
            own = Accelerator().device
            with FakeTensorMode():
                moved = (torch.ones(1).to("cuda:0"), torch.ones(1).to(own))
            devices.append([str(tensor.device) for tensor in moved])
    return devices


@claim
def tw108_torch_says_that_it_has_no_kernels() -> Any:
    """For each GPU whether torch warns, and whether the rule does: both must agree, but for what PTX can do."""
    from trainwiz.rules.plan.environment import _runs_on

    answers = []
    for capability, architectures in (
        ((8, 6), ("sm_80", "sm_90")),
        ((6, 1), ("sm_70", "sm_80")),
        ((12, 0), ("sm_80", "sm_90")),
        ((8, 0), ("sm_86", "sm_90")),
    ):
        with gpus(1, capability, architectures), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda._check_capability()
            torch.cuda._check_cubins()
        words = " ".join(str(w.message) for w in said)
        warned = "does not include kernels for this GPU" in words or "not compatible" in words
        answers.append([warned, not _runs_on(capability, architectures)])
    return answers


@claim
def tw204_fp8_becomes_fp16() -> Any:
    answers = []
    for capability in ((8, 9), (8, 0)):
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        # A library for fp8 is said to be installed.
        with gpus(1, capability), mock.patch.object(accelerate_state, "is_fp8_available", return_value=True):
            accelerate_state.check_cuda_fp8_capability.cache_clear()
            made = AcceleratorState(mixed_precision="fp8", dynamo_plugin=TorchDynamoPlugin(), _from_accelerator=True)
            answers.append(made.mixed_precision)
    return answers


@claim
def tw221_triton_compiles_for_volta_and_newer() -> Any:
    """Triton is not installed here: what is new enough stops for that, and what is too old stops before."""
    from torch._inductor.codegen.common import init_backend_registration
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.virtualized import V

    init_backend_registration()
    answers = []
    for capability in ((7, 0), (6, 1)):
        seen = types.SimpleNamespace(add_device_info=lambda _: None)
        with gpus(1, capability), V.set_graph_handler(seen):
            try:
                Scheduler.create_backend(object.__new__(Scheduler), torch.device("cuda", 0))
            except RuntimeError as error:
                answers.append(f"{type(error).__name__}: {error}".splitlines()[0])
    return answers


results: dict[str, Any] = {}
for name, ask in CLAIMS.items():
    try:
        results[name] = ask()
    except Exception as error:
        results[name] = f"{type(error).__name__}: {error}"
print("\n" + json.dumps(results))
