"""The course of `trainwiz import`: read, decide, name what does not fit, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwiz.message import say
from trainwiz.workflows.create.planner import Deciding

if TYPE_CHECKING:
    from trainwiz.adoption import Adoption, Left
    from trainwiz.config import Accelerate, DeepSpeed
    from trainwiz.decide import Decided, Source
    from trainwiz.finding import Finding
    from trainwiz.script import Script
    from trainwiz.workflows.create.project_files import Resolution

_SETTINGS = "deepspeed"
_LATER = ("batch.real_batch_size",)
"""Decided by the other two where they are given, so it falls if they disagree."""


@dataclass(kw_only=True)
class Import:
    """One `trainwiz import`. `asks` says whether there is somebody to ask about files of theirs."""

    files: Sequence[str]
    default: bool
    script: str | None
    folder: Path
    assignments: Sequence[str]
    machine_file: str | None
    python: str | None
    versions: Sequence[str]
    resolution: Resolution | None
    as_json: bool
    asks: bool
    deciding: Deciding = field(init=False)

    def __post_init__(self) -> None:
        self.deciding = Deciding(folder=self.folder, machine_file=self.machine_file, python=self.python)

    def run(self, *, write: bool) -> None:
        """Read, decide, show, write. Raises `TrainwizError`."""
        from trainwiz.adoption import adopt
        from trainwiz.workflows.create.answers import collect
        from trainwiz.workflows.create.project_files import check_folder

        check_folder(self.folder)
        self.deciding.look()
        accelerate, deepspeed = self._read()
        firm = collect({}, self.assignments, None, {}, set()).firm
        adoption = adopt(accelerate, deepspeed, self._read_script())
        answers, decided, fallen = self._decided(adoption, firm)
        known = {one.path for one in fallen}
        rest = [one for one in adoption.remainder(decided.plan) if one.path not in known]
        left = _without_answered([*fallen, *rest], firm)
        findings = self.deciding.findings(decided.plan, complete=True)
        if not self.as_json:
            self._show(adoption, decided, left, findings)
        self._refuse_unknown(left)
        written = self._write(answers, decided) if write else None
        self._report(adoption, decided, left, findings, written)

    def _read(self) -> tuple[Accelerate | None, DeepSpeed | None]:
        from trainwiz.workflows.create import import_files

        return import_files.pair(self.files, default=self.default, versions=self.versions)

    def _read_script(self) -> Script | None:
        from trainwiz.store import scripts

        return scripts.read(self.script) if self.script else None

    def _decided(self, adoption: Adoption, firm: Mapping[str, Any]) -> tuple[dict[str, Any], Decided, list[Left]]:
        from trainwiz.adoption import Left
        from trainwiz.decide.earlier import carry

        carried = adoption.carried
        earlier = {key: carried[key].value for key in sorted(carried, key=lambda key: key in _LATER)}
        self.deciding.origins = origins(adoption)
        kept, fallen = carry(firm, earlier, self.deciding)
        answers = {**firm, **kept}
        decided = self.deciding(answers)
        settings = adoption.settings(decided.plan)
        if settings:
            answers[_SETTINGS] = {**settings, **answers.get(_SETTINGS, {})}
            decided = self.deciding(answers)
            decided = replace(decided, sources={**decided.sources, **_of_settings(adoption, settings)})
        lost = [
            Left(
                kind="lost",
                path=carried[f.key].path,
                value=str(f.value),
                place=carried[f.key].place,
                why=f.problems[0],
                key=f.key,
            )
            for f in fallen
        ]
        return answers, decided, lost

    def _show(self, adoption: Adoption, decided: Decided, left: Sequence[Left], findings: Sequence[Finding]) -> None:
        from trainwiz.ui import adoption as shown
        from trainwiz.ui import findings as shown_findings

        shown.show(adoption.files, len(adoption.carried), left, decided)
        if findings:
            shown_findings.show(findings)

    def _refuse_unknown(self, left: Sequence[Left]) -> None:
        from trainwiz.errors import Refused

        unknown = next((one for one in left if one.kind == "unknown"), None)
        if unknown is not None:
            raise Refused(
                say(
                    "{path} {value}: {why}; nothing was written",
                    path=unknown.path,
                    value=unknown.value,
                    why=unknown.why,
                ),
                say("decide it: --set {key}=…", key=unknown.key),
            )

    def _write(self, answers: Mapping[str, Any], decided: Decided) -> Any:
        from trainwiz.workflows.create import project_files

        return project_files.write(decided, self.folder, answers, self.resolution, self.asks)

    def _report(
        self, adoption: Adoption, decided: Decided, left: Sequence[Left], findings: Sequence[Finding], written: Any
    ) -> None:
        from trainwiz.ui import adoption as shown
        from trainwiz.ui import console
        from trainwiz.ui import findings as shown_findings
        from trainwiz.workflows.create import project_files

        if self.as_json:
            record = shown.to_dict(adoption.carried, left, decided)
            record |= shown_findings.to_dict(findings)
            record["written"] = [str(self.folder / path) for path in written.written] if written else []
            console.data_json(record)
        elif written is None:
            from trainwiz.render import plan_file

            console.data(plan_file.text(decided.plan, project_files.reasons(decided)).rstrip("\n"))
        else:
            project_files.report_files(written, self.folder)
            project_files.report_next(self.folder)


def origins(adoption: Adoption) -> dict[str, Source]:
    """Where each carried value comes from: file, line and key, or why it counts although the file leaves it out."""
    from trainwiz.decide import Source

    found = {}
    for key, carried in adoption.carried.items():
        name = Path(carried.place.file).name
        reason = say("{place} {key}", place=f"{name}:{carried.place.line}", key=carried.path)
        if carried.why and name.endswith(".py"):
            at = f"{name}:{carried.place.line}"
            reason = say("{place} {key}: {why}", place=at, key=carried.path, why=carried.why)
        elif carried.why:
            reason = say("{file}: {why}", file=name, why=carried.why)
        found[key] = Source(kind="file", reason=reason)
    found[_SETTINGS] = Source(
        kind="file", reason=say("as DeepSpeed was set; delete a line to get trainwiz's own value")
    )
    return found


def _of_settings(adoption: Adoption, settings: Mapping[str, Any]) -> dict[str, Source]:
    from trainwiz.decide import Source

    found = {}
    for path in settings:
        at = adoption.place_of_setting(path)
        reason = say("{place}", place=at) if at else say("left out, so DeepSpeed's own default")
        found[f"{_SETTINGS}.{path}"] = Source(kind="file", reason=reason)
    return found


def _without_answered(left: Sequence[Left], firm: Mapping[str, Any]) -> list[Left]:
    """What somebody has decided now is no longer unknown."""
    return [replace(one, kind="lost") if one.kind == "unknown" and one.key in firm else one for one in left]
