"""Learning-rate schedules that advance too fast or end too early."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.outline import Outline
from trainwiz.script.training import counts_to_window
from trainwiz.script.tree import Loop, constant, dotted, opened, operates, walk, written

_PREPARES = ("Accelerator.prepare", "Accelerator.prepare_scheduler")
_TOTALS = {"num_training_steps": 2, "T_max": 1, "total_iters": 3, "total_steps": 2}
_MAX_STEPS = re.compile(r"(^|\.|_)(max|total|num|n)_(train(ing)?_)?(update_)?(steps|iters|iterations|updates)$")
_WORLD = re.compile(r"num_processes|world_size|num_gpus|n_gpus?|get_world_size")
_MICRO = re.compile(r"accum|grad_acc|gas$")
_WINDOWS = re.compile(r"accum|update_freq|(^|[._])gas$", re.IGNORECASE)
"""In the names of the number of micro-batches of an update."""
_RATES = re.compile(r"(^|_)(lr|learning_rate)(_|$)")
"""In the names of functions that compute a learning rate."""
_BATCHES = re.compile(r"len\(|step|iter|batch|update|size|sample|num_train|niter|total|max_t", re.IGNORECASE)
"""In what counts more than epochs."""
_PER_BATCH = re.compile(r"\blen\(\w*(loader|dl|dataloader|batches)\w*\)", re.IGNORECASE)
"""The number of batches of an epoch."""


@rule("TW726", level=Level.ERROR, field="script")
def prepared_schedules_count_all_ranks(script: Script) -> Violations:
    """The total steps of a prepared scheduler must count the steps of all processes.

    Without it: with N processes, the schedule ends after 1/N of the training, and the rest trains with a learning
    rate of 0 or below: a linear decay over 10 steps on 2 processes gave 0.8, 0.6, … 0.0, −0.2.
    Why: a prepared scheduler steps once per process at each update.
    Instead: set num_training_steps = updates × accelerator.num_processes; or take len(loader) × epochs before
    prepare; or do not prepare the scheduler, and step it only if accelerator.sync_gradients is true.
    Source: huggingface/accelerate issues 2926, 2142, 1382; seen with accelerate 1.15
    """
    if not script.called(*_PREPARES):
        return
    told = script.called("accelerate.Accelerator")
    if any(c.keyword("step_scheduler_with_optimizer") or c.keyword("split_batches") for c in told):
        return
    for name, call in _schedules(script):
        total = _total(call)
        if not _is_given_to_prepare(script, name):
            yield from _before_prepare(script, name, call)
            continue
        if total is None:
            continue
        if _divides_by_ranks(script, total) or (
            not _WORLD.search(_text(script, total)) and _counts_one_rank(script, total)
        ):
            yield violation(
                "the scheduler is prepared: with N processes it takes N steps per update, but {total} counts one "
                "per update",
                remedy("multiply the total (and the warm-up) by accelerator.num_processes"),
                total=written(total),
                place=script.place(total),
            )


def _before_prepare(script: Script, name: str, call: Call) -> Violations:
    """A schedule that is not prepared, but that counts the batches of a loader as they were before prepare."""
    total = call.keyword("steps_per_epoch") or _total(call)
    steps = [c for c in script.called("Scheduler.step") if dotted(c.node.func).rpartition(".")[0] == name]
    if total is None or not steps or _WORLD.search(_text(script, total)) or "self" in name:
        return
    for node in script.names.feeding(total):
        length = isinstance(node, ast.Call) and dotted(node.func) == "len" and node.args
        loader = dotted(node.args[0]) if length else ""  # type: ignore[attr-defined]
        prepared = [a for a in script.names.assigned(loader, node) if script.engines.prepares(a)] if loader else []
        here = [a for a in prepared if a.scope is script.tree.scope(node)]
        if here and all(script.tree.is_before(node, a.node) for a in here):
            yield violation(
                "{name} is not prepared, but {total} counts the batches before prepare: it ends N times too late on N "
                "processes",
                remedy("pass it to accelerator.prepare, or take len() after prepare"),
                name=name,
                total=ast.unparse(node),
                place=script.place(call.node),
            )
            return


@rule("TW727", level=Level.ERROR, field="script")
def schedules_count_updates(script: Script) -> Violations:
    """Step a schedule as often as it counts: once per update, or once per epoch.

    Without it: the learning rate reaches its final value after 1/n of the training, where n is the accumulation; a
    schedule over 30 epochs ends after 30 batches, and one over all batches hardly begins if it steps once per epoch.
    Why: scheduler.step() is next to the backward pass, while optimizer.step() is under a condition; or its total counts
    something else than its steps.
    Instead: step the scheduler where the optimizer steps; under accumulate(), prepare the scheduler too. Step one
    whose total is a number of epochs after each epoch.
    Source: huggingface/accelerate issues 2142, 1382
    """
    steps = script.called("Scheduler.step")
    totals = dict(_schedules(script)) if steps else {}
    yield from _beside_windows(script, steps, totals)
    yield from _of_another_unit(script, steps, totals)
    yield from _of_engine(script)
    for call in steps:
        name = dotted(call.node.func.value)  # type: ignore[attr-defined]
        made = totals.get(name)
        total = _total(made) if made else None
        loops = script.tree.loops(call.node)
        if not loops or total is None or not _counts_updates(script, total):
            continue
        if script.engines.is_prepared(call.node.func.value):  # type: ignore[attr-defined]
            continue
        guards = script.tree.guards(call.node, within=loops[0])
        windows = [w for w in script.training.windows if w.loop is loops[0]]
        if any(counts_to_window(w, g, script.training.expanded) for w in windows for g in guards):
            continue
        if guards and not windows:
            continue
        if windows or any(opened(block, "accumulate") for block in script.tree.withs(call.node)):
            yield violation(
                "the scheduler steps after every micro-batch, but its total {total} counts updates",
                remedy("step it under the same condition as the optimizer"),
                total=written(total),
                place=script.place(call.node),
            )


def _of_another_unit(script: Script, steps: Sequence[Call], totals: Mapping[str, Call]) -> Violations:
    """Schedules over epochs that step in each batch, and schedules over batches that step once per epoch."""
    turns = set(script.training.turns)
    for call in steps:
        owner = call.node.func.value  # type: ignore[attr-defined]
        total = _unit(script, owner, totals) if turns and not call.node.args and not call.node.keywords else None
        loops = script.origins.loops(call.node)
        if total is None or not loops or script.engines.is_prepared(owner):
            continue
        text = _whole(script, total)
        batches = _BATCHES.search(text) is not None
        if loops[0] in turns and _goes_over_batches(script, loops[0]) and "epoch" in text and not batches:
            if not _ends_epochs(script, call.node, loops[0]):
                yield violation(
                    "the scheduler steps after every batch, but its total {total} counts epochs",
                    remedy("step it once per epoch, after the loop over batches"),
                    total=written(total),
                    place=script.place(call.node),
                )
        elif loops[0] not in turns and _PER_BATCH.search(text) and _all_deeper(script, loops[0]):
            yield violation(
                "the scheduler steps once per epoch, but its total {total} counts updates",
                remedy("step it after each update of the optimizer"),
                total=written(total),
                place=script.place(call.node),
            )


def _of_engine(script: Script) -> Violations:
    """Schedules over epochs that DeepSpeed's engine gets, which steps them at every update."""
    engines = script.called("deepspeed.initialize")
    made = dict(_schedules(script)) if engines else {}
    for engine in engines:
        given = engine.keyword("lr_scheduler")
        total = _unit(script, given, made) if given is not None else None
        text = _whole(script, total) if total is not None else ""
        if total is not None and "epoch" in text and not _BATCHES.search(text):
            yield violation(
                "DeepSpeed's engine steps the scheduler at every update, but its total {total} counts epochs",
                remedy("multiply it by the updates per epoch, or keep the scheduler and step it after each epoch"),
                total=ast.unparse(total),
                place=script.place(total),
            )


def _unit(script: Script, owner: ast.expr, totals: Mapping[str, Call]) -> ast.expr | None:
    """What the schedule that steps counts up to: its total, or the steps of each of its epochs."""
    named = totals.get(dotted(owner))
    calls = [
        m for m in script.origins.makers(owner) if isinstance(m, ast.Call) and script.engines.kind(m) == "Scheduler"
    ]
    if named is not None and (not calls or named.node in calls):
        return named.keyword("steps_per_epoch") or _total(named)
    known = {call.node: call for call in script.makers("Scheduler")}
    found = [known[call] for call in calls if call in known]
    return (found[0].keyword("steps_per_epoch") or _total(found[0])) if len(found) == 1 else None


def _whole(script: Script, total: ast.expr) -> str:
    """A total as it is written, with what its names were assigned."""
    parts = [total, *(n for n in script.names.feeding(total) if isinstance(n, ast.expr))]
    return " ".join(dict.fromkeys(map(ast.unparse, parts)))


def _goes_over_batches(script: Script, loop: Loop) -> bool:
    """Whether a loop goes over a loader, and is none over epochs."""
    return (
        isinstance(loop, ast.For) and script.training.source(loop) is not None and "epoch" not in written(loop.target)
    )


def _ends_epochs(script: Script, node: ast.AST, loop: Loop) -> bool:
    """Whether a condition in the loop may hold once per epoch only."""
    guards = script.tree.guards(node, within=loop) if loop in script.tree.loops(node) else []
    return any("%" not in written(g.test) or "len(" in written(g.test) for g in guards)


def _all_deeper(script: Script, loop: Loop) -> bool:
    """Whether all updates are made in loops within this one."""
    around = [script.origins.loops(step) for step in script.training.steps]
    return bool(around) and all(loop in loops[1:] for loops in around)


def _beside_windows(script: Script, steps: Sequence[Call], totals: Mapping[str, Call]) -> Violations:
    """Schedules without a known total that step after every micro-batch, where the optimizer steps after several."""
    for call in steps:
        owner = call.node.func.value  # type: ignore[attr-defined]
        made = totals.get(dotted(owner))
        loops = script.tree.loops(call.node)
        unknown = made is None or _total(made) is None
        if not loops or not unknown or script.engines.is_prepared(owner) or call.node.args or call.node.keywords:
            continue
        windows = [w for w in script.training.windows if w.loop is loops[0] and constant(w.size) != 1]
        same = [w for w in windows if script.tree.scope(w.loop) is script.tree.scope(call.node)]
        guards = script.tree.guards(call.node, within=loops[0])
        if (
            same
            and all(g in script.tree.guards(same[0].step, within=loops[0]) for g in guards)
            and not any(counts_to_window(same[0], g, script.training.expanded) for g in guards)
        ):
            yield violation(
                "the scheduler steps after every micro-batch, but the optimizer steps after {size}",
                remedy("step it under the same condition as the optimizer"),
                size=written(same[0].size),
                place=script.place(call.node),
            )


@rule("TW786", level=Level.WARNING, field="script")
def schedules_end_with_the_training(script: Script) -> Violations:
    """A schedule that steps once per update must count updates, not micro-batches.

    Without it: with an accumulation of n, the training ends after 1/n of the schedule: the warm-up is n times longer
    than planned, and the learning rate hardly decays.
    Why: len(loader) counts micro-batches; DeepSpeed's engine, accelerate's prepared scheduler and a step under the
    optimizer's condition count updates.
    Instead: divide by the accumulation: epochs * len(loader) // gradient_accumulation_steps.
    Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation;
    https://deepspeed.readthedocs.io/en/latest/schedulers.html
    """
    stepped = script.calls_of("step", "initialize")
    for name, call in _schedules(script) if stepped else ():
        total = _total(call)
        size = _accumulated(script, name) if total is not None else ""
        if total is not None and size:
            yield from _counting_micro_batches(script, total, size)
    yield from _of_configuration(script)
    yield from _numbered_by_updates(script)
    yield from _by_hand(script)


def _numbered_by_updates(script: Script) -> Violations:
    """Steps per epoch that count micro-batches, held against a step that counts updates: `step = i // accumulation`."""
    for name, size in script.tree.each(_update_numbers):
        if indexed := list(_indexed_by_updates(script, name, size)):
            yield from indexed
            return
        for node in script.tree.mentions(name):
            above = script.tree.parent(node)
            if not isinstance(above, ast.Compare) or above.left is not node:
                continue
            most = above.comparators[0]
            given = script.origins.given(dotted(most), most) or [most]
            for total in given if dotted(most) else ():
                fed = [n for n in script.names.feeding(total) if isinstance(n, ast.expr)]
                lengths = [n for n in fed if isinstance(n, ast.Call) and dotted(n.func) == "len" and n.args]
                last = dotted(size).rpartition(".")[2]
                told = any(dotted(n).rpartition(".")[2] == last or _MICRO.search(dotted(n)) for n in fed)
                if lengths and not told:
                    yield violation(
                        "{total} counts micro-batches, but {name} counts updates: the schedule ends too late",
                        remedy("divide it by {size} as well", size=last),
                        total=written(total),
                        name=name,
                        place=script.place(lengths[0]),
                    )
                    return


def _indexed_by_updates(script: Script, name: str, size: ast.expr) -> Violations:
    """Learning rates of all steps that are made for micro-batches, and that a number of updates picks from."""
    for node in script.tree.of(ast.Subscript):
        index = node.slice
        if not isinstance(index, ast.Name) or not isinstance(node.ctx, ast.Load) or not dotted(node.value):
            continue
        fed = {n.id for n in script.names.feeding(index) if isinstance(n, ast.Name)}
        given = script.origins.given(dotted(node.value), node) or [node.value] if name in fed else []
        made = [a.value for one in given if dotted(one) for a in script.names.assigned(dotted(one), one)]
        for call in (m for m in made if isinstance(m, ast.Call) and "sched" in dotted(m.func)):
            values = (*call.args, *(k.value for k in call.keywords))
            lengths = [v for v in values if isinstance(v, ast.Call) and dotted(v.func) == "len" and v.args]
            texts = [written(v) for v in values]
            if lengths and not any(map(_WINDOWS.search, texts)):
                yield violation(
                    "{total} counts micro-batches, but {name} counts updates: the schedule ends too late",
                    remedy("divide it by {size} as well", size=written(size)),
                    total=written(lengths[0]),
                    name=name,
                    place=script.place(lengths[0]),
                )
                return


def _update_numbers(outline: Outline) -> list[tuple[str, ast.expr]]:
    """The names of numbers of updates: what is divided by an accumulation, rounded down."""
    found = []
    for name, bindings in outline.bindings.items():
        values = [b.value for b in bindings if b.alone and operates(b.value, ast.FloorDiv)]
        sizes = [v.right for v in values if isinstance(v, ast.BinOp) and _WINDOWS.search(dotted(v.right))]
        found += [(name, size) for size in sizes if "." not in name]
    return found


def _by_hand(script: Script) -> Violations:
    """Functions of a learning rate that count to the last micro-batch, and get a number of updates."""
    for function in (f for f in script.tree.functions if _RATES.search(f.name) and f.args.args):
        step = function.args.args[-1].arg if len(function.args.args) == 1 else ""
        ends = [n.comparators[0] for n in walk(function) if isinstance(n, ast.Compare) and dotted(n.left) == step != ""]
        totals = {dotted(n) for end in ends for n in script.names.feeding(end) if dotted(n)}
        for site in script.origins.sites(function):
            loop = next((one for one in script.tree.loops(site) if script.training.within(one)), None)
            given = site.args[0] if site.args else None
            if loop is None or given is None or not isinstance(given, ast.Name):
                continue
            if totals and _begins_anew(script, given.id, loop, site):
                yield violation(
                    "the schedule begins anew in each epoch: {call} gets the number of the batch within it",
                    remedy("add the batches of the epochs before: epoch * len(loader) + {name}", name=given.id),
                    call=dotted(site.func),
                    place=script.place(site),
                )
                continue
            windows = [w for w in script.training.windows if w.loop is loop]
            last = _ended_by(loop)
            if windows and last & totals and _advances_by_window(script, given.id, loop):
                yield violation(
                    "{call} gets a number of updates, but the schedule counts the micro-batches up to {total}",
                    remedy(
                        "pass the number of the micro-batch, or divide the totals by {size}",
                        size=written(windows[0].size),
                    ),
                    call=dotted(site.func),
                    total=sorted(last & totals)[0],
                    place=script.place(site),
                )


def _begins_anew(script: Script, name: str, loop: Loop, site: ast.Call) -> bool:
    """Whether a name is the counter of a loop over batches alone, and this loop is in one over epochs."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple) or not isinstance(loop.iter, ast.Call):
        return False
    counted = dotted(loop.iter.func) == "enumerate" and len(loop.iter.args) == 1
    around = [one for one in script.origins.loops(site) if one is not loop]
    epochs = [one for one in around if isinstance(one, ast.For) and "epoch" in written(one.target).lower()]
    changed = any(isinstance(n, ast.AugAssign) and dotted(n.target) == name for n in walk(loop))
    endless = any(isinstance(one, ast.While) for one in around)
    return counted and dotted(loop.target.elts[0]) == name and bool(epochs) and not changed and not endless


def _ended_by(loop: Loop) -> set[str]:
    """What ends a loop over micro-batches: `if i > max_iters: break`, `range(max_iters)`, `while i < max_iters`."""
    turns = {dotted(n) for n in walk(loop.target)} if isinstance(loop, ast.For) else set()
    found = set()
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range":
        found |= {dotted(value) for value in loop.iter.args}
    for node in walk(loop):
        stops = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break) and isinstance(node.test, ast.Compare)
        if stops and dotted(node.test.left) in turns:  # type: ignore[attr-defined]
            found.add(dotted(node.test.comparators[0]))  # type: ignore[attr-defined]
    return found - {""}


def _advances_by_window(script: Script, name: str, loop: Loop) -> bool:
    """Whether a counter advances at the end of windows only."""
    changes = [n for n in walk(loop) if isinstance(n, ast.AugAssign) and dotted(n.target) == name]
    windows = [w for w in script.training.windows if w.loop is loop]
    guards = [g for n in changes for g in script.tree.guards(n, within=loop)]
    return any(counts_to_window(w, g, script.training.expanded) for w in windows for g in guards)


def _of_configuration(script: Script) -> Violations:
    """The total of a schedule that DeepSpeed's configuration gets, where it counts micro-batches."""
    told = script.tree.mentions("gradient_accumulation_steps") if script.called("deepspeed.initialize") else []
    totals = script.tree.each(_told_totals) if told else []
    for total in totals:
        yield from _counting_micro_batches(script, total, ast.unparse(told[0]))
    for total in script.tree.each(_told_totals) if script.called("deepspeed.initialize") else ():
        fed = [n for n in script.names.feeding(total) if isinstance(n, ast.BinOp)]
        factors = [v for n in fed if operates(n, ast.Mult) for v in (n.left, n.right)]
        size = next((v for v in factors if _WINDOWS.search(dotted(v))), None)
        if size is not None and not any(operates(n, ast.Div, ast.FloorDiv) for n in fed):
            yield violation(
                "DeepSpeed's engine steps the scheduler once per update, but {total} counts micro-batches",
                remedy("leave out {size}", size=written(size)),
                total=written(total),
                place=script.place(total),
            )


def _told_totals(outline: Outline) -> list[ast.expr]:
    """What DeepSpeed's configuration gets as total_num_steps."""
    pairs = [pair for node in outline.of(ast.Dict) for pair in zip(node.keys, node.values, strict=True)]
    given = [value for key, value in pairs if constant(key) == "total_num_steps"]
    stored = [n for n in outline.of(ast.Subscript) if constant(n.slice) == "total_num_steps"]
    above = [n.__dict__["_parent"] for n in stored if isinstance(n.ctx, ast.Store)]
    return given + [one.value for one in above if isinstance(one, ast.Assign)]


def _counting_micro_batches(script: Script, total: ast.expr, size: str) -> Violations:
    nodes = list(script.names.feeding(total))
    lengths = [n for n in nodes if isinstance(n, ast.Call) and dotted(n.func) == "len" and n.args]
    loaders = [n for n in lengths if _is_trained_on(script, n.args[0])]
    counted = any(operates(n, ast.Div, ast.FloorDiv, ast.Mult) and _divides(n, size) for n in nodes)
    if loaders and not counted and not _WORLD.search(_text(script, total)):
        yield violation(
            "the scheduler steps once per update, but {total} counts micro-batches: it ends too late",
            remedy("divide the total (and the warm-up) by {size}", size=size),
            total=ast.unparse(total),
            place=script.place(total),
        )


def _divides(node: ast.AST, size: str) -> bool:
    """Whether a division or a product has to do with the accumulation, or with something that is not known."""
    parts = [n for n in (node.left, node.right) if not _is_count(n)]  # type: ignore[attr-defined]
    texts = [written(n) for n in parts]
    return any(size in text or _MICRO.search(text) or re.search("batch|dp|steps", text) for text in texts)


def _is_count(node: ast.expr) -> bool:
    """Whether this is the length of something, or a number of epochs."""
    return (isinstance(node, ast.Call) and dotted(node.func) == "len") or "epoch" in written(node)


def _is_trained_on(script: Script, value: ast.expr) -> bool:
    """Whether the training goes over this loader."""
    sources = [script.training.source(loop) for loop in script.training.turns]
    return any(one is not None and dotted(one) == dotted(value) != "" for one in sources)


def _accumulated(script: Script, name: str) -> str:
    """What a schedule's steps accumulate, where each is surely an update; empty: one micro-batch, or unknown."""
    if script.called("deepspeed.initialize"):
        given = [c.keyword("lr_scheduler") for c in script.called("deepspeed.initialize")]
        told = [n for o in script.tree.outlines for n in o.attributes.get("gradient_accumulation_steps", ())]
        owned = any(value is not None and dotted(value) == name for value in given)
        return written(told[0]) if owned and told and _is_told_to_engine(script) else ""
    steps = [c.node for c in script.called("Scheduler.step") if dotted(c.node.func).rpartition(".")[0] == name]
    for step in steps:
        loops = script.tree.loops(step)
        guards = script.tree.guards(step, within=loops[0]) if loops else []
        windows = [w for w in script.training.windows if loops and w.loop is loops[0] and constant(w.size) != 1]
        for window in windows:
            if any(counts_to_window(window, g, script.training.expanded) for g in guards):
                return written(window.size)
    return ""


def _is_told_to_engine(script: Script) -> bool:
    """Whether DeepSpeed's configuration gets an accumulation from the program."""
    return any("gradient_accumulation_steps" in part.text and "train_batch_size" in part.text for part in script.parts)


def horizons(script: Script) -> list[ast.expr]:
    """What the schedules count up to."""
    found = [_total(call) for _, call in _schedules(script)]
    return [total for total in found if total is not None]


def _schedules(script: Script) -> Iterator[tuple[str, Call]]:
    """Names of schedulers with the calls that created them."""
    made = [c for name in _TOTALS for c in script.calls_with(name)]
    known = script.makers("Scheduler")
    for call in [*known, *(c for c in made if c not in known and _is_named(script, c))]:
        statement = script.tree.parent(call.node)
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield dotted(target), call


def _is_named(script: Script, call: Call) -> bool:
    """Whether what a call makes is called a scheduler."""
    statement = script.tree.parent(call.node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(script.engines.kind(target) == "Scheduler" for target in targets)


def _total(call: Call) -> ast.expr | None:
    for name, position in _TOTALS.items():
        value = call.keyword(name)
        if value is not None:
            return value
        fits = (name == "num_training_steps" and "_with_warmup" in call.name) or (
            name == "T_max" and "Cosine" in call.name
        )
        if fits and len(call.node.args) > position:
            return call.node.args[position]
    return None


def _divides_by_ranks(script: Script, total: ast.expr) -> bool:
    """Whether a number of samples is divided by what all ranks see in an update, and never multiplied by the ranks."""
    nodes = list(script.names.feeding(total, past=lambda n: operates(n, ast.Div, ast.FloorDiv)))
    found = [n for n in nodes if operates(n, ast.Div, ast.FloorDiv)]
    divisions = [n for n in found if not script.tree.is_before(total, n)]  # and not what the name is for later
    names = " ".join(dotted(n) for n in nodes if isinstance(n, ast.Name | ast.Attribute))
    others = any(isinstance(n, ast.IfExp) for n in nodes)
    divisors = [n for division in divisions for n in walk(division.right)]  # type: ignore[attr-defined]
    plain = [n for n in divisors if isinstance(n, ast.Name)]
    made = [a.value for n in plain for a in script.names.assigned(n.id, n) if a.alone]
    by_ranks = any(_WORLD.search(written(n)) for n in (*divisors, *made) if isinstance(n, ast.expr))
    return bool(divisions) and by_ranks and not others and not _WORLD.search(names)


def _text(script: Script, value: ast.expr) -> str:
    names = [dotted(n) for n in script.names.feeding(value) if isinstance(n, ast.Name | ast.Attribute)]
    return " ".join(names)


def _counts_one_rank(script: Script, total: ast.expr) -> bool:
    """Whether the total certainly counts one process: a number of updates, or the length of a prepared loader."""
    nodes = list(script.names.feeding(total))
    lengths = [n for n in nodes if isinstance(n, ast.Call) and dotted(n.func) == "len" and n.args]
    if lengths:
        return all(_is_share(script, n.args[0]) for n in lengths)
    return bool(_MAX_STEPS.search(dotted(total)) or (isinstance(total, ast.Constant) and isinstance(total.value, int)))


def _is_share(script: Script, loader: ast.expr) -> bool:
    """Whether the loader was prepared above in the same function, so that its length is that of one process."""
    latest = script.names.latest(dotted(loader), loader)
    return latest is not None and script.engines.prepares(latest)


def _counts_updates(script: Script, total: ast.expr) -> bool:
    told = [written(one.value) for one in script.names.assigned(dotted(total), total)] if dotted(total) else []
    if "." in dotted(total) and _MAX_STEPS.search(dotted(total)) and not any("len(" in text for text in told):
        return True  # of what is read from an object, nothing feeds the object itself
    nodes = list(script.names.feeding(total))
    made = [n for n in nodes if isinstance(n, ast.BinOp)]
    divided = any(operates(n, ast.Div, ast.FloorDiv) and _MICRO.search(written(n.right)) for n in made)
    if any(operates(n, ast.Mult) and _MICRO.search(written(n)) for n in made):
        return False
    has_length = any(isinstance(n, ast.Call) and dotted(n.func) == "len" for n in nodes)
    return divided or (not has_length and bool(_MAX_STEPS.search(dotted(total))))


def _is_given_to_prepare(script: Script, name: str) -> bool:
    return any(dotted(value) == name for call in script.called(*_PREPARES) for value in call.node.args)
