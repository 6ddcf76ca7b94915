"""Files on disk: written whole or not at all, never over a person's work; plans read with their mistakes explained."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from plans import BASE, completed

from trainwiz.errors import PlanError, TrainwizError, UsageError
from trainwiz.finding import Place
from trainwiz.language import text
from trainwiz.plan import flat, nested, parse
from trainwiz.render.artifact import Artifact
from trainwiz.store import artifacts, atomic, plans, templates
from trainwiz.store.artifacts import Choice, Conflict

FILES = (Artifact("a.txt", "one\n"), Artifact(".sub/b.txt", "two\n"))
ANOTHER = (Artifact("a.txt", "new\n"), Artifact(".sub/b.txt", "two\n"))


def never(conflict: Conflict) -> Choice:
    raise AssertionError(f"asked about {conflict.path}")


class Asked:
    """Answers every conflict alike and remembers them."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.conflicts: list[Conflict] = []

    def __call__(self, conflict: Conflict) -> Choice:
        self.conflicts.append(conflict)
        return self.choice


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# Writing


def test_writes_into_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    done = artifacts.write(tmp_path / "new" / "project", FILES, never)
    assert done.written == ("a.txt", ".sub/b.txt")
    own = [".trainwiz/base/.sub/b.txt", ".trainwiz/base/a.txt", ".trainwiz/manifest.json"]
    assert files_in(tmp_path / "new/project") == [".sub/b.txt", *own, "a.txt"]
    assert artifacts.changed(tmp_path / "new" / "project") == ()


def test_twice_in_a_row_changes_nothing(tmp_path: Path) -> None:
    artifacts.write(tmp_path, FILES, never)
    before = (tmp_path / "a.txt").stat().st_ino
    done = artifacts.write(tmp_path, FILES, never)
    assert done.unchanged == ("a.txt", ".sub/b.txt")
    assert (tmp_path / "a.txt").stat().st_ino == before


def test_a_generated_file_is_updated_without_a_question(tmp_path: Path) -> None:
    artifacts.write(tmp_path, FILES, never)
    done = artifacts.write(tmp_path, ANOTHER, never)
    assert done.written == ("a.txt",)
    assert (tmp_path / "a.txt").read_text() == "new\n"


@pytest.mark.parametrize(
    ("choice", "kept", "beside"),
    [("keep", "mine\n", None), ("overwrite", "new\n", None), ("beside", "mine\n", "new\n")],
)
def test_an_edited_file_is_asked_about(tmp_path: Path, choice: Choice, kept: str, beside: str | None) -> None:
    artifacts.write(tmp_path, FILES, never)
    (tmp_path / "a.txt").write_text("mine\n")
    asked = Asked(choice)
    artifacts.write(tmp_path, ANOTHER, asked)
    [conflict] = asked.conflicts
    assert not conflict.foreign
    assert "-mine\n" in conflict.diff
    assert "+new\n" in conflict.diff
    assert (tmp_path / "a.txt").read_text() == kept
    aside = tmp_path / "a.txt.new"
    assert (aside.read_text() if aside.exists() else None) == beside
    assert artifacts.changed(tmp_path) == (() if choice == "overwrite" else ("a.txt",))


def test_a_file_that_was_there_before_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff binary, no newline")
    asked = Asked("keep")
    artifacts.write(tmp_path, FILES, asked)
    assert asked.conflicts[0].foreign
    assert "No newline" in asked.conflicts[0].diff
    assert (tmp_path / "a.txt").read_bytes() == b"\xff binary, no newline"


def test_edited_and_deleted_files_are_noticed(tmp_path: Path) -> None:
    artifacts.write(tmp_path, FILES, never)
    (tmp_path / "a.txt").write_text("one \n")
    (tmp_path / ".sub/b.txt").unlink()
    assert artifacts.changed(tmp_path) == (".sub/b.txt", "a.txt")
    artifacts.write(tmp_path, FILES, Asked("overwrite"), follow=False)
    assert artifacts.changed(tmp_path) == ()


def test_what_is_no_longer_generated_goes_unless_it_was_edited(tmp_path: Path) -> None:
    artifacts.write(tmp_path, FILES, never)
    assert artifacts.write(tmp_path, FILES[:1], never, partial=True).removed == ()
    assert artifacts.write(tmp_path, FILES[:1], never).removed == (".sub/b.txt",)
    artifacts.write(tmp_path, FILES, never)
    (tmp_path / ".sub/b.txt").write_text("mine\n")
    assert artifacts.write(tmp_path, FILES[:1], never).removed == ()
    assert (tmp_path / ".sub/b.txt").read_text() == "mine\n"


def test_a_strangers_manifest_removes_nothing_outside_of_the_project(tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    artifacts.write(root, FILES, never)
    outside.mkdir()
    (outside / "mine.txt").write_text("mine\n")
    (root / "linked").symlink_to(outside)
    record = json.loads((root / artifacts.MANIFEST).read_text())
    named = ("../outside/mine.txt", str(outside / "mine.txt"), ".sub/../../outside/mine.txt", "linked/mine.txt")
    record["files"].update(dict.fromkeys(named, artifacts.sha256(b"mine\n")))
    (root / artifacts.MANIFEST).write_text(json.dumps(record))
    assert artifacts.write(root, FILES[:1], never).removed == (".sub/b.txt",), "its own files still go"
    assert (outside / "mine.txt").read_text() == "mine\n"


def test_a_broken_manifest_makes_conflicts_and_loses_nothing(tmp_path: Path) -> None:
    artifacts.write(tmp_path, FILES, never)
    (tmp_path / artifacts.MANIFEST).write_text("{")
    assert artifacts.changed(tmp_path) == ()
    asked = Asked("keep")
    artifacts.write(tmp_path, ANOTHER, asked)
    assert [c.path for c in asked.conflicts] == ["a.txt"]


def test_the_manifest_holds_the_sums_of_what_was_generated(tmp_path: Path) -> None:
    artifacts.write(tmp_path, FILES, never)
    manifest = json.loads((tmp_path / artifacts.MANIFEST).read_text())
    # sha256 of b"one\n"
    assert manifest["files"]["a.txt"] == "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806"


def test_an_interrupted_decision_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine\n")

    def interrupted(_conflict: Conflict) -> Choice:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        artifacts.write(tmp_path, (*FILES[1:], *FILES[:1]), interrupted)
    assert files_in(tmp_path) == ["a.txt"]


def test_a_symbolic_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "p").mkdir()
    (tmp_path / "p/a.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="symbolic link"):
        artifacts.write(tmp_path / "p", FILES, Asked("overwrite"))
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert files_in(tmp_path / "p") == ["a.txt"]


@pytest.mark.parametrize("folder", [".sub", ".trainwiz", ".trainwiz/base"])
def test_a_folder_that_leads_out_of_the_project_is_not_written_to(folder: str, tmp_path: Path) -> None:
    """As a stranger's project may have it, whose `update` would write into another folder of yours."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "p" / folder
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"{folder} is a symbolic link"):
        artifacts.write(tmp_path / "p", FILES, never)
    assert files_in(tmp_path / "elsewhere") == []


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        artifacts.write(tmp_path, FILES, never)
    assert files_in(tmp_path) == []


def test_a_file_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / ".sub").write_text("")
    with pytest.raises(TrainwizError, match="a file exists where a folder is needed"):
        artifacts.write(tmp_path, FILES, never)
    assert files_in(tmp_path) == [".sub"]


@pytest.mark.parametrize("path", ["../a", "/etc/a", "a/../../b", ""])
def test_artifacts_stay_inside_the_project(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="stay inside"):
        artifacts.write(tmp_path, [Artifact(path, "")], never)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TrainwizError, match="no permission"):
        artifacts.write(tmp_path, FILES, never)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "cannot write to"),
    ],
)
def test_a_disk_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    artifacts.write(tmp_path, FILES, never)
    before = {name: (tmp_path / name).read_text() for name in files_in(tmp_path)}
    calls = []

    def fsync(_handle: int) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(TrainwizError, match=words):
        artifacts.write(tmp_path, [*ANOTHER, Artifact("new/deep/c.txt", "")], never)
    assert {name: (tmp_path / name).read_text() for name in files_in(tmp_path)} == before
    assert not (tmp_path / "new").exists()


def test_a_full_disk_for_real() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")  # what the test above imitates: the kernel's own error


def test_permissions_of_a_file_are_kept(tmp_path: Path) -> None:
    artifacts.write(tmp_path, FILES, never)
    (tmp_path / "a.txt").chmod(0o755)
    artifacts.write(tmp_path, ANOTHER, never)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o755


def a_folder_in_the_way(root: Path) -> dict[str, str]:
    """Texts of which the third cannot be renamed to its place; the first is there already."""
    (root / "old.txt").write_text("before")
    (root / "taken").mkdir(parents=True)
    return {"old.txt": "after", "new/new.txt": "after", "taken": "after"}


def test_a_failing_rename_leaves_nothing_changed(tmp_path: Path) -> None:
    texts = a_folder_in_the_way(tmp_path)
    inode = (tmp_path / "old.txt").stat().st_ino
    with pytest.raises(TrainwizError, match=r"cannot write to .*: Is a directory; nothing was written"):
        atomic.write_all(tmp_path, texts)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["old.txt", "taken"]
    assert (tmp_path / "old.txt").read_text() == "before"
    assert (tmp_path / "old.txt").stat().st_ino == inode


def test_what_could_not_be_put_back_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = a_folder_in_the_way(tmp_path)

    def link(*_: object, **__: object) -> None:
        raise PermissionError("this file system has no second names")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(TrainwizError) as raised:
        atomic.write_all(tmp_path, texts)
    assert f"could not be restored: {tmp_path / 'old.txt'}" in str(raised.value)
    assert "nothing was written" not in str(raised.value)
    assert (tmp_path / "old.txt").read_text() == "after"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["old.txt", "taken"]


def test_an_interruption_between_renames_leaves_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = a_folder_in_the_way(tmp_path)
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        if target.name == "taken":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_all(tmp_path, texts)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["old.txt", "taken"]
    assert (tmp_path / "old.txt").read_text() == "before"


def test_a_file_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainwizError, match=r"cannot remove .*: Is a directory") as raised:
        atomic.remove(tmp_path)
    assert "nothing was written" not in str(raised.value)


def test_a_device_is_never_replaced(tmp_path: Path) -> None:
    """As root, a rename to /dev/null would leave a file there for every program of the machine."""
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    atomic.write(device, "page")
    with pytest.raises(TrainwizError, match="null is not a regular file; nothing was written"):
        atomic.write_all(tmp_path, {"a": "1", "null": "page"})
    assert [path.name for path in tmp_path.iterdir()] == ["null"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic.write(pipe, "page")
    assert os.read(reader, 10) == b"page"
    os.close(reader)
    assert device.is_symlink()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_what_a_process_has_open_is_written_to(tmp_path: Path) -> None:
    with (tmp_path / "a.html").open("w") as file:
        atomic.write(Path(f"/proc/self/fd/{file.fileno()}"), "page")
    assert (tmp_path / "a.html").read_text() == "page"


def test_one_file_atomically(tmp_path: Path) -> None:
    atomic.write(tmp_path / "x" / "y.json", "{}")
    assert (tmp_path / "x/y.json").read_text() == "{}"
    atomic.remove(tmp_path / "x" / "y.json")
    atomic.remove(tmp_path / "x" / "y.json")
    assert files_in(tmp_path) == []


# Templates


def test_templates_of_both_folders_are_found() -> None:
    found = templates.load()
    assert {"templates/README.md.j2", "templates/README.zh-CN.md.j2", "train_templates/loops/accelerate.py"} <= set(
        found
    )
    assert not any("__pycache__" in path for path in found)


# Plans


def plan_file(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "trainwiz.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_plan_is_found_by_its_folder_or_its_name(tmp_path: Path) -> None:
    path = plan_file(tmp_path, completed("seed: 1\n"))
    assert plans.find(tmp_path) == plans.find(path) == path
    assert plans.read(path).seed == 1


def test_no_plan_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a project: it contains no trainwiz\.yaml") as caught:
        plans.find(tmp_path)
    assert f"trainwiz init {tmp_path}" in str(caught.value.remedy)
    with pytest.raises(UsageError, match="does not exist"):
        plans.find(tmp_path / "gone")


def test_numbers_that_yaml_takes_for_words(tmp_path: Path) -> None:
    content = "optimizer: {learning_rate: 1e-4}\nprecision: {mixed_precision: no}\n"
    read = plans.read(plan_file(tmp_path, completed(content)))
    assert read.optimizer.learning_rate == 1e-4
    assert read.precision.mixed_precision == "no"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert plans.read(plan_file(tmp_path, b"\xef\xbb\xbf" + completed("seed: 3\n").encode())).seed == 3


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
"""Nine lines whose aliases stand for two billion values."""
MERGES = "m0: &m0 {a: 1}\n" + "".join(f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}], k: 1}}\n" for i in range(1, 26))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ":1:1: the file is empty"),
        ("# only a comment\n", ":1:1: the file is empty"),
        ("- a\n- b\n", ":1:1: the file contains a list, not keys with values"),
        ("hello\n", ":1:1: the file contains a single value, not keys with values"),
        ("batch:\n\treal_batch_size: 8\n", ":2:1: a tab"),
        ("batch: {real_batch_size: 8\nseed: 1\n", ":2:5: not valid YAML"),
        (
            "seed: 1\nbatch:\n  real_batch_size: 8\n  real_batch_size: 9\n",
            "batch.real_batch_size appears twice, on lines 3 and 4",
        ),
        ("seed: 1\ntask: custom\nseed: 2\n", "seed appears twice, on lines 1 and 3"),
        ("seed: 1\n--- \nseed: 2\n", ":2:1: the file contains several documents; only one is allowed"),
        ("seed: !!python/object/apply:os.system [echo]\n", ":1:7: not valid YAML: could not determine a constructor"),
        ("task: custom\nseed: 2026-13-45\n", ":2:7: month must be in 1..12"),
        (f"seed: {'9' * 5000}\n", "Exceeds the limit"),
        (LAUGHS, ":6:25: more than 100000 values, counting each alias (*) as what it stands for"),
        (MERGES, "more than 100000 values"),
        ("a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 99)), "nested too deeply"),
        (f"seed: [{'1,' * 150_000}1]\n", "more than 100000 values"),
        ("name: é\nseed: \x00\n", ":2:7: a control character"),
        (b"seed: 1\nname: \xe9\n", ":2:7: byte 0xe9 is not valid UTF-8"),
        ("a: &a [*a]\nb: " + "[" * 100_000 + "\n", ":2:53: brackets are nested too deeply"),
        ("machine: {num_processes: 0x" + "f" * 5000 + "}\n", ":1:26: Exceeds the limit (4300 digits)"),
        ("a: 1" + ":59" * 3000 + "\n", ":1:4: Exceeds the limit (4300 digits)"),
    ],
)
def test_what_is_no_plan_is_explained(tmp_path: Path, content: str | bytes, words: str) -> None:
    path = plan_file(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        plans.read(path)
    message = text(caught.value.message)
    assert words in message
    assert str(path) in message
    place = caught.value.place
    assert place
    assert place.source in path.read_text(errors="replace")


def test_the_line_of_a_mistake_is_known(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "\ufeffbatch:\r\n\treal_batch_size: 8\r\n")
    with pytest.raises(UsageError) as caught:
        plans.read(path)
    assert caught.value.place == Place(file=str(path), line=2, column=1, width=1)
    assert caught.value.place.source == "\treal_batch_size: 8"
    with pytest.raises(UsageError) as caught:
        plans.read(plan_file(tmp_path, "\ufeffseed: 1\r\nseed: 2\r\n"))
    assert caught.value.place == Place(file=str(path), line=2, column=1, width=4)
    with pytest.raises(PlanError) as wrong:
        plans.read(plan_file(tmp_path, "\ufeffseed: many\nbatch: {per_device_batch_size: [1]}\n"))
    first, second = wrong.value.places
    assert first == Place(file=str(path), line=1, column=1, width=4)
    assert first.source == "seed: many"
    assert second == Place(file=str(path), line=2, column=9, width=21)


def test_wrong_values_are_named_with_their_lines(tmp_path: Path) -> None:
    content = "task: causal_lm\nbatch:\n  real_batch_sise: 8\nseed: many\noptimizer: 3\n"
    with pytest.raises(PlanError) as caught:
        plans.read(plan_file(tmp_path, content))
    problems = [text(problem) for problem in caught.value.problems]
    assert len(problems) == 3
    assert any(
        p.startswith("line 3: batch.real_batch_sise: unknown key; did you mean batch.real_batch_size") for p in problems
    )
    assert "line 4: seed: 'many' is not an integer" in problems
    assert any(p.startswith("line 5: optimizer: must be a section of keys, not 3") for p in problems)


def test_a_file_that_is_gone_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        plans.read(tmp_path / "gone.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        plans.read(tmp_path)


def test_keys_without_a_default_are_named_at_once(tmp_path: Path) -> None:
    path = plan_file(tmp_path, completed("seed: 1\n").replace("  real_batch_size: 32\n", "").replace("engine:", "#"))
    with pytest.raises(PlanError, match="the plan is incomplete") as caught:
        plans.read(path)
    (problem,), (place,) = caught.value.problems, caught.value.places
    assert text(problem).endswith("missing: engine, batch.real_batch_size")
    assert place is None
    assert f"trainwiz init {tmp_path}" in text(caught.value.remedy)
    other = path.rename(tmp_path / "other.yaml")
    with pytest.raises(PlanError) as caught:
        plans.read(other)
    assert f"--answers {other}" in text(caught.value.remedy)


def test_a_wrong_key_hides_those_that_it_leaves_missing(tmp_path: Path) -> None:
    misspelt = completed("seed: 1\n").replace("real_batch_size:", "real_batch_sise:")
    with pytest.raises(PlanError) as caught:
        plans.read(plan_file(tmp_path, misspelt))
    assert [text(problem).partition(";")[0] for problem in caught.value.problems] == [
        f"line {misspelt[: misspelt.index('real_batch_sise')].count(chr(10)) + 1}: batch.real_batch_sise: unknown key"
    ]


def test_single_values_are_read_without_a_plan(tmp_path: Path) -> None:
    content = "seed: '7'\nbatch: {real_batch_size: 8}\nmodel: {}\ndata.eval: null\n"
    document = plans.document(plan_file(tmp_path, content))
    assert plans.values_of(document) == {"seed": 7, "batch.real_batch_size": 8, "data.eval": None}
    document = plans.document(plan_file(tmp_path, "a: &a {seed: *a}\nmodel: *a\nbatch: 5\nprecision:\n  x: 1\n"))
    with pytest.raises(PlanError) as caught:
        plans.values_of(document)
    lines = [text(problem).partition(":")[0] for problem in caught.value.problems]
    assert lines == ["line 1", "line 2", "line 3", "line 5"]


def test_a_part_of_a_plan_is_completed_in_place(tmp_path: Path) -> None:
    mine = "# mine\nbatch: {real_batch_size: 32}  # all of it\nmodel:\n  compile: true\nseed: 42\n"
    plan = parse(nested({**flat(BASE), "model.compile": True}))
    document = plans.document(plan_file(tmp_path, mine))
    whole = plans.completed(document, plan, {"engine": "why", "model.name": "because"})
    assert whole is not None
    assert plans.read(plan_file(tmp_path, whole)) == plan
    assert "engine: accelerate  # why\n" in whole
    assert "model:\n  compile: true\n  name: tiny  # because\n" in whole
    assert whole.startswith("# mine\nbatch: {real_batch_size: 32, ")
    assert plans.completed(plans.document(plan_file(tmp_path, whole)), plan, {}) == whole
    assert plans.completed(document, BASE, {}) is None
    assert plans.completed(plans.document(plan_file(tmp_path, "sed: 1\n")), plan, {}) is None
