"""Tokenized data: what its folder is named by, all cores, interruptions, several processes at once."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import projects
import pytest
import warm
from patience import patience
from test_sft import CHATML, TALK, instructed
from test_tasks import load

pytestmark = pytest.mark.filterwarnings("default")

PREPARE = """if True:
    import documents, encoders, json, os, sources, sys, task, time, token_cache
    sources.LARGE_BYTES, encoders.BATCH_ROWS, token_cache.COMMIT_SECONDS = 0, 5, 0
    encoders.cores = token_cache.cores = lambda: int(sys.argv[1])
    encode = documents.Tokens.encode
    def slowly(self, texts):
        time.sleep(float(sys.argv[2]))
        with open("encoded", "a") as file:
            file.write(f"{len(texts)}\\n")
        return encode(self, texts)
    documents.Tokens.encode = slowly
    data = task.load_train_data(task.TaskConfig(cache_dir=sys.argv[3]))
    print(json.dumps([len(data), data[0].tolist()]))
"""


def prepared(folder: Path, cores: int, seconds: float, cache: str, **environ: str) -> "subprocess.Popen[str]":
    (folder / "prepare.py").write_text(PREPARE)
    command = [warm.python(), "prepare.py", str(cores), str(seconds), cache]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=projects.environment(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def prepare(folder: Path, cores: int, cache: str) -> str:
    """The same, undisturbed; what it said."""
    process = prepared(folder, cores, 0, cache)
    said = process.communicate(timeout=240)[0]
    assert process.returncode == 0, said
    return said


def project_with_texts(folder: Path, count: int = 200) -> Path:
    folder.mkdir(exist_ok=True)
    rows = ({"text": f"document {n} " * (n % 7 + 1)} for n in range(count))
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    load(folder, "causal_lm", data__train="a.jsonl", batch__sequence_length=64)
    return folder


def tokens(cache: Path) -> dict[str, bytes]:
    """What is tokenized, in the only folder of a cache."""
    (folder,) = cache.glob("tokens-*")
    return {name: (folder / name).read_bytes() for name in ("tokens", "documents")}


def test_all_cores_write_what_one_writes(tmp_path: Path) -> None:
    folder = project_with_texts(tmp_path / "p")
    said = [prepare(folder, cores, f"cache-{cores}") for cores in (1, 3)]
    assert "tokenizing a.jsonl: 0 MB, 3 processes" in said[1]
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]
    assert tokens(folder / "cache-1") == tokens(folder / "cache-3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = project_with_texts(tmp_path_factory.mktemp("whole") / "p")
    prepare(folder, 1, "cache")
    return tokens(folder / "cache")


@pytest.mark.parametrize(("signum", "cores"), [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGKILL, 2)])
def test_what_is_tokenized_before_an_interruption_is_kept(
    signum: int, cores: int, whole: dict[str, bytes], tmp_path: Path
) -> None:
    folder = project_with_texts(tmp_path / "p")
    first = prepared(folder, cores, 0.1, "cache")
    until = time.monotonic() + 120 * patience()
    while not any(json.loads(f.read_text())["rows"] > 20 for f in folder.glob("cache/*.partial/progress.json")):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    began = time.monotonic()
    first.send_signal(signum)
    said = first.communicate(timeout=60 * patience())[0]
    if signum != signal.SIGKILL:
        assert first.returncode == 75
        assert "stopped while preparing the data; the next start continues from here" in said
        assert time.monotonic() - began < 20 * patience()
    (progress,) = folder.glob("cache/*.partial/progress.json")
    kept = json.loads(progress.read_text())["rows"]
    (folder / "encoded").unlink()
    assert f"a.jsonl: continuing after {kept} rows that are already tokenized" in prepare(folder, cores, "cache")
    assert sum(map(int, (folder / "encoded").read_text().split())) == 200 - kept, "nothing is done twice"
    assert tokens(folder / "cache") == whole


def test_two_projects_tokenize_once_and_share(tmp_path: Path) -> None:
    """Started together on the same data: one writes, the other waits, whatever the files are called."""
    one, two = (project_with_texts(tmp_path / name) for name in ("one", "two"))
    (two / "a.jsonl").rename(two / "b.jsonl")
    task = two / "task.py"
    task.write_text(task.read_text().replace('"a.jsonl"', '"b.jsonl"').replace("torch.float32", "torch.float32 "))
    both = [prepared(folder, 1, 0.02, str(tmp_path / "cache")) for folder in (one, two)]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]
    encoded = [f.read_text().split() for f in (one / "encoded", two / "encoded") if f.exists()]
    assert sum(int(count) for counts in encoded for count in counts) == 200, "once"
    assert len(list((tmp_path / "cache").glob("tokens-*"))) == 1


def folders(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> set[str]:
    """The folders of the cache after a training has loaded its data."""
    task = load(folder, "sft", **changes)
    task.load_train_data(task.TaskConfig(cache_dir=str(folder / "cache"), **(config or {})))
    return {path.name for path in (folder / "cache").glob("tokens-*")}


# docs/decisions/tasks.md: Tokens are named by what decides them, and rows are made of them
def test_a_folder_is_named_by_what_decides_its_tokens_and_by_nothing_else(tmp_path: Path) -> None:
    name = str(instructed(tmp_path / "model", CHATML))
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'messages': TALK[n:]})}\n" for n in (0, 1, 0, 1)))
    known: dict[str, Any] = {
        "model__name": name,
        "model__from_scratch": False,
        "data__train": str(tmp_path / "a.jsonl"),
        "data__eval": "embedded",
    }
    first = folders(tmp_path, **known)
    assert len(first) == 1
    shutil.copytree(tmp_path / "model", tmp_path / "elsewhere")
    (tmp_path / "moved.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    for same in (
        {"model__adapter": "lora", "model__lora_rank": 4},
        {"batch__sequence_length": 100, "data__packing": False},
        {"data__eval": None},  # the code for embedded data is not in the files
        {"data__eval": "1", "data__min_tokens": 3},
        {"model__name": str(tmp_path / "elsewhere")},
        {"data__train": str(tmp_path / "moved.jsonl")},
        {"optimizer__learning_rate": 1.0},
    ):
        assert folders(tmp_path, **{**known, **same}) == first, same
    assert folders(tmp_path, {"loss_chunk": 7}, **known) == first
    os.utime(tmp_path / "a.jsonl", (1, 1))
    assert folders(tmp_path, **known) == first, "the same content, written at another time"
    every = first
    for other in (
        {"data__max_rows": 2},
        {"data__train": f"{tmp_path / 'a.jsonl'},{tmp_path / 'moved.jsonl'}"},
        {"model__name": str(instructed(tmp_path / "other", CHATML.replace("<|im_end|>", "<|eot|>")))},
    ):
        found = folders(tmp_path, **{**known, **other})
        assert len(found) == len(every) + 1, other
        every = found


def told_by(folder: Path, cache: Path, capsys: pytest.CaptureFixture[str], task: str, **changes: Any) -> list[str]:
    """What a training in a folder says while it loads its data."""
    made = load(folder / "code", task, **changes)
    config = made.TaskConfig(**({} if task == "text_classification" else {"cache_dir": str(cache)}))
    made.load_train_data(config)
    if changes.get("data__eval"):
        made.load_eval_data(config)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("task", ["sft", "preference"])
def test_notes_on_the_data_are_told_at_each_start(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also at the second one, and in another project that shares the tokens and calls the file differently."""
    rows: list[Any] = [{"prompt": f"{n}?", "chosen": "a" * 90, "rejected": "b", "id": n} for n in range(3)]
    if task == "sft":
        rows = [{"prompt": row["prompt"], "completion": row["chosen"], "id": row["id"]} for row in rows]
    said = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (data := tmp_path / name / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        known = {"data__train": str(data), "data__eval": None, "batch__sequence_length": 40}
        for _ in range(2):
            said.append(told_by(tmp_path / name, tmp_path / "cache", capsys, task, **known))
            said[-1] = [line.replace(str(data), "DATA") for line in said[-1]]
    assert said[0] == said[1] == said[2] == said[3]
    assert "  ignored column: id (3, the first: DATA:1)" in said[0]
    assert "DATA: samples: 3, 3 cut to 40 tokens, 0 dropped" in said[0]
    assert len(list((tmp_path / "cache").glob("tokens-*"))) == 1


def test_shares_of_weighted_sources_are_told_at_each_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{name} {n}"}) + "\n" for n in range(9)))
    known = {
        "data__train": f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.jsonl'}",
        "data__source_weights": "1,3",
        "data__weigh_by": "samples",
        "data__eval": None,
    }
    said = [told_by(tmp_path, tmp_path / "cache", capsys, "causal_lm", **known) for _ in range(2)]
    assert said[0] == said[1]
    assert f"{tmp_path / 'b.jsonl'}: 75.0% of the samples: 9 are seen 3.00 times" in said[1]


# docs/decisions/tasks.md: Notes on the data are stored with it
@pytest.mark.parametrize("task", ["sft", "causal_lm", "preference", "reward_model", "text_classification"])
@pytest.mark.parametrize("weights", [None, "1,2"])
def test_samples_for_evaluation_that_are_trained_on_are_counted(
    task: str, weights: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They stand in files of their own, so that no rule sees it."""

    def row(n: int) -> dict[str, Any]:
        return {
            "sft": {"prompt": f"{n}?", "completion": "yes"},
            "causal_lm": {"text": f"document {n}"},
            "text_classification": {"text": f"document {n}", "label": "odd" if n % 2 else "even"},
        }.get(task, {"prompt": f"{n}?", "chosen": "yes", "rejected": "no"})

    for name, numbers in {"a": range(10), "b": range(10, 20), "valid": range(17, 23), "other": range(30, 36)}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in numbers))
    train = f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.jsonl'}"
    for held_out, wanted in (("valid", 1), ("valid", 1), ("other", 0)):
        known = {"data__train": train, "data__eval": str(tmp_path / f"{held_out}.jsonl")}
        said = told_by(tmp_path, tmp_path / "cache", capsys, task, data__source_weights=weights, **known)
        found = [line for line in said if "are also in" in line]
        assert len(found) == wanted, said
        pairs = task in ("preference", "reward_model")
        assert all(f"valid.jsonl: {'6 of 12' if pairs else '3 of 6'} " in line for line in found), found


EDITS = {
    "sft": [  # a file, what is replaced in it, and whether that decides tokens
        ("conversations.py", '"gpt", "bot"', '"gpt", "robot"', True),
        ("conversations.py", "return parsed_row(value) if value.strip() else None", "return None", True),
        ("python_questions.py", "len(text) >= 40", "len(text) >= 50", False),  # of the embedded data
        ("transcripts.py", '"Human": "user"', '"Human": "system"', True),
        ("chat.py", "What is str.split?", "What is str.join?", False),
        ("chat.py", "shared = bisect_left(", "shared = 0 * bisect_left(", True),
        ("sources.py", "csv.field_size_limit(1 << 31)", "csv.field_size_limit(1 << 30)", True),
        ("sources.py", "np.partition(hashes, count - 1)", "np.partition(hashes, count - 2)", False),
        ("encoders.py", "1 + int(learned.argmax())", "2 + int(learned.argmax())", True),
        ("encoders.py", "1 << 19, 2000", "1 << 18, 2000", False),
        ("conversations.py", "import itertools\n", "import itertools\n\nassert itertools\n", True),  # may do anything
    ],
    "preference": [
        ("pairs.py", "SINGLE = False", "SINGLE = True", True),
        ("pairs.py", "longest = np.minimum(", "longest = np.maximum(", False),
        ("preferences.py", '("label", "kto_tag")', '("label", "good")', True),
        ("preferences.py", "EMBEDDED_DISTANCE = 7", "EMBEDDED_DISTANCE = 8", False),
    ],
    "causal_lm": [
        ("documents.py", "self.begin + ids + end", "ids + end", True),
        ("documents.py", "i % 10 == 9", "i % 10 == 8", False),
        (
            "sources.py",
            "def text_of(row: Row, column: str) -> str:",
            "def text_of(row: Row, column: Any) -> str:",
            True,
        ),
    ],
}


# docs/decisions/tasks.md: Tokens are named by what decides them, and rows are made of them
@pytest.mark.parametrize("task", EDITS)
def test_an_edit_makes_tokens_anew_only_if_it_decides_them(task: str, tmp_path: Path) -> None:
    load(tmp_path, task, model__name="a/model", model__from_scratch=False, data__train="a.jsonl", data__eval="embedded")
    chats = {"sft": "chat", "preference": "pairs"}
    encoded, definitions = sys.modules[chats.get(task, "documents")].encoded, sys.modules["definitions"]
    sources, encoders = sys.modules["sources"], sys.modules["encoders"]

    def code() -> Any:
        definitions.read.cache_clear()
        definitions.source_of.cache_clear()
        return definitions.source_of(encoded, sources.Sources, encoders.pack)

    first = code()
    for name, old, new, decides in EDITS[task]:
        before = (tmp_path / name).read_text()
        assert before.count(old) == 1, (name, old)
        (tmp_path / name).write_text(before.replace(old, new))
        assert (code() != first) is decides, (name, old)
        (tmp_path / name).write_text(before)
    assert code() == first


@pytest.mark.parametrize(
    ("vocabulary", "complemented", "dtype"),
    [
        (257, False, "uint16"),
        (65536, False, "uint16"),
        (65537, False, "int32"),
        (32768, True, "int16"),
        (32769, True, "int32"),
    ],
)
def test_tokens_take_two_bytes_where_the_vocabulary_allows(
    vocabulary: int, complemented: bool, dtype: str, tmp_path: Path
) -> None:
    """The largest token, given only or learned, comes back as it is."""
    load(tmp_path, "causal_lm")
    encoders, cache = sys.modules["encoders"], sys.modules["token_cache"]
    last = vocabulary - 1
    document = [~last, ~0, last, 0, ~last] if complemented else [last, 0, last]
    encoder = encoders.Encoder(encode=lambda _: ([document], {}), vocabulary=vocabulary, complemented=complemented)
    assert encoder.dtype == dtype
    recipe = cache.Recipe(name="x", rows=[("x", 0)], decided_by=[], code=[], encoder=lambda: encoder)
    cache.write(tmp_path / "out", recipe)
    written = cache.Tokens(tmp_path / "out")
    assert written.ids.tolist() == document
    assert next(written.documents())["first"].tolist() == [2 if complemented else 1]
