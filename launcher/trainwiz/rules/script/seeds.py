"""Random numbers that must differ between the ranks."""

from __future__ import annotations

import ast

from trainwiz.engines.names import names
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.tree import Function, dotted

_SEEDS = names("torch.manual_seed torch.cuda.manual_seed torch.cuda.manual_seed_all")
_DRAWS = names(
    "torch.rand torch.rand_like torch.randn torch.randn_like torch.randint torch.randint_like torch.bernoulli"
)
_MIXES = ("Mixup", "MixUp", "CutMix")
_ASIDE = ("sample", "generate", "eval", "valid", "test", "plot", "init", "visual", "demo", "infer")
"""In the names of functions that are no part of a training step."""


@rule("TW792", level=Level.HINT, field="script")
def ranks_draw_different_noise(script: Script) -> Violations:
    """Where a training step draws random numbers, seed each rank differently.

    Without it: the ranks draw the same noise, timesteps, masks and mixup ratios in each update: a real batch of N ranks
    has the random numbers of one.
    Why: with the same seed, the generators of all ranks begin alike. Only the weights must begin alike, and DDP sends
    those of rank 0 to all ranks.
    Instead: torch.manual_seed(seed + rank) once the model is made, or before if DDP wraps it.
    Source: facebookresearch/DiT's train.py (seed = global_seed * world_size + rank); timm's train.py (random_seed(seed,
    rank))
    """
    if not script.engines.ddp or script.engines.accelerate or script.engines.lightning or not script.training.backwards:
        return
    seeds = [c for c in script.called(*_SEEDS) if c.node.args and _is_run(script, c)]
    if not seeds or any(script.ranks.mentions_rank(v) for c in seeds for v in _given(script, c)):
        return
    draws = [c for c in script.called(*_DRAWS) if _is_of_training(script, c)] or script.calls_of(*_MIXES)
    if draws:
        yield violation(
            "all ranks have the same seed, and draw the same random numbers in each update: line {line} of {file}",
            remedy("add the rank to the seed"),
            line=script.place(draws[0].node).line,
            file=script.place(draws[0].node).file,
            place=script.place(seeds[0].node),
        )


def _is_run(script: Script, call: Call) -> bool:
    """Whether the script makes this call: a module's own tests, and functions that nothing calls, are not run by it."""
    scope = script.tree.scope(call.node)
    if script.place(call.node).file == script.file:
        return True
    sites = script.origins.sites(scope) if isinstance(scope, Function) else []
    return any(script.place(s).file == script.file or isinstance(script.tree.scope(s), Function) for s in sites)


def _given(script: Script, call: Call) -> list[ast.expr]:
    """The seed; where a function of the project gets it, what its calls give."""
    seed = call.node.args[0]
    given = script.origins.given(dotted(seed), seed) if dotted(seed) else []
    return [seed, *given]


def _is_of_training(script: Script, call: Call) -> bool:
    """Whether random numbers are surely drawn in a training step: beside its backward pass, or in what it calls."""
    if call.keyword("generator") is not None or script.tree.without_gradient(call.node):
        return False
    function = script.tree.scope(call.node)
    if not isinstance(function, Function) or any(word in function.name for word in _ASIDE):
        return bool(script.tree.loops(call.node)[:1]) and script.tree.loops(call.node)[0] in script.training.turns
    turns = set(script.training.turns)
    here = {script.tree.scope(b.call) for b in script.training.backwards}
    beside = function in here and bool(turns.intersection(script.tree.loops(call.node)))
    return beside or not turns.isdisjoint(script.origins.loops(call.node))
