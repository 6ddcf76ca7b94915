"""SkyPilot's task YAML."""

from __future__ import annotations

import re

from trainwiz.config.document import Document
from trainwiz.config.tools.job import Job, count, launched
from trainwiz.config.tools.tool import Tool


def _recognized(document: Document) -> bool:
    values = document.values
    return isinstance(values.get("resources"), dict) and isinstance(values.get("run"), str)


def _job(document: Document) -> Job:
    asked, text = document.get("resources.accelerators"), str(document.get("run"))
    one = (
        asked
        if isinstance(asked, str)
        else next(iter(asked), "")
        if isinstance(asked, dict) and len(asked) == 1
        else ""
    )
    number = count(asked[one]) if isinstance(asked, dict) and one else count(str(one).partition(":")[2] or 1)
    program, options = launched(text)
    return Job(
        machines=count(document.get("num_nodes", 1)),
        gpus=number if one else None,
        gpu=str(one),
        text=text,
        at={"text": "run", "gpu": "resources.accelerators"},
        told=bool(re.search(r"PET_NNODES", text)),
        program=program,
        options=options,
    )


TOOL = Tool(name="SkyPilot", version="0.10", recognized=_recognized, marks="resources, run", job=_job)
