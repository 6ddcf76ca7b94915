"""What makes a resumed run another one: seeds, orders, skipped batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.training import loop_source
from trainwiz.script.tree import dotted

_SEEDS = (
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "random.seed",
    "numpy.random.seed",
    "accelerate.utils.set_seed",
    "transformers.set_seed",
    "transformers.trainer_utils.set_seed",
    "transformers.enable_full_determinism",
)
_CLOCKS = {"time.time", "time.time_ns", "os.getpid", "datetime.datetime.now", "datetime.now", "os.urandom"}
_RESTORES = (
    "torch.set_rng_state",
    "torch.random.set_rng_state",
    "torch.cuda.set_rng_state",
    "torch.cuda.set_rng_state_all",
    "random.setstate",
    "numpy.random.set_state",
)


@rule("TW750", level=Level.WARNING, field="script")
def samplers_know_the_epoch(script: Script) -> Iterator[Violation]:
    """DistributedSampler.set_epoch is called at the beginning of each epoch.

    Without it: every epoch has the same order, and a resumed run begins with the order of epoch 0 again.
    Why: the sampler's permutation is a function of (seed, epoch), and the epoch stays 0 unless it is set.
    Instead: `sampler.set_epoch(epoch)` before `for batch in loader`.
    Source: https://docs.pytorch.org/docs/stable/data.html (DistributedSampler)
    """
    if any(isinstance(c.node.func, ast.Attribute) and c.node.func.attr == "set_epoch" for c in script.calls):
        return
    if script.called("Accelerator.prepare") or not any(
        len(script.tree.loops(b.call)) > 1 for b in script.training.backwards
    ):
        return
    for call in script.calls:
        shuffle = call.keyword("shuffle")
        off = isinstance(shuffle, ast.Constant) and shuffle.value is False
        if call.name.endswith("DistributedSampler") and not off and not _is_for_evaluation(script, call):
            yield violation(
                "set_epoch is never called: every epoch has the same order",
                remedy("call sampler.set_epoch(epoch) at the beginning of each epoch"),
                place=script.place(call.node),
            )


@rule("TW751", level=Level.WARNING, field="script")
def seeds_are_written_down(script: Script) -> Iterator[Violation]:
    """A seed is a number that a second run knows too, not the clock or a process id.

    Without it: a resumed run shuffles differently, so some samples come twice and others never; ranks that seed by
    themselves build different models and split different permutations.
    Why: what is derived from the clock cannot be derived again.
    Instead: one seed from the configuration, for all ranks.
    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for call in script.called(*_SEEDS):
        for node in (n for value in call.node.args for n in ast.walk(value)):
            if isinstance(node, ast.Call) and script.names.resolved(node.func) in _CLOCKS:
                yield violation(
                    "the seed comes from {source}: no second run has it",
                    remedy("take the seed from the configuration"),
                    source=dotted(node.func),
                    place=script.place(call.node),
                )
                break


@rule("TW752", level=Level.WARNING, field="script")
def seeds_in_loops_move_on(script: Script) -> Iterator[Violation]:
    """A seed that is set inside of the training loop depends on epoch or update.

    Without it: every turn draws the same dropout masks and the same augmentation; a resumed run repeats those of the
    beginning.
    Why: seeding with a constant winds the generator back to the same point.
    Instead: seed once before the loop, or with (seed, epoch) or (seed, update).
    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for call in script.called(*_SEEDS):
        loops = script.tree.loops(call.node)
        training = [one for b in script.training.backwards for one in script.tree.loops(b.call)]
        inner = [loop for loop in loops if loop in training]
        if not inner or not call.node.args:
            continue
        moving = {
            n.id for loop in inner for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        names = {n.id for n in ast.walk(call.node.args[0]) if isinstance(n, ast.Name)}
        constant = not names & moving and not any(isinstance(n, ast.Call) for n in ast.walk(call.node.args[0]))
        if constant and not any(script.tree.guards(call.node, within=loop) for loop in inner[:1]):
            yield violation(
                "the same seed in every turn of the loop: the same random numbers each time",
                remedy("seed once before the loop, or add the epoch to the seed"),
                place=script.place(call.node),
            )


@rule("TW753", level=Level.WARNING, field="script")
def skipped_batches_have_the_same_order(script: Script) -> Iterator[Violation]:
    """A loader whose first batches are skipped at resume draws its order from a generator that can be set again.

    Without it: the resumed run shuffles anew; it skips other samples than those that were seen, so that some come twice
    in the epoch and others never.
    Why: shuffle=True draws from torch's global generator, whose state at that point depends on all that came before.
    Instead: a generator seeded with (seed, epoch), or a sampler made from it; then skipping is exact.
    Source: https://docs.pytorch.org/docs/stable/data.html (generator); huggingface/accelerate issue 2016
    """
    if script.engines.accelerate or not _resumes(script):
        return
    for loop in script.training.loops:
        source = loop_source(loop)
        skips = [s for s in loop.body if isinstance(s, ast.If) and _only_continues(s) and "<" in ast.unparse(s.test)]
        made = script.names.latest(dotted(source), source) if source is not None and dotted(source) else None
        if not skips or made is None or not isinstance(made.value, ast.Call):
            continue
        keywords = {k.arg: k.value for k in made.value.keywords}
        shuffle = keywords.get("shuffle")
        shuffles = isinstance(shuffle, ast.Constant) and shuffle.value is True
        if shuffles and not keywords.keys() & {"generator", "sampler", "batch_sampler", None}:
            yield violation(
                "batches are skipped in an order that is shuffled anew",
                remedy("give the DataLoader a generator that is seeded with the epoch"),
                place=script.place(skips[0]),
            )


@rule("TW754", level=Level.HINT, field="script")
def random_states_are_restored_last(script: Script) -> Iterator[Violation]:
    """The random states are restored after the batches were skipped, just before the training goes on.

    Without it: the resumed run is not the same one: of 6 runs resumed in mid-epoch none was bitwise equal.
    Why: load_state restores the generators; making the data iterator and skipping then draw from them.
    Instead: make the iterator, skip, then restore the random states; or save at the end of an epoch, where 2 of 2 runs
    were equal.
    Source: counted with accelerate 1.15; huggingface/accelerate issue 2016 and pull request 4071
    """
    loads = script.called("Accelerator.load_state", *_RESTORES)
    skips = script.called("Accelerator.skip_first_batches", "accelerate.skip_first_batches")
    if not loads or not skips:
        return
    if max(c.node.lineno for c in loads) < min(c.node.lineno for c in skips):
        yield violation(
            "the random states are restored before the batches are skipped, which draws from them",
            remedy("skip first and restore the random states after, or save between epochs"),
            place=script.place(skips[0].node),
        )


def _is_for_evaluation(script: Script, call: Call) -> bool:
    statement = script.tree.statement(call.node)
    text = ast.unparse(statement).lower() if statement is not None else ""
    return any(word in text for word in ("eval", "val_", "_val", "valid", "test"))


def _resumes(script: Script) -> bool:
    return any(c.name.endswith(("load_state_dict", "torch.load", "load_checkpoint")) for c in script.calls)


def _only_continues(statement: ast.If) -> bool:
    return isinstance(statement.body[-1], ast.Continue) and not statement.orelse
