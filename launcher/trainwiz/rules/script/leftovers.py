"""Leftovers of a script for one GPU: fixed devices, progress bars, trackers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.engines import BY_HAND
from trainwiz.script.idioms import main_process, own_device, silent_elsewhere
from trainwiz.script.tree import constant, dotted, walk, written

_TRACKERS = {
    "torch.utils.tensorboard.SummaryWriter",
    "tensorboardX.SummaryWriter",
    "mlflow.start_run",
    "comet_ml.Experiment",
    "swanlab.init",
    "aim.Run",
    "neptune.init_run",
}
_LOCAL_RANK = re.compile(r"LOCAL_RANK|SLURM_PROCID")
_VISIBLE = re.compile(r"CUDA_VISIBLE_DEVICES|set_device")
"""In a program that may give each process one GPU."""
_BARS = ("tqdm.tqdm", "tqdm.trange", "tqdm")


@rule("TW760", level=Level.ERROR, field="script")
def no_fixed_gpu(script: Script) -> Violations:
    """Do not put tensors or models on a GPU with a fixed number.

    Without it: every process uses GPU 0, which runs out of memory while the others are idle; or NCCL stops with
    `Duplicate GPU detected`.
    Why: "cuda:0" and .cuda(0) mean the same GPU in every process.
    Instead: use accelerator.device; in plain torch, torch.device("cuda", local_rank).
    Source: `"cuda:0"` seen on two ranks, with the number of GPUs faked;
    https://docs.pytorch.org/docs/stable/notes/cuda.html (device-agnostic code)
    """
    fix = remedy("use the process's own device: {device}", device=own_device(script))
    found: dict[ast.AST, ast.expr] = {}
    for call in _moves(script):
        value = _target(call)
        parent = script.tree.parent(call.node)
        passing = isinstance(parent, ast.Attribute) and parent.attr == "to"  # only on the way to another device
        if value is None or passing or script.ranks.is_single(call.node):
            continue
        if type(constant(value)) is int or _is_fixed(script, value):
            found[call.node] = value
        elif dotted(value) and (made := _fixed_everywhere(script, value)) is not None:
            found[made] = made
    for call in script.called("torch.cuda.set_device") if script.engines.several else ():
        given = call.argument("device", 0)
        fixed = given is not None and (type(constant(given)) is int or _is_fixed(script, given))
        if given is not None and fixed and not script.tree.guards(call.node):
            found[call.node] = given
    for call in script.calls_with("device_map"):
        value = next((v for v in _device_maps(script, call.keyword("device_map")) if _is_whole_on_one(script, v)), None)
        if value is not None and _trains_on_several(script):
            assert isinstance(value, ast.Dict)
            found[call.node] = value.values[0]
    for node, value in found.items():
        yield violation("{call}: every process uses this same GPU", fix, call=written(value), place=script.place(node))


@rule("TW761", level=Level.WARNING, field="script")
def devices_come_from_the_engine(script: Script) -> Violations:
    """Under DDP and FSDP, use the device of the local rank.

    Without it: all processes use GPU 0, which runs out of memory while the others are idle.
    Why: .cuda() and .to("cuda") mean the current GPU, which is GPU 0 until torch.cuda.set_device says otherwise;
    accelerate, DeepSpeed, Colossal-AI and Lightning's Fabric call it themselves.
    Instead: call torch.cuda.set_device(local_rank) first, or use .to(torch.device("cuda", local_rank)).
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    # The engines select the local rank's GPU, and their examples call .cuda().
    own = script.called("torch.cuda.set_device", "torch.accelerator.set_device_index")
    fabric = script.called("Fabric.setup", "Fabric.setup_module", "Fabric.launch")
    if own or fabric or script.engines.accelerate or script.engines.deepspeed or script.engines.colossalai:
        return
    met = script.called("torch.distributed.init_process_group")
    moves = [c for c in _moves(script) if _target(c) is None or constant(_target(c)) == "cuda"]
    moves += [c for c in _moves(script) if met and c not in moves and _is_current(script, _target(c))]
    moves += [
        c for c in script.called(*BY_HAND) if (v := c.keyword("device_id")) is not None and _is_current(script, v)
    ]
    starts = script.is_program or any(script.part(call.node) is script.parts[-1] for call in met)
    if not moves or not (starts or script.runs_when_imported):
        return  # a module; what starts it may have chosen the GPU
    for call in moves:
        yield violation(
            "every process uses GPU 0 here: no code has selected the GPU of the local rank",
            remedy("call torch.cuda.set_device(local_rank) first"),
            place=script.place(call.node),
        )


@rule("TW762", level=Level.HINT, field="script")
def one_progress_bar(script: Script) -> Violations:
    """Only one process should show a progress bar.

    Without it: N bars overwrite each other, and a log file has N times as many lines.
    Why: each process runs the whole script.
    Instead: use tqdm(…, disable=not accelerator.is_local_main_process), or accelerate.utils.tqdm.
    Source: https://huggingface.co/docs/accelerate/package_reference/utilities (tqdm)
    """
    trains = {script.tree.scope(b.call) for b in script.training.backwards}
    for call in script.called(*_BARS) if script.engines.several else ():
        if script.tree.scope(call.node) not in trains:
            continue  # a bar for a download may be meant for one process
        if call.keyword("disable") is None and not call.has_spread() and not script.ranks.is_single(call.node):
            fix = remedy("add {argument}", argument=silent_elsewhere(script))
            yield violation("every process shows this progress bar", fix, place=script.place(call.node))


@rule("TW763", level=Level.WARNING, field="script")
def one_tracker(script: Script) -> Violations:
    """Only the main process should open a tracker.

    Without it: there are N event files or N runs, each with the numbers of one rank; the curves overlap.
    Why: each process runs the whole script.
    Instead: use accelerator.init_trackers and accelerator.log, which act on the main process only; or `if rank == 0`.
    Source: https://huggingface.co/docs/accelerate/usage_guides/tracking
    """
    for call in script.called(*_TRACKERS) if script.engines.several else ():
        sites = script.origins.sites(script.tree.scope(call.node))
        of_one = bool(sites) and all(map(script.ranks.is_single, sites))  # `if rank == 0: logger.push(…)`
        if not _knows_rank(script, call) and not of_one:
            yield violation(
                "{name} opens a tracker on every process",
                remedy("put it under: if {condition}", condition=main_process(script, call.node)),
                name=dotted(call.node.func),
                place=script.place(call.node),
            )


@rule("TW764", level=Level.WARNING, field="script")
def one_wandb_run(script: Script) -> Violations:
    """Start wandb and log to it on the main process only, or use a group.

    Without it: each rank creates its own run; if only rank 0 called init, wandb.log ends the other ranks with `You
    must call wandb.init() before wandb.log()`.
    Why: wandb does not know about ranks.
    Instead: use `if accelerator.is_main_process: wandb.init(…)`, with the same condition for wandb.log; or
    accelerator.init_trackers and accelerator.log.
    Source: https://docs.wandb.ai/guides/track/log/distributed-training/
    """
    if not script.engines.several or any(call.keyword("group") is not None for call in script.called("wandb.init")):
        return
    for call in script.called("wandb.init", "wandb.log"):
        if not _knows_rank(script, call) and not _is_unused(script, call.node):
            yield violation(
                "{name} is called on every rank",
                remedy("put it under: if {condition}", condition=main_process(script, call.node)),
                name=dotted(call.node.func),
                place=script.place(call.node),
            )


@rule("TW782", level=Level.HINT, field="script")
def checkpoints_are_loaded_to_the_own_device(script: Script) -> Violations:
    """Give torch.load a map_location in a script that runs on several ranks.

    Without it: a checkpoint that was saved on GPU 0 is loaded onto GPU 0 by every rank: with 8 ranks, its memory holds
    8 copies besides its own model, and it is often the only one that runs out.
    Why: torch.load puts each tensor on the device that it was saved from.
    Instead: use torch.load(path, map_location="cpu"), or the rank's own device.
    Source: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html (save and load checkpoints)
    """
    if not script.engines.several or not script.training.backwards:
        return
    for call in script.called("torch.load"):
        if script.part(call.node) is not script.parts[-1] and not script.origins.sites(script.tree.scope(call.node)):
            continue  # of a module, which nothing that is known calls
        told = call.argument("map_location", 1) is not None or call.keyword("mmap") is not None or call.has_spread()
        if not told and not script.ranks.is_single(call.node):
            yield violation(
                "without map_location, every rank may load this onto the GPU that it was saved from",
                remedy('add map_location="cpu"'),
                place=script.place(call.node),
            )


@rule("TW783", level=Level.WARNING, field="script")
def devices_have_the_local_rank(script: Script) -> Violations:
    """Choose the GPU by the rank on this machine, not by the rank of the whole job.

    Without it: the second machine of a job fails with `invalid device ordinal`: with 8 GPUs each, its first rank asks
    for GPU 8.
    Why: RANK and dist.get_rank() count over all machines, LOCAL_RANK over the processes of one.
    Instead: use int(os.environ["LOCAL_RANK"]), or rank % torch.cuda.device_count().
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html (environment variables)
    """
    known = script.says(_LOCAL_RANK)
    chosen: list[tuple[ast.AST, ast.expr | None]] = []
    if known:
        chosen = [(c.node, c.argument("device", 0)) for c in script.called("torch.cuda.set_device")]
        chosen += [(n, _number_of_gpu(n)) for n in script.tree.of(ast.JoinedStr)] if script.engines.several else []
    for node, device in chosen:
        if device is not None and _is_global_rank(script, device):
            yield violation(
                "{device} counts over all machines: there is no such GPU on the second one",
                remedy("use the local rank: int(os.environ[{name}])", name='"LOCAL_RANK"'),
                device=written(device),
                place=script.place(node),
            )


def _number_of_gpu(text: ast.JoinedStr) -> ast.expr | None:
    """The number in `f"cuda:{rank}"`."""
    parts = text.values  # none of f""
    number = parts[1] if len(parts) == 2 and constant(parts[0]) == "cuda:" else None
    return number.value if isinstance(number, ast.FormattedValue) else None


def _device_maps(script: Script, value: ast.expr | None) -> list[ast.expr]:
    """What a device_map may be."""
    made = [a.value for a in script.names.assigned(dotted(value), value)] if value is not None and dotted(value) else []
    return [v for v in (value, *made) if v is not None]


def _is_whole_on_one(script: Script, value: ast.expr) -> bool:
    """Whether a device_map puts the whole model on a GPU with a fixed number: `{"": 0}`."""
    if not isinstance(value, ast.Dict) or len(value.keys) != 1 or constant(value.keys[0]) != "":
        return False
    return type(constant(value.values[0])) is int or _is_fixed(script, value.values[0])


def _trains_on_several(script: Script) -> bool:
    """Whether a script trains, and asks for its place among several ranks."""
    trains = bool(script.training.backwards or script.called("Trainer.train"))
    return trains and (script.engines.several or any("LOCAL_RANK" in part.text for part in script.parts))


def _is_global_rank(script: Script, device: ast.expr) -> bool:
    """Whether a number is surely that of the rank in the whole job."""
    made = [a.value for a in script.names.assigned(dotted(device), device)] if dotted(device) else [device]
    if len(made) == 1 and dotted(made[0]) and dotted(made[0]) != dotted(device):
        return _is_global_rank(script, made[0])
    made = [value for value in made if type(constant(value)) is not int]  # without other processes
    words = [{constant(n) for n in walk(value)} for value in made]
    asked = [
        isinstance(value, ast.Call) and script.names.resolved(value.func) == "torch.distributed.get_rank"
        for value in made
    ]
    text = " ".join(map(ast.unparse, made))
    local = any("LOCAL_RANK" in one for one in words) or "%" in text or "local" in text.lower()
    return bool(made) and not local and all(a or "RANK" in one for a, one in zip(asked, words, strict=True))


def _is_unused(script: Script, node: ast.AST) -> bool:
    """Whether a method of a plain class stands here, which nothing that is known calls."""
    scope = script.tree.scope(node)
    owner = script.tree.parent(scope)
    return isinstance(owner, ast.ClassDef) and not owner.bases and not script.origins.sites(scope)


def _moves(script: Script) -> Iterator[Call]:
    """Calls that move a model or a tensor to a GPU."""
    wrapped = [c for c in script.called("torch.nn.parallel.DistributedDataParallel") if c.node in script.live]
    if not wrapped and not script.engines.prepared_names:
        return
    for call in script.methods("cuda", "to"):
        function = call.node.func
        if not isinstance(function, ast.Attribute):
            continue
        whole = function.attr == "cuda" and not script.names.resolved(function).startswith("torch.")
        if whole or (function.attr == "to" and _target(call) is not None):
            yield call


def _is_fixed(script: Script, value: ast.expr) -> bool:
    """Whether this says `cuda:0`, or makes such a device."""
    if isinstance(value, ast.Call) and script.names.resolved(value.func) == "torch.device" and value.args:
        return _is_fixed(script, value.args[0])
    return isinstance(value, ast.Constant) and str(value.value).startswith("cuda:")


def _fixed_everywhere(script: Script, value: ast.expr) -> ast.expr | None:
    """The fixed device that a name has, whatever happens."""
    made = script.names.assigned(dotted(value), value)
    among = [a.value for a in made if a.alone and _is_fixed(script, a.value) and _starts_beside(script, a.node)]
    if among:
        return among[0]
    if len(made) != 1 or not made[0].alone or script.tree.guards(made[0].node):
        return None
    return made[0].value if _is_fixed(script, made[0].value) else None


def _starts_beside(script: Script, node: ast.AST) -> bool:
    """Whether the ranks meet in the same block, below the same condition."""
    parent = script.tree.parent(node)
    met = [script.tree.statement(c.node) for c in script.called("torch.distributed.init_process_group")]
    return isinstance(parent, ast.If) and any(one in parent.body and node in parent.body for one in met)


def _is_current(script: Script, value: ast.expr | None) -> bool:
    """Whether a device surely is the current GPU of the process, as "cuda" is, whatever its rank."""
    made: list[ast.expr] = [value] if isinstance(value, ast.Call) else []
    if value is not None and dotted(value):
        made = [a.value for a in script.names.assigned(dotted(value), value) if a.alone]
    if not made or script.says(_VISIBLE):
        return False
    for one in made:
        if not isinstance(one, ast.Call):
            return False
        name = script.names.resolved(one.func)
        if name == "torch.cuda.current_device":
            continue
        known = script.values.of(one.args[0]) if name == "torch.device" and len(one.args) == 1 else None
        if known is None or known.value != "cuda":
            return False
    return True


def _target(call: Call) -> ast.expr | None:
    """The target device; None for `.cuda()`."""
    return call.argument("device", 0)


def _sites(script: Script, function: ast.AST) -> list[ast.Call]:
    """The calls of a function, or those that make an object whose `__init__` it is."""
    kind = script.tree.parent(function)
    if getattr(function, "name", "") == "__init__" and isinstance(kind, ast.ClassDef):
        made = [c.node for c in script.calls_of(kind.name) if script.names.resolved(c.node.func).endswith(kind.name)]
        return made or script.origins.sites(function)
    return script.origins.sites(function)


def _knows_rank(script: Script, call: Call) -> bool:
    tests = [guard.test for guard in script.tree.guards(call.node)]
    function = script.tree.scope(call.node)
    sites = _sites(script, function)
    trains = any(script.part(b.call) is script.parts[-1] for b in script.training.backwards)
    library = not (trains or script.is_program or script.runs_when_imported)
    if not sites and (
        script.part(call.node) is not script.parts[-1] or (library and function is not script.tree.module)
    ):
        return True  # nobody knows who calls it
    around = [script.tree.scope(site) for site in sites]
    given = [
        v for f in around for site in script.origins.sites(f) for v in (*site.args, *(k.value for k in site.keywords))
    ]
    if any(script.ranks.is_main(n) for value in given for n in walk(value)):
        return True
    made_on_one = bool(sites) and all(script.ranks.is_single(site) for site in sites)
    here = script.ranks.is_single(call.node) or any(map(script.ranks.mentions_rank, [*call.arguments, *tests]))
    return here or made_on_one
