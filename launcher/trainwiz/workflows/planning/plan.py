"""`trainwiz plan`: answers and a machine become rows, the best first."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwiz import files, models, tasks
from trainwiz.decide import decide
from trainwiz.decide.candidates import Candidate, Place, candidates
from trainwiz.errors import UsageError
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.gpus import gpu_model, gpu_of
from trainwiz.estimate.state import work_of
from trainwiz.language import t
from trainwiz.machine import Machine
from trainwiz.message import say
from trainwiz.models import Transformer
from trainwiz.plan import Plan
from trainwiz.project import ModelFacts
from trainwiz.render import PLAN_FILE
from trainwiz.store import plans
from trainwiz.ui import console
from trainwiz.ui import planning as table
from trainwiz.workflows.create import answers
from trainwiz.workflows.create.planner import Planner
from trainwiz.workflows.planning import calibration, exact, on_cpu, price, quantity
from trainwiz.workflows.planning.request import PlanRequest

_VARIED = (
    *("strategy.", "batch.per_device_batch_size", "batch.gradient_accumulation_steps"),
    "model.activation_checkpointing",
)
"""What rows differ in: an earlier answer for it is not kept, one that was typed is."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the rows are about."""

    machine: Machine
    """What trains: this one, or that of `--gpus`."""
    machines: int
    """How many of them."""
    plan: Plan
    """The plan before a strategy is chosen."""
    place: Place
    """Its GPUs."""
    found: tuple[Candidate, ...]
    """All ways to train, the best first."""
    training: table.Training
    """How long it is, and what it saves."""
    assumed: bool
    """Whether the model's layers are those that its number of parameters suggests."""
    shape: Transformer | None
    """The model's layers, where they are known."""


def plan(request: PlanRequest) -> int:
    """Show what is possible; the exit code is 1 where nothing is. Raises `TrainwizError`."""
    if request.calibration or request.forget:
        return calibration.show(request)
    if request.exact:
        return exact.show(request)
    given, gpus = _answers(request), request.gpus
    if not gpus and not (planner := _planner(request, "")[0]).machine.gpus:
        gpus = "" if request.machine else answers.gpus_of(request.folder)
        if not gpus and not _asks_for_gpus(request):
            return on_cpu.show(request, planner.machine, *_sized(planner, given))
        if gpus and not request.json:
            console.talk(t("this machine has no GPU; the rows are for {gpus}, as the project is", gpus=gpus))
    setting = _setting(request, given, gpus)
    limits = table.Limits(
        hours=quantity.hours(request.target) if request.target else None,
        price=price.of(request, setting.machine),
        cost=quantity.money(request.max_cost, "--max-cost") if request.max_cost else None,
    )
    if limits.cost is not None and limits.price is None:
        raise UsageError(say("--max-cost needs the price of a GPU-hour"), say("add --price, like --price 2.5"))
    if request.over:
        return _over(request, given, setting, limits)
    rows = _rows(setting, limits)
    if request.pick:
        _pick(request, setting, rows)
        return 0
    if request.html:
        _write_page(request, setting, rows, limits)
    elif request.json:
        console.data_json(table.to_dict(setting.plan, setting.place, rows, limits))
    else:
        table.show(setting.plan, setting.place, rows, limits)
        if setting.assumed and tasks.of(setting.plan).from_hub:
            table.tell_assumed(setting.plan)
        elif setting.shape and not setting.shape.exact:
            table.tell_counted(setting.plan, setting.shape)
        if setting.shape:
            table.tell_experts(setting.plan, setting.shape)
        if request.model and (request.folder / PLAN_FILE).is_file():
            table.tell_project(request.folder / PLAN_FILE)
        price.tell(request, setting.machine, limits.price)
        calibration.tell(request, setting.place, setting.machine)
    return 0 if any(row.possible for row in rows) else 1


def _answers(request: PlanRequest) -> Mapping[str, Any]:
    flags = {
        "model.name": request.model,
        "task": request.task,
        "batch.sequence_length": request.sequence_length,
        "batch.real_batch_size": request.real_batch_size,
        "schedule.n_steps": request.steps,
    }
    earlier, edited = answers.of_project(request.folder)
    typed = {key: value for key, value in flags.items() if value}
    collected = answers.collect(typed, (*request.assignments, *_adapter(request)), None, earlier, edited)
    earlier = {key: value for key, value in collected.earlier.items() if not key.startswith(_VARIED)}
    found = {**earlier, **collected.given}
    if "model.name" not in found and (request.folder / PLAN_FILE).is_file():
        # A project with nothing but defaults has no answers.
        planned = plans.read(request.folder / PLAN_FILE)
        found = {"task": planned.task, "model.name": planned.model.name, **found}
    if "model.name" not in found:
        raise UsageError(
            say("no model to plan for: there is no project in {folder}", folder=request.folder),
            say("set one: trainwiz plan --model Qwen/Qwen2.5-7B-Instruct --gpus 8xH100"),
        )
    if request.gpus:
        # Another machine: what was decided for the old one is decided again.
        found = {key: value for key, value in found.items() if not key.startswith("machine.")}
    return found


def _setting(request: PlanRequest, given: Mapping[str, Any], gpus: str) -> Setting:
    planner, count = _planner(request, gpus)
    machine = planner.machine
    if not machine.gpus:
        raise UsageError(say("this machine has no GPU to plan for"), say("set them: --gpus 8xH100, or --machine FILE"))
    given = {**given, "machine.num_machines": count} if count > 1 else given
    decided, model = _sized(planner, given)
    parameters = model.parameters or 0
    ranks = decided.machine.num_processes
    memory, time = calibration.factors(machine)
    place = Place(
        memory_bytes=min(gpu.memory_bytes for gpu in machine.gpus),
        gpu=gpu_of(machine),
        ranks=ranks,
        ranks_per_machine=max(1, ranks // decided.machine.num_machines),
        host_bytes=machine.memory.total_bytes or None,
        memory_factor=memory,
        time_factor=time,
        power_watts=max((gpu.power_watts or 0 for gpu in machine.gpus), default=0) or None,
    )
    work = work_of(decided, parameters, model.transformer)
    # The chunk that suits the one plan is too large for other rows: each gets its own when it is picked.
    work = work if "model.loss_chunk" in given else replace(work, loss=Loss())
    found = candidates(
        work,
        place,
        decided.batch.real_batch_size,
        only=request.strategy or _typed_strategy(given, decided),
        samples=given.get("batch.per_device_batch_size") if work.layers_known else decided.batch.per_device_batch_size,
        checkpointing=given.get("model.activation_checkpointing"),
    )
    if not found:
        raise UsageError(
            say("--strategy {given} is not available for {ranks} ranks", given=repr(request.strategy), ranks=ranks),
            say("remove --strategy to see all"),
        )
    return Setting(
        machine=machine,
        machines=count,
        plan=decided,
        place=place,
        found=found,
        training=_training(request, decided),
        assumed=model.assumed,
        shape=model.transformer if tasks.of(decided).from_hub else None,
    )


def _asks_for_gpus(request: PlanRequest) -> bool:
    """Whether the answer is about rows, which only GPUs have."""
    return bool(request.over or request.pick or request.html or request.target or request.max_cost or request.strategy)


def _sized(planner: Planner, given: Mapping[str, Any]) -> tuple[Plan, ModelFacts]:
    """The plan, and its model, whose size is known. Raises `UsageError`."""
    decided, model = _decided(planner, given)
    if tasks.of(decided).own_code and not decided.model.parameters:
        raise UsageError(
            say("the model is built by task.py, your own code, so the plan does not know its size"),
            say("to run one update of it on tensors without memory, add --exact"),
        )
    if model is None or not model.parameters:
        raise UsageError(
            say("the size of {model} is unknown: {why}", model=decided.model.name, why=model.detail)
            if model and model.detail
            else say("the size of {model} is unknown", model=decided.model.name),
            say("set it: --set model.parameters=7_000_000_000"),
        )
    return decided, model


def _decided(planner: Planner, given: Mapping[str, Any]) -> tuple[Plan, ModelFacts | None]:
    """The plan and its model. A folder's config.json and the table of well-known models are enough to know its size."""
    name = str(given["model.name"])
    folder = planner.folder_of(name)
    known = _described(folder) if folder else models.known(name)
    if known is None or not known.exact or "model.parameters" in given:
        decided = planner.decide(given).plan
        model = planner.model(decided)
        if known is None or (model and model.parameters):
            return decided, model
    model = ModelFacts(
        name=name,
        kind="folder" if folder else "hub",
        parameters=known.parameters,
        size_source="config" if folder else "table",
        transformer=known,
    )
    return decide(given, planner.machine, model=model).plan, model


def _described(folder: Path) -> Transformer | None:
    """The model that a folder's config.json describes, with its weights or without."""
    try:
        config = files.read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    return models.of_config(config) if isinstance(config, dict) else None


def _typed_strategy(given: Mapping[str, Any], plan: Plan) -> str | None:
    """The label of the strategy that --set names."""
    if "strategy.kind" not in given:
        return None
    return plan.strategy.label + ("+offload" if plan.strategy.offload_optimizer_device != "none" else "")


def _planner(request: PlanRequest, gpus: str) -> tuple[Planner, int]:
    if not gpus:
        return Planner(folder=request.folder, machine_file=request.machine or None), 1
    machine, count = quantity.machine_named(gpus)
    known: Future[Machine] = Future()
    known.set_result(machine)
    return Planner(folder=request.folder, _machine=known), count


def _training(request: PlanRequest, plan: Plan) -> table.Training:
    saved = plan.checkpoint
    return table.Training(
        updates=_updates(request, plan), every=saved.checkpointing_steps, limit=saved.checkpoints_total_limit
    )


def _updates(request: PlanRequest, plan: Plan) -> int | None:
    if request.tokens:
        each = plan.batch.real_batch_size * plan.batch.sequence_length
        return max(1, quantity.tokens(request.tokens) // each)
    return plan.schedule.n_steps


def _rows(setting: Setting, limits: table.Limits) -> list[table.Row]:
    return [
        table.row(number, one, setting.place, setting.training, limits)
        for number, one in enumerate(setting.found, start=1)
    ]


def _over(request: PlanRequest, given: Mapping[str, Any], setting: Setting, limits: table.Limits) -> int:
    """The best row for each number of GPUs of the same kind."""
    name = setting.machine.gpus[0].name
    if gpu_model(name) is None:
        raise UsageError(say("--over: the speed of {gpu} is unknown", gpu=name), say("use a known GPU: --gpus 8xH100"))
    rows = []
    # Where more GPUs could train all weights, they are compared in what these can train.
    given = {**given, "model.adapter": setting.plan.model.adapter}
    for count in quantity.counts(request.over):
        each = _setting(request, {**given, "batch.real_batch_size": _real_batch(setting, count)}, f"{count}x{name}")
        best = table.row(count, each.found[0], each.place, each.training, limits)
        rows.append(replace(best, gpus=count))
    if request.json:
        named = {"model": setting.plan.model.name, "adapter": setting.plan.model.adapter}
        console.data_json(named | {"rows": [table.row_to_dict(row) for row in rows]})
    else:
        table.show_scaling(setting.plan, setting.place, rows, limits)
        price.tell(request, setting.machine, limits.price)
    return 0 if any(row.possible for row in rows) else 1


def _real_batch(setting: Setting, count: int) -> int:
    """The same real batch for each number of GPUs, or the next one that they divide."""
    return -(-setting.plan.batch.real_batch_size // count) * count


def _write_page(request: PlanRequest, setting: Setting, rows: list[table.Row], limits: table.Limits) -> None:
    from trainwiz.store import atomic, templates
    from trainwiz.ui import planning_page

    file = Path(request.html)
    if file.is_dir():
        raise UsageError(
            say("--html {file} is a folder, not a file", file=file), say("use a file name, like plan.html")
        )
    template = templates.load()[planning_page.TEMPLATE]
    atomic.write(file, planning_page.page(setting.plan, setting.place, rows, limits, template))
    console.data(str(file))


def _pick(request: PlanRequest, setting: Setting, rows: list[table.Row]) -> None:
    """Make the project with this row's settings, as init does: with its review, its diffs and its rules."""
    from trainwiz.workflows.create import init
    from trainwiz.workflows.create.request import InitRequest

    chosen = next((row for row in rows if request.pick == str(row.number) and row.possible), None)
    if chosen is None:
        possible = ", ".join(str(row.number) for row in rows if row.possible)
        raise UsageError(
            say("--pick {given}: no row with this number fits", given=repr(request.pick)),
            say("rows that fit: {rows}", rows=possible or "-"),
        )
    console.talk(t("row {number}: {strategy}", number=chosen.number, strategy=chosen.candidate.name))
    # Of several machines, one: their number is a setting.
    elsewhere = not (request.machine or setting.machine.probed)
    named = f"{len(setting.machine.gpus)}x{setting.machine.gpus[0].name}" if elsewhere else ""
    init.init(
        InitRequest(
            place=request.place,
            defaults=True,
            yes=request.yes,
            assignments=(*request.assignments, *_adapter(request), *_settings(setting, chosen.candidate)),
            machine=named or request.machine or None,
            strategy=chosen.candidate.name,
            task=request.task or None,
            model=request.model or None,
            sequence_length=request.sequence_length or None,
            steps=str(setting.training.updates) if request.tokens else request.steps or None,
        )
    )


def _adapter(request: PlanRequest) -> tuple[str, ...]:
    """What is trained, as a setting."""
    return (f"model.adapter={'none' if request.adapter == 'full' else request.adapter}",) if request.adapter else ()


def _settings(setting: Setting, chosen: Candidate) -> tuple[str, ...]:
    found: dict[str, Any] = {
        "model.activation_checkpointing": chosen.work.checkpointing,
        "batch.per_device_batch_size": chosen.work.samples,
        "batch.gradient_accumulation_steps": chosen.accumulation,
        "batch.real_batch_size": setting.plan.batch.real_batch_size,
    }
    if setting.machines > 1:
        found["machine.num_machines"] = setting.machines
    if chosen.strategy.uses_fsdp and chosen.accumulation > 1:
        found["strategy.sync_each_batch"] = "true"
    return tuple(f"{key}={value}" for key, value in found.items())
