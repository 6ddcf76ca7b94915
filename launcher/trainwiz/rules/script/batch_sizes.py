"""Batch sizes, accumulation and numbers of steps, which the number of ranks is a factor of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.script.samples import is_split
from trainwiz.rules.script.schedulers import horizons
from trainwiz.script import Script
from trainwiz.script.outline import Outline
from trainwiz.script.tree import constant, dotted, operates, walk

_LOADERS = ("torch.utils.data.DataLoader", "DataLoader")
_RANKS = re.compile(
    r"world|(num|n)_?(gpus?|devices?|processes|procs?|ranks|nodes|replicas)|nproc|ngpu|dp_(size|degree)|data_parallel|"
    r"device_count|replicas|nnodes",
    re.IGNORECASE,
)
"""In the names of a number of ranks."""
_OF_ALL = re.compile(
    r"(^|_)(global|total|effective|real)_(train_)?(batch|bs)|batch(_size)?_(global|total)$", re.IGNORECASE
)
"""In the names of what all ranks take together in an update."""
_ACCUMULATION = re.compile(r"accum|(^|_)gas$", re.IGNORECASE)
_STEPS = re.compile(
    r"(iter(ation)?s|steps|batches|updates)_(per|in|each)_epoch|^(num|n)_(batches|iters)$", re.IGNORECASE
)
_SAMPLES = re.compile(r"num_(train_)?(samples|examples)|n_samples|dataset_size|train_num_samples", re.IGNORECASE)
_NUMBERS = re.compile(r"^((num|n)_?(gpus?|devices?|processes|ranks)|ngpus?|world_size)$", re.IGNORECASE)
_LOADER = re.compile(r"loader|(^|_)dl$|batches", re.IGNORECASE)
_BATCHES = r"(?i)batch\w*sampler|loader"
"""Functions and classes that get the size of a batch."""
_STARTS = ("spawn", "start_processes")
"""What starts as many ranks as it is told."""
_TOLD = re.compile(r"init_process_group|Distributed\w*Sampler|Process$|run$")


@rule("TW787", level=Level.WARNING, field="script")
def ranks_are_counted_once(script: Script) -> Violations:
    """Batch sizes and numbers of steps must include the number of ranks exactly once.

    Without it: with N ranks, each update takes N times as many samples as meant, or the schedule ends after 1/N of the
    training, or N times too late; DeepSpeed stops with `Check batch related parameters`.
    Why: the real batch is micro-batch × accumulation × ranks. A DataLoader gets the micro-batch of one rank; with a
    DistributedSampler, len(loader) counts the batches of one rank, while len(dataset) counts the samples of all.
    Instead: divide a batch that all ranks share by the number of ranks, and leave len(loader) as it is.
    Source: nanoGPT's train.py (gradient_accumulation_steps //= ddp_world_size); DeepSpeed's `_batch_assertion`;
    https://docs.pytorch.org/docs/stable/data.html (DistributedSampler)
    """
    yield from _told_to_engine(script)
    if not script.engines.several or script.engines.accelerate or script.engines.lightning:
        return
    yield from _whole_batches(script)
    yield from _unshared(script)
    yield from _counted_twice(script)
    yield from _without_ranks(script)
    yield from _fixed(script)


def _whole_batches(script: Script) -> Violations:
    """Loaders of one rank that take the batch of all ranks."""
    for call in script.called(*_LOADERS):
        size = call.argument("batch_size", 1)
        whole = size is not None and (_OF_ALL.search(dotted(size).rpartition(".")[2]) or _is_of_all_ranks(script, size))
        if size is None or not whole or _says_ranks(script, size) or not _is_shared_out(script, call.node):
            continue
        yield violation(
            "every rank takes {size} samples at once: the real batch is as many times larger as there are ranks",
            remedy("divide it by the number of ranks: {size} // dist.get_world_size()", size=ast.unparse(size)),
            size=ast.unparse(size),
            place=script.place(size),
        )


def _is_of_all_ranks(script: Script, size: ast.expr) -> bool:
    """Whether the same name is divided by the number of ranks elsewhere in its function."""
    scope, name = script.tree.scope(size), dotted(size)
    divisions = [n for n in walk(scope) if operates(n, ast.Div, ast.FloorDiv)] if name else []
    mine = [n for n in divisions if dotted(n.left) == name]  # type: ignore[attr-defined]
    texts = [dotted(p.func if isinstance(p, ast.Call) else p) for n in mine for p in walk(n.right)]  # type: ignore[attr-defined]
    return any(map(_RANKS.search, texts))


def _is_shared_out(script: Script, loader: ast.Call) -> bool:
    """Whether a loader has a sampler that gives each rank a share."""
    samplers = [k.value for k in loader.keywords if k.arg == "sampler"]
    made = [m for sampler in samplers for m in script.origins.makers(sampler)]
    told = [k for m in made if isinstance(m, ast.Call) for k in m.keywords if k.arg == "num_replicas"]
    return bool(told) or any(script.engines.kind(m) == "DistributedSampler" for m in made)


def _told_to_engine(script: Script) -> Violations:
    """DeepSpeed's train_batch_size as a product of micro-batch and accumulation alone."""
    if not script.called("deepspeed.initialize", "deepspeed.init_distributed"):
        return
    for value in script.tree.each(_batches_of_updates):
        texts = [dotted(n) for n in script.names.feeding(value) if isinstance(n, ast.Name | ast.Attribute)]
        if any(map(_ACCUMULATION.search, texts)) and not any(map(_RANKS.search, texts)):
            yield violation(
                "train_batch_size leaves out the number of ranks: DeepSpeed stops with more than one",
                remedy("multiply it by dist.get_world_size(), or leave it out"),
                place=script.place(value),
            )


def _batches_of_updates(outline: Outline) -> list[ast.expr]:
    """The products that are stored as train_batch_size."""
    stored = [n for n in outline.of(ast.Subscript) if constant(n.slice) == "train_batch_size"]
    above = [n.__dict__["_parent"] for n in stored if isinstance(n.ctx, ast.Store)]
    found = [one.value for one in above if isinstance(one, ast.Assign)]
    for node in outline.of(ast.Dict):
        found += [v for k, v in zip(node.keys, node.values, strict=True) if constant(k) == "train_batch_size"]
    return [value for value in found if operates(value, ast.Mult)]


def _unshared(script: Script) -> Violations:
    """An accumulation or a number of steps that is computed as if there were one rank."""
    for name, value in script.tree.each(_divisions):
        division = next((n for n in walk(value) if operates(n, ast.Div, ast.FloorDiv)), None)
        if not isinstance(division, ast.BinOp) or _says_ranks(script, value) or _changes(script, name):
            continue
        left, last = division.left, name.rpartition(".")[2]
        if _ACCUMULATION.search(last) and _OF_ALL.search(dotted(left).rpartition(".")[2]):
            yield violation(
                "{name} leaves out the number of ranks: each update takes as many times more samples",
                remedy("divide by the number of ranks as well"),
                name=name,
                place=script.place(value),
            )
        elif _STEPS.search(last) and _is_of_all(left) and _is_given_to_loaders(script, division.right):
            yield violation(
                "{name} leaves out the number of ranks: an epoch of each rank has as many times fewer batches",
                remedy("divide by the number of ranks as well, or take len(loader)"),
                name=name,
                place=script.place(value),
            )


def _divisions(outline: Outline) -> list[tuple[str, ast.expr]]:
    """The values with a division that names like an accumulation or a number of steps get."""
    found = []
    for name, bindings in outline.bindings.items():
        last = name.rpartition(".")[2]
        if _ACCUMULATION.search(last) or _STEPS.search(last):
            values = [b.value for b in bindings if b.alone and isinstance(b.value, ast.expr)]
            found += [(name, v) for v in values if any(operates(n, ast.Div, ast.FloorDiv) for n in walk(v))]
    return found


def _is_of_all(value: ast.expr) -> bool:
    """Whether this is the number of samples of a whole dataset."""
    counted = isinstance(value, ast.Call) and dotted(value.func) == "len" and value.args
    return bool(counted) and "data" in dotted(value.args[0]) and not _LOADER.search(dotted(value.args[0]))  # type: ignore[attr-defined]


def _is_given_to_loaders(script: Script, size: ast.expr) -> bool:
    """Whether loaders that give each rank a share take batches of this size."""
    text = ast.unparse(size)
    given = [c for c in script.calls_like(_BATCHES) if any(ast.unparse(v) == text for v in c.arguments)]
    return bool(given) and bool(script.calls_like(r"Distributed\w*Sampler$"))


def _changes(script: Script, name: str) -> bool:
    """Whether a name is divided or multiplied by a number of ranks elsewhere: `accumulation //= world_size`."""
    last = name.rpartition(".")[2]
    changes = [n for n in script.tree.of(ast.AugAssign) if dotted(n.target).rpartition(".")[2] == last]
    return any(_says_ranks(script, n.value) for n in changes)


def _counted_twice(script: Script) -> Violations:
    """Totals of schedules that multiply the batches of one rank by the number of ranks."""
    for total in horizons(script):
        for node in script.names.feeding(total):
            if not operates(node, ast.Mult):
                continue
            lengths = [n for n in walk(node) if isinstance(n, ast.Call) and dotted(n.func) == "len" and n.args]
            shares = [n for n in lengths if dotted(n.args[0]) and is_split(script, n.args[0])]
            factors = [*_factors(node)]
            if shares and any(_RANKS.search(dotted(f)) or _asks_ranks(f) for f in factors):
                yield violation(
                    "{length} counts the batches of one rank: times the number of ranks, the schedule ends too late",
                    remedy("leave out the number of ranks"),
                    length=ast.unparse(shares[0]),
                    place=script.place(node),
                )
                return


def _without_ranks(script: Script) -> Violations:
    """Totals of schedules that divide the samples of all ranks by the batch of one: `num_samples // batch_size`."""
    for total in horizons(script):
        fed = [n for n in script.names.feeding(total) if isinstance(n, ast.expr)]
        texts = [dotted(n.func if isinstance(n, ast.Call) else n) for n in fed]
        if any(map(_RANKS.search, texts)):
            continue
        for node in fed:
            divided = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv)
            size = dotted(node.right) if divided else ""  # type: ignore[attr-defined]
            samples = divided and _SAMPLES.search(dotted(node.left).rpartition(".")[2])  # type: ignore[attr-defined]
            if samples and size and not _OF_ALL.search(size.rpartition(".")[2]) and _is_of_one_rank(script, size):
                yield violation(
                    "{total} leaves out the number of ranks: the schedule ends too late",
                    remedy("divide by the number of ranks as well"),
                    total=ast.unparse(node),
                    place=script.place(node),
                )
                return


def _is_of_one_rank(script: Script, size: str) -> bool:
    """Whether a batch size is multiplied by the number of ranks elsewhere, and so is that of one rank."""
    products = [n for n in script.tree.of(ast.BinOp) if isinstance(n.op, ast.Mult)]
    factors = [[*_factors(n)] for n in products]
    return any(
        any(dotted(f) == size for f in one) and any(_RANKS.search(dotted(f)) or _asks_ranks(f) for f in one)
        for one in factors
    )


def _factors(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    elif isinstance(node, ast.expr):
        yield node


def _asks_ranks(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _RANKS.search(dotted(node.func)) is not None


def _fixed(script: Script) -> Violations:
    """A number of ranks that is written down, and that something is computed with."""
    if script.calls_of(*_STARTS) or not script.training.backwards:
        return
    for name, value in script.tree.each(_written_numbers):
        known = script.names.all_of(name)
        uses = [n for n in script.tree.mentions(name) if isinstance(n.ctx, ast.Load)]
        computed = any(isinstance(script.tree.parent(n), ast.BinOp) for n in uses)
        told = any(_is_told(script, n) for n in uses)
        if len(known) == 1 and computed and not told and not script.tree.guards(known[0].node):
            yield violation(
                "the number of ranks is written as {number}: with another number, what is computed from it is wrong",
                remedy("ask for it: torch.distributed.get_world_size()"),
                number=constant(value),
                place=script.place(value),
            )


def _is_told(script: Script, node: ast.AST) -> bool:
    """Whether a number of ranks is what a process group or a sampler gets."""
    above = script.tree.parent(node)
    call = script.tree.parent(above) if isinstance(above, ast.keyword) else above
    return isinstance(call, ast.Call) and _TOLD.search(dotted(call.func)) is not None


def _written_numbers(outline: Outline) -> list[tuple[str, ast.expr]]:
    """The names of numbers of ranks that get a number above one."""
    names = [name for name in outline.bindings if "." not in name and _NUMBERS.search(name)]
    pairs = [(name, b.value) for name in names for b in outline.bindings[name] if b.alone]
    return [(n, v) for n, v in pairs if isinstance(v, ast.Constant) and type(v.value) is int and v.value > 1]


def _says_ranks(script: Script, value: ast.expr) -> bool:
    """Whether a number of ranks is in a value, or in what its names were assigned."""
    fed = (dotted(n) for n in script.names.feeding(value) if isinstance(n, ast.Name | ast.Attribute))
    return any(map(_RANKS.search, fed))
