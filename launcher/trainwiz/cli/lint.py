"""`trainwiz lint`: a person's own training script, judged by its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainwiz.language import t

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwiz.finding import Finding
    from trainwiz.script import Script


def lint(
    scripts: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT.py…", help=t("Training scripts; they are read, never run."))
    ] = None,
    json: bool = typer.Option(False, "--json", help=t("The findings as JSON.")),
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="ID", help=t("Only this rule, or all that begin with this (TW70); repeatable.")
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="ID", help=t("Leave out a rule, or all that begin with this (TW3); repeatable.")
        ),
    ] = None,
) -> int:
    """Exit 1 on a finding of level error. `# trainwiz: ignore[TW703]` on a line leaves it out there."""
    from trainwiz.errors import UsageError
    from trainwiz.finding import errors
    from trainwiz.message import say
    from trainwiz.rules import selection
    from trainwiz.store import scripts as files
    from trainwiz.ui import console, source

    if not scripts:
        raise UsageError(say("no script is named"), say("trainwiz lint train.py"))
    wanted, left_out = selection.prefixes(select or ()), selection.prefixes(ignore or ())
    read = [files.read(path) for path in dict.fromkeys(scripts)]
    found = [finding for script in read for finding in _findings(script, wanted or ("TW",), left_out)]
    if json:
        console.data_json(source.to_dict(found))
    else:
        source.show(found, {script.file: script.lines for script in read})
    return 1 if errors(found) else 0


def _findings(script: Script, wanted: Sequence[str], left_out: Sequence[str]) -> list[Finding]:
    """What the rules say, from the first line to the last."""
    from trainwiz import rules

    chosen = [rule for rule in rules.of_scripts() if rule.id.startswith(tuple(wanted))]
    found = rules.check(rules.Facts(script=script), rules=chosen, ignore=left_out)
    kept = [f for f in found if f.place is None or not f.rule.startswith(script.ignored.get(f.place.line, ("-",)))]
    return sorted(kept, key=lambda f: (f.place.line, f.place.column) if f.place else (0, 0))
