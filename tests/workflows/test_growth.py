"""What years of use leave: metrics of millions of lines, thousands of runs and of scripts."""

import ast
import itertools
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwiz import language, rules
from trainwiz.cli import run as trainwiz
from trainwiz.errors import UsageError
from trainwiz.probe import first_rows
from trainwiz.process import pool
from trainwiz.store import history, jsonl, scripts, templates
from trainwiz.store.runs import Run
from trainwiz.ui.page import TEMPLATE, page
from trainwiz.workflows import watch
from trainwiz.workflows.check import lint

RIGHT = Path(__file__).parents[1] / "lint" / "right"
LINES = 60_000
SPIKE, GAP, LOW = 20_011, 33_333, 41_234


@pytest.fixture
def long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose metrics count as too long to be read whole."""
    monkeypatch.setattr(jsonl, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(jsonl, "_NEWEST_BYTES", 1 << 16)
    monkeypatch.setattr(jsonl, "_STRETCHES", 50)
    run = Run(tmp_path / "runs" / "2026-01-31_10-22-05-1")
    run.logs.mkdir(parents=True)
    (run.folder / "command.json").write_text(
        json.dumps({"started": "2026-01-31T10:22:05+0000", "total_updates": LINES})
    )
    (run.folder / "outcome.json").write_text(json.dumps({"exit_code": 0, "seconds": 9.0}))
    with run.metrics.open("w") as file:
        for update in range(1, LINES + 1):
            loss = {SPIKE: "99.5", GAP: "NaN", LOW: "-3e-05"}.get(update, f"{2 + update % 97 / 100}")
            file.write(f'{{"update": {update}, "loss": {loss}, "lr": 0.1, "tokens_per_second": 10.0}}\n')
            if update % 5000 == 0:
                file.write(f'{{"update": {update}, "eval_loss": 1.{update}}}\n')
    return run


# docs/decisions/cli.md: Long files of metrics are thinned while they are read
def test_a_thinned_curve_keeps_its_ends_extremes_gaps_and_evaluations(long: Run) -> None:
    records = history.read(long).records
    assert len(records) < LINES / 20
    updates = [record["update"] for record in records]
    assert updates == sorted(updates)
    assert {1, SPIKE, GAP, LOW, LINES} <= set(updates)
    assert sum("eval_loss" in record for record in records) == LINES // 5000
    newest = long.metrics.read_text().splitlines()[-500:]
    assert [json.loads(line) for line in newest] == [dict(record) for record in records[-500:]]
    assert len({(r["update"], "loss" in r) for r in records}) == len(records), "no line is read twice"


def test_a_glance_reads_little_and_then_what_is_new(long: Run) -> None:
    reader = jsonl.sampled(long.metrics)
    assert reader is not None
    first = reader.new()
    assert len(first) < 2000
    assert first[0]["update"] == 1
    assert first[-1] == {"update": LINES, "eval_loss": 1.6}
    assert [r["update"] for r in first] == sorted(r["update"] for r in first)
    with long.metrics.open("a") as file:
        file.write('{"update": 60001, "loss": 1.0}\n{"update": 600')
    assert reader.new() == [{"update": 60001, "loss": 1.0}]
    long.metrics.write_text('{"update": 7, "loss": 1.0}\n')
    assert reader.new() == [{"update": 7, "loss": 1.0}]
    assert reader.rewritten


# docs/decisions/cli.md: Long files of metrics are thinned while they are read
def test_of_a_very_long_file_as_much_is_read_as_of_a_long_one(long: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MOST_BYTES", 1 << 20)
    read = history.read(long)
    updates = [record["update"] for record in read.records]
    assert updates == sorted(updates)
    assert (updates[0], updates[-1]) == (1, LINES)
    assert max(b - a for a, b in itertools.pairwise(updates)) < LINES / 20
    assert read.unread_bytes == long.metrics.stat().st_size - (1 << 20)
    assert "was not read" in page([read], {}, templates.load()[TEMPLATE], time.time())
    assert "was not read" not in page([history.brief(long)], {}, templates.load()[TEMPLATE], time.time())


@pytest.mark.timeout(60)
def test_a_hole_of_a_terabyte_is_not_read(long: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MOST_BYTES", 1 << 20)
    follows = jsonl.JsonLines(long.metrics)
    assert len(follows.new()) > LINES
    for file in (long.metrics, long.memory, long.log(0)):
        with file.open("ab") as growing:
            growing.truncate(1 << 40)
    with long.metrics.open("ab") as file:
        file.write(b'\n{"update": 7, "loss": 1.0}\n')
    assert follows.new() == [{"update": 7, "loss": 1.0}]
    assert history.read(long).records[-1] == {"update": 7, "loss": 1.0}
    assert history.sampled(long).records[-1] == {"update": 7, "loss": 1.0}
    assert len(history.tail(long.log(0), 100)) == 100


def test_a_short_file_is_read_whole(long: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "WHOLE_BYTES", 1 << 30)
    assert jsonl.sampled(long.metrics) is None
    assert len(jsonl.thinned(long.metrics)) == LINES + LINES // 5000


def test_watch_claims_no_lowest_loss_that_it_did_not_read(long: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch.Watched(long).view().lowest_loss is None
    monkeypatch.setattr(jsonl, "WHOLE_BYTES", 1 << 30)
    assert watch.Watched(long).view().lowest_loss == -3e-05


@pytest.mark.parametrize("line", [b"{}\n", b'"eval_', b'"loss": 1.2.3\n', b'"loss": -\n', b"\n" * 9, b"x" * 5000])
def test_lines_of_a_stranger_are_thinned_too(line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "WHOLE_BYTES", 0)
    monkeypatch.setattr(jsonl, "_NEWEST_BYTES", 3)
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(line * 99)
    jsonl.thinned(file)
    reader = jsonl.sampled(file)
    assert reader is not None
    reader.new()


def run_of(project: Path, age_days: float, *, code: int | None, continues: str = "") -> Path:
    name = time.strftime("%Y-%m-%d_%H-%M-%S-1", time.localtime(time.time() - age_days * 86_400))
    folder = project / "runs" / name
    (folder / "checkpoints").mkdir(parents=True) if not continues else folder.mkdir(parents=True)
    if continues:
        (folder / "checkpoints").symlink_to(f"../{continues}/checkpoints")
    # Of a run on another machine, nobody here knows whether it goes on.
    host = os.uname().nodename if code is not None else "elsewhere"
    (folder / "command.json").write_text(json.dumps({"pid": os.getpid(), "hostname": host}))
    if code is not None:
        (folder / "outcome.json").write_text(json.dumps({"exit_code": code, "seconds": 1.0}))
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    language.choose([], {})
    code = trainwiz(list(words))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def project(tmp_path: Path) -> dict[str, Path]:
    made = {
        "old": run_of(tmp_path, 90, code=1),
        "base": run_of(tmp_path, 80, code=0),
        "child": run_of(tmp_path, 70, code=1, continues=run_name(80)),
        "recent": run_of(tmp_path, 2, code=1),
        "unknown": run_of(tmp_path, 60, code=None),
        "newest": run_of(tmp_path, 1, code=1),
    }
    return {"": tmp_path, **made}


def run_name(age_days: float) -> str:
    return time.strftime("%Y-%m-%d_%H-%M-%S-1", time.localtime(time.time() - age_days * 86_400))


def test_runs_are_filtered_by_state_and_age(project: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    def names(*words: str) -> list[str]:
        return [row["run"] for row in json.loads(said(capsys, "runs", str(project[""]), "--json", *words)[1])]

    assert names("--state", "failed") == [project[n].name for n in ("old", "child", "recent", "newest")]
    assert names("--state", "failed", "--since", "7d") == [project[n].name for n in ("recent", "newest")]
    assert names("--before", "75d") == [project[n].name for n in ("old", "base")]
    assert names("--last", "1") == [project["newest"].name]
    code, out, err = said(capsys, "runs", str(project[""]), "--last", "2")
    assert (code, len(out.splitlines())) == (0, 3)
    assert "older runs, not shown: 4" in err
    for words in (("--state", "fail"), ("--since", "7"), ("--since", "-7d"), ("--prune",)):
        assert said(capsys, "runs", str(project[""]), *words)[0] == 2


def test_prune_shows_first_and_keeps_what_is_needed(
    project: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("runs", str(project[""]), "--prune", "--before", "1h")
    code, out, err = said(capsys, *words)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [project[n].name for n in ("old", "child", "recent")]
    assert "nothing was removed" in err
    assert all(folder.exists() for folder in project.values())
    shown = json.loads(said(capsys, *words, "--json")[1])
    assert [(row["name"], row["removed"]) for row in shown] == [
        (project[n].name, False) for n in ("old", "child", "recent")
    ]
    assert all(row["bytes"] > 0 for row in shown)
    code, out, _ = said(capsys, *words, "--yes", "--json")
    assert code == 0
    assert [row["removed"] for row in json.loads(out)] == [True] * 3
    kept = {name for name, folder in project.items() if folder.exists()}
    assert kept == {"", "base", "unknown", "newest"}, (
        "one is continued by another, one may be running, one is the newest"
    )
    # Nobody continues the base any more.
    assert said(capsys, *words, "--yes")[0] == 0
    assert not project["base"].exists()


def test_prune_removes_a_link_and_not_what_it_leads_to(
    project: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    project["old"].rename(elsewhere)
    project["old"].symlink_to(elsewhere)
    code, out, _ = said(capsys, "runs", str(project[""]), "--prune", "--before", "85d", "--yes")
    assert (code, out.split()) == (0, [project["old"].name, "0", "B"])
    assert not os.path.lexists(project["old"])
    assert not list(project["old"].parent.glob(".removed*"))
    assert (elsewhere / "outcome.json").exists()


def double(number: int) -> int:
    return 2 * number


def test_a_pool_gives_results_in_order() -> None:
    numbers = list(range(300))
    assert list(pool.mapped(double, numbers)) == [2 * n for n in numbers]
    assert list(pool.mapped(double, [1])) == [2]


def where(number: int) -> tuple[int, int]:
    """A number, and who did it; the first half of them takes long."""
    time.sleep(0.005 if number < 150 else 0)
    return number, os.getpid()


def test_neighbors_share_a_process_and_all_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    done = list(pool.mapped(where, range(300)))
    assert [number for number, _ in done] == list(range(300))
    owners = [owner for _, owner in done]
    changes = [i for i, (one, other) in enumerate(itertools.pairwise(owners)) if one != other]
    assert len(set(owners)) == 2
    assert len(changes) < 4, "each process has a row of its own, and then the end of the other's"
    helped = [owner for owner in owners[:150] if owner == owners[-1]]
    assert 0 < len(helped) < 150, "who ends first takes what is left to others"


def test_many_scripts_give_the_findings_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    language.choose([], {})
    wrong = "import torch\nfor batch in loader:\n    loss = model(batch)\n    loss.backward()\n    optimizer.step()\n"
    scripts = []
    for i in range(150):
        scripts.append(str(tmp_path / f"s{i}.py"))
        Path(scripts[-1]).write_text(wrong if i % 10 == 0 else "x = 1\n")
    found: list[Any] = []
    for chosen in (scripts, scripts[:1]):
        lint.lint(chosen, json=True)
        found.append(json.loads(capsys.readouterr().out))
    many, one = (each["findings"] for each in found)
    assert len(one) > 0
    assert len(many) == 15 * len(one)
    assert lint.lint([*scripts, str(tmp_path / "none.py")], json=True) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["findings"] == many, "the others are judged nevertheless"
    assert "none.py does not exist" in shown.err


# docs/decisions/files.md: Lint passes over a script without a word about training
def test_a_script_that_is_passed_over_must_be_python_and_import_nothing_about_training(tmp_path: Path) -> None:
    script, module = tmp_path / "a.py", tmp_path / "b.py"
    script.write_text("import b\n")
    module.write_text("x = 1\n")
    assert scripts.with_modules(str(script)) is None
    module.write_text("import torch\n")
    scripts.refresh_modules()
    assert scripts.with_modules(str(script)) is not None
    script.write_text("x = (\n")
    with pytest.raises(UsageError, match="not valid Python"):
        scripts.with_modules(str(script))


def calls_of(function: Callable[[], object]) -> int:
    """How many functions of Python it calls."""
    calls = 0

    def seen(*happened: object) -> None:
        nonlocal calls
        calls += happened[1] == "call"

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


# docs/decisions/files.md: Lint walks a text once, and modules are shared
# docs/decisions/cli.md: Speed is tested by counting calls
def test_lint_does_little_for_each_node(tmp_path: Path) -> None:
    texts = sorted((file.read_text() for file in RIGHT.glob("*.py")), key=len)[-8:]
    files = [tmp_path / f"s{i}.py" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text("".join(f"def part_{i}():\n{textwrap.indent(text, '    ')}\n" for i in range(8)))
    rules.of_scripts()
    nodes = sum(1 for file in files for _ in ast.walk(ast.parse(file.read_text())))
    calls = calls_of(lambda: [lint._of_file(str(file), ("TW",), ()) for file in files])
    assert nodes < calls < 22 * nodes


# docs/decisions/files.md: Lint walks a text once, and modules are shared
def test_a_module_is_read_once_for_all_scripts_that_import_it(tmp_path: Path) -> None:
    text = max((file.read_text() for file in RIGHT.glob("*.py")), key=len)
    functions = (f"def part_{i}():\n{textwrap.indent(text, '    ')}\n" for i in range(20))
    (tmp_path / "large.py").write_text("".join(functions))
    for i in range(10):
        (tmp_path / f"s{i}.py").write_text(f"import torch, large\ntorch.load('{i}')\n")
    first, *others = (scripts.with_modules(str(tmp_path / f"s{i}.py")) for i in range(10))
    assert first is not None
    itself = scripts.with_modules(str(tmp_path / "large.py"))
    for one, place in [*((other, 0) for other in others), (itself, -1)]:
        assert one is not None
        assert one.parts[place].outline is first.parts[0].outline
    findings = lint._of_file(str(tmp_path / "s9.py"), ("TW758",), ())
    assert isinstance(findings, list)
    assert [(f.place.file, f.place.line) for f in findings if f.place][-1] == (str(tmp_path / "s9.py"), 2)


def test_what_is_tried_of_a_script_is_not_what_others_import(tmp_path: Path) -> None:
    """`lint --fix` tries texts; a module that is too large for others stays so once it was a script itself."""
    tried, large = tmp_path / "tried.py", tmp_path / "large.py"
    tried.write_text("import torch\n")
    large.write_text("import torch\n" + "# x\n" * 60_000)
    for name in ("tried", "large"):
        (tmp_path / f"by_{name}.py").write_text(f"import torch\nimport {name}\n")
    scripts.with_modules(str(tried), "import torch\nnew = 1\n")
    scripts.with_modules(str(large))
    by_tried, by_large = (scripts.with_modules(str(tmp_path / f"by_{name}.py")) for name in ("tried", "large"))
    assert by_tried
    assert [part.text for part in by_tried.parts] == ["import torch\n", "import torch\nimport tried\n"]
    assert by_large
    assert all("# x" not in part.text for part in by_large.parts)


def test_little_is_kept_of_many_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "_MOST_KEPT", 1000)
    for i in range(30):
        (tmp_path / f"s{i}.py").write_text(f"import torch\nx = {i}\n" + "y = torch.load(x)\n" * 20)
        scripts.with_modules(str(tmp_path / f"s{i}.py"))
    assert len(scripts._MODULES._kept) <= 4


@pytest.mark.parametrize(
    ("lines", "kept"), [("# a comment of words\n", 10), ("load(torch.a.b, c=[d, e], f=(g, h))\n", 2)]
)
def test_what_is_kept_depends_on_what_trees_take(
    lines: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of one length: a tree takes as much as it has nodes, and a text that nobody parses takes little."""
    monkeypatch.setattr(scripts, "_MOST_KEPT", 10 << 20)
    text = (lines * 1000)[:20_000].rpartition("\n")[0]
    files = [tmp_path / f"s{i}.py" for i in range(10)]
    for file in files:
        file.write_text(text)
    read, parsed = scripts.Modules(), scripts.Modules()
    for file in files:
        read.of(str(file))
        assert parsed.of(str(file)).tree
        for modules in (read, parsed):
            modules.forget(0)
    assert len(read._kept) == 10
    assert len(parsed._kept) == kept


@pytest.mark.parametrize("task", ["causal_lm", "text_classification", "sft"])
def test_a_pipe_in_the_place_of_data_holds_nobody_up(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    for pipe in (tmp_path / "data.jsonl", tmp_path / "texts" / "a.jsonl"):
        os.mkfifo(pipe)
        with pytest.raises(first_rows.Unreadable, match="not a regular file"):
            first_rows.head(pipe)
    for data in ("data.jsonl", "texts", "/dev/zero"):
        values = [f"--set={key}" for key in (f"task={task}", "machine.device=cpu", f"data.train={tmp_path / data}")]
        assert said(capsys, "init", str(tmp_path / "made"), "--defaults", "--yes", *values)[0] == 1
