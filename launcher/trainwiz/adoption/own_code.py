"""A script's own model, data and loss: what happens to each in a project."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.adoption import lightnings, trainers
from trainwiz.adoption.ledger import EVALUATION, Kind, Left
from trainwiz.message import Message, say
from trainwiz.script import Call, Script
from trainwiz.script.arguments import keyword
from trainwiz.script.pieces import BY_CLOSURE, Piece, Pieces
from trainwiz.script.slices import replicates
from trainwiz.script.tree import dotted

_LONGEST = 60


def left(script: Script, pieces: Pieces, *, as_code: bool) -> tuple[Left, ...]:
    """What of the script's own code does not become part of the project, by line.

    `as_code` is whether the project's task.py takes it; otherwise the plan names another task, with its own code.
    """
    options = _options(script, pieces) if as_code else ()
    found = [*options, *_pieces(script, pieces, as_code=as_code), *_evaluations(script, pieces)]
    found += [*_order(script, pieces.loader), *(_without_data(script, pieces) if as_code else ())]
    found += [*_rest(script, pieces), *_not_run(script), *_by_closure(script)]
    if pieces.trainer:
        found += [
            entry(script, *one)
            for one in trainers.entries(script, pieces.trainer, is_whole=pieces.whole_trainer is not None)
        ]
    if pieces.lightning:
        found += [entry(script, *one) for one in lightnings.entries(script, pieces.lightning)]
    if as_code and pieces.lightning:
        why = say(
            "the project's loop makes the updates: return the loss from loss_sum and the optimizers from "
            "build_optimizers; several optimizers take turns"
        )
        found += [entry(script, "code", "training_step", node, why) for node in pieces.lightning.by_hand]
    if pieces.divides_by_more is not None:
        why = say(
            "the Trainer also counts the first label of each row with a model named …LMHeadModel (GPT-2), so its loss "
            "is lower; the project counts the labels that are predicted"
        )
        found.append(entry(script, "lost", "loss", pieces.divides_by_more, why))
    if pieces.sums_means is not None:
        why = say(
            "the Trainer sums this loss over the micro-batches; the project averages it over the batch of an update"
        )
        found.append(entry(script, "lost", "gradient_accumulation_steps", pieces.sums_means, why))
    if pieces.mean and pieces.mean.over is None and pieces.sums is None and as_code:
        why = say(
            "the loss divides by numbers that differ between micro-batches, and what to count for them was not found: "
            "write it in count, or give one rank a micro-batch of the real batch"
        )
        found.append(entry(script, "code", "count", pieces.mean.nodes[0], why))
    if pieces.sums is not None:
        why = say(
            "the loss is a sum over the samples, and the project divides it by their number; with SGD, multiply "
            "the learning rate by the real batch"
        )
        found.append(entry(script, "code", "loss", pieces.sums, why))
    return tuple(sorted(found, key=lambda one: one.place.line))


def _pieces(script: Script, pieces: Pieces, *, as_code: bool) -> Iterator[Left]:
    for piece in pieces.all:
        if as_code and piece.gap:
            why = say("{why}; task.py marks where to write it", why=_with_line(piece))
            yield entry(script, "code", piece.name, piece.node, why)
        elif not as_code and not isinstance(piece.node, ast.Module):
            yield entry(script, "lost", piece.name, piece.node, say("the plan's task provides its own"))


def _with_line(piece: Piece) -> Message:
    assert piece.gap
    line = getattr(piece.gap.node, "lineno", None)
    if line is None or line == getattr(piece.node, "lineno", None):
        return piece.gap.why
    return say("line {line}: {why}", line=line, why=piece.gap.why)


def _options(script: Script, pieces: Pieces) -> Iterator[Left]:
    seen = set()
    for node in (node for piece in pieces.all if piece.taken for node in piece.taken.options):
        value = script.values.of(node)
        name = ast.unparse(node)
        if value and name not in seen:
            seen.add(name)
            why = say("the default {value} of {option} is used", value=repr(value.value), option=value.option)
            yield entry(script, "code", "option", node, why)


def _evaluations(script: Script, pieces: Pieces) -> Iterator[Left]:
    for node in pieces.evaluation:
        yield entry(script, "code", "evaluation", node, EVALUATION)


def _order(script: Script, loader: Call | None) -> Iterator[Left]:
    """What the loader says about the order of samples, if the project's own order differs."""
    if loader is None:
        return
    given = {name: keyword(script, loader, name) for name in ("sampler", "batch_sampler", "shuffle", "drop_last")}
    samplers = [node for name in ("sampler", "batch_sampler") if (node := given[name]) is not None]
    own = [node for node in samplers if not (isinstance(node, ast.Constant) and node.value is None)]
    whys: dict[str, tuple[ast.expr, Message]] = {}
    if own and not any(_is_distributed(node) for node in script.names.feeding(own[0])):
        whys["sampler"] = own[0], say("the project uses each sample once per epoch, in its own order")
    shuffle, drop_last = (
        loader.argument("shuffle", 2) or given["shuffle"],
        loader.argument("drop_last", 8) or given["drop_last"],
    )
    unsaid = shuffle is None and not loader.has_spread()  # otherwise it may be where it cannot be read
    if not own and (unsaid or (shuffle is not None and _says(script, shuffle, said=False))):
        whys["shuffle"] = shuffle or loader.node, say("the project shuffles the samples anew in each epoch")
    if drop_last is not None and _says(script, drop_last, said=True):
        why = say("the project also trains on the last samples of an epoch, which do not fill a batch")
        whys["drop_last"] = drop_last, why
    for name, (node, why) in whys.items():
        yield entry(script, "lost", f"DataLoader({name})", node, why)


def _without_data(script: Script, pieces: Pieces) -> Iterator[Left]:
    if pieces.updates is not None and pieces.data.taken:
        why = say("the loop goes over no data: all that an update uses is one sample, on one rank")
        yield entry(script, "lost", "data", pieces.updates.iter, why)


def _is_distributed(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).endswith("DistributedSampler")


def _says(script: Script, node: ast.expr, *, said: bool) -> bool:
    value = script.values.of(node)
    return value is not None and value.value is said


def _rest(script: Script, pieces: Pieces) -> Iterator[Left]:
    for statement in pieces.rest:
        yield entry(script, "lost", "loop", statement, say("the project's loop does not do this"))


def _by_closure(script: Script) -> Iterator[Left]:
    why = say("it computes a batch's loss several times through a closure; the project's loop computes it once")
    for call in script.called(*BY_CLOSURE):
        yield entry(script, "lost", call.method, call.node, why)


def _not_run(script: Script) -> Iterator[Left]:
    """What stands in the way of a rank for each GPU, and commands of a notebook."""
    for call in script.tree.calls:
        if replicates(call):
            yield entry(script, "lost", "DataParallel", call, say("the project starts one rank for each GPU instead"))
        elif dotted(call.func) == "get_ipython":
            node = script.tree.statement(call) or call
            yield entry(
                script, "lost", "get_ipython", node, say("a command of a notebook, which a project does not run")
            )


def modules(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The first parts of the modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return {node.module.partition(".")[0]} if node.module and not node.level else set()
    return {alias.name.partition(".")[0] for alias in node.names}


def entry(script: Script, kind: Kind, path: str, node: ast.AST, why: Message) -> Left:
    """What does not become part of the project, at a node."""
    text = "" if isinstance(node, ast.Module) else " ".join(ast.unparse(node).split())
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return Left(kind=kind, path=path, value=shown, place=script.place(node), why=why)
