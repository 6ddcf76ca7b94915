"""Checking what trainwiz did not write: files of other programs, alone, in pairs, and with their script."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Literal

from trainwiz import config, rules
from trainwiz.config import Accelerate, DeepSpeed, Document
from trainwiz.config.kinds import version_of
from trainwiz.config.tools import ToolFile, of_tool
from trainwiz.config.tools import load as load_tools
from trainwiz.engines.accelerate import TRIED as TRIED_ACCELERATE
from trainwiz.engines.deepspeed import TRIED as TRIED_DEEPSPEED
from trainwiz.errors import UsageError
from trainwiz.finding import Finding, Violation
from trainwiz.message import say
from trainwiz.probe import interpreter as interpreters
from trainwiz.probe import programs
from trainwiz.project import Architecture
from trainwiz.rules.files.pairs import hands_to_deepspeed
from trainwiz.rules.files.starters import STARTERS
from trainwiz.rules.registry import Facts, Rule
from trainwiz.script import Script
from trainwiz.store import configurations, scripts
from trainwiz.workflows.check import models

_SHOWN = 8
"""Keys of an unknown file, or unknown files, that are named."""
_TRIED = {"accelerate": TRIED_ACCELERATE, "deepspeed": TRIED_DEEPSPEED}
"""The versions that the rules were tried with; taken where none is installed."""


# docs/decisions/files.md: Other people's files are judged without the machine
@dataclass(frozen=True, kw_only=True)
class Files:
    """Configurations to judge together; their texts may differ from those on the disk."""

    documents: Mapping[str, Document] = field(default_factory=dict)
    """The files, by path."""
    mistakes: Mapping[str, Sequence[Violation]] = field(default_factory=dict)
    """Those that were meant as plans but are not: the reason, beside their problem."""
    script: Script | None = None
    """The training script that they are for, where it is known."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of engines to judge for; for others, those that are installed here."""
    models: Mapping[str, Architecture] = field(default_factory=dict)
    """The model that a file is for, by the file's path, where it is known."""
    unknown: tuple[Document, ...] = ()
    """Files of no known kind, which nothing is said of but that."""
    programs: frozenset[str] | None = None
    """Programs that start ranks on other machines, as far as they are here; None: another machine is meant."""

    def findings(self, select: Sequence[str], ignore: Sequence[str]) -> list[Finding]:
        """What the rules say, file by file, from the first line to the last."""
        if not self.documents:
            return []
        chosen = [rule for rule in rules.of_configurations() if rule.id.startswith(tuple(select) or ("TW",))]
        found: dict[tuple[object, ...], Finding] = {}
        for facts, applicable in self._facts(chosen):
            for finding in rules.check(facts, rules=applicable, ignore=ignore):
                if self._is_further(facts.document) and finding.fix is not None:
                    # A change is made by its key, which the file's first job has, too.
                    finding = replace(finding, fix=replace(finding.fix, changes={}))
                found.setdefault((finding.file, finding.line, finding.rule, finding.where), finding)
        return sorted(found.values(), key=lambda f: (f.file or "", f.line or 0, f.column or 0, f.rule))

    def _facts(self, chosen: Sequence[Rule]) -> Iterable[tuple[Facts, list[Rule]]]:
        pairs: list[tuple[str, Accelerate]] = []
        for path, document in self._parts():
            facts = Facts(document=document, script=self.script, architecture=self.models.get(path))
            kind = "unknown" if document.problem else config.kind_of(document)
            if path in self.mistakes and not document.problem:
                yield Facts(document=document, mistakes=self.mistakes[path]), _needing(chosen, "mistakes")
            elif kind == "unknown":
                yield Facts(document=document), _needing(chosen, "document")
            elif kind == "accelerate":
                accelerate = self.accelerate(path)
                pairs += [(partner, accelerate) for partner in accelerate.files.values() if partner]
                alone = [rule for rule in chosen if "deepspeed" not in rule.needs]
                yield replace(facts, accelerate=accelerate), alone
            elif kind == "deepspeed":
                yield replace(facts, deepspeed=self.deepspeed(path)), _needing(chosen, "deepspeed", "document")
            elif kind == "tool_file":
                tool_file = self.tool_file(path, document)
                others = [
                    rule
                    for rule in _needing(chosen, "document")
                    if not (tool_file.tool.stops_at_duplicates and rule.id == "TW652")
                ]
                own = [rule for rule in _needing(chosen, "tool_file") if of_tool(rule.module, tool_file.tool)]
                yield replace(facts, tool_file=tool_file), [*others, *own]
        for path, accelerate in pairs:
            partner = self.document(path) if path in self.documents else None
            if partner is not None and not partner.problem:
                facts = Facts(document=partner, accelerate=accelerate, deepspeed=self.deepspeed(path))
                yield facts, _needing(chosen, "deepspeed")

    def document(self, path: str) -> Document:
        """The file at this path, with what opens it, where that is known."""
        return replace(self.documents[path], reader=self._readers.get(path, self._reader))

    @functools.cached_property
    def _readers(self) -> Mapping[str, Literal["accelerate"]]:
        """The files that others name: accelerate opens them."""
        return {partner: "accelerate" for path in self.documents for partner in self.partners(path)}

    @functools.cached_property
    def _reader(self) -> Literal["", "deepspeed"]:
        return "deepspeed" if self.script is not None and hands_to_deepspeed(self.script) else ""

    def accelerate(self, path: str) -> Accelerate:
        """The accelerate file at this path, with the files that it names."""
        document = self.documents[path]
        bare = config.Accelerate(document=document, version=version_of(self.version("accelerate")), files={})
        named = bare.deepspeed_file
        found = configurations.resolve(named, path) if named else None
        known = self._known(found) if found else None
        hosts = bare.get(bare.hostfile_named) if bare.hostfile_named else None
        return config.Accelerate(
            document=document,
            version=bare.version,
            files={named: known} if named else {},
            hostfile=configurations.text_of(hosts, path) if hosts else None,
            programs=self.programs,
        )

    def partners(self, path: str) -> list[str]:
        """The DeepSpeed files that the file at this path names, as far as they were found."""
        document = self.documents[path]
        kind = "unknown" if document.problem else config.kind_of(document)
        if kind == "accelerate":
            return [partner for partner in self.accelerate(path).files.values() if partner]
        tool = config.tool_of(document) if kind == "tool_file" else None
        named = ToolFile(document=document, tool=tool).deepspeed_file if tool else None
        found = configurations.resolve(named, path) if named and named.endswith(".json") else None
        return [self._known(found)] if found else []

    def _known(self, found: str) -> str:
        """A file under the name that it has here, should it be one of the files to judge."""
        return next((p for p in self.documents if os.path.realpath(p) == os.path.realpath(found)), found)

    def _parts(self) -> Iterator[tuple[str, Document]]:
        """Each document with its file; a file with several jobs has one for each."""
        for path in self.documents:
            document = self.document(path)
            yield from ((path, part) for part in (document, *document.more))

    def _is_further(self, document: Document | None) -> bool:
        """Whether this is another job than the first one of its file."""
        return document is not None and document.entries is not self.documents[document.path].entries

    def tool_file(self, path: str, part: Document | None = None) -> ToolFile:
        """The training tool's file at this path, with the DeepSpeed file that it names; of several jobs, one."""
        document = part or self.documents[path]
        tool = config.tool_of(document)
        assert tool is not None
        partner = next((p for p in self.partners(path) if p in self.documents), None)
        readable = partner is not None and not self.documents[partner].problem
        return ToolFile(
            document=document, tool=tool, deepspeed=self.deepspeed(partner) if readable and partner else None
        )

    def deepspeed(self, path: str) -> DeepSpeed:
        """The DeepSpeed file at this path."""
        return config.DeepSpeed(document=self.document(path), version=version_of(self.version("deepspeed")))

    def version(self, engine: str) -> str:
        """The engine's version: as told, else as installed here, else the one that the rules were tried with."""
        return self.versions.get(engine) or _installed(engine)


def load(
    paths: Sequence[str],
    *,
    script: str | None,
    versions: Mapping[str, str],
    model: str | None = None,
    here: bool = False,
    tolerant: bool = False,
    read: Callable[[str], Document] = configurations.read,
) -> Files:
    """The files at these paths, and the DeepSpeed files that they name. Raises `UsageError` for those of no known kind.

    `model` is the one that they are for, a preset, a folder or a hub id; else the script or a plan beside them names
    it. `here`: they will be launched from this machine. `tolerant`: files of no known kind are kept in `unknown`.
    """
    if not (paths or script):
        return Files(versions=versions)
    documents, others = {}, []
    for path in paths:
        document = read(path)
        if not document.problem and config.kind_of(document) not in ("accelerate", "deepspeed", "tool_file"):
            others.append(document)
        else:
            documents[path] = document
    if others and not tolerant:
        raise unknown(others)
    files = Files(
        documents=documents,
        script=scripts.read(script) if script else None,
        versions=versions,
        unknown=tuple(others),
    )
    for path in list(documents):
        for partner in files.partners(path):
            if partner not in documents:
                documents[partner] = read(partner)
    return replace(
        files,
        models=models.of_documents(files.documents, files.script, model),
        programs=_programs(documents) if here else None,
    )


def unknown(documents: Sequence[Document]) -> UsageError:
    """The error for files of no known kind: what they have, and what they would need."""
    first, names = documents[0], [document.path for document in documents]
    keys = [str(key) for key in first.values]
    what = (
        say("{file} has a kind that trainwiz does not know; its keys are {keys}", file=first.path, keys=_listed(keys))
        if len(names) == 1
        else say(
            "{count} files have a kind that trainwiz does not know: {files}", count=len(names), files=_listed(names)
        )
    )
    return UsageError(
        what,
        say(
            "supported are trainwiz's plans, and files of accelerate (distributed_type), DeepSpeed "
            "(zero_optimization, train_batch_size) and {tools}",
            tools="; ".join(f"{tool.name} ({tool.marks})" for tool in load_tools().values()),
        ),
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")


def _programs(documents: Mapping[str, Document]) -> frozenset[str]:
    """Which of the programs that start other machines are here; looked for only where a file has several machines."""
    if not any("num_machines" in document.text or "mpirun" in document.text for document in documents.values()):
        return frozenset()
    return programs.installed(STARTERS)


def engine_versions(typed: Sequence[str], python: str = "") -> dict[str, str]:
    """What --engine-version was given; of others, what the environment of `python` has, or the active one.

    Raises `UsageError`.
    """
    active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    interpreter = python or (os.path.join(active, "bin", "python") if active else "")
    found = {engine: interpreters.installed(interpreter, engine) if interpreter else None for engine in _TRIED}
    versions = {engine: version for engine, version in found.items() if version}
    for word in typed:
        engine, _, version = word.partition("=")
        if engine not in _TRIED or not version[:1].isdecimal():
            raise UsageError(
                say("--engine-version {word} does not have the form deepspeed=0.16.5", word=word),
                say("choose one of these engines: {names}", names=", ".join(_TRIED)),
            )
        versions[engine] = version
    return versions


def assumed(files: Files) -> list[str]:
    """The engines of these files whose version neither an option nor an environment says: the newest known counts."""
    kinds = {config.kind_of(d) for d in files.documents.values() if not d.problem}
    here = {engine for engine in _TRIED if any(metadata.distributions(name=engine))}
    return [engine for engine in _TRIED if engine in kinds and engine not in {*files.versions, *here}]


@functools.cache
def _installed(engine: str) -> str:
    try:
        return metadata.version(engine)
    except metadata.PackageNotFoundError:
        return _TRIED[engine]


def _needing(chosen: Sequence[Rule], *facts: str) -> list[Rule]:
    return [rule for rule in chosen if set(facts) & set(rule.needs)]
