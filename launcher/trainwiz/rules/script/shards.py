"""Streams of samples, and samples that are split over the ranks twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.script.samples import is_not_told
from trainwiz.script import Call, Script
from trainwiz.script.training import drawn_from
from trainwiz.script.tree import constant, dotted, method, walk, written

_LOADERS = ("torch.utils.data.DataLoader", "DataLoader")
_ITERABLE = "IterableDataset"
_SHARES = re.compile(r"rank|world|shard|replica|node|num_process|process_index|split_by|random|shuffle|seed", re.I)
"""In a class of streams that may give each rank something of its own."""
_SHARES_STREAM = re.compile(r"rank|world|shard|replica|node|num_process|process_index|split_by", re.I)
"""The same in one that loads its stream from the hub, which shuffles it alike on all ranks."""
_SPLITS = re.compile(r"split_dataset_by_node|^shard$|split_by|IterableDatasetShard|prepare", re.I)
_BY_NODE = "split_dataset_by_node"
_EVALUATES = re.compile(r"eval|val_|_val|valid|test", re.IGNORECASE)
_GIVEN = ("train_dataset", "train_dataloader")


@rule("TW781", level=Level.WARNING, field="script")
def streams_are_split_by_rank(script: Script) -> Violations:
    """Under DDP, FSDP and DeepSpeed, split a stream of samples by rank before it goes into the DataLoader.

    Without it: every rank reads the whole stream: N GPUs train on the same samples, and are no faster than one.
    Why: a sampler cannot split an IterableDataset (which streaming=True returns), and a DataLoader does not. accelerate
    and the Trainer split it themselves.
    Instead: use datasets.distributed.split_dataset_by_node(dataset, rank, world_size); in a class of your own, yield
    every world_size-th sample, beginning with the rank's.
    Source: https://huggingface.co/docs/datasets/use_with_pytorch (distributed); huggingface/datasets issue 5360
    """
    by_engine = script.engines.accelerate and (script.makers("Accelerator") or not script.engines.ddp)
    fabric = script.called("Fabric.setup", "Fabric.setup_module")
    if by_engine or not script.engines.several:
        return
    yield from _untold(script)
    if script.engines.lightning and not fabric:
        return
    yield from _not_by_node(script)
    if script.engines.lightning:
        return
    for loop in dict.fromkeys((*script.training.turns, *script.training.drawing)):
        source = script.training.source(loop) or drawn_from(loop)
        made = script.origins.makers(source) if source is not None and dotted(source) else []
        for loader in (m for m in made if isinstance(m, ast.Call) and script.names.resolved(m.func) in _LOADERS):
            stream = _whole_stream(script, loader)
            if stream is not None:
                yield violation(
                    "every rank reads the whole stream of {name}",
                    remedy("split it by rank: split_dataset_by_node(dataset, rank=…, world_size=…)"),
                    name=dotted(stream.func),
                    place=script.place(loader),
                )


def _untold(script: Script) -> Violations:
    """Streams of a project's own that could be told rank and number of ranks, but take the whole by default."""
    for kind in script.tree.of(ast.ClassDef) if script.training.backwards else ():
        if not any(dotted(base).rpartition(".")[2] == _ITERABLE for base in kind.bases):
            continue
        for call in script.calls_of(kind.name):
            statement = script.tree.statement(call.node)
            tests = statement is not None and _EVALUATES.search(written(statement)) is not None
            own = script.origins.kind(script.names.resolved(call.node.func)) is kind
            if own and not tests and is_not_told(script, kind, call.node):
                yield violation(
                    "every rank reads the whole stream of {name}",
                    remedy("pass it the rank and the number of ranks"),
                    name=kind.name,
                    place=script.place(call.node),
                )


def _not_by_node(script: Script) -> Violations:
    """The samples of a training that are not split by rank, though those of an evaluation are."""
    splits = script.calls_of(_BY_NODE)
    split = {dotted(v) for c in splits for v in (*c.node.args[:1], c.keyword("dataset")) if v}
    scopes = {script.tree.scope(c.node) for c in splits}
    for loop in script.training.turns if split else ():
        source = script.training.source(loop)
        made = script.origins.makers(source) if source is not None and dotted(source) else []
        for loader in (m for m in made if isinstance(m, ast.Call) and "oader" in dotted(m.func)):
            data = next(
                (v for v in (*loader.args[:1], *(k.value for k in loader.keywords if k.arg == "dataset"))), None
            )
            name = dotted(data) if data is not None else ""
            fed = [n for n in script.names.feeding(data) if isinstance(n, ast.Call)] if data is not None else []
            told = any(k.arg in ("sampler", "batch_sampler") for k in loader.keywords)
            if (
                not name
                or name in split
                or told
                or script.tree.scope(loader) not in scopes
                or any(_SPLITS.search(dotted(n.func).rpartition(".")[2]) for n in fed)
            ):
                continue
            yield violation(
                "{name} is not split by rank, unlike {others}: every rank trains on the same samples",
                remedy("split it as well: split_dataset_by_node({name}, rank=…, world_size=…)", name=name),
                name=name,
                others=", ".join(sorted(split)),
                place=script.place(loader),
            )
            return


@rule("TW784", level=Level.ERROR, field="script")
def samples_are_split_once(script: Script) -> Violations:
    """Do not split samples by rank before accelerate or the Trainer, which split them themselves.

    Without it: each rank sees 1/N of its 1/N: of 16 samples on 2 ranks, 8 are never seen, and no message says so.
    Why: prepare distributes a loader's batches over the ranks, whatever its sampler is; from a stream, only the main
    process reads its part, and gives each rank a slice of it.
    Instead: pass the whole dataset and a plain DataLoader.
    Source: seen with accelerate 1.15 on two ranks; huggingface/datasets issue 5360
    """
    splits = script.calls_of(_BY_NODE, "DistributedSampler")
    for call, value in _prepared(script) if splits else ():
        for maker in script.origins.makers(value):
            split = _split_before(script, maker)
            if split is not None and not _excludes(script, maker, call):
                yield violation(
                    "{split} splits the samples by rank, and {engine} splits them again: most are never seen",
                    remedy("remove {split}; {engine} gives each rank its share", split=split, engine=dotted(call.func)),
                    split=split,
                    engine=dotted(call.func),
                    place=script.place(maker),
                )
                return


def _excludes(script: Script, maker: ast.AST, call: ast.Call) -> bool:
    """Whether one option leads to the split, and another to the engine: `if args.dist:`, `if args.use_accelerate:`."""
    first = [written(g.test) for g in script.tree.guards(maker) if g.positive]
    second = [written(g.test) for g in script.tree.guards(call) if g.positive]
    return any(re.search(r"dist|ddp", t) for t in first) and any(re.search(r"accelerat", t) for t in second)


def _prepared(script: Script) -> Iterator[tuple[ast.Call, ast.expr]]:
    """What accelerate or a Trainer gets as training data, with the call that does."""
    for call in script.called("Accelerator.prepare", "Accelerator.prepare_data_loader"):
        yield from ((call.node, value) for value in call.node.args if dotted(value) or isinstance(value, ast.Call))
    for call in script.makers("Trainer"):
        if _is_huggingfaces(script, call):
            given = (call.keyword(name) for name in _GIVEN)
            yield from ((call.node, value) for value in given if value is not None)


def _is_huggingfaces(script: Script, call: Call) -> bool:
    """Whether a trainer is one of transformers or TRL, by its name or as a class of the project."""
    names = [script.names.resolved(call.node.func)]
    own = script.origins.kind(names[0])
    names += [script.names.resolved(base) for base in own.bases] if own is not None else []
    overrides = own is not None and any("dataloader" in f.name for f in script.origins.methods(own.name))
    return not overrides and any(name.startswith(("transformers.", "trl.")) for name in names)


def _split_before(script: Script, maker: ast.AST) -> str | None:
    """What splits the samples of a loader or a dataset by rank; None if nothing surely does."""
    if not isinstance(maker, ast.Call):
        return None
    if method(maker) == _BY_NODE or dotted(maker.func) == _BY_NODE:
        return _BY_NODE
    if script.names.resolved(maker.func) not in _LOADERS:
        return None
    for keyword in maker.keywords:
        made = [m for m in script.origins.makers(keyword.value) if not _is_none(m)] if keyword.arg == "sampler" else []
        if made and all(script.engines.kind(m) == "DistributedSampler" for m in made):
            told = [k.value for m in made if isinstance(m, ast.Call) for k in m.keywords if k.arg == "num_replicas"]
            return None if any(constant(value) == 1 for value in told) else "DistributedSampler"
    for value in _data(maker):
        made = script.origins.makers(value)
        if made and all(isinstance(m, ast.Call) and dotted(m.func).endswith(_BY_NODE) for m in made):
            return _BY_NODE
    return None


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _whole_stream(script: Script, loader: ast.Call) -> ast.Call | None:
    """What makes the stream that a loader reads, if surely nothing splits it."""
    for value in _data(loader):
        fed = list(script.names.feeding(value))
        if any(_SPLITS.search(_last(n)) or script.ranks.is_rank(n) for n in fed):
            return None
        for maker in script.origins.makers(value):
            own = script.origins.kind(script.names.resolved(maker.func)) if isinstance(maker, ast.Call) else None
            if own is not None and isinstance(maker, ast.Call) and _is_whole(script, own):
                return maker
        for call in (n for n in fed if isinstance(n, ast.Call)):
            streams = any(k.arg == "streaming" and constant(k.value) is True for k in call.keywords)
            if streams and dotted(call.func).endswith("load_dataset"):
                return call
    return None


def _last(node: ast.AST) -> str:
    return dotted(node).rpartition(".")[2] if isinstance(node, ast.Name | ast.Attribute) else ""


def _is_whole(script: Script, kind: ast.ClassDef) -> bool:
    """Whether a class of the project is a stream in which nothing is said of ranks or chance."""
    streams = any(script.names.resolved(base).rpartition(".")[2] == _ITERABLE for base in kind.bases)
    words = (
        w for n in walk(kind) if (w := getattr(n, "id", None) or getattr(n, "attr", None) or getattr(n, "arg", ""))
    )
    loads = any(dotted(n.func).endswith("load_dataset") for n in walk(kind) if isinstance(n, ast.Call))
    shares = _SHARES_STREAM if loads else _SHARES
    said = any(isinstance(word, str) and shares.search(word) for word in words)
    makes = any(f.name == "__iter__" for f in script.origins.methods(kind.name))
    return streams and makes and not said


def _data(loader: ast.Call) -> list[ast.expr]:
    return [*loader.args[:1], *(k.value for k in loader.keywords if k.arg == "dataset")]
