"""What makes a resumed run differ: seeds, sample order, skipped batches."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trainwiz.engines.names import names
from trainwiz.finding import Edit, Level, Violations, edited, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.edits import at_start
from trainwiz.script.training import loop_source
from trainwiz.script.tree import Loop, constant, dotted, walk, written

_SEEDS = names(
    """
    accelerate.utils.set_seed numpy.random.seed random.seed torch.cuda.manual_seed torch.cuda.manual_seed_all
    torch.manual_seed transformers.enable_full_determinism transformers.set_seed
    """
)
_CLOCKS = names("datetime.datetime.now datetime.now os.getpid os.urandom time.time time.time_ns")
_RESTORES = names(
    """
    numpy.random.set_state random.setstate torch.cuda.set_rng_state torch.cuda.set_rng_state_all torch.set_rng_state
    """
)


@rule("TW750", level=Level.WARNING, field="script")
def samplers_know_the_epoch(script: Script) -> Violations:
    """Call DistributedSampler.set_epoch at the start of each epoch.

    Without it: every epoch has the same order, and a resumed run starts with the order of epoch 0 again.
    Why: the sampler's permutation is a function of (seed, epoch), and the epoch stays 0 unless it is set.
    Instead: call `sampler.set_epoch(epoch)` before `for batch in loader`.
    Source: https://docs.pytorch.org/docs/stable/data.html (DistributedSampler)
    """
    yield from _never_shuffled(script)
    yield from _told_the_same(script)
    epochs = any(len(script.origins.loops(b.call)) > 1 for b in script.training.backwards)
    sets = any(not c.node.args or constant(c.node.args[0]) is None for c in script.methods("set_epoch"))
    if not epochs or script.called("Accelerator.prepare") or sets:
        return
    for call in script.calls_like(r"Distributed\w*Sampler$"):
        shuffles = constant(call.keyword("shuffle")) is not False
        if shuffles and not _is_for_evaluation(script, call):
            yield violation(
                "set_epoch is never called: every epoch uses the same order",
                edited(remedy("call sampler.set_epoch(epoch) at the start of each epoch"), _told(script, call)),
                place=script.place(call.node),
            )


@rule("TW751", level=Level.WARNING, field="script")
def seeds_are_written_down(script: Script) -> Violations:
    """Use a seed that another run can reproduce, not the clock or a process id.

    Without it: a resumed run shuffles differently: some samples come twice and others never; ranks that choose
    their own seeds build different models and split different permutations.
    Why: a value that comes from the clock cannot be computed again.
    Instead: set one seed in the configuration, for all ranks.
    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for call in script.called(*_SEEDS):
        for node in (n for value in call.node.args for n in walk(_as_made(script, value))):
            if isinstance(node, ast.Call) and script.names.resolved(node.func) in _CLOCKS:
                yield violation(
                    "the seed comes from {source}: another run cannot reproduce it",
                    remedy("take the seed from the configuration"),
                    source=dotted(node.func),
                    place=script.place(call.node),
                )
                break


def _as_made(script: Script, value: ast.expr) -> ast.expr:
    """What a name was given just before, without a choice or a condition; else the value itself."""
    latest = script.names.latest(dotted(value), value) if isinstance(value, ast.Name) else None
    if latest is None or script.tree.guards(latest.node):
        return value
    chosen = any(isinstance(n, ast.IfExp | ast.BoolOp) for n in walk(latest.value))
    return value if chosen or not isinstance(latest.value, ast.expr) else latest.value


@rule("TW752", level=Level.WARNING, field="script")
def seeds_in_loops_move_on(script: Script) -> Violations:
    """A seed that is set inside the training loop must depend on the epoch or the update.

    Without it: every iteration draws the same dropout masks and the same augmentation; a resumed run repeats those
    from the start.
    Why: seeding with a constant resets the generator to the same state.
    Instead: seed once before the loop, or with (seed, epoch) or (seed, update).
    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for call in script.called(*_SEEDS):
        loops = script.tree.loops(call.node)
        training = [one for b in script.training.backwards for one in script.tree.loops(b.call)]
        inner = [loop for loop in loops if loop in training]
        if not inner or not call.node.args:
            continue
        stored = [n for loop in inner for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        parts = list(walk(call.node.args[0]))
        same = {n.id for n in parts if isinstance(n, ast.Name)}.isdisjoint(n.id for n in stored)
        computed = any(isinstance(n, ast.Call) for n in parts)
        if same and not computed and not script.tree.guards(call.node, within=inner[0]):
            yield violation(
                "the seed is the same in every iteration: the random numbers repeat",
                remedy("seed once before the loop, or add the epoch to the seed"),
                place=script.place(call.node),
            )


@rule("TW753", level=Level.WARNING, field="script")
def skipped_batches_have_the_same_order(script: Script) -> Violations:
    """If a resumed run skips batches, the loader must shuffle with a generator that can be seeded again.

    Without it: the resumed run shuffles in a different order: the samples it skips are not those that were seen,
    and some come twice in the epoch and others never.
    Why: shuffle=True uses torch's global generator, whose state at that point depends on everything before.
    Instead: use a generator seeded with (seed, epoch), or a sampler built from it; skipping is then exact.
    Source: https://docs.pytorch.org/docs/stable/data.html (generator); huggingface/accelerate issue 2016
    """
    if script.engines.accelerate or not _resumes(script):
        return
    for loop in script.training.loops:
        source = loop_source(loop)
        skips = [s for s in loop.body if isinstance(s, ast.If) and _only_continues(s) and "<" in written(s.test)]
        made = script.names.latest(dotted(source), source) if source is not None and dotted(source) else None
        if not skips or made is None or not isinstance(made.value, ast.Call):
            continue
        keywords = {k.arg: k.value for k in made.value.keywords}
        if constant(keywords.get("shuffle")) is True and not keywords.keys() & {
            "generator",
            "sampler",
            "batch_sampler",
            None,
        }:
            yield violation(
                "batches are skipped after the order was shuffled again",
                remedy("pass the DataLoader a generator seeded with the epoch"),
                place=script.place(skips[0]),
            )


@rule("TW754", level=Level.HINT, field="script")
def random_states_are_restored_last(script: Script) -> Violations:
    """Restore the random states after skipping batches, just before the training continues.

    Without it: the resumed run is not the same: of 6 runs resumed in mid-epoch, none was bitwise equal.
    Why: load_state restores the generators, but the data iterator and the skipped batches then draw from them.
    Instead: create the iterator, skip, then restore the random states; or save at the end of an epoch, where 2 of 2
    runs were equal.
    Source: counted with accelerate 1.15; huggingface/accelerate issue 2016 and pull request 4071
    """
    loads = script.called("Accelerator.load_state", *_RESTORES)
    skips = script.called("Accelerator.skip_first_batches", "accelerate.skip_first_batches")
    if not loads or not skips:
        return
    if all(script.tree.is_before(load.node, skip.node) for load in loads for skip in skips):
        yield violation(
            "the random states are restored before the batches are skipped, and skipping uses random numbers",
            remedy("skip the batches first and then restore the random states, or save between epochs"),
            place=script.place(skips[0].node),
        )


def _told(script: Script, call: Call) -> tuple[Edit, ...]:
    """The line that tells a sampler the epoch, where its name and the loop over epochs are in one function."""
    statement = script.tree.parent(call.node)
    name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    for backward in script.training.backwards:
        around = script.origins.loops(backward.call)
        loop = around[1] if len(around) > 1 else None
        here = loop is not None and script.tree.scope(loop) is script.tree.scope(call.node)
        if name and here and isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
            line = f"{name}.set_epoch({loop.target.id})"
            guards = [g for g in script.tree.guards(call.node) if constant(g.test) is not True]
            others = [a for a in script.names.assigned(name, call.node) if a.value is not call.node]
            if not guards and not others:
                return at_start(script, loop, line)
            if len(guards) == 1 and guards[0].positive and dotted(guards[0].test):  # another sampler has no epoch
                return at_start(script, loop, f"if {dotted(guards[0].test)}:", f"    {line}")
    return ()


def _told_the_same(script: Script) -> Violations:
    """Samplers that are told the same number in every turn of the loop over epochs."""
    for call in script.methods("set_epoch"):
        value = call.argument("epoch", 0)
        loops = script.tree.loops(call.node)
        epochs = [one for one in loops if script.training.within(one)]
        if value is None or not epochs or _is_for_evaluation(script, call):
            continue
        if _stays(script, value, loops):
            yield violation(
                "set_epoch gets {value} in every epoch: each uses the same order",
                remedy("pass the epoch that the loop counts"),
                value=written(value),
                place=script.place(call.node),
            )


def _stays(script: Script, value: ast.expr, loops: Sequence[Loop]) -> bool:
    """Whether a value is surely the same in all turns of the loops around it."""
    if constant(value) is not None:
        return True
    name = dotted(value)
    inside = [n for loop in loops for n in walk(loop) if isinstance(n, ast.Name | ast.Attribute)]
    changed = {dotted(n) for n in inside if isinstance(n.ctx, ast.Store)}
    if not name or name in changed:
        return False
    if any(isinstance(loop, ast.For) and any(dotted(n) == name for n in walk(loop.iter)) for loop in loops):
        return True  # where the loop begins or ends
    made = script.names.assigned(name, value) if "." not in name else []
    return bool(made) and all(one.scope is script.tree.scope(value) for one in made)


def _never_shuffled(script: Script) -> Violations:
    """Samplers of a training over several epochs that are told not to shuffle."""
    for loop in script.training.turns:
        source = loop_source(loop)
        backwards = script.training.within(loop)
        if source is None or not any(len(script.origins.loops(b.call)) > 1 for b in backwards):
            continue
        made = [m for m in script.origins.makers(source) if isinstance(m, ast.Call)]
        given = [k.value for m in made for k in m.keywords if k.arg == "sampler"]
        for sampler in (m for value in given for m in script.origins.makers(value) if isinstance(m, ast.Call)):
            told = next((k.value for k in sampler.keywords if k.arg == "shuffle"), None)
            if script.engines.kind(sampler) == "DistributedSampler" and constant(told) is False:
                yield violation(
                    "this sampler does not shuffle: every epoch uses the same order",
                    remedy("remove shuffle=False, and call set_epoch in each epoch"),
                    place=script.place(sampler),
                )


def _is_for_evaluation(script: Script, call: Call) -> bool:
    statement = script.tree.statement(call.node)
    text = written(statement).lower() if statement is not None else ""
    text += getattr(script.tree.scope(call.node), "name", "").lower()
    return any(word in text for word in ("eval", "val_", "_val", "valid", "test"))


def _resumes(script: Script) -> bool:
    ends = ("load_state_dict", "torch.load", "load_checkpoint")
    return any(call.name.endswith(ends) for call in script.calls_like("load(_state_dict|_checkpoint)?$"))


def _only_continues(statement: ast.If) -> bool:
    return isinstance(statement.body[-1], ast.Continue) and not statement.orelse
