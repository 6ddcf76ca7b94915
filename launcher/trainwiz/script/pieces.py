"""The model, the data and the loss of a training script, and what else its loop does: found in its text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from trainwiz.message import Message, say
from trainwiz.script import counted_loop, lightning, main_block, schedules, trainers
from trainwiz.script.arguments import keyword
from trainwiz.script.lightning import Lightning
from trainwiz.script.means import Mean, Means, class_weights
from trainwiz.script.models import Counted, of_transformers
from trainwiz.script.numbers import numbers
from trainwiz.script.reductions import Growth, Reductions
from trainwiz.script.schedules import Schedule
from trainwiz.script.slices import OWN, Gap, Slice, Slicer, flat, only_places
from trainwiz.script.trainers import Trainer
from trainwiz.script.training import loop_source
from trainwiz.script.tree import Function, Loop, constant, dotted, method, walk
from trainwiz.script.undivided import Undivided

if TYPE_CHECKING:
    from trainwiz.script import Call, Script

_LOADERS = ("torch.utils.data.DataLoader", "DataLoader")
_LOOP = """
append backward clip_grad_norm_ clip_grad_value_ cuda debug detach empty_cache float format free_memory gather
gather_for_metrics get_last_lr info int isfinite isnan item join len log max mean min named_parameters no_sync
parameters perf_counter print progress_bar range reduce round save save_pretrained save_state set_description
set_epoch set_postfix step str sum sync_gradients time to tqdm train unscale_ update wait_for_everyone warning write
zero_grad
""".split()  # noqa: SIM905
"""Calls of a loop that the project's loop makes in its own way, or that change nothing."""
BY_CLOSURE = ("Optimizer.LBFGS",)
"""Optimizers, as calls name them, that compute the loss of a batch several times, by a function."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One of the script's pieces: a slice, or the gap that kept it from becoming one."""

    name: str
    """model, data, collate or loss."""
    node: ast.AST
    """Where the script has it; the module where it was not found."""
    taken: Slice | None = None
    """The slice; None where there is a gap."""
    gap: Gap | None = None
    """Why it could not be taken; None where there is a slice."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What a script trains."""

    model: Piece
    """What makes the model."""
    data: Piece
    """What makes the training data."""
    collate: Piece
    """What makes a batch of samples."""
    loss: Piece
    """What makes a loss of model and batch."""
    model_name: str = "model"
    """The name that the loop calls the model by."""
    batch: str = ""
    """What the loop unpacks a micro-batch into, as it is written; empty: the loss takes all of it by itself."""
    counted: Counted = "samples"
    """What a mean loss is averaged over."""
    sums: ast.AST | None = None
    """Where the loss is a sum over the samples and not a mean."""
    mean: Mean | None = None
    """What the loss is a mean over, where that is not the samples."""
    loader: Call | None = None
    """The loader that the training loop goes over."""
    evaluation: tuple[ast.AST, ...] = ()
    """The other loaders."""
    rest: tuple[ast.stmt, ...] = ()
    """Statements of the loop without a counterpart in the project's loop."""
    optimizer: Piece | None = None
    """The only optimizer, where the script makes it from the model's name."""
    schedule: Schedule | None = None
    """The only schedule of torch, where its rates are known before the training."""
    lightning: Lightning | None = None
    """The LightningModule that makes loss and optimizer."""
    trainer: Trainer | None = None
    """The Trainer of transformers that trains."""
    drops_columns: bool = False
    """Whether columns are dropped that the model's forward does not take, as a Trainer does."""
    sums_means: ast.AST | None = None
    """Where a Trainer adds up the means of micro-batches, because its loss is not its own."""
    divides_by_more: ast.AST | None = None
    """Where a Trainer may divide the loss by labels that the model does not predict."""
    late_warmup: bool = False
    """Whether the first update has rate 0, as in the schedules of transformers."""
    definitions: tuple[str, ...] = ()
    """For a script that trains on import: what can be used without running it."""
    main_names: tuple[str, ...] = ()
    """Names of the main block that the script's own functions and classes use as globals."""
    main: Slice | None = None
    """What gives these names their values."""
    updates: ast.For | None = None
    """The loop over updates of a script whose loop goes over no data."""
    whole_loader: Slice | None = None
    """The loader of a data module; data and collate function are taken from it."""
    whole_trainer: Slice | None = None
    """A trainer of TRL that makes the model, the samples, the batches and the loss."""

    @property
    def all(self) -> tuple[Piece, ...]:
        """Each of them."""
        return (self.model, self.data, self.collate, self.loss)


@dataclass
class _Reader:
    script: Script
    trainer: Trainer | None = field(init=False)
    lightning: Lightning | None = field(init=False)
    loop: Loop | None = field(init=False)

    def __post_init__(self) -> None:
        self.lightning = lightning.of(self.script)
        self.trainer = None if self.lightning else trainers.of(self.script)
        self.loop = next(iter(self.script.training.loops), None)

    def pieces(self) -> Pieces:
        if self.lightning:
            return self._of_lightning(self.lightning)
        found = self._of_loop()
        return self._of_trl(found, self.trainer) if self.trainer and self.trainer.is_made_apart else found

    def _of_trl(self, found: Pieces, trainer: Trainer) -> Pieces:
        """Everything by the trainer itself, which is made for that; where it cannot be made, what else was found."""
        place = trainer.call.node
        made = _cut("trainer", place, lambda: trainers.whole(self.script, trainer))
        if made.gap:
            why = say("{name} makes its samples itself, and {why}", name=trainer.name, why=made.gap.why)
            gap = Gap(made.gap.node, why)
            data, collate = (replace(piece, taken=None, gap=gap) for piece in (found.data, found.collate))
            return replace(found, data=data, collate=collate)

        def part(name: str, expression: str) -> Piece:
            return Piece(name=name, node=place, taken=Slice(expression=expression))

        return replace(
            found,
            model=part("model", "trainer().model"),
            data=part("data", "trainer_apart.data(trainer())"),
            collate=part("collate", "trainer().data_collator"),
            loss=part("loss", "trainer_apart.loss(trainer(), model, batch)"),
            model_name="model",
            counted="next_labels" if trainer.fine_tunes else "samples",
            drops_columns=False,
            whole_trainer=made.taken,
        )

    def _of_lightning(self, found: Lightning) -> Pieces:
        """The module with its own loss; the data of a loader, or of a module that makes one."""
        by_hand = found.steps_by_hand
        loss = Piece(name="loss", node=found.step, taken=Slice(expression="model(batch)"))
        if by_hand is not None:
            why = say("its training_step makes the updates itself")
            loss = Piece(name="loss", node=found.step, gap=Gap(by_hand, why))
        elif (asked := found.asks_trainer) is not None:
            why = say(
                "its training_step computes with self.{name}, which only Lightning's Trainer sets", name=asked.attr
            )
            loss = Piece(name="loss", node=found.step, gap=Gap(asked, why))
        given = [] if found.loader is None else [id(node) for node in self.script.names.feeding(found.loader)]
        loader = next((call for call in self._loaders() if id(call.node) in given), self._loader())
        made = found.data_module
        if made is None and found.loader is None and found.own_loader:
            made = found.model
        model = _made(self.script, found, self._piece("model", found.model, found.trainer.node))
        whole = _made(self.script, found, self._piece("data", made, None)) if made is not None else None
        if whole is None:
            data = self._piece("data", self._dataset(loader), loader.node if loader else None)
            collate = self._collate(loader)
        elif whole.taken is None:
            data, collate = whole, replace(whole, name="collate")
        else:
            data = replace(whole, taken=Slice(expression="loader().dataset"))
            collate = replace(whole, name="collate", taken=Slice(expression="loader().collate_fn"))
        return Pieces(
            model=model,
            data=data,
            collate=collate,
            loss=loss,
            batch="batch",
            loader=loader if whole is None else None,
            lightning=found,
            sums=self._sums_of(found.step, found.classes) if loss.taken else None,
            mean=self._mean_of_module(found) if loss.taken else None,
            late_warmup=lightning.steps_by_update(found) and any(_is_schedule(call) for call in self.script.calls),
            whole_loader=whole.taken if whole else None,
        )

    def _mean_of_module(self, found: Lightning) -> Mean | None:
        return Means(self.script, found.classes, ("self",), notes=True).of_method(found.step)

    def _of_loop(self) -> Pieces:
        models = self._models()
        model = next(iter(models.values()), None)
        name = self._in_the_loop(next(iter(models), "model"))
        loader = self._loader()
        dataset = self._dataset(loader)
        loss, block, batch = self._loss(name)
        updates = counted_loop.loop(self.script) if loss.taken and dataset is None else None
        data = self._data(dataset, loader)
        return Pieces(
            model=self._model(models),
            data=data if updates is None else _one_sample(updates, loss),
            collate=self._collate(loader),
            loss=loss,
            model_name=name,
            batch=batch,
            counted=self._counted(model) if updates is None else "samples",
            sums=self._sums(loss),
            mean=self._mean(loss, block, batch, name),
            loader=loader,
            evaluation=tuple(call.node for call in self._loaders() if call is not loader),
            updates=updates,
            rest=tuple(self._rest(block)),
            optimizer=self._optimizer(models),
            schedule=None if self.trainer else schedules.of(self.script, loader),
            sums_means=self._sums_means(),
            divides_by_more=self._divides_by_more(model),
            trainer=self.trainer,
            drops_columns=self.trainer is not None and not self.trainer.keeps_columns(self.script),
            late_warmup=bool(self.trainer) or any(_is_schedule(call) for call in self.script.calls),
        )

    def _divides_by_more(self, model: ast.expr | None) -> ast.AST | None:
        trainer = self.trainer
        if trainer is None or trainer.method("compute_loss"):
            return None
        counts = trainer.fine_tunes or (trainer.is_usual and self._counted(model) == "next_labels")
        return trainer.call.node if counts else None

    def _sums_means(self) -> ast.AST | None:
        """The accumulation of a Trainer whose compute_loss is its own: only its own loss is divided."""
        steps = [one for one in numbers(self.script) if one.kind == "accumulation"]
        own = self.trainer and self.trainer.method("compute_loss")
        return steps[0].node if own and steps and steps[0].value != 1 else None

    def _optimizer(self, models: Mapping[str, ast.expr]) -> Piece | None:
        """The optimizer with its parameter groups; None where the plan's keys must do: several, or one unknown."""
        made = [call for call in self.script.calls if self.script.engines.makes_optimizer(call.node)]
        made = [call for call in made if call.method != "prepare" and call.arguments]
        if self.trainer or len(models) != 1 or len(made) != 1 or self.script.engines.deepspeed:
            return None
        if not all(map(dotted, models.values())):  # `f(model).parameters()`, which has no name to be given
            return None
        node = made[0].node
        if self.script.called(*BY_CLOSURE):
            return None
        piece = _cut("optimizer", node, lambda: Slicer(self.script, bound=set(models)).of(node))
        return piece if piece.taken else None

    def _models(self) -> dict[str, ast.expr]:
        """What the optimizer changes, by name: `x` of `x.parameters()`, or what a Trainer is given."""
        if self.trainer:
            return trainers.model_of(self.trainer)
        found: dict[str, ast.expr] = {}
        for call in self.script.called("deepspeed.initialize"):
            if (given := call.argument("model", 1)) is not None:
                return {dotted(given) or "model": given}
        for call in self.script.calls:
            if not self.script.engines.makes_optimizer(call.node) or not call.arguments:
                continue
            given = call.argument("params", 0)
            for node in self.script.names.feeding(given, call.node) if given is not None else ():
                if isinstance(node, ast.Call) and method(node) in ("parameters", "named_parameters"):
                    owner = node.func.value  # type: ignore[attr-defined]
                    found.setdefault(dotted(owner) or ast.unparse(owner), owner)
        return found or self._prepared()

    def _prepared(self) -> dict[str, ast.expr]:
        others = ("Optimizer", "Scheduler", "DataLoader")
        return {
            dotted(one): one
            for call in self.script.calls
            if call.method == "prepare" and self.script.engines.kind(call.node.func.value) == "Accelerator"  # type: ignore[attr-defined]
            for one in call.node.args
            if dotted(one).rpartition(".")[2].endswith(("model", "net")) and self.script.engines.kind(one) not in others
        }

    def _model(self, models: dict[str, ast.expr]) -> Piece:
        if len(models) > 1:
            one, other = list(models)[:2]
            node = list(models.values())[1]
            gap = Gap(node, say("the script trains several models: {one}, {other}", one=one, other=other))
            return Piece(name="model", node=node, gap=gap)
        model = next(iter(models.values()), None)
        if self.trainer is None and model is not None and not isinstance(model, ast.Name):
            gap = Gap(model, say("the optimizer gets only the parameters of {part}", part=ast.unparse(model)))
            return Piece(name="model", node=model, gap=gap)
        if self.trainer is not None and model is not None:
            trainer, given = self.trainer, model
            return _cut("model", given, lambda: trainers.model(self.script, trainer, given))
        return self._piece("model", model, None)

    def _in_the_loop(self, model: str) -> str:
        """The name by which the loop calls the model: its own, or that of DeepSpeed's engine around it."""
        engines = [call.node for call in self.script.called("deepspeed.initialize")]
        for group in self.script.names.assignments.values():
            for one in group:
                if one.value in engines and self.script.engines.kind(ast.Name(one.name)) == "DeepSpeedEngine":
                    return one.name
        return model

    def _loaders(self) -> list[Call]:
        return [call for call in self.script.calls if call.name in _LOADERS]

    def _loader(self) -> Call | None:
        """The loader that the training loop goes over, else by its own name, else the first."""
        loaders = self._loaders()
        source = loop_source(self.loop) if self.loop is not None else None
        wanted = dotted(source) if source is not None and not isinstance(source, ast.Call) else ""
        named = {id(a.value): a.name for group in self.script.names.assignments.values() for a in group}
        by_name = [call for call in loaders if wanted and named.get(id(call.node)) == wanted]
        by_word = [call for call in loaders if "train" in named.get(id(call.node), "")]
        shuffled = [call for call in loaders if (value := call.keyword("shuffle")) and ast.unparse(value) == "True"]
        return next(iter([*by_name, *by_word, *shuffled, *loaders]), None)

    def _dataset(self, loader: Call | None) -> ast.expr | None:
        if loader is not None:
            return loader.argument("dataset", 0)
        for call in self.script.called("deepspeed.initialize"):
            return call.keyword("training_data")
        return keyword(self.script, self.trainer.call, "train_dataset") if self.trainer else None

    def _data(self, dataset: ast.expr | None, loader: Call | None) -> Piece:
        if self.trainer and self.trainer.method("get_train_dataloader"):
            own = self.trainer.method("get_train_dataloader")
            assert own
            gap = Gap(own[1], say("{name} makes its own loader", name=self.trainer.name))
            return Piece(name="data", node=own[1], gap=gap)
        if unknown := self._prepared_by_trainer(dataset):
            return Piece(name="data", node=dataset or unknown.node, gap=unknown)
        return self._piece("data", dataset, loader.node if loader else None)

    def _prepared_by_trainer(self, node: ast.expr | None) -> Gap | None:
        """Why the data of a Trainer is not what it is given."""
        if self.trainer is None or self.trainer.is_usual:
            return None
        node, name = node or self.trainer.call.node, self.trainer.name
        if not self.trainer.of_trl:
            return Gap(node, say("it is not known what {name} does with it", name=name))
        if self.trainer.of_all_samples:
            return Gap(node, say("{name} makes its samples itself", name=name))
        why = say(
            "{name} makes its samples itself: it tokenizes, masks and packs the rows, as the tasks sft, preference and "
            "reward_model do (trainwiz init --task sft)",
            name=name,
        )
        return Gap(node, why)

    def _collate(self, loader: Call | None) -> Piece:
        if loader is None and self.trainer is not None:
            if gap := self._prepared_by_trainer(keyword(self.script, self.trainer.call, "data_collator")):
                return Piece(name="collate", node=gap.node, gap=gap)
            return _with_place("collate", self.trainer.call.node, partial(trainers.collate, self.script, self.trainer))
        given = keyword(self.script, loader, "collate_fn") if loader else None
        if given is not None:
            return self._piece("collate", given, None)
        return Piece(name="collate", node=self.script.tree.module, taken=Slice(expression=""))

    def _piece(self, name: str, expression: ast.expr | None, place: ast.AST | None) -> Piece:
        if expression is None:
            node = place or self.script.tree.module
            return Piece(name=name, node=node, gap=Gap(node, say("it was not found in the script")))
        return _cut(name, expression, lambda: Slicer(self.script).of(expression))

    def _loss(self, model: str) -> tuple[Piece, list[ast.stmt], str]:
        backward = next(iter(self.script.training.backwards), None)
        if self.trainer:
            return (
                _with_place("loss", self.trainer.call.node, partial(trainers.loss, self.script, self.trainer)),
                [],
                "batch",
            )
        if backward and backward.loop is None and (called := self._called_in_a_loop(backward.call)):
            return self._loss_of_function(model, backward.loss, *called)
        loop = backward.loop if backward else None
        if backward is None or loop is None or isinstance(loop, ast.While):
            node = backward.call if backward else self.script.tree.module
            gap = Gap(node, say("no loop over micro-batches with a backward pass was found"))
            return Piece(name="loss", node=node, gap=gap), [], ""
        others = (one for one in self.script.training.backwards if one.loop is loop)
        other = next((one for one in others if ast.unparse(one.loss) != ast.unparse(backward.loss)), None)
        if other is not None:
            one, two = ast.unparse(backward.loss), ast.unparse(other.loss)
            gap = Gap(other.call, say("the loop has several backward passes: for {one} and {two}", one=one, two=two))
            return Piece(name="loss", node=backward.call, gap=gap), flat(loop.body), ""
        target = _target(loop)
        block = flat(loop.body)
        batch = {n.id for n in walk(target) if isinstance(n, ast.Name)}
        barred = (self.script.engines.prepared_names | {dotted(one) for one in self._prepared().values()}) - {model}
        undivided = Undivided.of(self.script)
        bound, left_out = {model, *batch}, undivided.needless(block)
        slicer = Slicer(self.script, bound=bound, batch=batch, barred=barred, block=block, left_out=left_out)
        expression = undivided.loss(backward.loss, block)
        piece = _cut("loss", expression, lambda: slicer.of(expression))
        return piece, [s for s in block if s is not self.script.tree.statement(backward.call)], ast.unparse(target)

    def _called_in_a_loop(self, backward: ast.Call) -> tuple[Function, dict[str, str], ast.For] | None:
        """The function around a backward pass, what its parameters get of a micro-batch, and the loop that calls it."""
        function = self.script.tree.scope(backward)
        if not isinstance(function, Function):
            return None
        calls = [one for one in self.script.tree.calls if dotted(one.func) in (function.name, f"self.{function.name}")]
        loop = next(iter(self.script.tree.loops(calls[0])), None) if len(calls) == 1 else None
        if not isinstance(loop, ast.For) or loop_source(loop) is None or calls[0].keywords:
            return None
        names = [one.arg for one in function.args.args]
        names = names[1:] if names[:1] == ["self"] else names
        given = [one.id if isinstance(one, ast.Name) else "" for one in calls[0].args]
        if len(given) != len(names) or any(_changes_batch(one) for one in loop.body):
            return None
        return function, dict(zip(given, names, strict=True)), loop

    def _loss_of_function(
        self, model: str, loss: ast.expr, function: Function, names: dict[str, str], loop: ast.For
    ) -> tuple[Piece, list[ast.stmt], str]:
        """The loss that a function makes of a micro-batch, which a loop gives it."""
        target = _target(loop)
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        if not all(isinstance(one, ast.Name) and (one.id in names or one.id == "_") for one in parts):
            why = say("part of the micro-batch is not passed to {name}", name=function.name)
            return Piece(name="loss", node=function, gap=Gap(loop, why)), [], ""
        batch = ", ".join(names.get(dotted(one), "_") for one in parts)
        shown = (
            f"({batch})" if isinstance(target, ast.Tuple) else f"[{batch}]" if isinstance(target, ast.List) else batch
        )
        block = flat(function.body)
        given = {names[dotted(one)] for one in parts if dotted(one) in names}
        undivided = Undivided.of(self.script)
        slicer = Slicer(
            self.script,
            bound={model, *given},
            batch=given,
            block=block,
            own_model=f"self.{model}",
            left_out=undivided.needless(block),
        )
        piece = _cut("loss", loss, lambda: slicer.of(undivided.loss(loss, block)))
        return piece, [one for one in block if one is not self.script.tree.statement(loss)], shown

    def _counted(self, model: ast.expr | None) -> Counted:
        """By the class of transformers that the model is made by; its own losses are means over labels that count."""
        nodes = self.script.names.feeding(model) if model is not None else ()
        return of_transformers(" ".join(dotted(node) for node in nodes if isinstance(node, ast.Attribute | ast.Name)))

    def _mean(self, loss: Piece, block: Sequence[ast.stmt], batch: str, model: str) -> Mean | None:
        if loss.taken is None:
            return None
        barred = sorted({model, *self.script.engines.prepared_names})
        if self.trainer:
            computes = self.trainer.method("compute_loss")
            if computes is None:
                return None
            own = [one.arg for one in computes[1].args.args[:2]]
            given = trainers.taken_attributes(computes[1], loss.taken)
            return Means(self.script, self.trainer.classes, (*barred, *own), given).of_method(computes[1])
        backward = next(iter(self.script.training.backwards), None)
        if backward is None:
            return None
        whole = Undivided.of(self.script).loss(backward.loss, block)
        return Means(self.script, barred=barred).of_block(whole, block, batch)

    def _behind(self, loss: Piece) -> tuple[list[ast.AST], dict[str, Function]]:
        """The nodes of a loss that was taken, and of the script's functions that it calls, and these by name."""
        if loss.taken is None:
            return [], {}
        parts = [*loss.taken.outer, *loss.taken.inner, loss.taken.expression]
        nodes: list[ast.AST] = [node for part in parts for node in ast.walk(ast.parse(part))]
        called = {dotted(node.func).removeprefix(f"{OWN}.") for node in nodes if isinstance(node, ast.Call)}
        own = {name: function for name in called if (function := self.script.names.function(name))}
        return [*nodes, *(node for function in own.values() for node in walk(function))], own

    def _sums(self, loss: Piece) -> ast.AST | None:
        """The loss, where it is a sum over the samples and nothing divides it."""
        if loss.taken is None:
            return None
        if self.trainer:
            computes = self.trainer.method("compute_loss")
            return self._sums_of(computes[1], self.trainer.classes) if computes else None
        if self._grows(loss.taken):
            return loss.node
        nodes, own = self._behind(loss)
        sums = _named_sums(nodes, {name for name, function in own.items() if _is_sum(function, ())})
        is_summed = any(isinstance(node, ast.keyword) and _is_sum(node, sums) for node in nodes)
        return loss.node if is_summed and not any(_divides_sum(node, sums) for node in nodes) else None

    def _sums_of(self, function: Function, classes: Sequence[ast.ClassDef]) -> ast.AST | None:
        """Where a method returns a loss that is a sum over the samples: what it returns."""
        batch = [one.arg for one in function.args.args if one.arg not in ("self", "model", "return_outputs")]
        growth = Reductions(self.script, classes).of_function(function, batch)
        return function if growth == "sum" else None

    def _grows(self, taken: Slice) -> bool:
        """Whether a loss of a loop grows with the number of samples."""
        backward = next(iter(self.script.training.backwards), None)
        if backward is None or not isinstance(backward.loop, ast.For):
            return False
        known: dict[str, Growth] = {n.id: "rows" for n in walk(_target(backward.loop)) if isinstance(n, ast.Name)}
        reductions = Reductions(self.script)
        for part in taken.inner:
            for statement in ast.parse(part).body:
                reductions.give(statement, known)
        return reductions.of(ast.parse(taken.expression, mode="eval").body, known) == "sum"

    def _rest(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        taken = [n for n in block if isinstance(n, ast.Assign | ast.AnnAssign | ast.AugAssign)]
        for statement in block:
            yield from (s for s in _steps(statement) if s not in taken and _does_more(s))


def weighs_classes(script: Script) -> bool:
    """Whether a script makes a loss with weights for the classes."""
    return any(class_weights(call) is not None for call in script.tree.calls)


def _named_sums(nodes: Sequence[ast.AST], functions: Set[str]) -> set[str]:
    """The names that hold a loss with `reduction="sum"`, or what is made of one; with `functions`, which make them."""
    sums = {*functions}
    made = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    for one in (*made, *made):  # a function may stand behind what uses it
        if _is_sum(one, sums):
            sums |= {dotted(to) for to in (one.targets if isinstance(one, ast.Assign) else [one.target])}
    return sums - {""}


def _is_sum(node: ast.AST, sums: Container[str]) -> bool:
    return any(
        (isinstance(one, ast.keyword) and one.arg == "reduction" and constant(one.value) == "sum")
        or (isinstance(one, ast.Name | ast.Attribute) and dotted(one).removeprefix(f"{OWN}.") in sums)
        for one in ast.walk(node)
    )


def _divides_sum(node: ast.AST, sums: Container[str]) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) and _is_sum(node.left, sums)
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div) and _is_sum(node.target, sums)
    return isinstance(node, ast.Call) and method(node) in ("div", "div_", "mean") and _is_sum(node.func, sums)


def pieces(script: Script) -> Pieces:
    """What a script trains, as far as its text says it."""
    found = _with_globals(script, _Reader(script).pieces())
    return replace(found, definitions=tuple(sorted(script.definitions.own)) if script.runs_when_imported else ())


def _with_globals(script: Script, found: Pieces) -> Pieces:
    """With the globals that the script sets as it runs; without the pieces that use them, where they cannot be had."""
    whole = [found.whole_trainer] if found.whole_trainer else []
    whole += [found.mean.over] if found.mean and found.mean.over else []
    names = main_block.wanted(script, [*whole, *(piece.taken for piece in found.all if piece.taken)])
    if not names:
        return found
    try:
        taken = main_block.slice_of(script, names, found.model.node, found.model_name)
    except Gap as gap:
        without = {
            piece.name: replace(piece, taken=None, gap=Gap(gap.node, _without(script, used, gap)))
            for piece in found.all
            if piece.taken and (used := main_block.wanted(script, [*whole, piece.taken]))
        }
        return replace(found, **without)  # type: ignore[arg-type]
    return replace(found, main=taken, main_names=names)


def _without(script: Script, names: Sequence[str], gap: Gap) -> Message:
    shown = ", ".join(names)
    if script.runs_when_imported:
        return say("it uses {name}, which the script creates at run time: {why}", name=shown, why=gap.why)
    return say("the main block sets {name}, which it uses: {why}", name=shown, why=gap.why)


def _cut(name: str, node: ast.AST, cut: Callable[[], Slice]) -> Piece:
    try:
        return Piece(name=name, node=node, taken=cut())
    except Gap as gap:
        return Piece(name=name, node=node, gap=gap)


def _with_place(name: str, node: ast.AST, cut: Callable[[], tuple[ast.AST, Slice]]) -> Piece:
    try:
        place, taken = cut()
    except Gap as gap:
        return Piece(name=name, node=gap.node, gap=gap)
    return Piece(name=name, node=place or node, taken=taken)


def _made(script: Script, found: Lightning, piece: Piece) -> Piece:
    """What a LightningCLI makes of a class: an object, by the defaults of its arguments."""
    if piece.taken is None or not found.by_classes:
        return piece
    name = dotted(piece.node)
    made = next((one for one in script.tree.of(ast.ClassDef) if one.name == name), None)
    starts = (one for one in (made.body if made else ()) if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    for start in starts:
        given = start.args.args[1:]
        needed = [*given[: len(given) - len(start.args.defaults)]]
        needed += [one for one, value in zip(start.args.kwonlyargs, start.args.kw_defaults, strict=True) if not value]
        if needed:
            why = say("{name} needs {argument}, which comes from its command line", name=name, argument=needed[0].arg)
            return replace(piece, taken=None, gap=Gap(start, why))
    return replace(piece, taken=replace(piece.taken, expression=f"{piece.taken.expression}()"))


def _one_sample(updates: ast.For, loss: Piece) -> Piece:
    """The data of a loop that goes over none: what it computes with is one sample, unless it depends on the update."""
    assert loss.taken
    counted = {node.id for node in walk(updates.target) if isinstance(node, ast.Name)}
    parts = [ast.parse(part) for part in (*loss.taken.inner, loss.taken.expression)]
    used = next((n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name) and n.id in counted), "")
    if used:
        gap = Gap(updates, say("each update computes with {name}, the number of the update", name=used))
        return Piece(name="data", node=updates, gap=gap)
    return Piece(name="data", node=updates, taken=Slice(expression="[0]"))


def _is_schedule(call: Call) -> bool:
    """Whether a call makes a schedule of transformers."""
    return call.last == "get_scheduler" or (call.last.startswith("get_") and call.last.endswith("_with_warmup"))


def _target(loop: ast.For | ast.AsyncFor) -> ast.expr:
    """What a loop calls a micro-batch."""
    if isinstance(loop.target, ast.Tuple) and any(_is_enumerate(node) for node in walk(loop.iter)):
        return loop.target.elts[1]
    return loop.target


def _changes_batch(statement: ast.stmt) -> bool:
    """Whether a statement of a loop does more to a micro-batch than to place it on a device."""
    return isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and not only_places(statement)


def _is_enumerate(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "enumerate"


def _steps(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement, or those of its branches."""
    if isinstance(statement, ast.If | ast.With | ast.For | ast.While):
        for one in (*statement.body, *getattr(statement, "orelse", ())):
            yield from _steps(one)
    else:
        yield statement


def _does_more(statement: ast.stmt) -> bool:
    calls = [node for node in walk(statement) if isinstance(node, ast.Call)]
    return isinstance(statement, ast.Expr) and any(
        (method(call) or dotted(call.func).rpartition(".")[2]) not in _LOOP for call in calls[:1]
    )
