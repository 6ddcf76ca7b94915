"""Batch scripts of Slurm."""

from __future__ import annotations

import re

from trainwiz.config.document import Document
from trainwiz.config.tools.job import Job, count, launched
from trainwiz.config.tools.tool import Tool
from trainwiz.quantities import whole


def _job(document: Document) -> Job:
    gpus = document.get("sbatch.gpus_per_node") or document.get("sbatch.gres") or ""
    found = re.search(r"(?:^|:)(\d+)(?:\(|$|,)", str(gpus))
    program, options = launched(document.text)
    return Job(
        machines=count(document.get("sbatch.nodes", 1)),
        gpus=whole(found[1]) if found else None,
        gpu=f"{gpus} {document.get('sbatch.constraint', '')}",
        text=document.text,
        at={"text": "launcher", "gpu": "sbatch.gres" if document.has("sbatch.gres") else "sbatch"},
        program=program,
        options=options,
    )


TOOL = Tool(
    name="Slurm",
    version="24.05",
    recognized=lambda document: document.syntax == "shell" and "sbatch" in document.values,
    marks="#SBATCH",
    job=_job,
)
