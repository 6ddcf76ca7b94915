"""`trainwiz check`: judge plans and configuration files by the rules, fix them if asked to, and show what is left."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainwiz.config import Document
from trainwiz.finding import Finding, Place, errors
from trainwiz.language import t
from trainwiz.rules import selection
from trainwiz.store import configurations as store
from trainwiz.ui import console, findings
from trainwiz.workflows.check import configurations, fixes
from trainwiz.workflows.check import targets as sorting
from trainwiz.workflows.check.configurations import Files
from trainwiz.workflows.check.request import Request

if TYPE_CHECKING:
    from trainwiz.plan import Plan

HERE = "here"
"""Plans are judged for this machine unless another one is named; files only if this word is given."""


@dataclass(frozen=True, kw_only=True)
class _Judged:
    plans: Mapping[str, Document] = field(default_factory=dict)
    """The plans that can be read, by path."""
    of_plans: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    """What was found in each of them."""
    files: Files
    """Configuration files, and plans that cannot be read."""
    in_files: Sequence[Finding]
    """What was found in them."""

    @property
    def all(self) -> list[Finding]:
        return [*(finding for each in self.of_plans.values() for finding in each), *self.in_files]

    def placed(self) -> list[Finding]:
        """All findings; those of plans with the file and, where a key stands in it, its line."""
        of_plans = (_in_plan(found, self.plans[path]) for path, each in self.of_plans.items() for found in each)
        return [*of_plans, *self.in_files]


def check(request: Request) -> int:
    """Check, and return the exit code: 1 on a finding of level error. Raises `UsageError`, if need be at the end."""
    format = findings.chosen_format(request.format, as_json=request.json)
    request = replace(request, select=selection.prefixes(request.select), ignore=selection.prefixes(request.ignore))
    judged = _judged(request)
    if request.fix and _fixed(judged, request):
        judged = _judged(request)
    if request.fix and not request.unsafe_fixes:
        fixes.tell_of_unsafe(judged.all)
    unknown = judged.files.unknown
    if unknown and not (judged.plans or judged.files.documents):
        raise configurations.unknown(unknown)
    for engine in configurations.assumed(judged.files):
        version = judged.files.version(engine)
        console.talk(
            t(
                "assuming {engine} {version}, the newest that the rules know; for others: --python PATH or "
                "--engine-version {engine}=VERSION",
                engine=engine,
                version=version,
            )
        )
    alone = len(judged.plans) == 1 and not judged.files.documents
    findings.write(judged.all if alone and format == "text" else judged.placed(), format)
    if unknown:
        raise configurations.unknown(unknown)
    return 1 if errors(judged.all) else 0


def _judged(request: Request) -> _Judged:
    read = functools.cache(store.read)  # what a file is, is asked before what is wrong with it
    typed = request.targets or ([] if request.default else ["."])
    targets = sorting.sort(typed, default=request.default, skip_others=request.skip_others, read=read)
    files = configurations.load(
        targets.files,
        script=request.script or None,
        versions=configurations.engine_versions(request.engine_version, request.python),
        model=request.model or None,
        here=request.machine == HERE,
        tolerant=True,
        read=read,
    )
    if not targets.plans:
        return _Judged(files=files, in_files=files.findings(request.select, request.ignore))
    # Files of other tools are judged without pydantic, which plans are made of.
    from trainwiz.store import plans

    readable, of_plans, broken, mistakes = {}, {}, {}, {}
    for target in targets.plans:
        document = read(str(plans.find(target)))
        wrong = () if document.problem else plans.mistakes(document)
        if document.problem or wrong:
            broken[document.path], mistakes[document.path] = document, wrong
        else:
            readable[document.path] = document
            of_plans[document.path] = _of_plan(plans.parse(document), str(Path(document.path).parent), request)
    files = replace(files, documents={**files.documents, **broken}, mistakes=mistakes)
    # A plan that cannot be read is reported whatever is selected: no other rule can say anything of it.
    unread = replace(files, documents=broken).findings((), ()) if broken else []
    others = [found for found in files.findings(request.select, request.ignore) if found.file not in broken]
    in_files = [*others, *unread]
    return _Judged(plans=readable, of_plans=of_plans, files=files, in_files=in_files)


def _of_plan(plan: Plan, folder: str, request: Request) -> tuple[Finding, ...]:
    """What the rules find in a plan, for the machine in a file or for this one."""
    from trainwiz.workflows import facts

    machine = facts.machine(
        machine_file=None if request.machine in ("", HERE) else request.machine,
        python=request.python or None,
        folder=folder,
        interfaces=plan.machine.num_machines > 1,
    )
    judged = facts.training_machine(plan, machine)
    if judged is None:
        words = t(
            "this machine has no GPU: the machines of the {kind} job are not checked here", kind=plan.cluster.kind
        )
        console.talk(words)
    return facts.findings(plan, folder, judged, select=request.select, ignore=request.ignore)


def _in_plan(finding: Finding, document: Document) -> Finding:
    """The finding with its place: the key in the plan, the file of the project that it names, or the plan."""
    if finding.place:
        return finding
    if tuple(finding.where.split(".")) in document.entries:
        return replace(finding, place=document.place(finding.where))
    named = Path(document.path).with_name(finding.where) if finding.where.isprintable() else Path(document.path)
    return replace(finding, place=Place(file=str(named) if named.is_file() else document.path, line=1))


def _fixed(judged: _Judged, request: Request) -> bool:
    """Whether something was changed and written."""
    after = fixes.fixed(judged.files, request.select, request.ignore, unsafe=request.unsafe_fixes)
    before_texts = {path: document.text for path, document in judged.files.documents.items()}
    after_texts = {path: document.text for path, document in after.documents.items()}
    for path, document in judged.plans.items():
        before_texts[path] = document.text
        after_texts[path] = fixes.fixed_plan(document, judged.of_plans[path], unsafe=request.unsafe_fixes)
    return fixes.apply(before_texts, after_texts, confirmed=request.yes)
