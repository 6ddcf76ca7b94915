"""Which checkpoint is the newest, whether there always is one, and what code loading may run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.tree import constant, dotted, method, walk, written

_TIMES = {"getctime", "getmtime", "getatime", "st_mtime", "st_ctime"}
_LISTING_METHODS = ("glob", "iterdir", "rglob")
_LISTS = {"os.listdir", "os.scandir", "glob.glob", "glob.iglob"}
_LISTING = (*dict.fromkeys(name.rpartition(".")[2] for name in sorted(_LISTS)), *_LISTING_METHODS)
_CHECKPOINT = re.compile(r"checkpoint|ckpt|resume|step_|epoch_|snapshot", re.IGNORECASE)
_PADDED = re.compile(r":0\d+d?\}|%0\d+d|zfill|:0>\d+")
_SAVES = ("save_state", "save_pretrained", "save_model", "save_checkpoint", "save")


@rule("TW755", level=Level.WARNING, field="script")
def checkpoints_are_ordered_by_update(script: Script) -> Violations:
    """Find the newest checkpoint by its update number, not by the time of its folder.

    Without it: after copying, a touch or a clock change, another folder may have the latest time; it may also be a
    half-written folder left by a crash, or logs/; the run resumes from there or fails.
    Why: the time tells when something in a folder last changed, not what is in it.
    Instead: sort by the number: `key=lambda p: int(p.name.rsplit("-", 1)[1])`, and skip incomplete checkpoints.
    Source: accelerate's complete_nlp_example.py does it; after the clock was set back, transformers' Trainer
    deleted the checkpoint that it had just saved
    """
    for call, key in _sorts(script):
        names = {getattr(n, "attr", getattr(n, "id", "")) for n in walk(key)} if key is not None else set()
        if names & _TIMES and _is_about_checkpoints(script, call):
            fix = remedy("sort by the number in the name")
            yield violation("the checkpoint is selected by its folder's timestamp", fix, place=script.place(call.node))


@rule("TW756", level=Level.ERROR, field="script")
def numbers_are_ordered_as_numbers(script: Script) -> Violations:
    """Sort checkpoints by number, or pad the number in the name with zeros.

    Without it: checkpoint-900 comes after checkpoint-1000; a resumed run starts from an old checkpoint, and
    rotation deletes the newest.
    Why: names are compared character by character.
    Instead: use `key=lambda name: int(name.rsplit("-", 1)[1])`, or names like checkpoint-00001000.
    Source: https://docs.python.org/3/howto/sorting.html
    """
    lists = script.calls_of(*_LISTING)
    for call, key in _sorts(script) if lists else ():
        if key is not None or not _lists_checkpoints(script, call):
            continue
        if _is_picked_from(script, call) and not script.says(_PADDED):
            yield violation(
                "checkpoints are sorted by name: checkpoint-900 comes after checkpoint-1000",
                remedy("sort by the number in the name, or pad it with zeros"),
                place=script.place(call.node),
            )


@rule("TW757", level=Level.WARNING, field="script")
def the_old_checkpoint_outlives_the_new_one(script: Script) -> Violations:
    """Delete a checkpoint only after the next one is complete.

    Without it: a crash or a full disk while saving leaves nothing to resume from: of 40 runs with total_limit=1
    that were killed during saves, 34 had no loadable checkpoint left.
    Why: a save takes seconds to minutes, and this is when the disk fills up.
    Instead: write to a separate folder, rename it when it is complete, then delete the old one; keep at least 2.
    Source: counted with accelerate 1.15, which deletes before it writes
    """
    for call in script.calls_with("total_limit"):
        limit = call.keyword("total_limit")
        if limit is not None and constant(limit) == 1 and call.name.endswith("ProjectConfiguration"):
            yield violation(
                "total_limit=1: the only checkpoint is deleted before the next one is written",
                remedy("keep at least 2 checkpoints"),
                place=script.place(limit),
            )
    for call in script.called("shutil.rmtree"):
        if call.node.args and _is_written_next(script, call):
            yield violation(
                "{path} is deleted before its replacement is written",
                remedy("write to a temporary path, rename it, then delete the old one"),
                path=written(call.node.args[0]),
                place=script.place(call.node),
            )


@rule("TW758", level=Level.HINT, field="script")
def loading_runs_no_code(script: Script) -> Violations:
    """Call torch.load with weights_only=True.

    Without it: before torch 2.6, a file from someone else runs any code that it contains; since 2.6 the default is
    True, and a checkpoint with other objects fails with `Weights only load failed`.
    Why: torch's files are pickles, and unpickling calls whatever the file specifies.
    Instead: use torch.load(path, weights_only=True, map_location="cpu"), or safetensors; use weights_only=False
    only for your own files.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.load.html
    """
    for call in script.called("torch.load"):
        if call.keyword("weights_only") is None and not call.has_spread():
            yield violation(
                "without weights_only, code in the file may run, or torch 2.6 and newer may refuse to load it",
                remedy("add weights_only=True"),
                place=script.place(call.node),
            )


@rule("TW759", level=Level.HINT, field="script")
def remote_code_is_pinned(script: Script) -> Violations:
    """Use trust_remote_code=True only together with a revision.

    Without it: code from the hub runs on every rank, with access to your tokens and files; anyone who can write to
    that repository decides what runs tomorrow.
    Why: the newest commit is downloaded, not the one that you have read.
    Instead: remove it if transformers supports the model; if not, add revision="<the commit you read>".
    Source: https://huggingface.co/docs/transformers/custom_models (trust_remote_code)
    """
    for call in script.calls_with("trust_remote_code"):
        value = call.keyword("trust_remote_code")
        if value is not None and constant(value) is True and call.keyword("revision") is None:
            yield violation(
                "trust_remote_code=True runs any code that is in the repository at that time",
                remedy("remove it, or pin revision to a commit that you have read"),
                place=script.place(value),
            )


def _sorts(script: Script) -> Iterator[tuple[Call, ast.expr | None]]:
    """Calls that sort or take the maximum, with their key."""
    for call in script.calls_of("sort", "sorted", "max"):
        if call.method == "sort" or call.name in ("sorted", "max"):
            yield call, call.keyword("key")


def _is_about_checkpoints(script: Script, call: Call) -> bool:
    statement = script.tree.statement(call.node)
    scope = script.tree.scope(call.node)
    if statement is not None and _CHECKPOINT.search(written(statement)):
        return True
    if isinstance(scope, ast.FunctionDef) and _CHECKPOINT.search(scope.name):
        return True
    return any(_CHECKPOINT.search(written(g.test)) for g in script.tree.guards(call.node))


def _lists_checkpoints(script: Script, call: Call) -> bool:
    """Whether a call sorts the names of checkpoints in a folder listing as text."""
    what: ast.AST = call.node.args[0] if call.name in ("sorted", "max") and call.node.args else call.node
    if isinstance(call.node.func, ast.Attribute) and call.method == "sort":
        what = call.node.func.value
    nodes = list(script.names.feeding(what))
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    if not any(script.names.resolved(n.func) in _LISTS or method(n) in _LISTING_METHODS for n in calls):
        return False
    converts = any(dotted(n.func) == "int" for n in calls)
    texts = [text for n in nodes if isinstance(text := constant(n), str)]
    return not converts and any(map(_CHECKPOINT.search, texts))


def _is_picked_from(script: Script, call: Call) -> bool:
    """Whether the order matters: something is taken from the result by its position."""
    if call.name == "max":
        return True
    parent = script.tree.parent(call.node)
    if isinstance(parent, ast.Subscript):
        return True
    names = [dotted(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []
    if isinstance(call.node.func, ast.Attribute):
        names = [dotted(call.node.func.value)]
    picked = [n.value for n in script.tree.of(ast.Subscript)]
    picked += [c.node.func.value for c in script.methods("pop") if isinstance(c.node.func, ast.Attribute)]
    return any(dotted(value) in names for value in picked if dotted(value))


def _is_written_next(script: Script, call: Call) -> bool:
    """Whether what is deleted here is written again below, without a rename."""
    path, scope = written(call.node.args[0]), script.tree.scope(call.node)
    if not _CHECKPOINT.search(path) and not _is_about_checkpoints(script, call):
        return False
    if any(script.tree.scope(other.node) is scope for other in script.methods("rename", "replace", "move")):
        return False
    for other in script.methods(*_SAVES):
        if script.tree.scope(other.node) is scope and script.tree.is_before(call.node, other.node):
            given = [written(value) for value in other.node.args]
            if path in given or f"str({path})" in given:
                return True
    return False
