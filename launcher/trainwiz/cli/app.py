"""The command line. Each command is the function of its name in the module of its name, or in `runs`.

`import` is a keyword of Python, so its module and function are called `import_`; `agent-guide` is `agent_guide`.
"""

from __future__ import annotations

import copy
import importlib
import keyword
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from trainwiz import __version__
from trainwiz.cli import completion, fast_options, help_text
from trainwiz.language import t, text
from trainwiz.message import say
from trainwiz.ui import console

COMMANDS = {
    "init": say("Ask about the task, model, machine and batch, check the answers, and write a project."),
    "recipes": say("List recipes, models with a method on GPUs that fit, for init --recipe."),
    "update": say("Regenerate a project's files after its plan changed; keep your edits."),
    "doctor": say("Check the training environment and show the commands that fix it."),
    "plan": say("Show what fits on some GPUs, how fast it is and what it costs; the best first."),
    "launch": say("Check the plan on this machine, then launch and supervise exactly the planned ranks."),
    "replay": say("Run a recorded run once more, with its plan and code, and compare the curves."),
    "submit": say("Check the project, and submit it to Slurm, Kubernetes or a cloud, as the plan says."),
    "stop": say("Ask a run or a submitted job to save a checkpoint and stop."),
    "prepare": say("Download and tokenize the data ahead, on all cores; Ctrl-C keeps what is done."),
    "rehearse": say("Train a small version of the project on this machine's CPU: kill, resume, compare."),
    "check": say("Check projects, and files of accelerate, DeepSpeed and training tools, against the rules only."),
    "import": say(
        "Create a project from files of accelerate, DeepSpeed or a training tool; report what cannot be carried over."
    ),
    "adopt": say("Create a project from your own training script: its model, data and loss are read, never run."),
    "lint": say("Read your own training script and point out what goes wrong on several ranks."),
    "agent-guide": say("Print a page for coding agents: what to type, what is printed, exit codes."),
    "explain": say("Show the manual entry for a rule or for the plan's keys."),
    "runs": say("List a project's runs: state, updates, loss, speed, and why each one ended."),
    "checkpoints": say("List a training's checkpoints: update, size, completeness, and whether each file is intact."),
    "export": say("Export a checkpoint's full weights for from_pretrained, from any strategy; needs no GPU."),
    "chat": say("Talk with a trained model, or with a checkpoint, on the GPU if there is one."),
    "sample": say("Print a trained model's answer to a prompt."),
    "logs": say("Show a rank's log; -f follows it until the run ends."),
    "report": say("Write a run's report as a single HTML file: curves, timeline, plan, outcome."),
    "share": say("Print a run as one anonymous row: model, GPUs, strategy, peak memory, speed."),
    "diff": say("Show what changed between two runs: plan, versions, machine, result."),
    "diagnose": say("Explain why a run, or any training you have a log of, failed, and what to run."),
    "cache": say("List tokenized data, and delete what is no longer used."),
    "board": say("Serve a live page on this machine: compare runs, read logs, see what failed and why."),
    "watch": say("Watch a run in the terminal: loss curve, speed, memory, remaining time."),
}
"""Each command's line in the list of commands."""
_OF_RUNS = ("runs", "checkpoints", "export", "logs", "report", "share", "stop", "diff", "diagnose", "watch")
"""The commands on runs."""
_MODULES = {**dict.fromkeys(_OF_RUNS, "runs"), "sample": "chat"}
"""The modules of commands that are not in one of their own."""


def command(arguments: Sequence[str]) -> Any:
    """The command line as a click command: `command(arguments)(arguments)` runs it."""
    built = get_command(application(arguments))
    _accept_language_everywhere(built)
    fast_options.install(built)
    help_text.install(built)
    completion.install(built)
    completion.accept_shell(built, arguments)
    _tell_of_interruption(built)
    return built


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line with all commands, or with the one that the arguments begin with: each takes a millisecond."""
    app = typer.Typer(
        name="trainwiz",
        help=t("Turn a model and some GPUs into a correct training run: ask, check, write, launch."),
        no_args_is_help=True,
        # typer imports pydantic for the options that install completion; a command does not wait for that.
        add_completion=not COMMANDS.keys() & set(arguments),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_everywhere)
    for name in [name for name in arguments[:1] if name in COMMANDS] or COMMANDS:
        own = f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")
        module = importlib.import_module(f"trainwiz.cli.{_MODULES.get(name, own)}")
        app.command(name, cls=getattr(module, "Command", None), help=text(COMMANDS[name]))(getattr(module, own))
    return app


def _tell_of_interruption(command: Any) -> None:
    # typer turns Ctrl-C into its own exit code without a word (seen with 0.29), so it must not see it.
    invoke = command.invoke

    def heard(context: Any) -> Any:
        try:
            return invoke(context)
        except KeyboardInterrupt:
            console.talk()  # behind the terminal's ^C
            raise typer.Abort from None

    command.invoke = heard


def _accept_language_everywhere(command: Any) -> None:
    # `--lang` is also looked for behind a command's name; help shows it once.
    option = copy.copy(next(parameter for parameter in command.params if parameter.name == "lang"))
    option.hidden, option.expose_value = True, False
    for subcommand in command.commands.values():
        subcommand.params.append(option)


def _version(wanted: bool) -> None:
    if wanted:
        console.data(f"trainwiz {__version__}")
        raise typer.Exit


def _everywhere(
    lang: str = typer.Option(
        "", "--lang", help=t("Language: en or zh (default: TRAINWIZ_LANG, then the locale)."), metavar="LANG"
    ),
    version: bool = typer.Option(False, "--version", help=t("Show the version."), callback=_version, is_eager=True),
) -> None:
    """Options before the command's name. `main` has already read `lang`, wherever it stands."""
