"""`trainwiz plan DIR --exact`: an update of the project's own code without memory, beside what the formulas say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trainwiz import strategies, tasks
from trainwiz.decide.candidates import Place, candidates
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.estimate import exact
from trainwiz.estimate.device import Moment, Needs, needs
from trainwiz.estimate.state import work_of
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.probe import exact as program
from trainwiz.probe import interpreter
from trainwiz.probe import model as models
from trainwiz.probe.cache import HubCache
from trainwiz.project import ModelFacts
from trainwiz.shell_words import quoted
from trainwiz.store import answers, plans
from trainwiz.ui import console
from trainwiz.ui import exact as table
from trainwiz.ui.exact import Change, Shown
from trainwiz.workflows.planning import quantity
from trainwiz.workflows.planning.request import PlanRequest

_FORMULA_MOMENTS: tuple[Moment, ...] = ("loss", "backward", "reduction", "step")
_TAKEN = ("place", "gpus", "json", "exact", "python", "yes")
"""The options of `trainwiz plan` that --exact knows."""


def show(request: PlanRequest) -> int:
    """Print the peak; exit 1 where it does not fit on the GPUs that were named. Raises `TrainwizError`."""
    _refuse_options(request)
    plan_file = plans.find(request.folder)
    plan, folder = plans.read(plan_file), plan_file.parent.absolute()
    _refuse(plan, folder)
    gpus = request.gpus or answers.gpus_of(folder)
    machine = quantity.machine_named(gpus)[0] if gpus else None
    facts = _model(plan, folder)
    if strategies.of(plan).runs_exactly == "model" and not (facts and facts.parameters):
        raise UsageError(
            say("--exact: the additional memory of {strategy} is not known", strategy=strategies.of(plan).label),
            say("to see only the model: set strategy.kind to ddp or fsdp, then run it again"),
        )
    asked = _asked(plan, facts)
    if tasks.of(plan).own_code:
        console.talk(table.own_code(), style="dim")
    found = program.run(interpreter.located(request.python or sys.executable), folder, asked)
    if "error" in found:
        raise _failure(found)
    shown = _shown(plan, facts, asked, found, machine.gpus[0].memory_bytes if machine else None)
    if request.json:
        console.data_json(table.to_dict(shown))
    else:
        table.show(shown)
    return 0 if shown.fits else 1


def _refuse_options(request: PlanRequest) -> None:
    given = [each.name for each in fields(request) if each.name not in _TAKEN and getattr(request, each.name)]
    if given:
        typed = ", ".join("--set" if name == "assignments" else f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(
            say("--exact uses the project as it is, and cannot be combined with {options}", options=typed),
            say("change the project first: trainwiz update {folder} --set KEY=VALUE", folder=quoted(request.folder)),
        )


def _refuse(plan: Plan, folder: Path) -> None:
    strategy = strategies.of(plan)
    if strategy.runs_exactly == "nothing":
        raise UsageError(
            say("--exact: {strategy} needs the Colossal-AI engine, which reads tensor values", strategy=strategy.label),
            say("remove --exact: the formulas support this strategy"),
        )
    if plan.model.adapter == "qlora":
        raise UsageError(
            say("--exact: bitsandbytes creates 4-bit weights on a GPU, and there is none"),
            say("remove --exact, or try it with model.adapter: lora"),
        )
    if plan.model.activation_checkpointing == "offload":
        raise UsageError(
            say("--exact simulates a single memory, and cannot tell offloaded data from data on the GPU"),
            say("remove --exact: the formulas know what is offloaded; or try it with full"),
        )
    missing = [name for name in ("train.py", "task.py") if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            say("--exact: {folder} has no {names}", folder=folder, names=", ".join(missing)),
            say("generate them: trainwiz update {folder}", folder=quoted(folder)),
        )


def _model(plan: Plan, folder: Path) -> ModelFacts | None:
    if tasks.of(plan).own_code:
        return None
    looking = models.Looking(root=folder, cache=HubCache(os.environ), offline=True, told=plan.model.parameters)
    return models.facts(plan.model.name, looking, from_scratch=plan.model.from_scratch, task=tasks.of(plan))


def _asked(plan: Plan, facts: ModelFacts | None) -> dict[str, Any]:
    strategy, task = strategies.of(plan), tasks.of(plan)
    shape = work_of(plan, facts.parameters, facts.transformer).transformer if facts and facts.parameters else None
    micro = plan.batch.per_device_batch_size
    variants: list[dict[str, Any]] = [{"values": {}, "recomputes": False}]
    if plan.model.activation_checkpointing == "none":
        variants.append({"values": {}, "recomputes": True})
    if micro > 1:
        variants.append({"values": {"per_device_batch_size": micro // 2}, "recomputes": False})
    return {
        "world": plan.machine.num_processes,
        "depths": list(exact.depths(shape)) if task.from_hub else [],
        "samples": task.longest_samples,
        "whole": strategy.runs_exactly == "update",
        "sharded": strategy.uses_fsdp,
        "gpu": plan.machine.device != "cpu",
        "values": {
            "gradient_accumulation_steps": min(2, plan.batch.gradient_accumulation_steps),
            # The program ends it in the third update; by itself it must not end before.
            "n_steps": max(plan.schedule.n_steps or 0, plan.schedule.n_warmup_steps + 3),
        },
        "variants": variants,
        "layers": shape.num_hidden_layers if shape else 0,
    }


def _failure(found: Mapping[str, Any]) -> TrainwizError:
    error = found["error"]
    if error["missing"]:
        return TrainwizError(
            say("--exact: the package {name} is missing", name=error["missing"]),
            say("install it: pip install -r requirements.txt, or set the training's Python with --python"),
        )
    if error["where"]:
        return TrainwizError(
            say("--exact: {where}: {what}", where=error["where"], what=error["what"]),
            say("run it once to see the full error: trainwiz rehearse DIR"),
        )
    return TrainwizError(say("--exact: {what}", what=error["what"]))


def _shown(
    plan: Plan, facts: ModelFacts | None, asked: Mapping[str, Any], found: Mapping[str, Any], memory: int | None
) -> Shown:
    seen = [exact.peaks(exact.moments(runs, asked["layers"])) if runs else {} for runs in found["variants"]]
    need = None
    if facts and facts.parameters:
        need = needs(strategies.of(plan), work_of(plan, facts.parameters, facts.transformer))
    totals = [_totals(one, None if asked["whole"] else need) for one in seen]
    if not totals[0]:
        raise TrainwizError(
            say("--exact: the training ended before its second update, so no peak was seen"),
            say("run it once to see why: trainwiz rehearse DIR"),
        )
    peak = max(totals[0], key=lambda moment: totals[0][moment])
    return Shown(
        plan=plan,
        whole=asked["whole"],
        totals=totals[0],
        peak=peak,
        moment=seen[0].get(peak),
        formula={name: need.at(name) for name in _FORMULA_MOMENTS} if need else {},
        changes=tuple(
            sorted(
                _changes(
                    plan,
                    facts,
                    asked,
                    [max(one.values()) if parts else None for parts, one in zip(seen, totals, strict=True)],
                    need,
                ),
                key=lambda change: change.saves,
                reverse=True,
            )
        ),
        guessed=tuple(found.get("guessed", ())),
        memory=memory,
        seconds=found.get("seconds", 0.0),
    )


def _totals(seen: Mapping[str, exact.Moment], need: Needs | None) -> dict[str, int]:
    """Bytes by moment. With `need`, state and buffers are the formula's, and only the rest was run."""
    if need is None:
        return {name: seen[name].total for name in ("forward", *_FORMULA_MOMENTS) if name in seen}
    beside = {name: need.at(name) - need.moments[name].get("activations", 0) for name in _FORMULA_MOMENTS}
    return {
        name: beside[name] + (seen[name].of_micro_batch if name in ("loss", "backward") and name in seen else 0)
        for name in _FORMULA_MOMENTS
    }


def _changes(
    plan: Plan, facts: ModelFacts | None, asked: Mapping[str, Any], peaks: list[int | None], need: Needs | None
) -> Iterator[Change]:
    """What lowers the peak, and by how much: seen, or by formula where it would be another engine."""
    now = peaks[0] or 0
    for variant, peak in zip(asked["variants"][1:], peaks[1:], strict=True):
        if peak is not None and peak < now:
            yield Change(what=_named(variant), saves=now - peak, by_formula=False)
    if need is None or facts is None or not facts.parameters:
        return
    work = work_of(plan, facts.parameters, facts.transformer)
    ranks = plan.machine.num_processes
    place = Place(memory_bytes=0, gpu=None, ranks=ranks, ranks_per_machine=plan.machine.ranks_per_machine)
    found = candidates(
        replace(work, whole_gradients=False),
        place,
        plan.batch.real_batch_size,
        samples=work.samples,
        checkpointing=work.checkpointing,
    )
    best = min(found, key=lambda one: one.need.total, default=None)
    if best is not None and best.need.total < need.total:
        what = say("strategy {name}", name=best.name)
        yield Change(what=what, saves=need.total - best.need.total, by_formula=True)


def _named(variant: Mapping[str, Any]) -> Message:
    if variant["recomputes"]:
        return say("model.activation_checkpointing: full")
    size = variant["values"]["per_device_batch_size"]
    return say("batch.per_device_batch_size: {size}, with more accumulation", size=size)
