"""Text files of a project by Jinja2: README.md, requirements.txt, .gitignore. Never Python, YAML or JSON."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import jinja2

from trainwiz import schedulers, tasks, vocabulary
from trainwiz.command import by_hand, settings
from trainwiz.engines import accelerate, colossalai, deepspeed, torch
from trainwiz.plan import Plan
from trainwiz.render import script
from trainwiz.render.artifact import Artifact
from trainwiz.tasks import generation

_OLDEST = {
    "torch": torch.OLDEST,
    "accelerate": accelerate.OLDEST,
    "deepspeed": deepspeed.OLDEST,
    "colossalai": colossalai.TRIED["colossalai"],
}
_READMES = {"en": "README.md.j2", "zh": "README.zh-CN.md.j2"}


def documents(plan: Plan, templates: Mapping[str, str], *, language: str) -> tuple[Artifact, ...]:
    """The files. A language without a README of its own gets the English one."""
    names = {
        "README.md": _READMES.get(language, _READMES["en"]),
        "requirements.txt": "requirements.txt.j2",
        ".gitignore": "gitignore.j2",
    }
    context = _context(plan)
    return tuple(
        Artifact(path, _compiled(templates[f"templates/{name}"]).render(context)) for path, name in names.items()
    )


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markdown and plain text: nothing here is HTML.
        autoescape=False,
    )
    return environment.from_string(text)


def _context(plan: Plan) -> dict[str, Any]:
    scheduler = schedulers.of(plan)
    machine, batch, wanted = plan.machine, plan.batch, script.features(plan)
    return {
        "plan": plan,
        "job_logs": scheduler.logs if scheduler else (),
        "task_packages": tasks.of(plan).packages,
        "backbone": tasks.of(plan).backbones and tasks.of(plan).shape(plan.model.name) is None,
        "written": tuple(generation.chosen(plan.evaluation.generation_metrics).values())
        if "generated" in wanted
        else (),
        "oldest": _OLDEST,
        "world": machine.num_processes,
        "machines": machine.num_machines,
        "ranks_per_machine": machine.ranks_per_machine,
        "product": batch.per_device_batch_size * batch.gradient_accumulation_steps * machine.num_processes,
        "by_hand": [
            [by_hand.line(equivalent) for equivalent in by_hand.equivalents(plan, machine_rank=rank)]
            for rank in range(min(machine.num_machines, 2))
        ],
        "accelerate_starts_it": settings.distributed_type(plan) != "MULTI_CPU",
        "address_missing": machine.num_machines > 1 and machine.main_process_ip is None,
        "gathered": "final_weights" in wanted,
        "adapted": "lora" in wanted,
        "labeled": tasks.of(plan).labeled,
        "new_head": tasks.of(plan).labeled or tasks.of(plan).pairs,
        "built_once": "built_once" in wanted,
        "hashed": "hashes" in wanted,
        "scripts": script.optional_parts(wanted),
        "unproven": machine.device in vocabulary.UNPROVEN_DEVICES,
        "datasets": any(_needs_datasets(name) for name in (plan.data.train, plan.data.eval)),
    }


def _needs_datasets(names: str | None) -> bool:
    """Whether one of these sources may be on the hub, or is a file that only the package datasets reads."""
    if names is None or names == vocabulary.EMBEDDED or re.fullmatch(r"[\d.]+%?", names):
        return False
    plain = (".txt", ".jsonl", ".json", ".csv", ".tsv")
    return not all(
        name.strip().removesuffix(".gz").endswith(plain) or (name.strip().endswith("/") and name.startswith((".", "/")))
        for name in names.split(",")
    )
