"""`trainwiz lint`: judge training scripts by their text."""

from __future__ import annotations

from collections.abc import Sequence

from trainwiz import rules
from trainwiz.errors import UsageError
from trainwiz.finding import Finding, Place, errors
from trainwiz.message import say
from trainwiz.rules import selection
from trainwiz.script import Script
from trainwiz.store import scripts as store
from trainwiz.ui import findings


def lint(
    scripts: Sequence[str], *, select: Sequence[str] = (), ignore: Sequence[str] = (), format: str = "", json: bool
) -> int:
    """Lint, and return the exit code: 1 on a finding of level error. Raises `UsageError`."""
    chosen_format = findings.chosen_format(format, as_json=json)
    if not scripts:
        raise UsageError(say("no script given"), say("run: trainwiz lint train.py"))
    wanted, left_out = selection.prefixes(select) or ("TW",), selection.prefixes(ignore)
    read = [store.with_modules(path) for path in dict.fromkeys(scripts)]
    named = [finding for script in read for finding in _findings(script, wanted, left_out)]
    found = list({(f.rule, f.place, str(f.message)): f for f in named}.values())
    findings.write(found, chosen_format)
    return 1 if errors(found) else 0


def _findings(script: Script, wanted: tuple[str, ...], left_out: Sequence[str]) -> list[Finding]:
    """What the rules find, from the first line to the last; comments in the script leave rules out."""
    chosen = [rule for rule in rules.of_scripts() if rule.id.startswith(wanted)]
    found = rules.check(rules.Facts(script=script), rules=chosen, ignore=left_out)
    kept = [f for f in found if f.place is None or not f.rule.startswith(_left_out(script, f.place))]
    order = [part.file for part in reversed(script.parts)]
    return sorted(
        kept, key=lambda f: (order.index(f.place.file), f.place.line, f.place.column) if f.place else (0, 0, 0)
    )


def _left_out(script: Script, place: Place) -> tuple[str, ...]:
    """What a comment on this line leaves out; no rule's id begins with a dash."""
    return script.ignored.get((place.file, place.line), ("-",))
