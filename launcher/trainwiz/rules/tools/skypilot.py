"""SkyPilot's task YAML."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule


@rule("TW941", level=Level.WARNING, field="resources.use_spot")
def spot_machines_need_a_bucket(tool_file: ToolFile) -> Violations:
    """On spot machines, checkpoints must go to storage that outlives the machine.

    Without it: when the machine is taken away, its disk is lost, and the training starts from scratch.
    Why: a managed job is restarted on another machine.
    Instead: mount a bucket in file_mounts (mode: MOUNT), or a volume, and write the checkpoints there.
    Source: https://docs.skypilot.co/en/latest/examples/managed-jobs.html
    """
    kept = tool_file.get("file_mounts") or tool_file.get("volumes") or "://" in tool_file.document.text
    if tool_file.get("resources.use_spot") is True and not kept:
        yield violation(
            "a spot machine can be taken away, and everything on it is lost",
            remedy("mount a bucket in file_mounts and write the checkpoints there"),
        )
