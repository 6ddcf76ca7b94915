"""The surroundings of a plan: data, model and build locks. Fast, and never over the network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainwiz import strategies, tasks, vocabulary
from trainwiz.probe import conversations, data, labelled, locks, model
from trainwiz.probe.cache import HubCache
from trainwiz.project import DataFacts, Project

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_TRUE = ("1", "true", "yes", "on")


def project(plan: Plan, folder: str, *, environ: Mapping[str, str] = os.environ) -> Project:
    """The surroundings as they are now; `folder`, from which paths in the plan count, need not exist yet.

    The data and the model of the task custom are in task.py, and stay unknown. Generated files and ports are not looked
    at here.
    """
    offline = any(environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    build_locks = locks.stale_locks(environ) if strategies.of(plan).uses_deepspeed else ()
    if tasks.of(plan).own_code:
        return Project(folder=folder, offline=offline, build_locks=build_locks)
    cache = HubCache(environ)
    return Project(
        folder=folder,
        train=_data(plan, plan.data.train, Path(folder), cache, split="train"),
        eval=_data(plan, plan.data.eval, Path(folder), cache, split="validation") if plan.data.eval else None,
        model=model.facts(
            plan.model.name, Path(folder), cache, from_scratch=plan.model.from_scratch, task=tasks.of(plan)
        ),
        offline=offline,
        build_locks=build_locks,
    )


def _data(plan: Plan, name: str, root: Path, cache: HubCache, *, split: str) -> DataFacts:
    match tasks.of(plan).samples:
        case "labelled_texts":
            return labelled.texts(name, root, cache, split=split)
        case "scored_texts":
            return labelled.texts(name, root, cache, split=split, scored=True)
        case "pictures":
            return labelled.pictures(name, root, split=split)
        case "conversations":
            return conversations.facts(name, _reading(plan, root, cache), split=split)
    return data.facts(name, _reading(plan, root, cache), split=split)


def _reading(plan: Plan, root: Path, cache: HubCache) -> data.Reading:
    return data.Reading(
        root=root,
        cache=cache,
        sequence_length=plan.batch.sequence_length,
        as_bytes=_reads_bytes(plan),
        packing=plan.data.packing,
    )


def _reads_bytes(plan: Plan) -> bool:
    """Whether task.py uses bytes as tokens, without a tokenizer."""
    preset = tasks.of(plan).shape(plan.model.name) is not None and plan.model.from_scratch
    return preset and (plan.model.name == "tiny" or plan.data.train == vocabulary.EMBEDDED)
