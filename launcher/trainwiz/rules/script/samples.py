"""Which samples each rank sees, who prepares them, and whose scores are counted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.engines.names import names
from trainwiz.finding import Fix, Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.script.meters import one_left_out
from trainwiz.rules.script.own_shares import own_shares
from trainwiz.script import Script
from trainwiz.script.idioms import main_process_first, sum_over_ranks
from trainwiz.script.origins import argument
from trainwiz.script.training import drawn_from
from trainwiz.script.tree import Function, Loop, constant, dotted, method, opened, operates, walk, written

_LOADERS = ("torch.utils.data.DataLoader", "DataLoader", "torch_geometric.loader.DataLoader")
_SHARES = re.compile(r"sampler|shard|split_dataset|split_data|rank|world|num_replicas|Iterable|stream|webdataset", re.I)
_PRINTS = re.compile(r"print|log|warn", re.I)
_TOLD = re.compile(
    r"^((process_|dp_|data_parallel_|ddp_)?rank|shard(_id)?|num_replicas|num_shards|(ddp_)?world_size|num_processes)$"
)
_GRAPH_LOADERS = re.compile(r"^torch_geometric\.loader\.\w*Loader$")
_SEEDS_OF_GRAPHS = ("input_nodes", "edge_label_index")
"""What a loader of graphs draws its batches from; without it, from all nodes."""
_SHARES_OUT = re.compile(r"rank|world|replica|shard|dist", re.I)
_SEEDS = names("torch.manual_seed numpy.random.seed random.seed transformers.set_seed torch.cuda.manual_seed_all")
_DRAWS = names(
    """
    numpy.random.choice numpy.random.permutation numpy.random.randint random.choices random.randint random.randrange
    random.sample torch.randint torch.randperm
    """
)
_REDUCED = names("torch.mean torch.sum torch.stack torch.tensor torch.cat")
_ALL_NUMBERS = names("numpy.arange numpy.random.permutation range torch.arange torch.randperm")
_OWN_MADE = re.compile(r"replay|rollout|experience|data_buffer", re.I)
"""In the names of what a rank has made itself, as in reinforcement learning."""
_SEEDED = re.compile(
    r"manual_seed|seed_everything|set_seed|random\.seed|random_seed|setup_seed|(fix|init|seed)_\w*seed|seed_all"
)
"""What makes random numbers the same on all ranks."""
SEVERAL_RANKS = re.compile(
    r"is_(local_)?main_process|is_world_process_zero|main_process_first|\.world_size|process_index|deepspeed_config"
)
"""In the text of a Trainer's script that is meant for several ranks."""
_FIRST = re.compile(r"main_process_first|priority_execution|rank_zero_first|first")
_LOADS = names("datasets.load_dataset datasets.load_from_disk")
_RETURNS = 2
"""Functions of the project that a dataset is followed through."""
_LOGS = re.compile(r"(^|[._])log(s|ger|file|_file)?$", re.I)
"""What only the log is written to."""
_FILLS = ("append", "add", "extend", "insert", "push", "store")
_MOST_SHOWN = 40
"""Characters of what is logged."""
_RANDOM = names("torch.rand torch.randint torch.randn")
_GATHERS = re.compile(r"gather|reduce|broadcast|sync|compute|average|aggregate|(?<!para)meter$")
"""In the names of functions that may collect something from other ranks."""
_COMPUTES = re.compile(r"^(?!.*(gather|reduce|broadcast|sync)).*(compute|average|aggregate)", re.IGNORECASE)
"""In the names of functions that may collect something, or only compute it."""
_SCORES = re.compile(r"loss|correct|acc|hit|right|score|error|nll|eq|argmax|entropy|criterion|mse|bleu|f1", re.I)
_SIZE_NAMES = re.compile(r"step|iter|batch|count|idx|index|n_|num|time|seen|len", re.I)


@rule("TW744", level=Level.WARNING, field="script")
def ranks_see_different_samples(script: Script) -> Violations:
    """Under DDP, FSDP and DeepSpeed, each rank must get its own share of the samples.

    Without it: all ranks train on the same samples, or each goes through all of them: N GPUs are as fast as one, and
    each epoch is N epochs long.
    Why: only accelerate, Lightning and the Trainer split a plain DataLoader; DDP does not handle data. Random
    numbers that select samples are the same on all ranks with the same seed.
    Instead: use DataLoader(…, sampler=DistributedSampler(dataset)); if samples are drawn at random, use
    seed + rank as the seed.
    Source: https://docs.pytorch.org/docs/stable/data.html (DistributedSampler)
    """
    yield from _another_order(script)
    by_engine = script.engines.accelerate and (script.makers("Accelerator") or not script.engines.ddp)
    if script.called("Fabric.setup", "Fabric.setup_module") and not script.makers("Accelerator"):
        yield from _same_draws(script)  # what is drawn goes through no loader that Fabric could split
    if by_engine or script.engines.lightning or not script.engines.several:
        return
    for loop in dict.fromkeys((*script.training.turns, *script.training.drawing)):
        source = _source(script, loop)
        made = [m for m in script.origins.makers(source) if not _is_none(m)] if source is not None else []
        made = [inner for m in made for inner in _inside(script, m)]
        loaders = [m for m in made if isinstance(m, ast.Call) and script.names.resolved(m.func) in _LOADERS]
        if loaders and len(loaders) == len(made) and not any(_is_share(script, m) for m in loaders):
            yield violation(
                "every rank iterates over all samples: this loader has no DistributedSampler",
                remedy("add sampler=DistributedSampler(dataset), and remove shuffle"),
                place=script.place(loaders[0]),
            )
        yield from _one_share(script, [m for m in made if isinstance(m, ast.Call)])
    if not script.engines.accelerate:
        yield from _same_draws(script)
    yield from own_shares(script)
    for call in script.calls_like(r"Distributed\w*Sampler$"):
        seed = call.keyword("seed")
        if seed is not None and script.ranks.mentions_rank(seed):
            yield violation(
                "each rank shuffles in an order of its own: their shares overlap, and some samples are left out",
                remedy("use the same seed on all ranks; the sampler splits by rank itself"),
                place=script.place(seed),
            )
        rank, ranks = call.keyword("rank"), call.keyword("num_replicas")
        if type(constant(rank)) is int and ranks is not None and constant(ranks) is None and script.training.backwards:
            yield violation(
                "every rank reads the share of rank {rank}",
                remedy("pass rank=torch.distributed.get_rank(), or leave it out"),
                rank=constant(rank),
                place=script.place(call.node),
            )


def _another_order(script: Script) -> Violations:
    """Samples that each rank puts into an order of its own before they are split: their shares overlap."""
    trains = script.training.backwards or script.called("Trainer.train")
    if not trains or not (script.engines.several or _is_of_several(script)) or script.says(_SEEDED):
        return
    for call in [*script.methods("shuffle", "train_test_split"), *script.calls_of("random_split")]:
        if call.last == "random_split":
            drawn = call.name == "torch.utils.data.random_split" and call.argument("generator", 2) is None
        else:
            loads = _is_loaded(script, call.node.func.value)  # type: ignore[attr-defined]
            drawn = loads and call.keyword("seed") is None and not call.node.args and not call.has_spread()
        if drawn and not script.ranks.is_single(call.node):
            yield violation(
                "{call} draws another order on every rank: their shares overlap, and some samples are left out",
                remedy("pass a seed or a seeded generator, or set the same seed on all ranks before"),
                call=f"{dotted(call.node.func) or '.' + call.last}(…)",
                place=script.place(call.node),
            )


def _is_loaded(script: Script, dataset: ast.expr) -> bool:
    """Whether a dataset comes from the hub or the disk, here or in what the project's functions return."""
    waiting: list[tuple[ast.AST, int]] = [(dataset, _RETURNS)]
    while waiting:
        value, depth = waiting.pop()
        for call in (n for n in script.names.feeding(value) if isinstance(n, ast.Call)):
            if script.names.resolved(call.func) in _LOADS:
                return True
            function = script.origins.called(call) if depth else None
            waiting += [(one, depth - 1) for one in script.origins.returned(function)] if function is not None else []
    return False


def _is_of_several(script: Script) -> bool:
    """Whether a Trainer's script is meant for several ranks."""
    return bool(script.called("Trainer.train")) and script.says(SEVERAL_RANKS)


def _one_share(script: Script, made: list[ast.Call]) -> Violations:
    """Loaders that are told the same share on every rank, or that draw from all nodes of a graph."""
    for maker in made:
        own = script.origins.kind(script.names.resolved(maker.func)) is not None
        if own and _is_told_one(maker):
            yield violation(
                "every rank reads the same share of the data",
                remedy("pass the rank, and the number of ranks"),
                place=script.place(maker),
            )
        elif _GRAPH_LOADERS.search(script.names.resolved(maker.func)) and _draws_from_all(script, maker):
            yield violation(
                "every rank draws from all nodes of the graph",
                remedy("split the nodes by rank: nodes.split(…)[rank]"),
                place=script.place(maker),
            )


def _draws_from_all(script: Script, loader: ast.Call) -> bool:
    """Whether a loader of graphs surely is given the same nodes on every rank."""
    given = {k.arg: k.value for k in loader.keywords}
    drawn = [value for name, value in given.items() if name in _SEEDS_OF_GRAPHS]
    if not drawn or any(name and "sampler" in name for name in given):
        return False
    if any(isinstance(value, ast.Subscript) for value in drawn):
        return False  # of a dictionary, whose values may have been split before
    fed = [n for v in drawn for n in script.names.feeding(v, past=lambda n: method(n) in ("to", "cuda"))]
    words = {getattr(n, "id", "") or getattr(n, "attr", "") for n in fed}
    told = any(script.ranks.is_rank(n) or script.ranks.holds_rank(n) for n in fed)
    return not told and not any(_SHARES.search(word) for word in words if word)


@rule("TW745", level=Level.ERROR, field="script")
def samplers_shuffle_alone(script: Script) -> Violations:
    """A DataLoader with a sampler must not shuffle; the sampler does that.

    Without it: `ValueError: sampler option is mutually exclusive with shuffle`.
    Why: the sampler already decides the order.
    Instead: remove shuffle, and pass it to the sampler: DistributedSampler(dataset, shuffle=True).
    Source: https://docs.pytorch.org/docs/stable/data.html; seen with torch 2.13
    """
    for call in script.called(*_LOADERS):
        shuffle, sampler = call.keyword("shuffle"), call.argument("sampler", 3)
        known = [m for m in script.origins.makers(sampler) if isinstance(m, ast.Call)] if sampler is not None else []
        if constant(shuffle) is True and (known or isinstance(sampler, ast.Call)):
            yield violation(
                "this DataLoader has a sampler and shuffle=True, which exclude each other",
                remedy("remove shuffle=True"),
                place=script.place(shuffle or call.node),
            )


@rule("TW746", level=Level.HINT, field="script")
def data_is_processed_once(script: Script) -> Violations:
    """Process the dataset on one rank first, so that the others read its cache.

    Without it: every rank tokenizes the whole dataset; N ranks write the same cache, and compete for CPU and disk.
    Why: each process runs the whole script.
    Instead: with accelerator.main_process_first(): dataset = dataset.map(…); in a Trainer's script, use
    training_args.main_process_first().
    Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
    """
    by_trainer = _is_of_several(script)
    if not by_trainer and not (script.engines.several and script.training.backwards):
        return
    yield from _downloads(script)
    for call in script.methods("map"):
        if not (call.node.args or call.keyword("function")) or script.ranks.is_single(call.node):
            continue
        loads = _is_loaded(script, call.node.func.value)  # type: ignore[attr-defined]
        first = any(
            opened(block, word)
            for block in script.tree.withs(call.node)
            for word in ("main_process_first", "local_main_process_first")
        )
        waits = any(map(script.ranks.is_single, (c.node for c in script.methods("barrier", "wait_for_everyone"))))
        if loads and not first and not waits:
            yield violation(
                "every rank processes the whole dataset",
                _first_on_one(script, by_trainer=by_trainer),
                place=script.place(call.node),
            )


def _first_on_one(script: Script, *, by_trainer: bool) -> Fix:
    if block := main_process_first(script, by_trainer=by_trainer):
        return remedy("put it under: with {block}", block=block)
    return remedy("let the other ranks wait until rank 0 has done it: torch.distributed.barrier()")


def _downloads(script: Script) -> Violations:
    """Datasets that every rank downloads and unpacks into the same folder."""
    for call in script.calls_with("download"):
        value = call.keyword("download")
        if constant(value) is not True or not call.name.startswith("torchvision.datasets."):
            continue
        blocks = [i.context_expr for block in script.tree.withs(call.node) for i in block.items]
        first = any(isinstance(b, ast.Call) and _FIRST.search(method(b)) for b in blocks)
        waits = bool(script.methods("barrier", "wait_for_everyone", "block_all"))
        if not first and not waits and not script.ranks.is_single(call.node) and script.engines.several:
            yield violation(
                "every rank downloads the dataset into the same folder",
                remedy("download it on one rank first, and let the others wait at a barrier"),
                place=script.place(call.node),
            )


@rule("TW747", level=Level.WARNING, field="script")
def scores_cover_all_ranks(script: Script) -> Violations:
    """Add up counts over all ranks before computing a score from a split loader.

    Without it: the score covers only this rank's 1/N of the data; the main process prints its own, and each
    rank picks its own best checkpoint.
    Why: a prepared loader, or one with a DistributedSampler, gives each rank a share.
    Instead: sum with accelerator.reduce or dist.all_reduce, or collect with accelerator.gather_for_metrics.
    Source: https://huggingface.co/docs/accelerate/quicktour (distributed evaluation)
    """
    yield from _logged_by_one(script)
    if not script.engines.several:
        return
    yield from one_left_out(script)
    yield from _read_alone(script)
    yield from _never_summed(script)
    turns = set(script.training.turns)
    for loop in script.tree.of(ast.For):
        learns = loop in turns or script.training.within(loop)
        if (learns and not script.tree.without_gradient(loop)) or not _goes_over_share(script, loop):
            continue
        meter = _unsynchronized(script, loop)
        if meter is not None:
            yield violation(
                "{name} adds up only this rank's share of the data",
                remedy("sum it over all ranks: {how}", how=sum_over_ranks(script)),
                name=dotted(meter.func).rpartition(".")[0],
                place=script.place(meter),
            )
            continue
        sums = [n for n in walk(loop) if isinstance(n, ast.AugAssign) and _is_score(script, n, loop)]
        lists = [n for n in walk(loop) if _appends_score(script, n, loop)]
        kept = [*((n, n.target) for n in sums), *((n, n.func.value) for n in lists)]  # type: ignore[attr-defined]
        alone = [
            (n, name) for n, name in kept if not _is_combined(script, loop, _base(name)) and not _is_of_all(script, n)
        ]
        for node, name in alone[:1]:
            yield violation(
                "{name} adds up only this rank's share of the data",
                remedy("sum it over all ranks: {how}", how=sum_over_ranks(script)),
                name=written(name),
                place=script.place(node),
            )


def _never_summed(script: Script) -> Violations:
    """Tensors that are divided by the number of ranks, although nothing adds them up over the ranks."""
    for call in script.called("torch.distributed.get_world_size"):
        above = script.tree.parent(call.node)
        while operates(above or call.node, ast.Mult):
            above, inner = script.tree.parent(above or call.node), above
            if operates(above or call.node, ast.Div) and above.right is inner:  # type: ignore[union-attr]
                break
        if not isinstance(above, ast.BinOp) or not isinstance(above.op, ast.Div) or not dotted(above.left):
            continue
        function, name = script.tree.scope(call.node), dotted(above.left)
        made = [a for a in script.names.assigned(name, above) if a.scope is function and a.alone]
        tensors = [a for a in made if isinstance(a.value, ast.Call) and script.names.resolved(a.value.func) in _REDUCED]
        before = [a for a in tensors if script.tree.is_before(a.node, above)]
        given = [c for c in script.calls_given({name}) if script.tree.scope(c.node) is function]
        known = [c for c in given if not c.name.startswith("torch.") or "distributed" in c.name]
        if before and not known and isinstance(function, Function):
            yield violation(
                "{name} is divided by the number of ranks, but nothing has added it up over the ranks",
                remedy("call dist.all_reduce({name}) before", name=name),
                name=name,
                place=script.place(above),
            )


def _base(name: ast.expr) -> str:
    """The name of what is added to, also of one of its parts: `total` of `total[0] += …`."""
    return dotted(name.value if isinstance(name, ast.Subscript) else name)


def _read_alone(script: Script) -> Violations:
    """Averages over all batches that a function reads from the project's own meters, without asking the other ranks."""
    for read in _functions_reading(script):
        told = any(_synchronizes(n) for n in walk(read) if isinstance(n, ast.Call))
        for call in (n for n in walk(read) if isinstance(n, ast.Call) and not told):
            own = script.origins.kind(script.names.resolved(call.func))
            could = own is not None and any(_says_synchronized(f.name) for f in script.origins.methods(own.name))
            loops = [n for n in walk(read) if isinstance(n, ast.For)]
            split = any(n in script.training.turns or _goes_over_share(script, n) for n in loops)
            if could and split and isinstance(script.tree.parent(call), ast.Assign):
                yield violation(
                    "{name} adds up only this rank's share of the data",
                    remedy("sum it over all ranks: {how}", how=sum_over_ranks(script)),
                    name=dotted(script.tree.parent(call).targets[0]),  # type: ignore[union-attr]
                    place=script.place(call),
                )
                break


def _synchronizes(call: ast.Call) -> bool:
    return _says_synchronized(method(call)) and "cuda" not in dotted(call.func)


def _functions_reading(script: Script) -> list[Function]:
    """The functions that read the average over all batches of something."""
    found = dict.fromkeys(script.tree.scope(n) for n in script.tree.mentions("global_avg"))
    kept = [f for f in found if isinstance(f, Function)]
    return [f for f in kept if not isinstance(script.tree.parent(f), ast.ClassDef)]


def _picks(script: Script, call: ast.Call) -> bool:
    """Whether random numbers that are drawn in the training loop pick samples: they stand in brackets."""
    parent = script.tree.parent(call)
    names = [dotted(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []
    for loop in script.training.turns:
        if loop in script.tree.loops(call):
            indices = [n.slice for n in walk(loop) if isinstance(n, ast.Subscript)]
            return any(dotted(index) in names for index in indices if dotted(index))
    return False


def covers_a_share(script: Script, loop: ast.For) -> bool:
    """Whether a loop goes over one rank's share, and nothing in its function collects those of the others."""
    if not _goes_over_share(script, loop):
        return False
    scope = script.tree.scope(loop)
    around = [script.tree.scope(site) for site in script.origins.sites(scope)]
    return not any(_combines(script, each) for each in (scope, *around))


def _logged_by_one(script: Script) -> Violations:
    """Of the numbers that a LightningModule logs in its evaluation, those not averaged over ranks as others are."""
    lightning = script.engines.lightning
    logs = [c for c in script.methods("log", "log_dict") if lightning and dotted(c.node.func).startswith("self.log")]
    several = bool(logs) and _on_several(script)
    told = [c for c in logs if (v := c.keyword("sync_dist")) is not None and _may_hold(v)]
    synced = {a for c in told for a in script.tree.above(c.node) if isinstance(a, Function | ast.ClassDef)}
    for call in logs:
        function = script.tree.scope(call.node)
        evaluates = [function, *(script.tree.scope(site) for site in script.origins.sites(function))]
        called = any(re.search(r"^(validation|test)_", getattr(f, "name", "")) for f in evaluates)
        value = call.argument("value", 1) if call.method == "log" else call.argument("dictionary", 0)
        plain = value is not None and not _is_metrics(script, value) and call.keyword("sync_dist") is None
        beside = not synced.isdisjoint((function, *script.tree.above(function)))
        if not called or not plain or call.has_spread() or not (beside or several):
            continue
        others = remedy("add sync_dist=True, as in the other calls")
        yield violation(
            "{name} is logged for this rank's share of the data only",
            others if beside else remedy("add sync_dist=True, or log a metric of torchmetrics"),
            name=_shortened(written(call.node.args[0])) if call.node.args else "self.log",
            place=script.place(call.node),
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def _is_metrics(script: Script, value: ast.expr) -> bool:
    """Whether a logged value is an object that combines ranks itself, or what such an object computed."""
    if dotted(value).startswith("self."):
        return True
    calls = [n for n in script.names.feeding(value) if isinstance(n, ast.Call)]
    return any(method(n) == "compute" or _says_gathered(n) for n in calls)


def _on_several(script: Script) -> bool:
    """Whether a Trainer of Lightning is surely told to use several devices."""
    for call in (c for c in script.calls_of("Trainer") if "lightning" in c.name):
        strategy = constant(call.keyword("strategy"))
        devices = [call.keyword(name) for name in ("devices", "gpus", "num_nodes")]
        many = [v for v in devices if v is not None and _is_many(script, v)]
        if many or (isinstance(strategy, str) and re.search("ddp|fsdp|deepspeed", strategy)):
            return True
    return False


def _is_many(script: Script, value: ast.expr) -> bool:
    known = script.values.of(value)
    said = known.value if known is not None and not known.option else None
    if isinstance(value, ast.List | ast.Tuple):
        return len(value.elts) > 1
    return (type(said) is int and (said > 1 or said == -1)) or said in ("-1",)


def _may_hold(value: ast.expr) -> bool:
    return constant(value) is not False


def _goes_over_share(script: Script, loop: ast.For) -> bool:
    """Whether a loop goes over one rank's share, because its loader is split or because it leaves out the others'."""
    source = script.training.source(loop) or drawn_from(loop)
    if source is not None and dotted(source) and is_split(script, source):
        return True
    skips = [s for s in loop.body if isinstance(s, ast.If) and isinstance(s.body[-1], ast.Continue)]
    tests = [s.test for s in skips if isinstance(s.test, ast.Compare) and isinstance(s.test.ops[0], ast.NotEq)]
    return any(operates(t.left, ast.Mod) and script.ranks.is_rank(t.comparators[0]) for t in tests)


def _is_combined(script: Script, loop: ast.For, name: str) -> bool:
    """Whether a sum, under its name or the one that callers give it, goes into something that asks all ranks."""
    scope = script.tree.scope(loop)
    if not name or "." in name:
        return any(_combines(script, s) for s in (scope, *map(script.tree.scope, script.origins.sites(scope))))
    if _gathers_any(script, scope, {name}):
        return True
    for site in script.origins.sites(scope):
        if _gathers_any(script, script.tree.scope(site), _received(script, scope, site, name), site):
            return True
    return False


def _is_of_all(script: Script, node: ast.AST) -> bool:
    """Whether what is added was collected from all ranks before."""
    value = node.value if isinstance(node, ast.AugAssign) else node
    calls = (n for n in script.names.feeding(value, node) if isinstance(n, ast.Call) and n is not node)
    return any(_says_gathered(call) and "compute" not in dotted(call.func) for call in calls)


def _received(script: Script, function: ast.AST, site: ast.Call, name: str) -> set[str]:
    """The names that a caller gives to what a function returns of this one."""
    statement = script.tree.statement(site)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    found: set[str] = set()
    for value in (n.value for n in walk(function) if isinstance(n, ast.Return) and n.value is not None):
        for target in targets:
            whole = isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple)
            pairs = zip(value.elts, target.elts, strict=False) if whole else [(value, target)]  # type: ignore[attr-defined]
            for given, bound in pairs:
                if any(dotted(n) == name for n in script.names.feeding(given)):
                    found |= {n.id for n in walk(bound) if isinstance(n, ast.Name)}
    return found


def _gathers_any(script: Script, scope: ast.AST, names: set[str], result: ast.Call | None = None) -> bool:
    """Whether a call in a function collects one of these names, or a result, or does not say what it collects."""
    for call in _gathering(script, scope):
        given = [*call.args, *(k.value for k in call.keywords)]
        fed = [n for value in given for n in script.names.feeding(value)]
        if not given or any(n is result or dotted(n) in names for n in fed):
            return True
    return False


def _unsynchronized(script: Script, loop: ast.For) -> ast.Call | None:
    """The update of a meter that could add up over all ranks, in a class of the project, but is never told to."""
    for call in (n for n in walk(loop) if isinstance(n, ast.Call) and method(n) == "update"):
        owner = dotted(call.func.value)  # type: ignore[attr-defined]
        made = script.origins.makers(call.func.value) if owner else []  # type: ignore[attr-defined]
        kinds = [script.names.resolved(m.func) for m in made if isinstance(m, ast.Call)]
        methods = [f for kind in kinds for f in script.origins.methods(kind) if _says_synchronized(f.name)]
        # Where other meters are synchronized, this one was left out on purpose.
        if methods and not script.methods(*(f.name for f in methods)):
            return call
    return None


_SYNCHRONIZED = re.compile(r"synchroni[sz]e|all_?reduce|between_processes|across_(ranks|processes)")
"""In the names of methods that make a meter the same on all ranks."""


def _says_synchronized(name: str) -> bool:
    return _SYNCHRONIZED.search(name) is not None


def _source(script: Script, loop: Loop) -> ast.expr | None:
    source = script.training.source(loop) or drawn_from(loop)
    if source is not None and _only_counts(script, source):
        source = drawn_from(loop)
    return source if source is not None and dotted(source) else None


def _only_counts(script: Script, source: ast.expr) -> bool:
    """Whether what a loop goes over is only a range: `steps = range(n)`."""
    made = script.origins.makers(source) if dotted(source) else []
    return bool(made) and all(isinstance(m, ast.Call) and dotted(m.func) in ("range", "trange") for m in made)


def _inside(script: Script, maker: ast.expr) -> list[ast.expr]:
    """What makes the loader that an iterator of the project goes over: `Prefetcher(loader, device)`."""
    own = script.origins.kind(script.names.resolved(maker.func)) if isinstance(maker, ast.Call) else None
    if own is None or {f.name for f in script.origins.methods(own.name)}.isdisjoint(("__iter__", "__next__", "next")):
        return [maker]
    values = [*maker.args, *(k.value for k in maker.keywords)]  # type: ignore[attr-defined]
    made = [script.origins.makers(value) for value in values]
    loaders = [m for m in made if m and all(_is_torchs(script, one) for one in m)]
    return loaders[0] if len(loaders) == 1 else [maker]


def _is_torchs(script: Script, maker: ast.expr) -> bool:
    return isinstance(maker, ast.Call) and script.names.resolved(maker.func) in _LOADERS


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_share(script: Script, loader: ast.expr) -> bool:
    """Whether a loader may give each rank something of its own: a sampler, or anything about ranks in its data."""
    if not isinstance(loader, ast.Call):
        return True
    samplers = [k.value for k in loader.keywords if k.arg == "sampler"]
    unsaid = (None,) if not samplers else ()
    plain = [k for k in loader.keywords if k.arg == "batch_sampler" and _cuts_all(script, k.value)]
    told = [k for k in loader.keywords if k.arg in ("batch_sampler", *unsaid) and k not in plain]
    own = bool(told) or len(loader.args) > 3
    if own or any(not is_of_one_rank(script, sampler) for sampler in samplers):
        return True
    fed = [n for v in _data(loader) for n in script.names.feeding(v, past=_places) if not _places(n)]
    words = {n.id for n in fed if isinstance(n, ast.Name)} | {n.attr for n in fed if isinstance(n, ast.Attribute)}
    if any(_SHARES.search(word) or _OWN_MADE.search(word) for word in words):
        return True
    if any(isinstance(n, ast.keyword) and n.arg == "streaming" for n in fed):
        return True  # a stream, in which TW781 looks
    made = [_of_all_splits(m) for value in _data(loader) for m in script.origins.makers(value)]
    # A parameter, or something else that is not known; but what can be shuffled is not a stream that ranks share.
    if _data(loader) and not made:
        return not _shuffles(loader)
    for maker in made:
        if isinstance(maker, ast.Subscript) and _shuffles(loader):
            maker = ast.copy_location(ast.Call(maker.value, [maker.slice], []), maker)
        if not isinstance(maker, ast.Call) or any(_is_of_rank(script, value) for value in _given_data(maker)):
            return True
        kind = next((n for n in script.tree.of(ast.ClassDef) if n.name == dotted(maker.func)), None)
        if kind is not None and ((_says_shares(kind) and not _is_told_one(maker)) or _is_random(script, kind)):
            return True
        if kind is not None and any(f.name in _FILLS for f in script.origins.methods(kind.name)):
            return True  # a buffer of what the rank itself has made
        inside = [t for value in maker.args[:1] if dotted(value) for t in script.origins.makers(value)]
        if any(isinstance(t, ast.Call) and script.names.resolved(t.func) in _RANDOM for t in inside):
            return True
    return False


def _cuts_all(script: Script, value: ast.expr) -> bool:
    """Whether a batch sampler surely cuts the samples of all ranks into batches: it gets all their numbers."""
    made = script.origins.makers(value)
    if not made or not all(isinstance(m, ast.Call) and m.args for m in made):
        return False
    for maker in made:
        own = script.origins.kind(script.names.resolved(maker.func))  # type: ignore[attr-defined]
        plain = script.names.resolved(maker.func) == "torch.utils.data.BatchSampler"  # type: ignore[attr-defined]
        first = maker.args[0]  # type: ignore[attr-defined]
        fed = [n for one in (script.origins.makers(first) or [first]) for n in walk(one)]
        draws = any(isinstance(n, ast.Call) and script.names.resolved(n.func) in _ALL_NUMBERS for n in fed)
        told = any(script.ranks.is_rank(n) or _SHARES_OUT.search(getattr(n, "id", "") or "") for n in fed)
        chosen = any(isinstance(n, ast.IfExp | ast.BoolOp | ast.Subscript) for n in fed)
        if not (plain or (own is not None and not _says_shares(own, but="sampler"))) or not draws or told or chosen:
            return False
    return True


def _shuffles(loader: ast.Call) -> bool:
    """Whether a loader surely goes over all samples of a dataset in an order of its own."""
    return constant(next((k.value for k in loader.keywords if k.arg == "shuffle"), None)) is True


def _is_of_rank(script: Script, value: ast.expr) -> bool:
    """Whether the rank is among what a value is made from, and not only decides where that is logged."""
    fed = script.names.feeding(value, past=_places)
    return any(not _places(n) and (script.ranks.is_rank(n) or script.ranks.is_main(n)) for n in fed)


def _places(node: ast.AST) -> bool:
    """Whether this only says on which device something is, or where it is logged, which the rank decides."""
    if isinstance(node, ast.keyword):
        return node.arg == "device"
    return dotted(node) == "device" or _LOGS.search(dotted(node)) is not None


def _given_data(maker: ast.Call) -> list[ast.expr]:
    """What a dataset is made from, but not its device."""
    return [maker.func, *(v for v in (*maker.args, *(k.value for k in maker.keywords)) if dotted(v) != "device")]


def _of_all_splits(maker: ast.expr) -> ast.expr:
    """What makes all splits of a dataset of which one is taken: `load_dataset(name)["train"]`."""
    named = isinstance(maker, ast.Subscript) and isinstance(constant(maker.slice), str)
    return maker.value if named and isinstance(maker.value, ast.Call) else maker  # type: ignore[attr-defined]


def _is_told_one(maker: ast.Call) -> bool:
    """Whether a dataset is told to be the only one: `Rows(path, rank=0, num_replicas=1)`."""
    told = [k.value for k in maker.keywords if k.arg is not None and _TOLD.search(k.arg)]
    return len(told) > 1 and all(type(constant(value)) is int for value in told)


def _says_shares(kind: ast.ClassDef, but: str = "") -> bool:
    """Whether anything in a class has a name about shares or ranks, but those that only print on one."""
    for node in walk(kind):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None) or getattr(node, "arg", None)
        name = name or (node.name if isinstance(node, Function) else "")
        if name and _SHARES.search(name) and not _PRINTS.search(name) and not (but and but in name.lower()):
            return True
    return False


def is_of_one_rank(script: Script, sampler: ast.expr) -> bool:
    """Whether a sampler is surely none, or one that draws from all samples."""
    made = [sampler] if _is_none(sampler) else script.origins.makers(sampler)
    return bool(made) and all(_is_none(m) or (isinstance(m, ast.Call) and _knows_no_rank(script, m)) for m in made)


def _knows_no_rank(script: Script, call: ast.Call) -> bool:
    name = script.names.resolved(call.func)
    own = script.origins.kind(name)
    if own is not None and _is_told_one(call):
        return True
    if own is not None:
        given = [*call.args, *(k.value for k in call.keywords)]
        if is_not_told(script, own, call):
            return True
        return not _SHARES_OUT.search(written(own)) and not any(map(script.ranks.mentions_rank, given))
    return name in ("torch.utils.data.RandomSampler", "torch.utils.data.SequentialSampler")


def is_not_told(script: Script, own: ast.ClassDef, call: ast.Call) -> bool:
    """Whether a class of the project takes the first of one share, since it gets neither rank nor number of ranks."""
    made = next((f for f in script.origins.methods(own.name) if f.name == "__init__"), None)
    if made is None or any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
        return False
    arguments = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]
    defaults = [*made.args.defaults, *(d for d in made.args.kw_defaults if d is not None)]
    names = [a.arg for a in arguments if _TOLD.search(a.arg)]
    alone = {0, 1} <= {constant(d) for d in defaults if type(constant(d)) is int}
    return len(names) > 1 and alone and all(argument(made, name, call) is None for name in names)


def _data(loader: ast.Call) -> list[ast.expr]:
    return [*loader.args[:1], *(k.value for k in loader.keywords if k.arg == "dataset")]


def _is_random(script: Script, part: ast.AST) -> bool:
    """Whether samples are drawn, as benchmarks do: each rank draws its own."""
    return any(isinstance(n, ast.Call) and script.names.resolved(n.func) in _RANDOM for n in walk(part))


def _same_draws(script: Script) -> Violations:
    """Samples that are drawn at random with a seed that all ranks share, in a script without loaders."""
    seeds, draws = [c for c in script.called(*_SEEDS, "Fabric.seed_everything") if c.node.args], script.called(*_DRAWS)
    seeds = [c for c in seeds if getattr(script.tree.scope(c.node), "name", "") != "__enter__"]  # which __exit__ undoes
    if not seeds or not draws or script.called("deepspeed.initialize"):
        return
    if any(script.ranks.mentions_rank(c.node.args[0]) for c in seeds):
        return
    for call in draws:
        function = script.tree.scope(call.node)
        named = isinstance(function, Function) and re.search(r"batch|sample", function.name)
        drawn = named or _picks(script, call.node)
        generator = call.keyword("generator")
        if drawn and generator is None and not script.ranks.mentions_rank(call.node):
            if any("Loader" in c.name or "Sampler" in c.name for c in script.calls) or _cuts_by_rank(script):
                return
            yield violation(
                "all ranks draw the same samples: their seed is the same",
                remedy("add the rank to the seed"),
                place=script.place(seeds[0].node),
            )
            return


def _cuts_by_rank(script: Script) -> bool:
    """Whether each rank takes its part of what all have drawn: `batch[rank * n : (rank + 1) * n]`."""
    bounds = [b for cut in script.tree.of(ast.Slice) for b in (cut.lower, cut.step) if b is not None]
    return any(script.ranks.is_rank(n) for bound in bounds for n in script.names.feeding(bound))


def is_split(script: Script, source: ast.expr) -> bool:
    """Whether a loader certainly gives each rank a share."""
    if script.engines.is_prepared(source):
        return True
    made = [m for m in script.origins.makers(source) if not _is_none(m)]
    if made and all(isinstance(m, ast.Call) and _prepares(script, m) for m in made):
        return True
    loaders = [m for m in made if isinstance(m, ast.Call)]
    samplers = [k.value for m in loaders for k in m.keywords if k.arg == "sampler"]
    samplers += [value for m in loaders for value in _samplers_spread(script, m)]
    found = [m for s in samplers for m in script.origins.makers(s)]
    for sampler in (k.value for m in loaders for k in m.keywords if k.arg == "batch_sampler"):
        makers = [m for m in script.origins.makers(sampler) if isinstance(m, ast.Call)]  # BatchSampler(sampler, …)
        found += [one for m in makers for value in m.args[:1] for one in script.origins.makers(value)]
    told = [m for m in found if isinstance(m, ast.Call)]
    if any(_is_distributed(script, m) or _is_told_share(script, m) for m in told):
        return True
    return bool(made) and all(
        isinstance(m, ast.Call) and (_is_told_share(script, m) or _draws_from_a_share(script, m)) for m in made
    )


def _is_distributed(script: Script, call: ast.Call) -> bool:
    """Whether this makes torch's sampler for several ranks, or a copy of it in the project."""
    return script.engines.kind(call) == "DistributedSampler" or dotted(call.func) == "DistributedSampler"


def _samplers_spread(script: Script, loader: ast.Call) -> list[ast.expr]:
    """The samplers of a loader that come from a dictionary: `DataLoader(data, **kwargs)`."""
    names = [dotted(k.value) for k in loader.keywords if k.arg is None]
    values = [a.value for name in names if name for a in script.names.assigned(name, loader)]
    pairs = [p for d in values if isinstance(d, ast.Dict) for p in zip(d.keys, d.values, strict=True)]
    given = [k.value for c in values if isinstance(c, ast.Call) for k in c.keywords if k.arg == "sampler"]
    return [*(value for key, value in pairs if constant(key) == "sampler"), *given]


def _draws_from_a_share(script: Script, loader: ast.Call) -> bool:
    """Whether a loader of graphs is given the nodes of a rank."""
    if not _GRAPH_LOADERS.search(script.names.resolved(loader.func)):
        return False
    drawn = [k.value for k in loader.keywords if k.arg in _SEEDS_OF_GRAPHS]
    fed = (n for v in drawn for n in script.names.feeding(v, past=lambda n: method(n) in ("to", "cuda")))
    return any(script.ranks.is_rank(n) or script.ranks.holds_rank(n) for n in fed)


def _is_told_share(script: Script, call: ast.Call) -> bool:
    """Whether a loader of another kind is told which of how many shares is its own."""
    given = {k.arg: k.value for k in call.keywords if k.arg}
    own = script.origins.kind(script.names.resolved(call.func)) if call.args else None
    made = (
        next((f for f in script.origins.methods(own.name) if f.name == "__init__"), None) if own is not None else None
    )
    if made is not None:
        names = [a.arg for a in made.args.args]
        given |= {name: v for name in names if (v := argument(made, name, call)) is not None}
    ranks = [v for name, v in given.items() if re.search(r"rank|shard_id", name) and script.ranks.mentions_rank(v)]
    return bool(ranks) and any(re.search(r"world|num_shards|num_replicas|num_processes", name) for name in given)


def _prepares(script: Script, call: ast.Call) -> bool:
    if method(call) == "prepare_dataloader" and "plugin" in dotted(call.func):
        return script.engines.colossalai
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call
    return method(call) in ("prepare", "prepare_data_loader") and script.engines.kind(owner) == "Accelerator"


def _combines(script: Script, scope: ast.AST) -> bool:
    """Whether a function collects anything from other ranks, itself or in what it calls."""
    return any(True for _ in _gathering(script, scope))


def _gathering(script: Script, scope: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function that collect something from other ranks, themselves or in what they call."""
    if scope is script.tree.module:
        calls: Iterator[ast.Call] = (c.node for c in script.calls if script.tree.scope(c.node) is scope)
    else:
        calls = (n for n in walk(scope) if isinstance(n, ast.Call))
    for call in calls:
        function = script.origins.called(call)
        inside = walk(function) if function is not None and function is not scope else ()
        # A function of the project that is called an average says itself of what.
        named = () if function is not None and _COMPUTES.search(function.name) else (call,)
        if any(_says_gathered(n) for n in (*named, *inside) if isinstance(n, ast.Call)):
            yield call


def _says_gathered(call: ast.Call) -> bool:
    whole = dotted(call.func)
    if whole.startswith(("torch.", "np.", "numpy.", "statistics.")) and "distributed" not in whole:
        return False  # torch.gather picks from a tensor, torch.cuda.synchronize waits for the device
    return _GATHERS.search((method(call) or dotted(call.func)).lower()) is not None


def _appends_score(script: Script, node: ast.AST, loop: Loop) -> bool:
    """Whether a score of this loop's batch goes into a list that is averaged."""
    if (
        not isinstance(node, ast.Call)
        or method(node) not in ("append", "extend")
        or script.tree.scope(node) is not script.tree.scope(loop)
    ):
        return False
    name = dotted(node.func.value)  # type: ignore[attr-defined]
    means = ("sum", "numpy.mean", "statistics.mean", "statistics.fmean", "torch.stack", "torch.tensor", "torch.cat")
    by_name = [
        c for c in script.calls_like(r"(?i)(^|_)(mean|average|avg)$") if script.origins.called(c.node) is not None
    ]
    averaged = any(dotted(c.node.args[0]) == name for c in (*script.called(*means), *by_name) if c.node.args)
    return bool(name) and averaged and _SCORES.search(written(node)) is not None


def _is_score(script: Script, node: ast.AugAssign, loop: Loop) -> bool:
    """Whether a sum is of something that the model computed: its value comes from a call on this loop's batch."""
    if not isinstance(node.op, ast.Add) or script.tree.scope(node) is not script.tree.scope(loop):
        return False
    target = _base(node.target).rpartition(".")[2]
    if not target or constant(node.value) is not None:
        return False
    if _SIZE_NAMES.search(target) and not re.search(r"correct|loss|right|acc", target, re.I):
        return False
    return _SCORES.search(written(node)) is not None
