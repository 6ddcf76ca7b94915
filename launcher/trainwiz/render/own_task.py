"""`task.py` of a project that was imported from a script: what could be taken out of it, and marks for the rest."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

from trainwiz.fields import with_constant
from trainwiz.render import own_secrets
from trainwiz.render.artifact import Artifact
from trainwiz.script.lightning import Lightning
from trainwiz.script.means import Mean
from trainwiz.script.models import Counted
from trainwiz.script.pieces import Piece, Pieces
from trainwiz.script.schedules import Schedule
from trainwiz.script.slices import DEVICE, OWN, Slice

_COUNTS: dict[Counted, str] = {
    "samples": "return samples",
    "labels": 'return int((batch["labels"] != -100).sum())',
    "next_labels": 'return int((batch["labels"][..., 1:] != -100).sum())',
}
_SHOWN_LINES = 12


def files(
    pieces: Pieces,
    example: str,
    templates: Mapping[str, str],
    *,
    script: str,
    name: str,
    lines: list[str],
    beside: Collection[str] = (),
    decided: Collection[str] = (),
    start: str = "",
) -> tuple[Artifact, ...]:
    """`task.py`, and `own.py` where it uses the script itself.

    `example` is the task.py that the plan generates, `script` the script's path from the project's folder, `name` its
    name for people, `lines` its text, `beside` the modules in its folder, and `decided` the optimizer's keys in the
    plan that the script decides; empty where the strategy takes no optimizer of the script's own. `start` is the folder
    that relative paths in the script begin at, from the project's folder; empty where it has none.
    """
    text = templates["train_templates/imported/task.py"]
    shown = _Marks(name, lines)
    bodies = {
        "load_train_data": _returned(pieces.data, shown, "load_train_data"),
        "build_model": _returned(pieces.model, shown, "build_model"),
        "loss_sum": _loss(pieces, shown),
        "count": _count(pieces.mean) or _COUNTS[pieces.counted],
    }
    if pieces.collate.gap or (pieces.collate.taken and pieces.collate.taken.expression):
        bodies["collator"] = _returned(pieces.collate, shown, "collator")
    if pieces.lightning:
        if taken_model := pieces.model.taken:
            notes = bool(pieces.mean and pieces.mean.over and pieces.mean.over.noted)
            module = f"noted({taken_model.expression})" if notes else taken_model.expression
            wrapped = replace(taken_model, expression=f"Stepped({module})")
            bodies["build_model"] = _returned(replace(pieces.model, taken=wrapped), shown, "build_model")
        bodies["save_model"] = _SAVED
    if pieces.whole_trainer:
        bodies["save_model"] = _SAVED_WITH_WORDS
    if pieces.drops_columns:
        text, bodies = _with_columns(text, bodies, pieces)
    if any("bare(" in part for part in bodies.values()):
        text = text.replace("def build_model(", f"{_BARE}def build_model(")
    if pieces.mean and (over := pieces.mean.over):
        text = text.replace("def count(", f"{_for_count(over)}def count(")
    for function, body in bodies.items():
        text = with_body(text, function, body)
    slices = [piece.taken for piece in pieces.all if piece.taken]
    slices += [pieces.mean.over] if pieces.mean and pieces.mean.over else []
    if pieces.lightning:
        text = text.replace("def build_model(", f"{_stepped(pieces.lightning)}def build_model(")
    if pieces.whole_loader:
        text = text.replace("def load_train_data(", f"{_loader(pieces)}def load_train_data(")
        slices.append(pieces.whole_loader)
    if pieces.whole_trainer:
        text = text.replace("def load_train_data(", f"{_trainer(pieces.whole_trainer)}def load_train_data(")
        slices += [pieces.whole_trainer, Slice(expression="", imports=("import trainer_apart",))]
    if pieces.late_warmup:
        text = text.replace("def save_model(", f"{_SCHEDULE}def save_model(")
        slices.append(Slice(expression="", imports=("import math",)))
    if pieces.schedule and not pieces.late_warmup:
        text = text.replace("def save_model(", f"{_schedule(pieces.schedule)}def save_model(")
        slices.append(pieces.schedule.taken)
    if pieces.main:
        text = text.replace("def load_train_data(", f"{_main_block(pieces)}def load_train_data(")
        slices.append(pieces.main)
    if decided and (function := _optimizer(pieces, decided)):
        text = text.replace("def save_model(", f"{function}def save_model(")
        slices += [pieces.optimizer.taken] if pieces.optimizer and pieces.optimizer.taken else []
    taken = {line: None for one in slices for line in one.imports}
    if pieces.loss.taken and pieces.loss.taken.outer:
        text = _with_surroundings(text, pieces.loss.taken)
        taken |= {"from types import SimpleNamespace": None}
    if pieces.mean and pieces.mean.over and pieces.mean.over.outer:
        taken |= {"from types import SimpleNamespace": None}
    if start:
        text = _with_start(text, start)
    if own_secrets.variables(text):
        text, taken = own_secrets.without(text), {**taken, "import os": None}
    text = _with_imports(text, [line for line in taken if line not in text], script, beside)
    found = [Artifact("task.py", text, generated=example)]
    if pieces.whole_trainer:
        apart = templates["train_templates/imported/trainer_apart.py"]
        found.append(Artifact("trainer_apart.py", apart, generated=""))
    if f"import {OWN}" in taken:
        own = with_constant(templates["train_templates/imported/own.py"], "SCRIPT", script)
        own = with_constant(own, "NAMES", pieces.definitions)
        if pieces.lightning:
            own = own.replace("\nSCRIPT", "\nimport stand_in\n\nstand_in.for_lightning()\n\nSCRIPT", 1)
            found.append(Artifact("stand_in.py", templates["train_templates/imported/stand_in.py"], generated=""))
        found.append(Artifact("own.py", own, generated=""))
    return tuple(found)


def slices(pieces: Pieces) -> Iterator[Slice]:
    """All code of a script that task.py may take."""
    more = (pieces.whole_loader, pieces.whole_trainer, pieces.main, pieces.schedule and pieces.schedule.taken)
    rest = (pieces.mean and pieces.mean.over, pieces.optimizer and pieces.optimizer.taken)
    yield from (one for one in (*(piece.taken for piece in pieces.all), *more, *rest) if one)


class _Marks:
    """The code in place of a piece that could not be taken over."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self._name, self._lines = name, lines

    def of(self, piece: Piece, function: str) -> str:
        assert piece.gap
        line, at = getattr(piece.node, "lineno", 0), getattr(piece.gap.node, "lineno", 0)
        where = f"{self._name}:{line}" if line else self._name
        why = f"{piece.gap.why}" + (f" (line {at})" if at else "")
        end = min(getattr(piece.node, "end_lineno", None) or line, line + _SHOWN_LINES - 1)
        source = textwrap.dedent("\n".join(self._lines[line - 1 : end])).splitlines() if line else []
        comments = [f"# TODO: {where}: {why}", *(f"#     {one}" for one in source)]
        return "\n".join([*comments, f"raise NotImplementedError({f'write {function} in task.py: see {where}'!r})"])


def _returned(piece: Piece, marks: _Marks, function: str) -> str:
    if piece.taken is None:
        return marks.of(piece, function)
    return "\n".join([*piece.taken.outer, *piece.taken.inner, f"return {piece.taken.expression}"])


def _loss(pieces: Pieces, marks: _Marks) -> str:
    taken = pieces.loss.taken
    if taken is None:
        return marks.of(pieces.loss, "loss_sum")
    outside = f"outside({DEVICE})" if taken.outer else ""
    text = "\n".join([*taken.inner, taken.expression])
    lines = [
        *(
            [f"{pieces.model_name} = model"]
            if pieces.model_name != "model" and pieces.model_name.isidentifier()
            else []
        ),
        *([f"{DEVICE} = next(model.parameters()).device"] if outside or re.search(rf"\b{DEVICE}\b", text) else []),
        *(f"{name} = {outside}.{name}" for name in taken.from_outside),
        *taken.inner,
        f"return ({taken.expression}).float(){'' if pieces.sums else f' * {_COUNT}'}",
    ]
    if pieces.mean and pieces.mean.over and not pieces.sums:
        lines[-1:] = [
            "# A mean over nothing is not a number.",
            f"return torch.where({_COUNT} > 0, ({taken.expression}).float() * {_COUNT}, 0.0)",
        ]
    first = f"{pieces.batch or 'batch'}, {_COUNT} = batch"
    return "\n".join([first, *lines])


def _count(mean: Mean | None) -> str:
    """What a micro-batch counts, if the script's loss divides by something else than samples."""
    over = mean.over if mean else None
    if mean is None or over is None:
        return ""
    text = "\n".join([*over.inner, over.expression])
    given = "dict(batch)" if ".pop(" in text else "batch"
    lines = [
        *([f"{mean.batch} = {given}"] if mean.batch != given else []),
        *([f'{DEVICE} = torch.device("cpu")'] if re.search(rf"\b{DEVICE}\b", text) else []),
        *(f"{name} = beside().{name}" for name in over.from_outside),
        *over.inner,
        f"found = {over.expression}",
        "return found.item() if isinstance(found, Tensor) else found",
    ]
    return "\n".join(lines)


def _for_count(over: Slice) -> str:
    """The functions that a count calls."""
    text = "\n".join([*over.inner, over.expression])
    functions = [written for name, written in _COUNTING.items() if name in text]
    functions += [_NOTES.replace("PATHS", repr(tuple(dict.fromkeys(over.noted))))] if over.noted else []
    if over.outer:
        values = ", ".join(f"{name}={name}" for name in over.from_outside)
        device = [f'{DEVICE} = torch.device("cpu")'] if re.search(rf"\b{DEVICE}\b", "\n".join(over.outer)) else []
        body = textwrap.indent("\n".join([*device, *over.outer, f"return SimpleNamespace({values})"]), "    ")
        functions.append(
            "@functools.cache\n"
            "def beside() -> SimpleNamespace:\n"
            '    """Return what the count uses beside the batch; made once."""\n'
            f"{body}\n\n\n"
        )
    return "".join(functions)


_COUNTING = {
    "counted_labels": '''def counted_labels(labels: Tensor, ignored: int = -100, weight: Tensor | None = None) -> Any:
    """Return what a mean of cross entropies is over: the labels that count, or the weights of their classes."""
    if labels.is_floating_point():  # a probability for each class, which are dimension 1
        return labels.numel() // labels.shape[1] if labels.dim() > 1 else 1
    kept = labels[labels != ignored]
    return kept.numel() if weight is None else weight.cpu()[kept].sum()


''',
    "counted_numbers": '''def counted_numbers(chosen: Tensor) -> Any:
    """Return how many numbers a mask or an index chooses."""
    return chosen.sum() if chosen.dtype in (torch.bool, torch.uint8) else chosen.numel()


''',
}


_NOTES = '''SEEN: dict[str, Any] = {}
"""What the count uses of the script's module, as it is when the model is built."""


def noted(module: Any) -> Any:
    """Return the script's module. What the count uses of it is kept."""
    for path in PATHS:
        value = functools.reduce(getattr, path.split("."), module)
        if isinstance(value, nn.Parameter) and value.requires_grad:
            raise SystemExit(f"count in task.py uses {path} of the model, which the training changes")
        SEEN[path] = value.detach().cpu().clone() if isinstance(value, Tensor) else value
    return module


def of_module(path: str) -> Any:
    """Return an attribute of the script's module."""
    if path not in SEEN:
        raise RuntimeError(f"batches are made before the model: {path} is not known")
    return SEEN[path]


'''


def _stepped(found: Lightning) -> str:
    """A module whose forward is the step, so that the engine's work around a forward covers all of it."""
    given = "batch, 0" if found.takes_index else "batch"
    return (
        "class Stepped(nn.Module):\n"
        '    """The script\'s LightningModule. Its forward is the training step."""\n\n'
        "    def __init__(self, module: Any) -> None:\n"
        "        super().__init__()\n"
        "        self.module = module\n\n"
        "    def forward(self, batch: Any) -> Tensor:\n"
        '        """Return the loss of a micro-batch, a mean."""\n'
        f"        step = self.module.training_step({given})\n"
        '        return step["loss"] if isinstance(step, dict) else step\n\n\n'
    )


def _schedule(found: Schedule) -> str:
    """The hook that gives the rates of the script's own schedule, which steps beside an optimizer of one number."""
    every = "if update % epoch == 0:" if found.by_epoch else ""
    step = "scheduler.step()"
    lines = [
        f"{found.optimizer} = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=rate)",
        *([f"{found.loader} = range(epoch)"] if found.loader else []),
        *(*found.taken.outer, *found.taken.inner),
        f"scheduler = {found.taken.expression}",
        "found = []",
        "for update in range(1, total + 1):",
        f'    found.append({found.optimizer}.param_groups[0]["lr"] / rate)',
        f"    {found.optimizer}.step()",
        *([f"    {every}", f"        {step}"] if every else [f"    {step}"]),
        "return found",
    ]
    body = textwrap.indent("\n".join(lines), "    ")
    return (
        "@functools.cache\n"
        "def shares(rate: float, total: int, epoch: int) -> list[float]:\n"
        '    """Return the share of the rate for each update, as the script\'s own schedule steps."""\n'
        f"{body}\n\n\n"
        "def schedule(config: Any, update: int, total: int) -> float:\n"
        '    """Return the share of the learning rate. `epoch` is how many updates an epoch has."""\n'
        "    epoch = total // config.n_epochs if config.n_epochs else 0\n"
        "    epoch = epoch or -(-len(load_train_data(config)) // config.real_batch_size)\n"
        "    return shares(config.learning_rate, total, epoch)[update]\n\n\n"
    )


_SCHEDULE = '''\
def schedule(config: Any, update: int, total: int) -> float:
    """Return the share of the learning rate as transformers has it: the first update of a warm-up has rate 0."""
    if update < config.n_warmup_steps:
        return update / config.n_warmup_steps
    progress = (update - config.n_warmup_steps) / max(1, total - config.n_warmup_steps)
    shares = {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}
    return shares[config.lr_scheduler_type]


'''
_SAVED = """\
folder.mkdir(parents=True, exist_ok=True)
named = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
save_file(apart(named), folder / "model.safetensors")"""


_SAVED_WITH_WORDS = """\
folder.mkdir(parents=True, exist_ok=True)
model.save_pretrained(folder, state_dict=weights)
trainer_apart.save_words(trainer(), folder)"""


def _trainer(taken: Slice) -> str:
    """The function that makes the script's own trainer."""
    lines = [*taken.outer, *taken.inner, f"return trainer_apart.apart({taken.expression})"]
    body = textwrap.indent("\n".join(lines), "        ")
    return (
        "@functools.cache\n"
        "def trainer() -> Any:\n"
        '    """Return the script\'s own trainer, which makes model, samples and losses; it trains nothing."""\n'
        f"    with trainer_apart.alone():\n{body}\n\n\n"
    )


def _loader(pieces: Pieces) -> str:
    """The function that makes the loader of a data module."""
    taken = pieces.whole_loader
    assert taken
    lines = [
        *(*taken.outer, *taken.inner),
        f"made = {taken.expression}",
        'for name, given in (("prepare_data", ()), ("setup", ("fit",))):',
        "    getattr(made, name, lambda *_: None)(*given)",
        "return made.train_dataloader()",
    ]
    body = textwrap.indent("\n".join(lines), "    ")
    return (
        "@functools.cache\n"
        "def loader() -> Any:\n"
        '    """Return the script\'s own loader; only its data and its collate function are used."""\n'
        f"{body}\n\n\n"
    )


def _main_block(pieces: Pieces) -> str:
    """What the script sets before it trains, set in its module, whose functions use it."""
    assert pieces.main
    given = [f"{OWN}.{name} = {name}" for name in pieces.main_names]
    body = textwrap.indent("\n".join([*pieces.main.outer, *pieces.main.inner, *given]), "    ")
    return (
        "def set_globals() -> None:\n"
        '    """Give the script\'s module what it creates as it runs; its functions and classes use it."""\n'
        f"{body}\n\n\n"
        "set_globals()\n\n\n"
    )


def _optimizer(pieces: Pieces, decided: Collection[str]) -> str:
    """The hook that makes the script's own optimizer, with the plan's rate where the plan has the script's."""
    rate = "optimizer.learning_rate" in decided
    if pieces.lightning:
        if not pieces.lightning.configures:
            return ""
        lines = [
            "made = model.module.configure_optimizers()",
            "made = made[0] if isinstance(made, tuple) else made  # optimizers, then schedules",
            'made = made["optimizer"] if isinstance(made, dict) else made',
            "optimizer = made[0] if isinstance(made, list) and len(made) == 1 else made",
            *(['for group in optimizer.param_groups:\n    group["lr"] = config.learning_rate'] if rate else []),
            "return optimizer",
        ]
    else:
        taken = pieces.optimizer.taken if pieces.optimizer else None
        if taken is None:
            return ""
        name = pieces.model_name
        named = [f"{name} = model"] if name != "model" else []
        expression = _with_plan(taken.expression, decided)
        lines = [*named, *taken.outer, *taken.inner, f"return {expression}"]
    body = textwrap.indent("\n".join(lines), "    ")
    return (
        "def build_optimizers(config: Any, model: Any) -> Any:\n"
        '    """Return the script\'s optimizer. hooks.py says what it may be."""\n'
        f"{body}\n\n\n"
    )


def _with_plan(expression: str, decided: Collection[str]) -> str:
    """The call that makes the optimizer, with the plan's values where the plan has the script's."""
    call = ast.parse(expression, mode="eval").body
    assert isinstance(call, ast.Call)
    spread = any(keyword.arg is None for keyword in call.keywords)
    for name, key in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        if f"optimizer.{key}" not in decided or spread:
            continue
        value = ast.parse(f"config.{key}", mode="eval").body
        given = next((keyword for keyword in call.keywords if keyword.arg == name), None)
        if given is not None:
            given.value = value
        elif name == "lr" and len(call.args) > 1:
            call.args[1] = value
        elif name == "lr":
            call.keywords.append(ast.keyword(name, value))
    if not spread:
        _set_moments(call, decided)
    return ast.unparse(call)


def _set_moments(call: ast.Call, decided: Collection[str]) -> None:
    """Write the plan's betas, momentum and epsilon, where the script has the same in words that could be read."""
    beta1, beta2, epsilon = (f"optimizer.{name}" in decided for name in ("beta1", "beta2", "epsilon"))
    for name, known, value in (
        ("betas", beta1 or beta2, "(config.beta1, config.beta2)"),
        ("momentum", beta1, "config.beta1"),
        ("eps", epsilon, "config.epsilon"),
    ):
        given = next((keyword for keyword in call.keywords if keyword.arg == name), None)
        if known and given is not None:
            given.value = ast.parse(value, mode="eval").body


_BARE = '''def bare(model: nn.Module) -> Any:
    """Return the model without what an engine or an adapter puts around it."""
    for name in ("_orig_mod", "module"):
        model = getattr(model, name, model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


'''
_COLUMNS = '''COLUMNS: set[str] = set()
"""The columns that are kept, as transformers' Trainer does: those that the model's forward takes, and labels."""


def with_columns(collate: Any) -> Any:
    """Return a function that leaves other columns out before it makes a batch."""

    def collated(rows: list[Any]) -> Any:
        if not COLUMNS:
            raise RuntimeError("batches are made before the model: which columns it takes is not known")
        return collate([{n: v for n, v in r.items() if n in COLUMNS} if isinstance(r, dict) else r for r in rows])

    return collated


'''


def _with_columns(text: str, bodies: dict[str, str], pieces: Pieces) -> tuple[str, dict[str, str]]:
    """A task that drops the columns that a Trainer would: it knows them once it has the model."""
    if not (pieces.model.taken and pieces.collate.taken and "collator" in bodies):
        return text, bodies
    taken, made = pieces.model.taken, pieces.collate.taken
    names = '("label", "label_ids")'
    model = [
        *(*taken.outer, *taken.inner),
        f"built = {taken.expression}",
        f"COLUMNS.update(inspect.signature(bare(built).forward).parameters, {names})",
        "return built",
    ]
    collator = [*made.outer, *made.inner, f"return with_columns({made.expression})"]
    text = text.replace("@functools.cache\ndef collator(", f"{_COLUMNS}@functools.cache\ndef collator(")
    text = text.replace("import functools\n", "import functools\nimport inspect\n", 1)
    return text, {**bodies, "build_model": "\n".join(model), "collator": "\n".join(collator)}


_COUNT = "n_of_the_mean"
"""A name that no script has."""


def _with_surroundings(text: str, taken: Slice) -> str:
    """With the function that makes once what the loss needs beside the model and the batch."""
    values = ", ".join(f"{name}={name}" for name in taken.from_outside)
    body = textwrap.indent("\n".join([*taken.outer, f"return SimpleNamespace({values})"]), "    ")
    function = (
        "@functools.cache\n"
        f"def outside({DEVICE}: torch.device) -> SimpleNamespace:\n"
        '    """Return what the loss uses beside model and batch; made once."""\n'
        f"{body}\n\n\n"
    )
    return text.replace("def loss_sum(", f"{function}def loss_sum(")


def with_body(text: str, name: str, body: str) -> str:
    """The text with another body in a function of the module, below its docstring."""
    function = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name)
    lines = text.splitlines()
    head = lines[: function.body[0].end_lineno]
    return "\n".join([*head, textwrap.indent(body, "    "), *lines[function.end_lineno or 0 :]]) + "\n"


_RUNNING = ("collator", "load_train_data", "build_model", "outside", "beside", "loader", "trainer", "set_globals")
"""Functions of task.py that run code of the script which may read files."""
_AT_START = '''START = "."
"""The folder that paths in the script begin at, from this one."""


def at_start(function: Any) -> Any:
    """Return a function that runs in that folder."""

    @functools.wraps(function)
    def run(*given: Any) -> Any:
        here = Path.cwd()
        os.chdir(Path(__file__).resolve().parent / START)
        try:
            return function(*given)
        finally:
            os.chdir(here)

    return run


'''


def _with_start(text: str, start: str) -> str:
    """The text with functions that read the script's files where the script finds them."""
    nodes = [one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name in _RUNNING]
    lines = text.splitlines()
    for node in reversed(nodes):
        lines.insert(min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1, "@at_start")
    first = min(min([node.lineno, *(one.lineno for one in node.decorator_list)]) for node in nodes)
    lines[first - 1 : first - 1] = with_constant(_AT_START, "START", start).splitlines()
    return _with_imports("\n".join(lines) + "\n", ["import os"], "", ())


def _with_imports(text: str, found: list[str], script: str, beside: Collection[str]) -> str:
    """The text with more imports below its own, those of the script last."""
    if not found:
        return text
    last = max(n.end_lineno or 0 for n in ast.parse(text).body if isinstance(n, ast.Import | ast.ImportFrom))
    lines = text.splitlines()
    ours = {line for line in found if line.split()[1].partition(".")[0] in beside}
    others = sorted(line for line in found if line not in ours and line != f"import {OWN}")
    own = [f"import {OWN}"] if f"import {OWN}" in found else []
    if ours:
        folder = str(PurePath(script).parent)
        path = (
            f"sys.path.append(str(Path(__file__).resolve().parent / {folder!r}))  # for the modules beside the script"
        )
        others, own = sorted([*others, "import sys"]), [*own, "", path, *sorted(ours)]
    return "\n".join([*lines[:last], *others, *([""] if own else []), *own, *lines[last:]]) + "\n"
