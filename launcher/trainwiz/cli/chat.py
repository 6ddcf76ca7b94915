"""`trainwiz chat` and `trainwiz sample`: the options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainwiz.language import t

_NEWEST = -1
_NO_SEED = -1
_TARGET = typer.Argument(
    "latest",
    metavar="RUN|CHECKPOINT|DIR",
    help=t("A run, a project, a checkpoint or a model's folder (default: the newest run here)."),
)
_UPDATE = typer.Option(
    _NEWEST,
    "--checkpoint",
    metavar="N",
    help=t("Answer with the checkpoint of this update (default: the finished model)."),
)
_LAST = typer.Option(False, "--last-weights", help=t("Use the last weights, not their average (optimizer.ema_decay)."))
_CPU = typer.Option(False, "--cpu", help=t("Do not use the GPUs."))
_PYTHON = typer.Option("", "--python", metavar="PATH", help=t("Python interpreter that runs the training."))
_TRUST = typer.Option(
    False, "--trust", help=t("Also load classes that are not known, which lets the checkpoint run any code.")
)
_MAX_TOKENS = typer.Option(512, "--max-tokens", metavar="N", min=1, help=t("Maximum number of tokens in an answer."))
_TEMPERATURE = typer.Option(
    0.7, "--temperature", metavar="T", min=0.0, help=t("Sampling temperature; 0 always picks the most likely token.")
)
_TOP_P = typer.Option(
    0.9,
    "--top-p",
    metavar="P",
    min=0.01,
    max=1.0,
    help=t("Sample from the most likely tokens whose probabilities add up to P."),
)
_SEED = typer.Option(
    _NO_SEED,
    "--seed",
    metavar="N",
    help=t("Seed for sampling; the same seed gives the same tokens."),
    show_default=False,
)


def chat(
    target: str = _TARGET,
    system: str = typer.Option("", "--system", metavar="TEXT", help=t("System prompt: how the model should answer.")),
    update: int = _UPDATE,
    last_weights: bool = _LAST,
    max_tokens: int = _MAX_TOKENS,
    temperature: float = _TEMPERATURE,
    top_p: float = _TOP_P,
    seed: int = _SEED,
    cpu: bool = _CPU,
    python: str = _PYTHON,
    trust: bool = _TRUST,
) -> int:
    """Talk with a trained model in the terminal; without one, each line of stdin is a question."""
    from trainwiz.workflows.chat import chat

    wanted = _wanted(target, update, last_weights, cpu, python, trust)
    return chat.chat(wanted, _choice(max_tokens, temperature, top_p, seed), system)


def sample(
    target: str = _TARGET,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT…", help=t("Prompt to answer or to continue.")),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help=t("A prompt, given as an option; repeatable.")),
    ] = None,
    times: int = typer.Option(1, "--times", metavar="N", min=1, help=t("Number of answers to each prompt.")),
    raw: bool = typer.Option(False, "--raw", help=t("Continue the text itself, without the chat template.")),
    json: bool = typer.Option(False, "--json", help=t("Print prompts and answers as JSON.")),
    update: int = _UPDATE,
    last_weights: bool = _LAST,
    max_tokens: int = _MAX_TOKENS,
    temperature: float = _TEMPERATURE,
    top_p: float = _TOP_P,
    seed: int = _SEED,
    cpu: bool = _CPU,
    python: str = _PYTHON,
    trust: bool = _TRUST,
) -> int:
    """Let a trained model answer a prompt, or continue it; without a prompt, stdin is one."""
    from trainwiz.workflows.chat import chat

    target, prompts = chat.told(target, [*(words or []), *(prompt or [])])
    wanted = _wanted(target, update, last_weights, cpu, python, trust)
    choice = _choice(max_tokens, temperature, top_p, seed)
    return chat.sample(wanted, choice, prompts, times=times, raw=raw, as_json=json)


def _wanted(target: str, update: int, last_weights: bool, cpu: bool, python: str, trust: bool) -> Any:
    from trainwiz.workflows.chat.model import Wanted

    return Wanted(
        target=target,
        update=None if update == _NEWEST else update,
        average=not last_weights,
        cpu=cpu,
        python=python or None,
        trust=trust,
    )


def _choice(max_tokens: int, temperature: float, top_p: float, seed: int) -> Any:
    from trainwiz.workflows.chat.answers import Choice

    return Choice(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=None if seed == _NO_SEED else seed,
    )
