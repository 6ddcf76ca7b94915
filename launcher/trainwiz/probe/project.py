"""The surroundings of a plan: data, model and build locks.

Fast, and over the network only for the size of a model that is neither here nor in the plan: three seconds at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainwiz import strategies, tasks, vocabulary
from trainwiz.probe import chat_template, data, hub_model, locks, model, tokens
from trainwiz.probe.cache import HubCache, has_token, offline
from trainwiz.probe.conversations import CONVERSATIONS
from trainwiz.probe.documents import DOCUMENTS
from trainwiz.probe.hub_model import HubModel
from trainwiz.probe.labeled import SCORED_TEXTS, TAGGED_TEXTS, TEXTS
from trainwiz.probe.pictures import PICTURES, SCORED_PICTURES, TAGGED_PICTURES
from trainwiz.probe.preferences import PREFERENCES
from trainwiz.project import DataFacts, Project, is_part

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_KINDS = {
    "labeled_texts": TEXTS,
    "scored_texts": SCORED_TEXTS,
    "tagged_texts": TAGGED_TEXTS,
    "pictures": PICTURES,
    "scored_pictures": SCORED_PICTURES,
    "tagged_pictures": TAGGED_PICTURES,
    "conversations": CONVERSATIONS,
    "preferences": PREFERENCES,
}


def project(
    plan: Plan,
    folder: str,
    *,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str], HubModel] = hub_model.look,
) -> Project:
    """The surroundings as they are now; `folder`, from which paths in the plan count, need not exist yet.

    `ask` asks the hub about a model.

    The data and the model of the task custom are in task.py, and stay unknown. Generated files and ports are not looked
    at here.
    """
    row, root, cache = tasks.of(plan), Path(folder), HubCache(environ)
    around = Project(
        folder=folder,
        offline=offline(environ) is not None,
        hub_token=has_token(environ) if plan.model.push_to_hub else None,
        build_locks=locks.stale_locks(environ) if strategies.of(plan).uses_deepspeed else (),
    )
    if row.own_code:
        return around
    kind = _KINDS.get(row.samples, DOCUMENTS)
    reading = data.Reading(
        root=root,
        cache=cache,
        sequence_length=plan.batch.sequence_length,
        as_bytes=_reads_bytes(plan),
        packing=plan.data.packing,
        two_answers=row.rows(plan.preference.loss) > 1,
        answers_only=plan.data.train_on == "answers",
        columns=plan.data.columns,
        text_column=plan.data.image_column if row.backbones else plan.data.text_column,
        label_column=plan.data.label_column,
        fewer=bool(
            plan.data.source_weights
            or plan.data.max_rows
            or plan.data.min_tokens
            or plan.data.max_tokens
            or is_part(plan.data.eval)
        ),
    )
    looking = model.Looking(root=root, cache=cache, offline=around.offline, told=plan.model.parameters, ask=ask)
    found = replace(
        around,
        train=data.facts(plan.data.train, kind, reading, split="train"),
        eval=_held_out(plan, kind, reading),
        model=model.facts(plan.model.name, looking, from_scratch=plan.model.from_scratch, task=row),
        reads_bytes=reading.as_bytes,
        chat_template=chat_template.problem(plan.data.chat_template, root) if plan.data.chat_template else "",
    )
    missing = tokens.missing(plan, root, cache) if row.from_hub and not reading.as_bytes else ()
    return replace(found, new_tokens=missing, model=found.model and tokens.enlarged(found.model, len(missing)))


def _held_out(plan: Plan, kind: data.Kind, reading: data.Reading) -> DataFacts | None:
    if not plan.data.eval:
        return None
    found = data.facts(plan.data.eval, kind, reading, split="validation")
    return replace(found, shared=data.shared(plan.data.train, plan.data.eval, kind, reading))


def _reads_bytes(plan: Plan) -> bool:
    """Whether task.py uses bytes as tokens, without a tokenizer."""
    preset = tasks.of(plan).shape(plan.model.name) is not None and plan.model.from_scratch
    return preset and (plan.model.name == "tiny" or plan.data.train == vocabulary.EMBEDDED)
