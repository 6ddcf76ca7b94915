"""Batch scripts of Slurm."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.job import count
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule


@rule("TW911", level=Level.WARNING, field="late")
def directives_come_first(tool_file: ToolFile) -> Violations:
    """#SBATCH lines must come before the first command.

    Without it: Slurm silently ignores them: the job gets the defaults for time, GPUs or memory.
    Why: sbatch stops reading at the first line that is neither a comment nor empty.
    Instead: move all #SBATCH lines to the top.
    Source: https://slurm.schedmd.com/sbatch.html
    """
    if tool_file.has("late"):
        yield violation(
            "#SBATCH {directive} comes after the first command, so Slurm ignores it",
            remedy("move it above the first command"),
            directive=tool_file.get("late"),
        )


@rule("TW912", level=Level.ERROR, field="launcher")
def srun_starts_a_launcher_on_each_machine(tool_file: ToolFile) -> Violations:
    """Under srun, a launcher that starts the ranks itself must be started once on each machine.

    Without it: with --ntasks-per-node=8, eight launchers start eight ranks each; they fight for ports and GPUs.
    Why: srun starts one program for each task.
    Instead: set --ntasks-per-node=1, or let srun start the training script itself.
    Source: https://slurm.schedmd.com/srun.html; https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    tasks = count(tool_file.get("sbatch.ntasks_per_node"))
    if tasks and tasks > 1 and tool_file.get("launcher.under_srun") == "true" and not tool_file.has("srun.tasks"):
        yield violation(
            "srun starts {program} {tasks} times on each machine",
            remedy("set --ntasks-per-node=1"),
            program=tool_file.get("launcher.program"),
            tasks=tasks,
        )


@rule("TW913", level=Level.ERROR, field="launcher")
def every_machine_starts_the_launcher(tool_file: ToolFile) -> Violations:
    """On several machines, srun must start the launcher.

    Without it: it starts only on the first machine, and waits there for the others until the rendezvous times out.
    Why: a batch script itself runs on the first machine of the job.
    Instead: write srun before the launcher, with --ntasks-per-node=1.
    Source: https://slurm.schedmd.com/sbatch.html
    """
    machines = count(tool_file.get("sbatch.nodes"))
    torchrun = tool_file.get("launcher.program") == "torchrun"
    alone = torchrun and tool_file.get("launcher.under_srun") == "false"
    elsewhere = any(word in tool_file.document.text for word in ("ssh ", "pdsh", "mpirun", "srun", "ray ", "clush"))
    if machines and machines > 1 and alone and not elsewhere:
        yield violation(
            "only the first of {machines} machines starts torchrun",
            remedy("write srun before it"),
            machines=machines,
        )
