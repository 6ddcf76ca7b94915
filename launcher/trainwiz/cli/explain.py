"""`trainwiz explain`: the options."""

from __future__ import annotations

import typer

from trainwiz.language import t


def explain(
    topic: str = typer.Argument(
        "", metavar="[TOPIC]", help=t("A rule (TW401), a prefix of rule ids (TW4), `keys`, or a key of the plan.")
    ),
    markdown: bool = typer.Option(False, "--markdown", help=t("Print the full rule manual, as in docs/rules.md.")),
    json: bool = typer.Option(False, "--json", help=t("Print the entries as JSON.")),
) -> None:
    """Without a topic, list all rules."""
    from trainwiz.workflows import explain

    explain.explain(topic, as_markdown=markdown, as_json=json)
