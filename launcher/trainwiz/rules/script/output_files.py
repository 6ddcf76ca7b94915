"""Files that a training writes: by one rank, with all weights, and enough to continue from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from trainwiz.finding import Fix, Level, Place, Violation, Violations, edited, remedy, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule
from trainwiz.rules.script.divergence import in_functions
from trainwiz.script import Call, Script
from trainwiz.script.edits import main_rank, under
from trainwiz.script.idioms import main_process
from trainwiz.script.names import parameters
from trainwiz.script.origins import argument
from trainwiz.script.outline import Outline
from trainwiz.script.training import describe
from trainwiz.script.tree import Function, constant, dotted, method, walk, written

_FSDP_STATES = ("full_optim_state_dict", "optim_state_dict", "sharded_optim_state_dict", "summon_full_params")
_COLLECTS = {
    "Accelerator.get_state_dict",
    "Accelerator.save_model",
    "torch.distributed.checkpoint.state_dict.get_model_state_dict",
    "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict",
    "torch.distributed.checkpoint.state_dict.get_state_dict",
    "torch.distributed.checkpoint.async_save",
    "torch.distributed.checkpoint.load",
    "torch.distributed.checkpoint.save",
    "torch.distributed.checkpoint.save_state_dict",
    "Trainer.save_model",
    "Trainer.save_checkpoint",
    *(f"torch.distributed.fsdp.FullyShardedDataParallel.{name}" for name in _FSDP_STATES),
}
_LIGHTNINGS = ("self.trainer.save_checkpoint", "trainer.save_checkpoint")
_WHOLE = re.compile(
    r"state_dict_type|full_tensor|get_model_state_dict|FullStateDictConfig|summon_full_params|get_state_dict\b|"
    r"full_state_dict|FULL_STATE_DICT|gather_full|consolidate|distributed\.checkpoint|dcp\.save|DCP"
)
_START = re.compile(r"(start|resume|first|initial|begin)\w*(epoch|step|iter|update)", re.IGNORECASE)
_PROGRESS = re.compile(r"epoch|step|iter|update|history", re.IGNORECASE)
_LOADS = r"(?i)(^|_)(load|resume|restart|restore|auto_load|set(_optimizer)?_state_dict)"
"""Functions that load a checkpoint."""
_WORDS = {"Optimizer": re.compile(r"opt", re.IGNORECASE), "Scheduler": re.compile(r"sched|\blr", re.IGNORECASE)}
"""In the names of what is loaded: the states that nobody loads who only begins with the weights of another training."""
_SCALER = re.compile(r"scaler|(^|\.)amp$", re.IGNORECASE)
_OF_STATES = (re.compile(r"opt(im|imizer)?($|_|s)|optim", re.IGNORECASE), re.compile(r"sched|scaler", re.IGNORECASE))
"""The keys of the states of optimizers, and of what goes with them."""
_RESTORES = "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict"
_WRITERS = ("numpy.save", "numpy.savez")
_LINKS = ("os.symlink", "os.rename", "os.replace", "shutil.copytree")
"""Functions that fail, or overwrite each other, where several ranks call them with the same paths."""
_WRITING_METHODS = ("to_csv", "savefig", "write_text", "write_bytes")
_WRITES = (
    *("save", "savez", "save_file", "save_model", "mkdir", "makedirs", "open", "save_pretrained"),
    *("symlink", "rename", "replace", "copytree"),
    *_WRITING_METHODS,
)
"""The last names of all that may write a file."""
_ONE_WRITES = (
    r"rank|main|master|zero(?!_?(?:optim|stage|grad|shot|[123]))|gpu_id|is_first|process_index|primary|leader|should_save|should_log|save_to_disk|"
    r"coordinator"
)
"""In the words of a condition that may be about ranks."""
_SEVERAL = re.compile(r"local_rank|LOCAL_RANK|is_world_process_zero|torch\.distributed|get_rank\(")
"""In a program of a Trainer that is written for several ranks."""
_HANDS_ON = re.compile(
    r"coordinator|(?:rank|process)_?(?:0|zero)|(?:main|master)_(?:rank|process)|(?:main|master)_only"
)
"""In the name of what calls a function that it is handed on one rank."""
_OF_TRAINERS = ("_save_checkpoint", "evaluate", "log", "train", "training_step")
"""Methods that a Trainer calls on every rank."""
_DEEP = 3
"""Functions that call each other, down to the backward pass."""
_FULLY_SHARD = "torch.distributed.fsdp.fully_shard"
_OPENS = ("open", "codecs.open", "fsspec.open", "gzip.open", "io.open")
_WRITING = ("w", "a", "x", "wb", "ab", "w+", "a+", "wt")


# docs/decisions/files.md: A rule on scripts that is often right about DDP alone is a warning
@rule("TW709", level=Level.WARNING, field="script")
def weights_are_collected_by_every_rank(script: Script) -> Violations:
    """Call get_state_dict, save_model and save_checkpoint on every rank, and write on only one.

    Without it: under FSDP and ZeRO 3, the main process waits for the shards of the other ranks until the timeout;
    under plain DDP it works.
    Why: these functions collect the shards of all ranks, and then write on one rank by themselves.
    Instead: call them outside the condition; pass what they return to save_pretrained(state_dict=…) inside it.
    Source: https://huggingface.co/docs/accelerate/usage_guides/fsdp (saving and loading)
    """
    sharded = [c for c in script.methods("state_dict") if _is_sharded(script, c.node) or _is_collected(script, c.node)]
    lightning = script.called(*_LIGHTNINGS) if script.engines.lightning else []
    own = [c for c in script.calls_of("save_model") if _is_own_trainers(script, c)]
    collecting = [*script.called(*_COLLECTS), *lightning, *sharded, *own]
    yield from in_functions(script, collecting)
    for call in collecting:
        if not script.ranks.is_single(call.node):
            continue
        guard = script.ranks.guard(call.node)
        name = dotted(call.node.func) or call.name
        message = say("{name} runs on one process only: its function is called on one process", name=name)
        if guard is not None:
            message = say(
                "{name} runs on one process only: under the condition {test}", name=name, test=describe(guard)
            )
        fix = say("call {name} on every rank, outside the condition", name=name)
        yield Violation(message, Fix(message=fix), place=script.place(call.node))


def _is_own_trainers(script: Script, call: Call) -> bool:
    """Whether a method is called that a class inherits from transformers' Trainer."""
    if dotted(call.node.func) != "self.save_model":
        return False
    kind = next((a for a in script.tree.above(call.node) if isinstance(a, ast.ClassDef)), None)
    bases = [script.names.resolved(base) for base in kind.bases] if kind is not None else []
    return any(base.startswith(("transformers.", "trl.")) and base.endswith("Trainer") for base in bases)


@rule("TW765", level=Level.WARNING, field="script")
def one_rank_writes(script: Script) -> Violations:
    """Write files on one rank only, or to a path with the rank in it.

    Without it: N processes write the same file at the same time; a checkpoint may be a mixture of several, and a
    second os.mkdir fails with FileExistsError.
    Why: each process runs the whole script.
    Instead: write under `if accelerator.is_main_process:` or `if rank == 0:`, followed by a barrier.
    Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
    """
    if not (script.engines.several or _has_callback(script) or _runs_trainer(script)):
        return
    for call in script.calls_of(*_WRITES):
        path = _written(script, call)
        if path is None or not _trains(script, call.node) or _starts_ranks(script, call.node):
            continue
        open_site = next(_open_sites(script, call, path), None) if _knows_rank(script, call, path) else call.node
        if open_site is not None:
            yield violation(
                "{name} writes the same file on every rank",
                _guarded(script, open_site),
                name=dotted(open_site.func) or call.last,
                place=script.place(open_site),
            )


@rule("TW766", level=Level.WARNING, field="script")
def sharded_weights_are_saved_whole(script: Script) -> Violations:
    """Collect the full state of a sharded model and its optimizer before torch.save.

    Without it: under fully_shard and FSDP, the file of one rank has only that rank's shards; it cannot be loaded into
    an unsharded model. An optimizer's own state_dict() has this rank's shards only: with those of rank 0, a resume
    fails, or goes on with moments of other weights.
    Why: after fully_shard, model.state_dict() returns DTensors: each rank has 1/N of each weight, and of each moment.
    Instead: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) on every
    rank, then torch.save on rank 0; or torch.distributed.checkpoint.save.
    Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html; seen with torch 2.13
    """
    if script.engines.fsdp:
        yield from _sharded_optimizers(script)
    if not script.engines.fsdp or script.says(_WHOLE):
        return
    for call in script.called("torch.save"):
        fed = [n for value in call.node.args[:1] for n in script.names.feeding(value, call.node)]
        states = [n for n in fed if isinstance(n, ast.Call) and method(n) == "state_dict"]
        if any(_is_sharded(script, n) for n in states):
            yield violation(
                "this saves only the shards of this rank",
                remedy("collect the full state dict on every rank first: get_model_state_dict"),
                place=script.place(call.node),
            )


def _sharded_optimizers(script: Script) -> Violations:
    """The own state of an optimizer of a model that FSDP 1 shards, which one rank writes."""
    wraps = script.called("torch.distributed.fsdp.FullyShardedDataParallel")
    places = {_frame(script, c.node) for c in wraps}
    for call in script.methods("state_dict"):
        owner = call.node.func.value  # type: ignore[attr-defined]
        if _frame(script, call.node) not in places or script.engines.kind(owner) != "Optimizer":
            continue
        tests = " ".join(written(g.test) for g in script.tree.guards(call.node))
        if re.search(r"fsdp|shard|strategy", tests, re.IGNORECASE) or not _goes_to_one(script, call.node):
            continue
        yield violation(
            "{name} has only the shards of this rank: under FSDP, one rank cannot save all of it",
            remedy("collect it on every rank: FSDP.optim_state_dict(model, {name})", name=dotted(owner)),
            name=dotted(owner),
            place=script.place(call.node),
        )


def _frame(script: Script, node: ast.AST) -> ast.AST:
    """The class around a node, else its function."""
    kind = next((a for a in script.tree.above(node) if isinstance(a, ast.ClassDef)), None)
    return kind or script.tree.scope(node)


def _goes_to_one(script: Script, call: ast.Call) -> bool:
    """Whether one rank alone gets what a method returns."""
    if script.ranks.is_single(call):
        return True
    names = {one.name for one in script.names.bound_to(call)}
    scope = script.tree.scope(call)
    uses = [n for name in names for n in script.tree.mentions(name) if script.tree.scope(n) is scope]
    read = [n for n in uses if isinstance(n.ctx, ast.Load) and script.tree.is_before(call, n)]
    return any(script.ranks.own_guard(n) is not None for n in read)


@rule("TW767", level=Level.WARNING, field="script")
def resuming_restores_the_optimizer(script: Script) -> Violations:
    """A resumed training needs the states of optimizer and scheduler too, not only weights and epoch.

    Without it: AdamW starts again with empty moments, and the schedule with its warm-up: the loss jumps after each
    resume.
    Why: the optimizer's state is two thirds of the training state; the model's load_state_dict restores none of it.
    Instead: save and load optimizer.state_dict() and scheduler.state_dict(), and the random states; or use
    accelerator.save_state and load_state.
    Source: https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html (general checkpoint)
    """
    yield from _never_told(script)
    told = list(_saved_only(script))
    yield from told
    yield from _left_in_file(script, [one.place for one in told])
    yield from _left_by_booster(script)
    yield from _left_by_hooks(script)
    if not told:
        yield from _never_loaded(script)
    loads = [c for c in script.methods("load_state_dict") if c.node.args]
    updates = script.training.steps or any(b.by == "NativeScaler" for b in script.training.backwards)
    if not loads or not (updates or _trains_elsewhere(script)) or script.engines.colossalai:
        return
    progress = script.tree.each(_progress)
    resumed = [c for c in loads if _resumes(script, c, progress)]
    if not resumed:
        return
    if any(script.origins.called(c.node) is None for c in script.methods("load_state", "load_checkpoint")):
        return  # an engine's own, which restores everything
    given = [written(c.node).lower() for c in loads]
    made = script.makers("Optimizer")
    plain = made and all(c.name.endswith(".SGD") and _is_zero(c.keyword("momentum")) for c in made)
    missing = []
    if not any("optim" in text or "opt" in text.partition(".")[0] for text in given) and not plain:
        missing.append("optimizer")
    if _has_scheduler(script) and not any("sched" in text for text in given):
        missing.append("scheduler")
    if missing and not script.called(_RESTORES):
        yield violation(
            "the training continues at a later epoch or step, but not with the state of: {missing}",
            remedy("save and load the state_dict of: {missing}", missing=", ".join(missing)),
            missing=", ".join(missing),
            place=script.place(resumed[0].node),
        )


def _never_told(script: Script) -> Violations:
    """A Trainer that begins anew, although its script finds a checkpoint or is told of one."""
    trains = script.called("Trainer.train")
    given = [c.keyword("resume_from_checkpoint") for c in script.calls_with("resume_from_checkpoint")]
    found = script.called("transformers.get_last_checkpoint")
    asked = [n for n in script.tree.mentions("resume_from_checkpoint") if isinstance(n.ctx, ast.Load)]
    read = [n for n in asked if script.part(n) is script.parts[-1]]
    told = [value for value in given if value is not None and not isinstance(value, ast.Constant)]
    if len(trains) != 1 or trains[0].arguments or trains[0].has_spread() or not (told or found or read):
        return
    made = script.origins.makers(trains[0].node.func.value)  # type: ignore[attr-defined]
    surely = script.names.function("train") is None or any(script.engines.kind(m) == "Trainer" for m in made)
    if surely and not any("resume" in call.last for call in script.calls_like("resume")):
        yield violation(
            "the training starts anew: train() is not given the checkpoint, which the arguments alone do not load",
            remedy("call train(resume_from_checkpoint=…)"),
            place=script.place(trains[0].node),
        )


def _never_loaded(script: Script) -> Violations:
    """An optimizer whose state is saved, and that nothing loads, where the training begins at a later epoch."""
    if script.methods("load_state", "load_checkpoint") or script.called(_RESTORES) or not script.training.backwards:
        return
    saved = [c for c in script.methods("state_dict") if script.engines.kind(c.node.func.value) == "Optimizer"]  # type: ignore[attr-defined]
    written_out = [c for c in saved if any(dotted(a.func) == "torch.save" for a in _calls_around(script, c.node))]
    texts = [written(c.node).lower() for c in script.methods("load_state_dict")]
    given = [dotted(v).lower() for c in script.calls_like(_LOADS) for v in c.arguments]
    # What goes by another name than an optimizer's may be one.
    if not written_out or not texts or any("opt" in text for text in (*texts, *given)):
        return
    if any(_begins_later(script, loop) for loop in script.tree.of(ast.For) if script.training.within(loop)):
        name = dotted(written_out[0].node.func).rpartition(".")[0]
        yield violation(
            "{name} is saved, but not loaded again when the training continues",
            remedy("load it beside the other states: {name}.load_state_dict", name=name),
            name=name,
            place=script.place(written_out[0].node),
        )


def _calls_around(script: Script, node: ast.AST) -> list[ast.Call]:
    return [a for a in script.tree.inside(node) if isinstance(a, ast.Call)]


def _begins_later(script: Script, loop: ast.For) -> bool:
    """Whether a loop over epochs begins at a number that is computed: `range(starting_epoch, …)`."""
    begins = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and len(loop.iter.args) > 1 else None
    if begins is None or not isinstance(begins, ast.Name) or not _START.search(begins.id):
        return False
    return any(constant(a.value) is None for a in script.names.assigned(begins.id, begins))


def _saved_only(script: Script) -> Violations:
    """The state of an optimizer or a schedule that is saved, but not loaded beside the others that are."""
    states = [c for c in script.methods("state_dict") if isinstance(c.node.func, ast.Attribute)]
    # What a function is given, its callers may have loaded under any name.
    states = [
        c for c in states if dotted(c.node.func).split(".")[0] not in parameters(script.tree.scope(c.node)) - {"self"}
    ]
    kinds = [(c, script.engines.kind(c.node.func.value)) for c in states]  # type: ignore[attr-defined]
    trains = script.training.steps or any(b.by == "NativeScaler" for b in script.training.backwards)
    if not any(kind in _WORDS for _, kind in kinds) or not (trains or _trains_elsewhere(script)):
        return
    if script.has_attribute("load_state", "load_checkpoint"):
        return
    given = {dotted(v) for c in script.calls_like(_LOADS) for v in c.arguments if dotted(v)}
    given |= {dotted(c.node.func).rpartition(".")[0] for c in script.methods("load_state_dict")}
    yield from _one_not_loaded(script, [c for c, kind in kinds if kind == "Optimizer"], given)
    for wanted, words in _WORDS.items():
        saved = next((c for c, kind in kinds if kind == wanted), None)
        others = [other for kind, other in _WORDS.items() if kind != wanted]
        resumed = _loads_to_resume(script) or any(w.search(name) for w in (*others, _SCALER) for name in given)
        if saved is None or not resumed or any(words.search(name) for name in given):
            continue
        name = dotted(saved.node.func.value)  # type: ignore[attr-defined]
        if not script.origins.makers(saved.node.func.value):  # type: ignore[attr-defined]
            continue  # an object gets it from somewhere
        yield violation(
            "{name} is saved, but not loaded again when the training continues",
            remedy("load it beside the other states: {name}.load_state_dict", name=name),
            name=name,
            place=script.place(saved.node),
        )


def _left_in_file(script: Script, known: Sequence[Place | None]) -> Violations:
    """States that a checkpoint holds under a key of its own, which nothing reads, while others of the same are read."""
    saved = script.tree.each(_states)
    if not saved:
        return
    read = set().union(*(outline.once(_read_keys) for outline in script.tree.outlines))
    loads = script.calls_like(_LOADS)
    read |= {k.arg for c in loads for k in c.node.keywords if k.arg}
    given = {dotted(v) for c in loads for v in c.arguments}
    subscripted = script.tree.each(_subscripted)
    for group in saved:
        keys = {key for key, _ in group}
        by_key = any(key in subscripted and _OF_STATES[1].search(key) for key in keys)
        resumed = by_key or any(key in read and _OF_STATES[0].search(key) for key in keys)
        for key, state in group if resumed else ():
            owner = dotted(state.func).rpartition(".")[0]
            wanted = any(words.search(key) for words in _OF_STATES)
            place = script.place(state)
            if (
                wanted
                and key not in (subscripted if by_key else read)
                and place not in known
                and owner
                and owner not in given
            ):
                yield violation(
                    "{name} is saved, but not loaded again when the training continues",
                    remedy("load it beside the other states: {name}.load_state_dict", name=owner),
                    name=owner,
                    place=place,
                )


def _states(outline: Outline) -> list[list[tuple[str, ast.Call]]]:
    """The states that each dictionary of several of them holds, by their keys."""
    if "state_dict" not in outline.calls:
        return []
    groups = []
    for node in outline.of(ast.Dict):
        groups.append([(constant(k), v) for k, v in zip(node.keys, node.values, strict=True)])
    groups += [[(k.arg, k.value) for k in call.keywords] for call in outline.calls.get("dict", ())]
    found = [[(k, v) for k, v in g if isinstance(k, str) and method(v) == "state_dict"] for g in groups]
    return [group for group in found if len(group) > 1]


def _subscripted(outline: Outline) -> list[str]:
    """The keys that something is asked for: `file["key"]`, `file.get("key")`, `"key" in file`."""
    found = [constant(n.slice) for n in outline.of(ast.Subscript) if isinstance(n.ctx, ast.Load)]
    calls = [*outline.calls.get("get", ()), *outline.calls.get("pop", ())]
    found += [constant(call.args[0]) for call in calls if call.args]
    found += [constant(n.left) for n in outline.of(ast.Compare)]
    return [key for key in found if isinstance(key, str)]


def _read_keys(outline: Outline) -> set[str]:
    """The strings of a module other than the keys of what it writes, and its attributes."""
    stored = {id(k) for node in outline.of(ast.Dict) for k in node.keys}
    stored |= {id(n.slice) for n in outline.of(ast.Subscript) if isinstance(n.ctx, ast.Store)}
    texts = (n for n in outline.of(ast.Constant) if isinstance(n.value, str))
    attributes = {n.attr for n in outline.of(ast.Attribute) if isinstance(n.ctx, ast.Load)}
    return {n.value for n in texts if id(n) not in stored} | attributes


def _left_by_booster(script: Script) -> Violations:
    """Colossal-AI's booster that loads the model, but not the optimizer that it saved."""
    loads = script.called("Booster.load_model")
    saved = script.called("Booster.save_optimizer")
    if loads and saved and not script.called("Booster.load_optimizer"):
        yield violation(
            "{name} is saved, but not loaded again when the training continues",
            remedy("load it beside the other states: booster.load_optimizer"),
            name=dotted(saved[0].node.args[0]) if saved[0].node.args else "optimizer",
            place=script.place(loads[0].node),
        )


def _left_by_hooks(script: Script) -> Violations:
    """What a LightningModule puts into its checkpoint, but does not take out again."""
    for saving in (f for f in script.tree.functions if f.name == "on_save_checkpoint"):
        kind = script.tree.parent(saving)
        if not isinstance(kind, ast.ClassDef):
            continue
        loading = next((f for f in script.origins.methods(kind.name) if f.name == "on_load_checkpoint"), None)
        read = {n.value for n in walk(loading) if isinstance(n, ast.Constant)} if loading is not None else None
        for node in walk(saving):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
                continue
            key = constant(node.targets[0].slice)
            name = dotted(node.value.func).rpartition(".")[0] if isinstance(node.value, ast.Call) else ""
            state = method(node.value) == "state_dict" and name
            if read is not None and isinstance(key, str) and key not in read and state:
                yield violation(
                    "{name} is saved, but not loaded again when the training continues",
                    remedy("load it beside the other states: {name}.load_state_dict", name=name),
                    name=name,
                    place=script.place(loading or saving),
                )


def _one_not_loaded(script: Script, saved: Sequence[Call], given: set[str]) -> Violations:
    """Of several optimizers that are saved, one that is not loaded, while another is."""
    names = {dotted(c.node.func).rpartition(".")[0]: c for c in saved}
    loaded = {name for name in names if name in given}
    for name in sorted(names.keys() - loaded) if loaded else ():
        yield violation(
            "{name} is saved, but not loaded again when the training continues",
            remedy("load it beside the other states: {name}.load_state_dict", name=name),
            name=name,
            place=script.place(names[name].node),
        )


def _loads_to_resume(script: Script) -> bool:
    """Whether a file is loaded that is called one to resume from, in the function with the backward pass or beside."""
    loads = script.called("torch.load")
    return any("resume" in written(c.node).lower() for c in loads)


def _trains_elsewhere(script: Script) -> bool:
    """Whether a script makes an optimizer and gives it to functions that it calls epoch by epoch."""
    return bool(script.calls_like("^train(_one)?_epoch")) and bool(script.makers("Optimizer"))


def _open_sites(script: Script, call: Call, path: ast.expr) -> Iterator[ast.Call]:
    """Of the calls of a function that writes what it is given, those on every rank beside others on one."""
    function = script.tree.scope(call.node)
    sites = script.origins.sites(function)
    given = {n.id for n in script.names.feeding(path) if isinstance(n, ast.Name)} & parameters(function) - {"self"}
    if len(sites) < 2 or not given:
        return
    if script.ranks.names_rank(path) or _is_guarded(script, call.node) or _is_of_sample(script, path):
        return
    closed = [s for s in sites if _is_on_one(script, s, [argument(function, name, s) for name in given])]
    beside = {script.tree.scope(site) for site in closed if script.ranks.own_guard(site) is not None}
    for site in sites if beside else ():
        scope = script.tree.scope(site)
        hook = bool(script.origins.handed(scope))  # called by others
        # A class for one process may write everywhere; where one function asks and forgets, it forgot.
        if site not in closed and not hook and scope in beside and _trains(script, site):
            yield site


def _is_on_one(script: Script, site: ast.Call, given: Sequence[ast.expr | None]) -> bool:
    """Whether a rank's number or role decides if a call is made, or what path it is given."""
    around = (site, *_around(script, site, 3))
    return any(_is_guarded(script, one, near=one is site) for one in around) or any(
        script.ranks.names_rank(v) for v in given if v is not None
    )


def _guarded(script: Script, call: ast.Call) -> Fix:
    fix = remedy("put it under: if {condition}", condition=main_process(script, call))
    condition = main_rank(script, call)
    return edited(fix, under(script, call, condition) if condition else ())


def _is_collected(script: Script, call: ast.Call) -> bool:
    """Whether FSDP 1 collects what a method returns: `with FSDP.state_dict_type(model, …):`."""
    return any(
        isinstance(item.context_expr, ast.Call) and method(item.context_expr) == "state_dict_type"
        for block in script.tree.withs(call)
        for item in block.items
    )


def _is_sharded(script: Script, call: ast.Call) -> bool:
    """Whether a method belongs to a model that FSDP shards."""
    owner = dotted(call.func.value) if method(call) else ""  # type: ignore[attr-defined]
    if not owner:
        return False
    for other in script.called(_FULLY_SHARD, "torch.distributed.fsdp.FullyShardedDataParallel"):
        statement = script.tree.parent(other.node)
        if other.name == _FULLY_SHARD:
            names = [dotted(value) for value in other.node.args[:1]]
        elif isinstance(statement, ast.Assign):
            names = [dotted(target) for target in statement.targets]
        else:
            continue
        here = script.tree.scope(other.node) is script.tree.scope(call)
        if owner in names and (not here or script.tree.is_before(other.node, call)):
            return True
    return False


def _written(script: Script, call: Call) -> ast.expr | None:
    """The path that a call writes to, as a file that all ranks share."""
    if call.name == "torch.save" and len(call.node.args) > 1:
        made = [a.value for a in script.names.assigned(dotted(call.node.args[1]), call.node)]
        in_memory = any(isinstance(m, ast.Call) and dotted(m.func).rpartition(".")[2] == "BytesIO" for m in made)
        return None if in_memory else call.node.args[1]
    if call.name == "torch.save" and call.node.args and isinstance(call.node.args[0], ast.Starred):
        return call.node.args[0].value  # `torch.save(*args, **kwargs)`
    if call.name in ("safetensors.torch.save_file", "safetensors.torch.save_model"):
        return call.argument("filename", 1)
    if call.name in _LINKS and len(call.node.args) > 1:
        return None if _is_tried(script, call) else call.node.args[1]
    if call.name in _WRITERS or call.method in _WRITING_METHODS:
        return call.node.args[0] if call.node.args else None
    if call.name in ("os.mkdir", "os.makedirs") and call.node.args:
        loose = constant(call.keyword("exist_ok")) is True or call.keyword("exist_ok") is not None
        return None if loose or script.tree.guards(call.node) or _is_tried(script, call) else call.node.args[0]
    if call.method == "open" and call.last == "open" and constant(call.argument("mode", 0)) in _WRITING:
        opened = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
        return None if opened is None or dotted(opened) in script.names.imports else opened
    if call.name in _OPENS and any(constant(mode) in _WRITING for mode in _modes(call)):
        return call.node.args[0] if call.node.args else None
    folder = call.argument("save_directory", 0) if call.method == "save_pretrained" else None
    if folder is not None and call.keyword("is_main_process") is None:
        if dotted(call.node.func).startswith("self.save") and script.origins.called(call.node) is not None:
            return None  # a method of its own, which is looked at itself
        owner = dotted(call.node.func).lower()
        helper = any(word in owner for word in ("token", "processor", "config", "extractor"))
        return None if helper or call.keyword("save_function") is not None else folder
    return None


def _modes(call: Call) -> list[ast.expr]:
    """How a file is opened; of a choice, both ways."""
    mode = call.argument("mode", 1)
    return [mode.body, mode.orelse] if isinstance(mode, ast.IfExp) else [mode] if mode is not None else []


def _is_tried(script: Script, call: Call) -> bool:
    return any(isinstance(a, ast.Try) for a in script.tree.inside(call.node))


def _trains(script: Script, call: ast.Call) -> bool:
    """Whether a call is part of the training: in its function, in one that it calls, or in a callback of it."""
    scope = script.tree.scope(call)
    training = {script.tree.scope(b.call) for b in script.training.backwards}
    if _runs_trainer(script):
        training |= {script.tree.scope(call.node) for call in script.called("Trainer.train")}
    training |= {outer for one in training if isinstance(outer := script.tree.scope(one), Function)}
    for _ in range(_DEEP):
        training |= {script.tree.scope(site) for one in list(training) for site in script.origins.sites(one)}
    if scope in training:
        return True
    if any(script.tree.scope(site) in training for site in _around(script, call, 2, handed=False)):
        return True
    looping = {loop for b in script.training.backwards for loop in script.origins.loops(b.call)}
    saves = isinstance(scope, Function) and re.search(r"save|ckpt|checkpoint", scope.name)
    if saves and looping and not looping.isdisjoint(script.origins.loops(call, _DEEP + 1)):
        return True
    if isinstance(scope, Function) and scope.name in _OF_TRAINERS and _runs_trainer(script):
        return _is_of_trainer(script, scope)
    own = isinstance(scope, Function) and (scope.name.startswith("on_") or scope.name.endswith("_step"))
    return own and _callback(script, call) is not None


def _is_of_trainer(script: Script, function: ast.AST) -> bool:
    """Whether a function is a method of a subclass of transformers' Trainer."""
    kind = script.tree.parent(function)
    bases = [script.names.resolved(base) for base in kind.bases] if isinstance(kind, ast.ClassDef) else []
    return any(base.startswith(("transformers.", "trl.")) and base.endswith("Trainer") for base in bases)


def _runs_trainer(script: Script) -> bool:
    """Whether a Trainer trains, in a program that knows that it may have several ranks."""
    return bool(script.called("Trainer.train")) and script.parts[-1].says(_SEVERAL)


def _callback(script: Script, node: ast.AST) -> ast.ClassDef | None:
    kinds = [a for a in script.tree.above(node) if isinstance(a, ast.ClassDef)]
    return next((k for k in kinds if any(_is_callback(script, b) for b in k.bases)), None)


def _is_callback(script: Script, base: ast.expr) -> bool:
    name = script.names.resolved(base)
    return name.startswith(("transformers.", "lightning.", "pytorch_lightning.")) and name.endswith(
        ("Callback", "LightningModule")
    )


def _has_callback(script: Script) -> bool:
    return any(_is_callback(script, base) for kind in script.tree.of(ast.ClassDef) for base in kind.bases)


def _knows_rank(script: Script, call: Call, path: ast.expr) -> bool:
    """Whether a rank's number or role decides if or where something is written, here or where it is called."""
    if script.ranks.names_rank(path) or _is_guarded(script, call.node) or _is_of_sample(script, path):
        return True
    own = script.origins.sites(script.tree.scope(call.node))
    for site in _around(script, call.node, 3):
        given = [*site.args, *(k.value for k in site.keywords)] if site in own else []
        # Where the other branch makes the same call, all ranks come here.
        twins = [s for s in script.origins.sites(_called(script, site)) if script.tree.exclusive(s, site)]
        guarded = _is_guarded(script, site, near=site in own) and not any(_is_guarded(script, s) for s in twins)
        told = [v for v in given if script.ranks.is_rank(v) or script.ranks.is_main(v)]
        if guarded or any(_is_asked_for(script, v, call.node, site) for v in told):
            return True
    return False


def _is_asked_for(script: Script, value: ast.expr, node: ast.AST, site: ast.Call) -> bool:
    """Whether the function around a node reads what a call gives it."""
    function = script.tree.scope(node)
    names = {p for p in parameters(function) if argument(function, p, site) is value}
    read = {n.id for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return not names or not names.isdisjoint(read)


def _starts_ranks(script: Script, node: ast.AST) -> bool:
    """Whether one process comes here, which starts the ranks after it: `torch.multiprocessing.spawn(…)`."""
    scope = script.tree.scope(node)
    starts = [c for c in script.calls_of("spawn", "start_processes") if script.tree.scope(c.node) is scope]
    return any(script.tree.is_before(node, c.node) for c in starts)


def _called(script: Script, site: ast.Call) -> ast.AST:
    return script.origins.called(site) or script.tree.module


def _is_of_sample(script: Script, path: ast.expr) -> bool:
    """Whether a path is no file, or is that of one of the samples that a function is given."""
    if script.names.resolved(path) == "os.devnull":
        return True
    scope = script.tree.scope(path)
    given = parameters(scope)
    loops = [one for one in script.tree.loops(path) if isinstance(one, ast.For) and dotted(one.iter) in given]
    items = {n.id for one in loops for n in walk(one.target) if isinstance(n, ast.Name)}
    return any(isinstance(n, ast.Name) and n.id in items for n in walk(path))


def _around(script: Script, node: ast.AST, depth: int, *, handed: bool = True) -> Iterator[ast.Call]:
    """The calls that lead to a node, also those that are handed a function to call."""
    function = script.tree.scope(node)
    sites = script.origins.sites(function) if depth else []
    for site in sites or (script.origins.handed(function) if handed and depth else ()):
        yield site
        yield from _around(script, site, depth - 1, handed=handed)


def _is_guarded(script: Script, node: ast.AST, *, near: bool = True) -> bool:
    """Whether a condition, a with-block or a decorator about ranks lets only some of them get here.

    Far from what is written, a condition on several ranks as such is one on how the program is started.
    """
    guards = [g for g in script.tree.guards(node) if not g.raised]  # which ends the job, and lets no rank alone
    tests = [guard.test for guard in guards if "__name__" not in written(guard.test)]
    scope = script.tree.scope(node)
    marks = [dotted(d.func if isinstance(d, ast.Call) else d) for d in getattr(scope, "decorator_list", [])]
    if any("rank" in mark or "process" in mark for mark in marks):
        return True
    if script.ranks.is_single(node) or any(map(script.ranks.decides, tests)):
        return True
    if any(map(script.ranks.is_alone, guards)):
        return True
    words = " ".join(written(test) for test in tests).lower()
    if re.search(_ONE_WRITES, words) or (near and "distributed" in words):
        return True
    if isinstance(node, ast.Call) and not near and _HANDS_ON.search(dotted(node.func)):
        return True
    blocks = [item.context_expr for block in script.tree.withs(node) for item in block.items]
    return any("process" in written(b) or "rank" in written(b) for b in blocks) or _in_decorated(script, node)


def _in_decorated(script: Script, node: ast.AST) -> bool:
    functions = [a for a in script.tree.above(node) if isinstance(a, Function)]
    marks = [dotted(d.func if isinstance(d, ast.Call) else d) for f in functions for d in f.decorator_list]
    return any("rank" in mark or "process" in mark for mark in marks)


def _progress(outline: Outline) -> list[tuple[str, ast.AST]]:
    """The dictionaries that are asked how far a training came, and where."""
    kinds = outline.kinds
    told = [n for name, nodes in outline.attributes.items() if _PROGRESS.search(name) for n in nodes]
    asked: list[tuple[object, ast.expr, ast.AST]] = [
        *((constant(n.slice), n.value, n) for n in kinds[ast.Subscript] if isinstance(n.ctx, ast.Load)),
        *((n.attr, n.value, n) for n in told if isinstance(n.ctx, ast.Load) and not _is_called(n)),
    ]
    for call in outline.calls.get("get", ()):
        if isinstance(call.func, ast.Attribute) and call.args:
            asked.append((constant(call.args[0]), call.func.value, call))
    return [(dotted(base), node) for key, base, node in asked if isinstance(key, str) and _PROGRESS.search(key)]


def _is_called(node: ast.AST) -> bool:
    parent = node.__dict__["_parent"]
    return isinstance(parent, ast.Call) and parent.func is node


def _resumes(script: Script, call: Call, progress: Sequence[tuple[str, ast.AST]]) -> bool:
    """Whether a model is loaded from a file that also says how far the training came."""
    owner = dotted(call.node.func).lower()
    if any(word in owner for word in ("optim", "sched", "scaler", "ema")):
        return False
    source = call.node.args[0]
    if _starts_later(script, call):
        return True
    names = {n.id for n in script.names.feeding(source) if isinstance(n, ast.Name)}
    asked = [(base, node) for base, node in progress if base in names]
    return any(_is_loaded(script, base, node) and not _is_shown_only(script, node) for base, node in asked)


def _is_shown_only(script: Script, node: ast.AST) -> bool:
    """Whether a number goes nowhere but into what is printed: `print(f"weights of step {step}")`."""
    statement = script.tree.statement(node)
    if not isinstance(statement, ast.Assign):
        return _is_printed(script, node)
    named = [n for target in statement.targets for n in walk(target) if isinstance(n, ast.Name)]
    names = {n.id for n in named if len(named) == 1 or _PROGRESS.search(n.id)}
    scope = script.tree.scope(node)
    uses = [n for name in names for n in script.tree.mentions(name) if script.tree.scope(n) is scope]
    read = [n for n in uses if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return bool(read) and all(_is_printed(script, n) for n in read)


def _is_printed(script: Script, node: ast.AST) -> bool:
    calls = (a for a in script.tree.inside(node) if isinstance(a, ast.Call))
    return any(re.search(r"print|log|warn|info", dotted(call.func)) for call in calls)


def _starts_later(script: Script, call: Call) -> bool:
    """Whether the block that loads a model also says from which epoch or step the training goes on."""
    statement = script.tree.statement(call.node)
    parent = script.tree.parent(statement) if statement is not None else None
    source = call.node.args[0]
    stored = [n for n in _stores(script, call.node) if dotted(n.targets[0].value) == dotted(source)]  # type: ignore[attr-defined]
    loads = any(
        isinstance(n, ast.Call) and script.names.resolved(n.func) == "torch.load"
        for value in (source, *(n.value for n in stored))
        for n in script.names.feeding(value)
    )
    blocks = next((b for b in (parent.body, parent.orelse) if statement in b), []) if isinstance(parent, ast.If) else []
    blocks = blocks if loads else []
    within = [n for s in blocks for n in ([s] if isinstance(s, ast.Assign) else _branches(s))]
    assigned = [s for s in within if isinstance(s, ast.Assign) and not isinstance(s.value, ast.Constant)]
    return any(_START.search(dotted(target)) for s in assigned for target in s.targets)


def _branches(statement: ast.stmt) -> list[ast.stmt]:
    """The statements in the branches of a condition."""
    return [*statement.body, *statement.orelse] if isinstance(statement, ast.If) else []


def _stores(script: Script, node: ast.AST) -> list[ast.Assign]:
    """The statements beside a node that put something into a dictionary: `state[key] = value`."""
    scope = script.tree.scope(node)
    return [n for n in script.tree.each(_into_slots) if script.tree.scope(n) is scope]


def _into_slots(outline: Outline) -> list[ast.Assign]:
    return [n for n in outline.kinds[ast.Assign] if isinstance(n.targets[0], ast.Subscript)]


def _is_loaded(script: Script, name: str, at: ast.AST) -> bool:
    made = [a.value for a in script.names.assigned(name, at) if isinstance(a.value, ast.Call)]
    spread = [k.value for call in made for k in call.keywords if k.arg is None and dotted(k.value) != name]
    makers = [m for call in made for m in (call, *script.origins.makers(call)) if isinstance(m, ast.Call)]
    loads = any(script.names.resolved(maker.func) == "torch.load" for maker in makers)
    return loads or any(_is_loaded(script, dotted(value), at) for value in spread if dotted(value))


def _has_scheduler(script: Script) -> bool:
    made = [c for c in script.makers("Scheduler") if c.keyword("last_epoch") is None]  # which goes on where it is told
    return any(isinstance(script.tree.parent(c.node), ast.Assign) for c in made)


def _is_zero(value: ast.expr | None) -> bool:
    return value is None or constant(value) == 0
