"""Reading run folders, and the commands that show them: runs, logs, report, diff."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pexpect
import pytest
from wcwidth import wcswidth

from trainwiz import language
from trainwiz.cli import run as trainwiz
from trainwiz.errors import UsageError
from trainwiz.record.differences import Difference
from trainwiz.record.metrics import joined, series
from trainwiz.store import history, liveness, runs
from trainwiz.store.runs import Run
from trainwiz.ui import differences

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "</td><script>alert(1)</script><img src=x onerror=alert(2)> \"'&"
NAMES = ("2026-11-20_09-00-00-1", "2026-11-20_10-00-00-1", "2026-11-20_11-00-00-1")


@pytest.fixture(autouse=True)
def _english_afterwards() -> Iterator[None]:
    language.choose([], {})
    yield
    language.choose([], {})


def alive() -> dict[str, Any]:
    """What this very process would record of itself."""
    return {"pid": os.getpid(), "pid_birth": liveness.start_ticks(os.getpid()), "hostname": os.uname().nodename}


def record(
    project: Path, name: str, updates: range = range(0), outcome: dict[str, Any] | None = None, **command: Any
) -> Run:
    run = Run(project / "runs" / name)
    run.logs.mkdir(parents=True)
    day, clock = name[:10], name[11:19].replace("-", ":")
    run.record("command", {"started": f"{day}T{clock}+0000", "argv": ["python", "train.py"], **command})
    with run.metrics.open("w") as file:
        for u in updates:
            numbers = {"loss": 10 / u, "lr": 1e-3, "grad_norm_pre_clip": None if u == 3 else 2.0, "weight_norm": 7.0}
            numbers |= {"mfu": 0.4, "data_wait_share": 0.02}
            numbers |= {f"gpu_memory_{name}_bytes": 2.0**30 for name in ("allocated", "reserved", "peak")}
            file.write(
                json.dumps({"update": u, **numbers, "grad_norm_post_clip": 1.0, "tokens_per_second": 100.0}) + "\n"
            )
        if updates:
            file.write(json.dumps({"update": updates[-1], "eval_loss": 0.5, "eval_accuracy": 0.9}) + "\n")
        file.write('{"update": 999, "lo')
    run.log(0).write_text(f"rank 0 of {name}\n")
    run.log(1).write_text(f"rank 1 of {name}\n")
    if outcome:
        run.record("outcome", outcome)
    return run


def said(template: str, **values: object) -> dict[str, object]:
    return {"template": template, "values": values, "text": template.format(**values)}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A failed run, one that went on from there and was stopped, and one that still runs."""
    diagnosis = {
        "known": False,
        "last_lines": ["Traceback", EVIL],
        "observed": [said("{n} seen", n=EVIL)],
        "cause": said("unknown failure: the rank ended without an exception"),
        "how": said("rank {rank} failed first with exit code {code}", rank=1, code=3),
        "remedy": said("read {log}", log=EVIL),
    }
    record(
        tmp_path,
        NAMES[0],
        range(1, 13),
        {"exit_code": 3, "seconds": 61.0, "diagnosis": diagnosis},
        plan={"model": {"name": EVIL}, "seed": 1},
        total_updates=30,
        versions={"torch": "2.13"},
    )
    (tmp_path / "runs" / NAMES[0] / "plan.yaml").write_text(f"seed: 1  # found: because {EVIL}\n")
    record(
        tmp_path,
        NAMES[1],
        range(11, 21),
        {"exit_code": 0, "interrupted": True, "signal": 15, "seconds": 3601.0},
        resumed_from=NAMES[0],
        plan={"model": {"name": "b"}, "seed": 1},
        versions={"torch": "2.14"},
    )
    record(tmp_path, NAMES[2], range(21, 26), resumed_from=NAMES[1], total_updates=30, **alive())
    runs._link_to(tmp_path / "runs" / "latest", NAMES[2])
    return tmp_path


# reading


def test_a_run_is_found_by_many_names(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, first = project / "runs" / NAMES[2], project / "runs" / NAMES[0]
    assert history.find("latest", project).folder == newest
    assert history.find(str(project)).folder == newest
    assert history.find(str(project / "runs" / "latest")).folder == newest
    assert history.find(NAMES[0], project).folder == history.find(str(first)).folder == first
    assert history.find("2026-11-20_09", project).folder == first
    monkeypatch.chdir(project)
    assert history.find("latest").name == history.find("runs/latest").name == NAMES[2]
    with pytest.raises(UsageError, match="several runs start with 2026-11-20: 2026-11-20_09"):
        history.find("2026-11-20", project)
    with pytest.raises(UsageError, match="no run nonsense in"):
        history.find("nonsense", project)
    with pytest.raises(UsageError, match=f"no run nonsense in {project}/runs"):
        history.find(str(project / "runs" / "nonsense"))
    with pytest.raises(UsageError, match="nothing/here does not exist"):
        history.find("nothing/here", project / "runs")
    with pytest.raises(UsageError, match="no runs in"):
        history.find("latest", project / "runs")
    with pytest.raises(UsageError, match="my-projct is not a folder, and"):
        history.find("my-projct", project / "runs")
    # A folder that is named is the one that is spoken of, and never the one where somebody happens to stand.
    with pytest.raises(UsageError, match=f"no runs in {project}/runs$"):
        history.find(str(project / "runs"))


def test_a_lineage_goes_back_to_the_first_run(project: Path) -> None:
    lineage = history.lineage(history.find("latest", project))
    assert [r.name for r in lineage] == list(NAMES)
    points = series(joined([r.records for r in lineage]), "loss")
    assert [x for x, _ in points] == list(range(1, 26))
    shutil.rmtree(project / "runs" / NAMES[0])
    assert [r.name for r in history.lineage(history.find("latest", project))] == list(NAMES[1:])


@pytest.mark.parametrize("before", [NAMES[0], "../../etc", "", 5, None, "latest/../.."])
def test_a_lineage_does_not_go_in_circles_or_out(tmp_path: Path, before: object) -> None:
    run = record(tmp_path, NAMES[0], resumed_from=before)
    assert [r.name for r in history.lineage(run)] == [NAMES[0]]


def test_whatever_is_torn_is_left_out(tmp_path: Path) -> None:
    run = record(tmp_path, NAMES[0], range(1, 4), plan="nonsense", versions=3, git=[1])
    (run.folder / "outcome.json").write_text("{torn")
    (run.folder / "metrics.jsonl").write_bytes(
        b'\xff\xfe\n{"update": 1, "loss": 2}\n[3]\nnull\n{"update": 2, "loss": NaN}\n{"up'
    )
    (run.logs / "rank-x.log").touch()
    (run.checkpoints / "checkpoint-00000007").mkdir(parents=True)
    found = history.read(run)
    assert (found.outcome, found.alive, found.checkpoints) == ({}, False, ())
    assert series(found.records, "loss") == ((1, 2.0), (2, None))
    assert list(history.logs(run)) == [0, 1]
    for command in ("runs", "report", "diff"):
        words = [str(run.folder)] * (2 if command == "diff" else 1)
        assert trainwiz([command, *(words if command != "runs" else [str(tmp_path)])]) == 0


def test_a_folder_without_anything_is_a_run_that_left_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs" / NAMES[0]).mkdir(parents=True)
    found = history.read(history.find("latest", tmp_path))
    assert (found.records, found.touched, found.alive) == ([], None, False)
    assert trainwiz(["runs", str(tmp_path)]) == trainwiz(["report", str(tmp_path)]) == 0


def test_a_long_run_is_read_from_its_end(tmp_path: Path) -> None:
    run = record(tmp_path, NAMES[0], range(1, 20_001))
    whole, brief = history.read(run), history.brief(run)
    assert run.metrics.stat().st_size > 2_000_000
    assert len(whole.records) == 20_001
    assert 1_000 < len(brief.records) < 12_000
    assert list(brief.records) == list(whole.records)[-len(brief.records) :]


# runs


def test_the_table_of_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trainwiz(["runs", str(project)]) == 0
    head, *rows = (re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    assert head == ["RUN", "STATE", "UPDATES", "LOSS", "TOKENS/S", "TIME", "WHY IT ENDED"]
    assert rows[0] == [NAMES[0], "failed", "12/30", "0.8333", "100", "1:01", "rank 1 failed first with exit code 3"]
    assert rows[1] == [
        NAMES[1],
        "stopped",
        "20",
        "0.5000",
        "100",
        "1:00:01",
        "stopped by SIGTERM; it saved and exited cleanly",
    ]
    assert rows[2][:4] == [NAMES[2], "running", "25/30", "0.4000"]
    assert rows[2][-1] == f"continues {NAMES[1]}"


def test_runs_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trainwiz(["runs", str(project), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["state"] for r in found] == ["failed", "stopped", "running"]
    assert found[1] == {
        "run": NAMES[1],
        "job": None,
        "state": "stopped",
        "started": "2026-11-20T10:00:00+0000",
        "updates": 20,
        "total_updates": None,
        "loss": 0.5,
        "eval_loss": 0.5,
        "tokens_per_second": 100.0,
        "seconds": 3601.0,
        "why": "stopped by SIGTERM; it saved and exited cleanly",
        "resumed_from": NAMES[0],
        "measured": {},
        "forecast": [],
    }


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trainwiz(["runs", str(tmp_path)]) == 2
    assert "no runs in" in capsys.readouterr().err
    assert trainwiz(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_fits_a_terminal(project: Path, width: int, lang: str) -> None:
    shown = _in_terminal(["--lang", lang, "runs", str(project)], width)
    lines = shown.splitlines()
    assert len(lines) == 4
    assert all(wcswidth(line) <= width for line in lines)
    assert all(name in line for name, line in zip(NAMES, lines[1:], strict=True))


def _in_terminal(words: list[str], width: int) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    child = pexpect.spawn(
        sys.executable,
        ["-m", "trainwiz", *words],
        dimensions=(24, width),
        timeout=180,
        encoding="utf-8",
        env={**environ, "NO_COLOR": "1", "TERM": "xterm"},
    )
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    assert child.exitstatus == 0
    return str(child.before)


def test_a_launcher_that_was_killed_is_told_from_one_that_runs(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        mine = {"pid": launcher.pid, "pid_birth": liveness.start_ticks(launcher.pid), "hostname": os.uname().nodename}
        run = record(tmp_path, NAMES[0], **mine)
        assert history.read(run).alive is True
        launcher.kill()
        launcher.wait()
        assert history.read(run).alive is False


# logs


def test_logs_are_shown_as_they_are(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = b"50%\r100%\n\xff\xfe \x1b[31mred\n" * 10_000
    Run(project / "runs" / NAMES[1]).log(1).write_bytes(raw)
    assert trainwiz(["logs", str(project)]) == 0
    assert capfdbinary.readouterr().out == f"rank 0 of {NAMES[2]}\n".encode()
    assert trainwiz(["logs", str(project), "--run", NAMES[1], "--rank", "1"]) == 0
    assert capfdbinary.readouterr().out == raw
    assert trainwiz(["logs", str(project / "runs" / NAMES[1]), "--rank", "1"]) == 0
    assert capfdbinary.readouterr().out == raw
    monkeypatch.chdir(project)
    assert trainwiz(["logs", NAMES[0]]) == 0
    assert capfdbinary.readouterr().out == f"rank 0 of {NAMES[0]}\n".encode()
    assert trainwiz(["logs", str(project), "--run", NAMES[1], "--rank", "7"]) == 2
    assert b"choose one of the ranks that have logs: 0, 1" in capfdbinary.readouterr().err
    Run(project / "runs" / NAMES[1]).log(1).write_bytes(b"")
    assert trainwiz(["logs", str(project), "--run", NAMES[1], "--rank", "1"]) == 0
    assert capfdbinary.readouterr() == (b"", f"rank 1 of run {NAMES[1]} has no output yet\n".encode())


def follower(project: Path) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        sys.executable,
        ["-m", "trainwiz", "logs", str(project), "-f"],
        timeout=180,
        encoding="utf-8",
        env={**os.environ, "TRAINWIZ_LANG": "en"},
    )


def test_following_ends_with_the_run_and_shows_its_last_line(project: Path) -> None:
    run = history.find("latest", project)
    child = follower(project)
    child.expect_exact(f"rank 0 of {NAMES[2]}")
    with run.log(0).open("a") as log:
        log.write("more\n")
        log.flush()
        child.expect_exact("more")
        log.write("the last line\n")
    run.record("outcome", {"exit_code": 0})
    child.expect_exact("the last line")
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    assert child.exitstatus == 0


def test_following_goes_on_where_a_restart_begins_another_log(project: Path) -> None:
    run = history.find("latest", project)
    child = follower(project)
    child.expect_exact(f"rank 0 of {NAMES[2]}")
    with run.log(0).open("a") as log:
        os.replace(run.log(0), run.logs / "rank-0.attempt-1.log")
        log.write("last words of the first attempt\n")
    child.expect_exact("last words of the first attempt")
    run.log(0).write_text("second attempt\n")
    child.expect_exact("second attempt")
    run.record("outcome", {"exit_code": 0})
    child.expect(pexpect.EOF)
    assert "first attempt" not in child.before


def test_ctrl_c_ends_following_quietly(project: Path) -> None:
    child = follower(project)
    child.expect_exact(f"rank 0 of {NAMES[2]}")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    assert child.exitstatus == 0
    assert child.before.strip() in ("", "^C")


def test_following_a_reader_that_has_gone(project: Path) -> None:
    line = f"{sys.executable} -m trainwiz logs {project} -f | head -n 1"
    run = history.find("latest", project)
    with subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shell:
        for _ in range(200):
            if shell.poll() is not None:
                break
            with run.log(0).open("a") as log:
                log.write("x\n")
            time.sleep(0.05)
        assert shell.poll() is not None
        _, errors = shell.communicate()
    assert "Traceback" not in errors


# report


class Page(HTMLParser):
    """What a browser would make of it: elements, texts, and everything that would be fetched or run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.curves: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "action", "data", "srcset", "poster", "formaction"):
                self.fetched.append((tag, value or ""))
            if tag == "path" and name == "class" and (value or "").startswith("curve"):
                self.curves.append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def report(project: Path, *words: str, lang: str = "en") -> str:
    language.choose(["--lang", lang], {})
    assert trainwiz(["report", *words, "--output", str(project / "r.html")]) == 0
    return (project / "r.html").read_text(encoding="utf-8")


def test_a_report_stands_alone_and_shows_everything(project: Path) -> None:
    html = report(project, str(project / "runs" / NAMES[0]))
    page = Page(html)
    assert page.fetched == []
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.tags.count("svg") == 9
    assert len(page.curves) == 13
    assert "@import" not in html
    assert "url(" not in html
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", html)
    for words in (
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Speed, tokens per second",
        "MFU: share of the GPUs' FLOP/s",
        "40.0%",
        "Wait for data, share of the time",
        "GPU memory of PyTorch, GiB",
        "1.0 GiB",
        "eval_accuracy",
        "12",
        "failed",
        "updates (of 30)",
        "rank 1 failed first with exit code 3",
        "launched",
        "seed",
        "2.13",
    ):
        assert words in page.text, words
    assert page.text.count(EVIL) == 5
    assert f"found: because {EVIL}" in page.text


def test_a_report_of_a_resumed_run_shows_the_whole_line(project: Path) -> None:
    page = Page(report(project, str(project)))
    assert all(name in page.text for name in NAMES)
    assert "updates 11 to 20" in page.text
    assert "Dashed lines" in page.text
    assert f"launched to continue {NAMES[1]}" in page.text
    assert "running" in page.text


def test_a_report_in_chinese(project: Path) -> None:
    html = report(project, str(project / "runs" / NAMES[0]), lang="zh")
    assert '<html lang="zh-CN">' in html
    page = Page(html)
    assert "学习率" in page.text
    assert "failed first" not in page.text
    assert len(page.curves) == 13


def test_a_report_lies_in_the_run_and_its_path_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trainwiz(["report", str(project)]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == project / "runs" / NAMES[2] / "report.html"
    assert path.stat().st_size < 60_000


def test_a_report_of_a_run_without_numbers(tmp_path: Path) -> None:
    record(tmp_path, NAMES[0], outcome={"exit_code": 1})
    page = Page(report(tmp_path, str(tmp_path)))
    assert "svg" not in page.tags
    assert "The run wrote no metrics" in page.text


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here: the report was NOT looked at in a browser")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_browser_shows_it_as_it_is_meant(project: Path, tmp_path: Path, lang: str) -> None:
    report(project, str(project / "runs" / NAMES[0]), lang=lang)
    dumped = browse(tmp_path, "--dump-dom", (project / "r.html").as_uri())
    page = Page(dumped)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.tags.count("svg") == 9
    assert page.text.count(EVIL) == 5
    shot = tmp_path / "shot.png"
    browse(tmp_path, "--window-size=420,2000", f"--screenshot={shot}", (project / "r.html").as_uri())
    assert shot.stat().st_size > 50_000


def browse(folder: Path, *words: str) -> str:
    assert CHROMIUM
    quiet = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    )
    done = subprocess.run(
        [CHROMIUM, *quiet, f"--user-data-dir={folder / 'browser'}", *words], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# diff


def test_what_changed_between_two_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (str(project / "runs" / name) for name in NAMES[:2])
    assert trainwiz(["diff", first, second]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == [f"{NAMES[0]} → {NAMES[1]}"]
    assert ["torch", "2.13 → 2.14"] in lines
    assert ["model.name", f"{EVIL} → b"] in lines
    assert ["state", "failed → stopped"] in lines
    assert ["loss", "0.833333 → 0.5", "(-40.0 %)"] in lines
    assert not any(line[0] == "seed" for line in lines)


def test_a_project_shows_what_changed_between_its_newest_runs(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trainwiz(["diff", str(project)]) == 0
    assert capsys.readouterr().out.startswith(f"{NAMES[1]} → {NAMES[2]}\n")
    shutil.copytree(project / "runs" / NAMES[0], tmp_path / "alone" / "runs" / NAMES[0], symlinks=True)
    assert trainwiz(["diff", str(tmp_path / "alone")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"has no earlier run to compare {NAMES[0]} with" in said
    assert f"to list them: trainwiz runs {tmp_path / 'alone'}" in said, "from wherever it was named"


def test_differences_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (str(project / "runs" / name) for name in NAMES[:2])
    assert trainwiz(["diff", first, second, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["before"], found["after"]) == NAMES[:2]
    assert {"section": "versions", "key": "torch", "before": "2.13", "after": "2.14"} in found["differences"]
    assert trainwiz(["diff", first, first, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []
    assert trainwiz(["diff", first, first]) == 0
    assert "no differences in the recorded data" in capsys.readouterr().out
    assert trainwiz(["diff", first, str(project / "nowhere")]) == 2
    capsys.readouterr()
    assert trainwiz(["diff", first, "--json"]) == 0, "from a folder without runs: the newest of the same project"
    assert json.loads(capsys.readouterr().out)["after"] == max(NAMES)


def test_differences_show_bytes_as_people_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    peak = Difference(section="result", key="peak_rank_bytes", before=456482816, after=None)
    differences.show("a", "b", [peak, dataclasses.replace(peak, key="updates", before=456482816, after=6)])
    shown = capsys.readouterr().out
    assert "peak_rank_bytes  435 MiB → -" in shown
    assert "456482816 → 6" in shown, "no other number is one of bytes"


def test_differences_fit_a_narrow_terminal(project: Path) -> None:
    first, second = (str(project / "runs" / name) for name in NAMES[:2])
    lines = _in_terminal(["diff", first, second], 60).splitlines()
    assert len(lines) > 8
    assert all(wcswidth(line) <= 60 for line in lines)
