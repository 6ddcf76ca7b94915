"""`trainwiz prepare` and `trainwiz cache`: data tokenized ahead, listed and deleted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import projects
import warm
from patience import patience
from projects import SMALL, make, trainwiz


def project_of(folder: Path, count: int = 300) -> Path:
    rows = ({"body": f"document {n} " * 40} for n in range(count))
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {**SMALL, "data.train": str(folder / "a.jsonl"), "data.eval": "10%"}
    return make(folder / "project", values)


def test_data_is_prepared_once_and_the_training_finds_it(tmp_path: Path) -> None:
    folder = project_of(tmp_path)
    assert (
        "text_column: body  # found: in the first row: document 0 document 0" in (folder / "trainwiz.yaml").read_text()
    )
    done = trainwiz("prepare", str(folder))
    assert done.code == 0, done.err
    assert "train: 2," in done.err
    assert "eval: " in done.err
    assert f"the data is ready: trainwiz launch {folder}" in done.err
    (tokens,) = folder.glob(".cache/tokens-*/tokens")
    written = tokens.stat().st_mtime_ns
    again = trainwiz("prepare", str(folder), "--python", warm.python())
    assert (again.code, tokens.stat().st_mtime_ns) == (0, written)


def test_data_that_cannot_be_read_is_refused_before(tmp_path: Path) -> None:
    folder = project_of(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"words": "one"}\n')
    done = trainwiz("prepare", str(folder), "--python", warm.python())
    assert done.code == 1
    assert 'line 1 has no column "body"; it has words' in done.err
    assert not (folder / ".cache").exists()


def test_an_error_of_the_data_is_explained(tmp_path: Path) -> None:
    """Where its cause is known, without frames of libraries."""
    folder = project_of(tmp_path)
    code = (folder / "task.py").read_text()
    for first, says, frames in (("import nowhere_to_be_found", "nowhere_to_be_found", 0), ("1 / 0", "by zero", 1)):
        (folder / "task.py").write_text(code.replace("\nimport ", f"\n{first}\nimport ", 1))
        done = trainwiz("prepare", str(folder), "--python", warm.python())
        assert (done.code, done.err.count("Traceback")) == (1, frames), done.err
        assert says in done.err
        assert ("cause: " in done.err) is not bool(frames)


def test_a_row_that_only_the_training_would_find_is_named_with_its_reason(tmp_path: Path) -> None:
    """`check` reads the first 200 rows of a file of conversations."""
    rows = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "!"}]} for i in range(250)
    ]
    rows[240]["messages"].pop()
    rows[240]["messages"][0]["role"] = "narrator"
    data = tmp_path / "a.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    folder = make(tmp_path / "project", {**SMALL, "task": "sft", "data.train": str(data)})
    reasons = {"en": "a.jsonl:241: this conversation cannot be used: the role 'narrator' is unknown"}
    reasons["zh"] = "a.jsonl:241：该对话无法使用：未知的角色 'narrator'"
    for language, reason in reasons.items():
        done = trainwiz("--lang", language, "prepare", str(folder), "--python", warm.python())
        assert (done.code, reason in done.err, "Traceback" in done.err) == (1, True, False), done.err


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    folder = project_of(tmp_path)
    code = folder / "documents.py"
    waits = "    def encode(self, texts):\n        import time\n\n        time.sleep(1.5)\n"
    waits += "        return self.now(texts)\n\n"
    slow = code.read_text().replace("    def encode(self", f"{waits}    def now(self")
    code.write_text(slow)
    batches = folder / "encoders.py"
    batches.write_text(batches.read_text().replace("BATCH_ROWS = 1 << 19, 2000", "BATCH_ROWS = 1 << 19, 50"))
    command = [sys.executable, "-m", "trainwiz", "prepare", str(folder), "--python", warm.python()]
    with subprocess.Popen(command, env=projects.environment(), stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120 * patience()
        while not any(folder.glob(".cache/*.partial/progress.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60 * patience())[1]
    assert process.returncode == 130, said
    assert f"to continue: trainwiz prepare {folder}\n" in said
    listed = json.loads(trainwiz("cache", str(folder), "--json").out)
    assert [(each["complete"], each["busy"]) for each in listed] == [(False, False)]
    done = trainwiz("prepare", str(folder), "--python", warm.python())
    assert done.code == 0, done.err
    assert "rows that are already tokenized" in done.err


def test_the_cache_is_listed_and_cleaned_by_age(tmp_path: Path) -> None:
    folder = project_of(tmp_path)
    assert trainwiz("prepare", str(folder), "--python", warm.python()).code == 0
    (tokens,) = folder.glob(".cache/tokens-*")
    (folder / ".cache" / "tokens-0000.partial").mkdir()
    (folder / ".cache" / "removed-tokens-1.77" / "part").mkdir(parents=True)  # a removal that was ended
    kept = tmp_path / "kept" / "tokens-1"
    kept.mkdir(parents=True)
    (folder / ".cache" / "tokens-1111.partial").symlink_to(kept)  # unfinished, and somebody else's
    listed = trainwiz("cache", str(folder))
    assert tokens.name in listed.out
    assert listed.out.count("unfinished") == 3
    assert trainwiz("cache", str(folder), "--clean").code == 0
    assert [path.name for path in folder.glob(".cache/*tokens-*")] == [tokens.name], "it was just used"
    assert kept.is_dir(), "a link is removed, and not what it leads to"
    os.utime(tokens, (time.time() - 40 * 86400,) * 2)
    done = trainwiz("cache", str(tokens.parent), "--clean", "--json")
    assert [each["removed"] for each in json.loads(done.out)] == [True]
    assert not list(folder.glob(".cache/*tokens-*"))
    assert "no tokenized data here" in trainwiz("cache", str(folder)).err
