"""Two updates of the project's own train.py on tensors without memory: what the second one needs, part by part.

Argument: JSON with `world` (ranks), `depths` (numbers of layers to try; empty: as many as the model has), `samples`
(what a micro-batch is made of), `whole` (whether the engine is run, too; otherwise the model alone, in its precision),
`gpu` (the plan is for GPUs), `sharded` (FSDP), `values` (fields of Config to set), and `variants`: for each, further
`values`, and `recomputes` (activation checkpointing is added). The result is one line of JSON on stdout. The
working directory is the project's folder. No weights are read, and nothing is written.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import multiprocessing
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path[0] = os.getcwd()  # not the folder of this file, whose modules may hide the user's

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

LIVE = runpy.run_path(str(Path(__file__).with_name("live_memory.py")))["Live"]
BEGAN = time.monotonic()
DEVICE_OF = torch.ops.prim.device.default
UPDATES = 2
"""The first one makes the optimizer's state; the second one is like all others."""
_FEW_TOKENS = 64


class Finished(BaseException):
    """The updates are done."""


def main() -> None:
    asked = json.loads(sys.argv[1])
    stdout, sys.stdout = sys.stdout, sys.stderr
    found: dict[str, Any] = {"stage": "import"}
    try:
        look(asked, found)
    except BaseException as error:  # a task may also end the program
        if isinstance(error, KeyboardInterrupt):
            raise
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if in_project(frame.filename)]
        where = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""
        said = str(error).strip() or type(error).__name__
        what = said if isinstance(error, SystemExit) else f"{type(error).__name__}: {said}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        found["error"] = {"what": what.splitlines()[0], "where": where, "missing": missing}
        traceback.print_exc()
    stdout.write("\n" + json.dumps(found) + "\n")


def look(asked: dict[str, Any], found: dict[str, Any]) -> None:
    """Fill `found` until something fails; `stage` says where."""
    surround(asked["world"], sharded=asked["sharded"])
    keep_kernels_of_gpus_away()
    train, task = importlib.import_module("train"), importlib.import_module("task")
    values = {**{field.name: field.default for field in dataclasses.fields(train.Config)}, **asked["values"]}
    config = train.Config(**values)
    if config.mixed_precision == "fp16":
        config.mixed_precision = "bf16"  # as large, and a CPU has no scaler for the other one
    data = None
    if asked["samples"] == "own":
        found["stage"] = "load_train_data"
        data = own_data(train, task, config)
    found["stage"] = "train"
    usual, *changed = asked["variants"]
    few, *more = depths = asked["depths"] or [0]
    try_it = functools.partial(tried, asked, train, task, config, data)
    runs, guessed = try_it(usual, [few])  # before the others, which begin with all that it imported and cached
    # A change that fails, or that ends the process, is no change to propose.
    beside = [Beside(functools.partial(try_it, variant, depths)) for variant in changed]
    others, lines = try_it(usual, more)
    results: list[Any] = [(runs + others, guessed | lines)]
    results += [one.result() or ([], set()) for one in beside]
    found["variants"] = [runs for runs, _ in results]
    found["guessed"] = sorted(set().union(*(guessed for _, guessed in results)))
    found["seconds"] = round(time.monotonic() - BEGAN, 1)


def tried(asked: dict[str, Any], train: Any, task: Any, config: Any, data: Any, variant: Any, depths: Any) -> Any:
    """What a variant shows with each number of layers, and the lines whose values were guessed."""
    runs, guessed = [], set()  # type: list[Any], set[str]
    for depth in depths:
        run = Run(asked, train, task, dataclasses.replace(config, **variant["values"]), data)
        runs.append(run.measured(depth, recomputes=variant["recomputes"]))
        guessed |= run.guesses.seen
    return runs, guessed


class Beside:
    """A function that runs in a process of its own, which begins with all that is imported here."""

    def __init__(self, function: Any) -> None:
        processes = multiprocessing.get_context("fork")
        self._answer, answer = processes.Pipe(duplex=False)
        # As a daemon it ends with this process, which may fail before it asks for the result.
        self._process = processes.Process(target=self._run, args=(function, answer), daemon=True)
        self._process.start()
        answer.close()

    @staticmethod
    def _run(function: Any, answer: Any) -> None:
        try:
            answer.send(function())
        except BaseException:  # a task may also end the program
            traceback.print_exc()

    def result(self) -> Any:
        """What the function returned; None if it failed."""
        try:
            return self._answer.recv()
        except EOFError:
            return None
        finally:
            self._process.join()


def surround(world: int, *, sharded: bool) -> None:
    """The environment of rank 0, and a process group whose collectives do nothing."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", ACCELERATE_TORCH_DEVICE="cpu")
    # A compiler keeps less than this, and takes seconds to import.
    torch.compile = uncompiled  # type: ignore[assignment]
    state: Any = importlib.import_module("accelerate.state")
    kinds = state.DistributedType
    # accelerate shards on GPUs only, and gives DDP the number of a GPU where it sees several of them.
    answer = ("gloo", kinds.MULTI_GPU if sharded else kinds.MULTI_CPU if world > 1 else kinds.NO)
    state.PartialState._prepare_backend = lambda *_, **__: answer
    other: Any = importlib.import_module("accelerate.utils.other")
    other.is_deepspeed_available = lambda: False  # no engine here is its own
    store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=world)
    # By their address accelerate finds parameters again after they were sharded.
    FakeTensor.data_ptr = lambda self: self.untyped_storage()._cdata  # type: ignore[method-assign]
    nn.Module._apply = converted  # type: ignore[method-assign]


def uncompiled(function: Any = None, **_: Any) -> Any:
    """`torch.compile` that leaves a function, or what it decorates, as it is."""
    return function if function is not None else lambda decorated: decorated


def converted(module: Any, convert: Any, recurse: bool = True) -> Any:
    """`Module._apply` for tensors without memory, which it cannot exchange once they were looked at."""
    for child in module.children() if recurse else ():
        converted(child, convert)
    with torch.no_grad():
        for parameter in module._parameters.values():
            if parameter is not None and (made := convert(parameter)) is not parameter:
                parameter.data = made
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else convert(buffer)
    return module


def keep_kernels_of_gpus_away() -> None:
    """flash-attn runs on GPUs only; PyTorch's kernel for documents needs as much memory."""
    with contextlib.suppress(ImportError):
        transformers: Any = importlib.import_module("transformers")
        transformers.utils.is_flash_attn_2_available = lambda: False
        importlib.import_module("transformers.modeling_utils")  # here, and not again in each process beside this one


def own_data(train: Any, task: Any, config: Any) -> Any:
    """The micro-batches of the task's own data, as the loop reads them."""
    data = task.load_train_data(config)
    if hasattr(train, "indexed"):
        data = train.indexed(data, config)
    if len(data) == 0:
        raise SystemExit("the data to train on holds no sample; look at load_train_data in task.py")
    config.num_workers = 0
    return data


class Run:
    """One training of two updates."""

    def __init__(self, asked: dict[str, Any], train: Any, task: Any, config: Any, data: Any) -> None:
        self.asked, self.train, self.task, self.data = asked, train, task, data
        self.config = dataclasses.replace(config)
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.live = LIVE(lambda tensor: getattr(tensor, "fake_mode", None) is self.fake, os.getcwd())
        self.guesses = Guesses(self.live)
        self.layers: list[nn.Module] = []
        self.model: Any = None
        self.optimizer: Any = None
        self.parameters = 0

    def measured(self, depth: int, *, recomputes: bool) -> dict[str, Any]:
        """The parts of the second update. `depth`: layers; 0: all. `recomputes`: each layer keeps its input alone."""
        self.recomputes = recomputes
        with contextlib.ExitStack() as stack:
            self.replace(stack, depth)
            accelerator = self.train.build_accelerator(self.config)
            if self.asked["whole"]:
                self.sharded_by(accelerator)
            if self.asked["gpu"]:
                autocast_as_on_a_gpu(stack)
                drop_as_on_a_gpu(stack)
            for mode in (self.fake, self.live, self.guesses):
                stack.enter_context(mode)
            with contextlib.suppress(Finished):
                self.train.train(self.config, accelerator)
        self.forget()
        parts = [{"part": list(part), "groups": self.live.groups(part)} for part in self.live.peaks]
        return {"layers": len(self.layers), "parameters": self.parameters, "parts": parts}

    def replace(self, stack: contextlib.ExitStack, depth: int) -> None:
        """Let the loop run without files, other ranks and data."""
        train, task = self.train, self.task
        put = functools.partial(patched, stack)
        put(train, "Agreement", lambda: Quiet(reach=lambda count: (count, False)))
        put(train, "Metrics", lambda *_: Quiet(bar=Quiet()))
        put(train, "Evaluation", lambda *_: Quiet(ended=False, due=lambda *_: False))
        put(train, "build_checkpoints", lambda *_: Quiet(resume=lambda _: 0, save=lambda _: []))
        put(train, "Meter", lambda *_: Quiet(fetch=self.fetch, record=dict, began=0.0, count=0))
        put(train, "add_references", lambda *_: None)
        put(train, "share_of_peak", lambda _: None)
        put(train, "compile_layers", lambda _: None)
        put(train, "build_optimizer", self.seen_optimizer(train.build_optimizer))
        put(train, "backward", self.seen_backward(train.backward))
        put(task, "loss_sum", self.seen_loss(task.loss_sum))
        put(task, "save_model", lambda *_: None)
        put(task, "build_model", self.seen_model(task.build_model))
        for name in ("load_train_data", "load_eval_data"):
            put(task, name, lambda _: self.data if self.data is not None else range(10**9))
        if self.data is None:
            put(train, "indexed", lambda data, *_, **__: data)
            put(train, "RealBatches", lambda *_: None)
            put(train, "load_batches", lambda *_: None)
        if not self.asked["whole"]:
            put(train, "build_accelerator", lambda _: self.alone())
            put(train, "backward", self.seen_backward(lambda _config, _engine, _model, loss: loss.backward()))
            put(train, "weight_norm", lambda *_: 0.0)
        without_weights(stack, depth)
        if "rows" in sys.modules and self.asked["gpu"]:
            put(sys.modules["rows"], "choose_attention", attend_by_document)

    def sharded_by(self, accelerator: Any) -> None:
        """Let the engine take the model outside of the fake mode, since it also makes tensors with values.

        So DDP's buckets are real, but nothing is ever written to them; what is counted is their likeness.
        """
        prepare = accelerator.prepare

        def prepared(*given: Any) -> Any:
            with unset_fake_temporarily():
                made = prepare(*given)
            self.model = made[0]
            if isinstance(self.model, nn.parallel.DistributedDataParallel):
                self.model.register_comm_hook(None, unreduced)
                reducer: Any = type(self.model.reducer)
                reducer._rebuild_buckets = lambda _: False  # it would read values; the bytes are equal
            return made

        accelerator.prepare = prepared
        if hasattr(self.train, "prepare"):  # every rank has built the model already
            self.train.prepare = lambda _, *given: prepared(*given)
            self.train.build = lambda _, build_model: build_model()

    def alone(self) -> Any:
        """Replaces an engine: the model in the type that it computes in, and no step."""
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.config.mixed_precision, torch.float32)

        def prepare(model: Any, optimizer: Any) -> Any:
            self.model = model.to(half)
            model.set_gradient_accumulation_boundary = model.step = lambda *_: None
            model.zero_optimization_stage = lambda: 0
            optimizer.step = lambda *_: None
            return model, optimizer

        return Quiet(
            prepare=prepare,
            device=torch.device("cpu"),
            num_processes=self.asked["world"],
            process_index=0,
            is_main_process=True,
            scaler=None,
            sync_gradients=True,
            accumulate=lambda _: contextlib.nullcontext(),
            reduce=lambda tensor, *_: tensor,
        )

    def fetch(self) -> list[Any]:
        """The micro-batches of the next update."""
        if self.model is not None and not self.parameters:
            self.parameters = sum(p.numel() for p in self.model.parameters())
        self.label()
        self.updates = getattr(self, "updates", 0) + 1
        if self.updates > UPDATES:
            raise Finished
        self.live.keeps = self.updates == UPDATES
        with unset_fake_temporarily():
            if self.data is None:
                batches = self.made_batches()
            else:
                order = self.train.RealBatches(self.config, len(self.data), 0, 0, 1)
                batches = list(self.train.load_batches(self.config, self.data, order))
        convert = functools.partial(tree_map_only, torch.Tensor, self.fake.from_tensor)
        return [(convert(batch), count) for batch, count in batches]

    def made_batches(self) -> list[Any]:
        """Micro-batches of an update: the last one of the last update is as large as the plan allows.

        Those before it only leave gradients and the optimizer's state, whose sizes do not depend on the samples.
        """
        length = min(_FEW_TOKENS, self.config.sequence_length)
        small = dataclasses.replace(self.config, sequence_length=length, per_device_batch_size=1)
        configs = [small] * self.config.gradient_accumulation_steps
        if self.updates == UPDATES:
            configs[-1] = self.config
        return [made_batch(self.asked["samples"], self.task, config) for config in configs]

    def label(self) -> None:
        """Mark what is in memory as a parameter, a gradient or optimizer state."""
        if self.model is None:
            return
        for module in self.model.modules():
            group = getattr(getattr(module, "_get_fsdp_state", lambda: None)(), "_fsdp_param_group", None)
            for parameter in getattr(group, "fsdp_params", ()):  # of torch 2.13; without them it is "activations"
                self.live.name(getattr(parameter, "all_gather_outputs", ()), "gathered")
                whole = getattr(parameter, "_unsharded_param", None)
                if whole is not None:
                    self.live.name([whole], "gathered")
                    self.live.name([whole.grad] if whole.grad is not None else [], "gradients")
                summed = getattr(parameter, "unsharded_accumulated_grad", None)
                self.live.name([summed] if summed is not None else [], "gradients")
        held = list(self.model.parameters())
        for gradient in (p.grad for p in held if p.grad is not None):
            real = type(gradient) is torch.Tensor  # a view of a bucket
            self.live.name([self.fake.from_tensor(gradient) if real else gradient], "gradients")
        for one in getattr(self.optimizer, "optimizers", {"": self.optimizer}).values():
            state = getattr(one, "state", {})
            self.live.name([t for t in tree_leaves(dict(state)) if isinstance(t, torch.Tensor)], "optimizer")
            for kept in state.values():
                self.live.name([t for t in tree_leaves(kept) if isinstance(t, torch.Tensor)], "optimizer")
        self.live.name([*held, *self.model.buffers()], "parameters")

    def seen_model(self, build: Any) -> Any:
        def built(config: Any) -> Any:
            model = build(config)
            self.model, self.layers = model, repeated(model, getattr(self.task, "SHARDED_LAYERS", ()))
            for index, layer in enumerate(self.layers):
                if self.recomputes:
                    layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
                place = index if index < 2 else index - len(self.layers)
                layer.register_forward_pre_hook(functools.partial(self.layer_begins, place, index), with_kwargs=True)
                layer.register_forward_hook(functools.partial(self.layer_ended, place, index))
            return model

        return built

    def layer_begins(self, place: int, index: int, _layer: Any, given: Any, named: Any) -> None:
        if self.live.part[0] not in ("forward", "start"):
            return  # computed again in the backward pass
        self.live.enter(("forward", place))
        first = [t for t in tree_leaves((given, named)) if isinstance(t, torch.Tensor) and t.requires_grad]
        if index == 0 and first:
            first[0].register_hook(lambda _: self.enter(("reduction", 0)))

    def layer_ended(self, place: int, index: int, _layer: Any, _given: Any, result: Any) -> None:
        if self.live.part[0] != "forward":
            return
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        if made:
            made[0].register_hook(lambda _: self.enter(("backward", place)))
        if index == len(self.layers) - 1:
            self.live.enter(("loss", 0))

    def enter(self, part: Any) -> None:
        self.label()
        self.live.enter(part)

    def seen_optimizer(self, build: Any) -> Any:
        def built(*given: Any) -> Any:
            self.optimizer = build(*given)
            return self.optimizer

        return built

    def seen_loss(self, loss_sum: Any) -> Any:
        def computed(*given: Any) -> Any:
            self.live.enter(("forward", 0) if self.layers else ("loss", 0))
            loss = loss_sum(*given)
            if not self.layers:
                self.live.enter(("loss", 0))
            return loss

        return computed

    def seen_backward(self, backward: Any) -> Any:
        def computed(*given: Any) -> Any:
            if not self.layers:
                self.live.enter(("backward", 0))
            norm = backward(*given)
            self.enter(("step", 0))
            return torch.zeros(()) if norm is None else norm

        return computed

    def forget(self) -> None:
        """Reset for the next run."""
        state: Any = importlib.import_module("accelerate.state")
        self.label()
        state.AcceleratorState._reset_state(True)
        self.model = self.optimizer = None


def unreduced(_state, bucket):  # type: ignore[no-untyped-def]  # torch wants its own types here, or none
    """A bucket of DDP as it is: there are no other ranks."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Nothing:
    """What a stand-in was not given: called, it does nothing; as a flag, it is off."""

    def __call__(self, *_: Any, **__: Any) -> None:
        return None

    def __bool__(self) -> bool:
        return False


class Quiet:
    """An object whose methods do nothing, except those that it is given."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Guesses(TorchDispatchMode):
    """Answers for tensors without memory when values are read: numbers are 1, masks full. `seen` are the lines that
    asked."""

    def __init__(self, live: Any) -> None:
        super().__init__()
        self.live, self.seen = live, set()  # type: Any, set[str]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and what would keep a compiler out is called for each operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE_OF and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked twice as often as all else together
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its parts come here, too
        name = func.overloadpacket.__name__
        if name in self.ANSWERS and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            if isinstance(args[0], FakeTensor):
                return getattr(self, self.ANSWERS[name])(func, *args, **(kwargs or {}))
            if name != "index":
                with unset_fake_temporarily():
                    return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    ANSWERS = MappingProxyType(
        {"_local_scalar_dense": "number", "nonzero": "places", "masked_select": "chosen", "index": "indexed"}
    )

    def note(self) -> None:
        line = self.live.line()
        if line.partition(":")[0] not in ("train.py", ""):
            self.seen.add(line)

    def number(self, _func: Any, tensor: Any) -> Any:
        self.note()
        return True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1

    def places(self, _func: Any, tensor: Any) -> Any:
        self.note()
        return torch.empty(tensor.numel(), tensor.dim(), dtype=torch.long)

    def chosen(self, _func: Any, tensor: Any, mask: Any) -> Any:
        self.note()
        return tensor.new_empty(torch.broadcast_shapes(tensor.shape, mask.shape).numel())

    def indexed(self, func: Any, tensor: Any, indices: Any) -> Any:
        masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
        if not masks:
            return func(tensor, indices)
        self.note()
        places: list[Any] = []
        for i in indices:
            places += [torch.empty(i.numel(), dtype=torch.long)] * i.dim() if any(i is m for m in masks) else [i]
        return func(tensor, places)


EXACT = (
    *("layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "mse_loss", "l1_loss"),
    *("smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy_with_logits", "exp", "log", "pow", "rsqrt"),
    *("logsumexp", "softplus", "cosine_similarity", "cumsum", "prod"),
)
"""What autocast computes in fp32 on a GPU, and on a CPU in the type that it is given."""


def autocast_as_on_a_gpu(stack: contextlib.ExitStack) -> None:
    """Compute `EXACT` in fp32 under autocast."""

    def raised(function: Any) -> Any:
        @functools.wraps(function)
        def computed(*given: Any, **named: Any) -> Any:
            if torch.is_autocast_enabled("cpu"):
                given, named = tree_map(in_fp32, (given, named))
            return function(*given, **named)

        return computed

    for place in (torch.nn.functional, torch, torch.Tensor):
        for name in EXACT:
            if hasattr(place, name):
                patched(stack, place, name, raised(getattr(place, name)))


def drop_as_on_a_gpu(stack: contextlib.ExitStack) -> None:
    """Let dropout keep a mask of bytes, as GPUs do; on a CPU it keeps factors in the type of its input."""
    usual = torch.nn.functional.dropout

    def dropped(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0:
            return usual(input, p, training, inplace)
        return torch.native_dropout(input, p, training)[0]

    patched(stack, torch.nn.functional, "dropout", dropped)


def in_fp32(given: Any) -> Any:
    """A tensor in 16 bits in fp32, all else as it is."""
    half = isinstance(given, torch.Tensor) and given.dtype in (torch.bfloat16, torch.float16)
    return given.float() if half else given


def patched(stack: contextlib.ExitStack, place: Any, name: str, value: Any) -> None:
    """Replace a name of a module, where it has it, until the stack is left."""
    if hasattr(place, name):
        stack.callback(setattr, place, name, getattr(place, name))
        setattr(place, name, value)


def without_weights(stack: contextlib.ExitStack, depth: int) -> None:
    """Make models of transformers from their config.json alone, with `depth` layers."""
    transformers: Any = sys.modules.get("transformers")
    if transformers is None:
        return
    auto, base = transformers.AutoConfig, transformers.PreTrainedModel
    read, make = auto.from_pretrained, auto.for_model

    def cut(found: Any) -> Any:
        shape = found[0] if isinstance(found, tuple) else found  # with the settings that it did not need
        text = shape.get_text_config() if hasattr(shape, "get_text_config") else shape
        if depth and getattr(text, "num_hidden_layers", 0) > depth:
            text.num_hidden_layers = depth
            if getattr(text, "layer_types", None):
                text.layer_types = list(text.layer_types)[:depth]
        return found

    def load(cls: Any, name: Any, /, *_: Any, config: Any = None, **given: Any) -> Any:
        config = cut(cls.config_class.from_pretrained(name)) if config is None else config
        kind = given.get("dtype", given.get("torch_dtype")) or torch.float32
        how = {"attn_implementation": given["attn_implementation"]} if given.get("attn_implementation") else {}
        model = cls._from_config(config, dtype=getattr(torch, kind) if isinstance(kind, str) else kind, **how)
        model.name_or_path = str(name)
        return (model, {"missing_keys": set()}) if given.get("output_loading_info") else model

    for place, name, value in (
        (auto, "from_pretrained", staticmethod(lambda *given, **named: cut(read(*given, **named)))),
        (auto, "for_model", staticmethod(lambda *given, **named: cut(make(*given, **named)))),
        (base, "from_pretrained", classmethod(load)),
    ):
        stack.callback(setattr, place, name, place.__dict__[name])
        setattr(place, name, value)


def attend_by_document(model: Any) -> None:
    """What `choose_attention` of rows.py decides on a GPU: PyTorch's kernel, without a mask."""
    rows, transformers = sys.modules["rows"], sys.modules["transformers"]
    config = model.config.get_text_config()
    dropout = getattr(config, "attention_dropout", 0) or getattr(config, "attn_pdrop", 0)
    if config._attn_implementation == "sdpa" and model._supports_attention_backend and not dropout:
        from torch.nn.attention.varlen import varlen_attn

        # As `kernel_agrees` of rows.py does, which tries the kernel on a GPU.
        takes = inspect.signature(varlen_attn).parameters
        getattr(rows, "shared_heads", {}).update({"enable_gqa": True} if "enable_gqa" in takes else {})

        def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **told: Any) -> Any:
            half = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
            return rows.attend(module, query.to(half), key.to(half), value.to(half), mask, **told)

        transformers.AttentionInterface.register("by_document", attend)
        config._attn_implementation = "by_document"


def made_batch(kind: str, task: Any, config: Any) -> Any:
    """A micro-batch of the longest samples that the task takes."""
    length, many = config.sequence_length, config.per_device_batch_size
    ones = torch.ones(length, dtype=torch.long)
    sample: Any
    if kind == "rows":
        sample = torch.stack((ones, ones, torch.arange(length)))
    elif kind == "texts":
        sample = (ones.int(), 0, 0)
    elif kind == "scored":
        sample = {"rows": [ones.numpy(), ones.numpy()]}
    else:
        answer = torch.ones(length + 1, dtype=torch.long).numpy()
        named = {"beta": 0.1, "gamma": 0.5, "sign": 1.0, "weight": 1.0, "references": torch.zeros(2)}
        sample = {"rows": [answer, answer], **named}
    return task.collate([sample] * many, [True] * many)


def repeated(model: Any, names: tuple[str, ...]) -> list[nn.Module]:
    """The repeated layers: of the named classes, or else the members of the outermost lists of modules."""
    named = [module for module in model.modules() if type(module).__name__ in names]
    if named:
        return named
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inner = {module for outer in lists for module in outer.modules() if module is not outer}
    return [layer for outer in lists if outer not in inner for layer in outer]


def in_project(file: str) -> bool:
    """Whether a source file belongs to the project."""
    folder = os.getcwd()
    return file.startswith(folder + os.sep) and "site-packages" not in file[len(folder) :]


if __name__ == "__main__":
    main()
