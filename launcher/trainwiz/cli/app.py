"""The typer application and its commands' names. Each command lives in a module of its own."""

from __future__ import annotations

import typer

from trainwiz import __version__
from trainwiz.cli import check, diagnose, diff, doctor, explain, init, launch, lint, logs, report, runs, watch
from trainwiz.language import t
from trainwiz.ui import console

app = typer.Typer(
    name="trainwiz",
    help=t("From a model and some GPUs to a training that is right: ask, check, write, launch."),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        console.data(f"trainwiz {__version__}")
        raise typer.Exit


@app.callback()
def _everywhere(
    lang: str = typer.Option(
        "", "--lang", help=t("Language: en or zh (else TRAINWIZ_LANG, else the locale)."), metavar="LANG"
    ),
    version: bool = typer.Option(False, "--version", help=t("Show the version."), callback=_version, is_eager=True),
) -> None:
    """Options that stand before every command; `lang` was already read in `main`."""


app.command("init", help=t("Ask about task, model, machine and batch; check the answers; write a project."))(init.init)
app.command("doctor", help=t("Look at the environment that will train, and say what to type to mend it."))(
    doctor.doctor
)
app.command(
    "launch", cls=launch.LaunchCommand, help=t("Check the plan here and now, then run and supervise exactly its world.")
)(launch.launch)
app.command("check", help=t("Check projects, and files of accelerate and DeepSpeed, by the rules alone."))(check.check)
app.command("lint", help=t("Read a training script of your own and point at what goes wrong on several ranks."))(
    lint.lint
)
app.command("explain", help=t("Show the manual entry of a rule, or of the plan's keys."))(explain.explain)
app.command("runs", help=t("List the runs of a project: state, updates, loss, speed, why it ended."))(runs.runs)
app.command("logs", help=t("Show a rank's log; -f goes on until the run ends."))(logs.logs)
app.command("report", help=t("Write a run as one HTML file: curves, timeline, plan, outcome."))(report.report)
app.command("diff", help=t("Show what changed between two runs: plan, versions, machine, result."))(diff.diff)
app.command("diagnose", help=t("Say why a run failed, or any training whose log you have, and what to type."))(
    diagnose.diagnose
)
app.command("watch", help=t("Watch a run in the terminal: loss curve, speed, memory, remaining time."))(watch.watch)
