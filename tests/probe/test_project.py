"""What the probe says of data, models and the hub's cache, against files that are really there."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import BASE

from trainwiz import plan as plans
from trainwiz.probe.hub_model import HubModel
from trainwiz.probe.project import project
from trainwiz.project import DataFacts, ModelFacts, Project
from trainwiz.render import script
from trainwiz.store import templates
from trainwiz.tasks.shapes import DECODERS

pytestmark = pytest.mark.usefixtures("unhurried")


def look(folder: Path, environ: dict[str, str] | None = None, **changes: Any) -> Project:
    plan = plans.with_changes(BASE, {key.replace("__", "."): value for key, value in changes.items()})
    there = {"HF_HOME": str(folder / "hf"), **(environ or {})}
    return project(plan, str(folder), environ=there, ask=lambda _: HubModel())


def train(folder: Path, name: str, **changes: Any) -> DataFacts:
    found = look(folder, data__train=name, **changes).train
    assert found
    return found


def model(folder: Path, name: str, **changes: Any) -> ModelFacts:
    found = look(folder, model__name=name, **changes).model
    assert found
    return found


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("packing", [True, False])
def test_counts_the_samples_that_task_py_makes(packing: bool, tmp_path: Path) -> None:
    """For bytes as tokens the counts are exact; elsewhere they are a bound."""
    write(tmp_path / "a.txt", "Ünïcode text\n" * 100)
    write(tmp_path / "b.jsonl", "".join(json.dumps({"text": f"document {i} " * i}) + "\n" for i in range(30)))
    write(tmp_path / "folder/c.txt", "some more text " * 50)
    write(tmp_path / "folder/deep/b.jsonl", '{"text": "deep"}\n')
    write(tmp_path / "folder/ignored.md", "a,b,c\n" * 1000)
    for artifact in script.scripts(
        plans.with_changes(BASE, {"batch.sequence_length": 64, "data.packing": packing}), templates.load()
    ):
        write(tmp_path / artifact.path, artifact.text)
    names = ["embedded", "a.txt", "b.jsonl", "folder"]
    program = (
        "import dataclasses, json, task\n"
        "def count(name): return len(task.load_train_data(dataclasses.replace(task.TaskConfig(), train_data=name)))\n"
        f"lengths = [count(name) for name in {names}]\n"
        "print(json.dumps([*lengths, len(task.load_eval_data(task.TaskConfig()))]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    embedded, text, lines, folder, evaluation = json.loads(done.stdout.splitlines()[-1])

    changes = {"batch__sequence_length": 64, "data__packing": packing}
    found = look(tmp_path, **changes)
    assert found.train
    assert found.eval
    assert (found.train.samples, found.eval.samples) == (embedded, evaluation)
    assert train(tmp_path, "a.txt", **changes).samples == text
    for name, real in (("b.jsonl", lines), ("folder", folder)):
        guess = train(tmp_path, name, **changes)
        assert guess.samples is None
        assert guess.samples_at_most is not None
        assert real <= guess.samples_at_most <= 40 * real


def test_a_tokenizer_makes_the_count_a_bound(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x" * 2560)
    found = train(tmp_path, "a.txt", model__name="gpt2-124m")
    assert (found.samples, found.samples_at_most) == (None, 10)


@pytest.mark.parametrize(
    ("name", "kind", "detail"),
    [
        ("embedded", "embedded", ""),
        ("embeded", "missing", "did you mean embedded?"),
        ("corpus.txt", "file", ""),
        ("corpsu.txt", "missing", "did you mean corpus.txt?"),
        ("texts", "folder", ""),
        ("texts/none.txt", "missing", "no such file or folder"),
        ("texts/none", "missing", "no such file or folder"),
        ("org/corpus", "hub", ""),
        ("./org/corpus", "missing", "no such file or folder"),
        ("org/corpus.jsonl", "missing", "no such file or folder"),
        ("~/corpus.txt", "missing", "~ is not expanded"),
        ("/nowhere/corpus.txt", "missing", "no such file or folder"),
        ("words", "missing", "no such file or folder"),
        ('"; import os', "missing", "no such file or folder"),
    ],
)
def test_kinds_of_data(tmp_path: Path, name: str, kind: str, detail: str) -> None:
    write(tmp_path / "corpus.txt", "text")
    write(tmp_path / "texts/a.txt", "text")
    found = train(tmp_path, name)
    assert found.kind == kind
    assert detail in found.detail
    assert bool(found.detail) == bool(detail)


@pytest.mark.parametrize(("shape", "edge"), [((2, 48, 48, 3), 48), ((2, 28, 28), 28), ((2, 48, 64, 3), None)])
def test_the_size_of_square_arrays_is_read(tmp_path: Path, shape: tuple[int, ...], edge: int | None) -> None:
    np.savez(tmp_path / "rows.npz", images=np.zeros(shape, dtype=np.uint8), labels=np.array([0, 1]))
    asked = plans.with_changes(BASE, {"task": "image_classification", "data.train": str(tmp_path / "rows.npz")})
    found = project(asked, tmp_path).train
    assert found
    assert found.picture_size == edge


def test_paths_count_from_a_folder_that_is_yet_to_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`trainwiz init new --data ../rows.jsonl`, and what is typed as it is from here, where the shell is."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", json.dumps({"text": "a", "label": "b", "instruction": "c", "output": "d"}))
    write(tmp_path / "model/config.json", json.dumps({"model_type": "llama"}))
    np.savez(tmp_path / "rows.npz", images=np.zeros((1, 4, 4), dtype=np.uint8), labels=np.array([0]))
    for task in ("causal_lm", "sft", "text_classification", "image_classification"):
        name = "rows.npz" if task == "image_classification" else "rows.jsonl"
        for typed, detail in ((f"../{name}", ""), (name, f"from there it is ../{name}")):
            found = project(plans.with_changes(BASE, {"task": task, "data.train": typed}), "new").train
            assert found
            assert found.detail.endswith(detail)
            assert bool(found.detail) == bool(detail)
    for typed, detail in (("../model", ""), ("model", "from there it is ../model")):
        changes: dict[str, object] = {"model.name": typed, "model.from_scratch": True}
        model = project(plans.with_changes(BASE, changes), "new").model
        assert model
        assert model.detail.endswith(detail)
        assert bool(model.detail) == bool(detail)


@pytest.mark.parametrize(
    ("name", "content", "detail"),
    [
        ("a.jsonl", '{"text": "fine"}\n', ""),
        ("a.jsonl", "plain text\n", "a.jsonl: line 1 is not a JSON object"),
        ("a.jsonl", '{"content": "other"}\n', 'line 1 has no column "text"; it has content'),
        ("a.jsonl", '["text"]\n', "item 1 is not a JSON object"),
        ("a.csv", 'text,n\n"one\ntwo",1\n', ""),
        ("a.csv", "words,n\none,1\n", 'line 2 has no column "text"; it has words, n'),
        ("a.csv", "text,n\none\n", "line 2: 1 fields, but line 1 has 2 column names"),
        ("a.csv", "text,n\none,1\ntext,n\n", "line 3: repeats the column names"),
        ("a.csv", "text,n\none\u2028two\x85three,1\n", ""),
        ("a.jsonl.gz", gzip.compress(b'{"text": "one"}\n', mtime=0), ""),
        ("a.jsonl.gz", gzip.compress(b'{"text": 1}\n', mtime=0), 'line 1: "text" is not a string: 1'),
        ("a.jsonl.gz", gzip.compress(b'{"text": "one"}\n' * 99, mtime=0)[:40], "a.jsonl.gz cannot be read"),
        ("a.parquet", b"no parquet", "a.parquet cannot be read"),
        ("a.jsonl", '{"text": 5}\n', '"text" is not a string'),
        ("a.jsonl", '{"text": "' + "long " * 20_000 + '"}\n', ""),
        ("a.jsonl", "", ""),
        ("a.txt", b"latin \xe9 text", "a.txt: line 1 is not valid UTF-8"),
        ("a.txt", b"x" * (2**20 - 1) + "ééé".encode(), ""),  # cut in the middle of a character
    ],
)
def test_files_that_task_py_could_not_read(tmp_path: Path, name: str, content: str | bytes, detail: str) -> None:
    write(tmp_path / "texts" / name, content)
    for found in (train(tmp_path, f"texts/{name}"), train(tmp_path, "texts")):
        assert detail in found.detail
        assert bool(found.detail) == bool(detail)


TALK = '{"messages": [{"role": "user", "content": "把一加一"}, {"role": "assistant", "content": "二"}]}\n'


@pytest.mark.parametrize(
    ("name", "content", "detail", "remedy"),
    [
        ("a.jsonl", TALK.encode("gb18030"), "a.jsonl: line 1 is not UTF-8, but GB18030", "iconv -f GB18030 -t UTF-8"),
        ("a.jsonl", (TALK * 3).encode("utf-16"), "a.jsonl: line 1 is not UTF-8, but UTF-16", "iconv -f UTF-16"),
        ("a.csv", "问题,回答\n一,二\n".encode("gbk"), "line 1 is not UTF-8, but GB18030", "iconv -f GB18030"),
        ("a.csv", "问题;回答\n一,二;三\n".encode(), "its columns are separated by ';', not by commas", "delimiter=';'"),
        ("a.csv", "question,answer\nÀ quoi ?,Été\n".encode("latin-1"), "line 2 is not valid UTF-8", "file -i a.csv"),
        ("a.jsonl", TALK + '{"messages": [{"ro', "line 2 is not a JSON object: Unterm", "ends in the middle of a row"),
        ("a.jsonl", json.dumps(json.loads(TALK), indent=1), "line 1 is not a JSON object: Exp", "jq -c . a.jsonl"),
        (
            "a.jsonl",
            TALK + TALK[: TALK.index("一加")] + "\n" + TALK,
            "line 2 is not a JSON object: Invalid",
            "the row ends in the middle",
        ),
        ("a.jsonl", TALK[:-3] + "\n" + TALK, "line 1 is not a JSON object: Exp", "the row ends in the middle"),
        (
            "a.jsonl",
            f'{{\n"data": [\n{TALK}]\n}}\n',
            "line 1 is not a JSON object: Exp",
            """jq -c '."data"[]' a.jsonl""",
        ),
        ("a.jsonl", '{\n"prompt": "a",\n}\n', "line 1 is not a JSON object: Exp", "None"),
        ("a.jsonl", "once upon a time\n", "line 1 is not a JSON object", "None"),
        ("a.jsonl", "{'question': 'a'}\n", "line 1 is not a JSON object: Expecting property", "None"),
        ("a.jsonl", '{"a":' * 100_000 + "\n", "line 1 is not a JSON object", "None"),
        ("my data.csv", "问题,回答\n".encode("gbk"), "but GB18030", "-t UTF-8 'my data.csv' > utf8-'my data.csv'"),
        ("a.csv", "größe,für\nschön,müde\n".encode("cp1252"), "line 1 is not valid UTF-8", "file -i a.csv"),
        ("a.csv", "вопрос,ответ\nда,нет\n".encode("cp1251"), "line 1 is not valid UTF-8", "file -i a.csv"),
        ("a.json", f'{{"version": 1, "data": [{TALK}]}}', "a.json is one JSON object", """'."data"[]' a.json"""),
        ("a.json", '{"train": [{"question": "1 + 1", "answer": "2"}]}', "it has train", """'."train"[]' a.json"""),
        ("a.json", TALK.strip(), "", "None"),
        ("a.jsonl", TALK.replace("}\n", "},\n") * 2, "line 1 is not a JSON object: Extra data", "sed 's/,[[:space:]]"),
        ("a.json", f"[{TALK},\n]", "line 3 is not valid JSON", "the comma before the last bracket, in line 2"),
        ("a.json", f"[{TALK}]\n[{TALK}]", "line 3 is not valid JSON: Extra data", "jq -c 'if type == "),
        ("a.json", '{"prompt": {"0": "a", "1": "b"}, "completion": {"0": "c", "1": "d"}}', "of each column", "pandas"),
        ("a.json", '{"prompt": ["a", "b"], "completion": ["c", "d"]}', "of each column", "orient='records'"),
        ("a.csv", "prompt,completion,completion\na,b,c\n", 'two columns have the name "completion"', "another name"),
        ("a.csv", "prompt, of mine;completion\na, b;c\nd;e\n", "are separated by ';'", "delimiter=';'"),
        ("a.tsv", 'prompt\tcompletion\n"so" he\tsaid\n', "line 2: a quoted text", "csv.QUOTE_NONE"),
        ("a.tsv", 'prompt\tcompletion\n"so\tsaid\nhe, no"\twell\n', "line 2: a quoted text", "csv.QUOTE_NONE"),
        ("a.csv", "prompt,completion\na,b\n".encode("utf-16-le"), "is not UTF-8, but UTF-16LE", "iconv -f UTF-16LE"),
        (
            "a.jsonl",
            gzip.compress(TALK.encode(), mtime=0),
            "a.jsonl cannot be read: despite its name, its content is gzip",
            "a.jsonl.gz",
        ),
        ("a.parquet", "version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS", "git lfs pull"),
        ("a.jsonl", "\n<!DOCTYPE html>\n<html>\n", "its content is HTML", "download the file itself"),
        ("a.jsonl", TALK + '{"prompt": "a", "completion": NaN}\n', "line 2: this conversation cannot be used", "None"),
        ("a.jsonl", TALK.replace('"把一加一"', '[{"type": "image_url"}]'), "the user shows image_url", "None"),
        ("a.jsonl", TALK.replace("user", "Alice"), "line 1: this conversation cannot be used: the role 'Ali", "None"),
    ],
)
def test_what_makes_a_file_readable(tmp_path: Path, name: str, content: str | bytes, detail: str, remedy: str) -> None:
    write(tmp_path / name, content)
    found = train(tmp_path, name, task="sft")
    assert detail in found.detail
    assert bool(found.detail) == bool(detail)
    assert remedy in str(found.remedy)


def test_a_page_is_a_text_but_no_rows(tmp_path: Path) -> None:
    for name in ("a.txt", "a.csv"):
        write(tmp_path / name, "<!DOCTYPE html>\n<html>\n")
        assert bool(train(tmp_path, name, task="causal_lm").detail) == (name == "a.csv")


def test_a_name_that_no_file_system_takes(tmp_path: Path) -> None:
    assert train(tmp_path, "x" * 4000).kind == "missing"
    assert model(tmp_path, "x" * 4000).kind == "missing"


def test_empty_data_has_no_samples(tmp_path: Path) -> None:
    write(tmp_path / "empty.txt", "")
    (tmp_path / "nothing").mkdir()
    assert train(tmp_path, "empty.txt").samples == 0
    assert train(tmp_path, "nothing").samples_at_most == 0


def test_names_typed_before_a_project_exists_are_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "my-talks.jsonl", TALK)
    found = [look(tmp_path / "new", task="sft", data__train=name).train for name in ("my-talk.jsonl", "other.jsonl")]
    assert [each and each.detail for each in found] == [
        "no such file or folder; did you mean my-talks.jsonl?",
        "no such file or folder",
    ]


def test_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = look(tmp_path / "new", data__train="corpus.txt")
    assert found.train
    assert found.train.kind == "missing"


@pytest.mark.parametrize("name", list(DECODERS))
def test_presets(tmp_path: Path, name: str) -> None:
    found = model(tmp_path, name)
    assert (found.kind, found.parameters) == ("preset", DECODERS[name].parameters)
    assert found.max_positions == (1024 if name == "gpt2-124m" else None)


def test_a_preset_without_weights(tmp_path: Path) -> None:
    found = model(tmp_path, "tiny", model__from_scratch=False)
    assert found.kind == "missing"
    assert "no published weights" in found.detail
    assert model(tmp_path, "gpt2-124m", model__from_scratch=False).kind == "preset"


@pytest.mark.parametrize(
    ("name", "kind", "detail"),
    [
        ("gpt2-124", "missing", "did you mean gpt2-124m?"),
        ("something", "missing", "or a hub id"),
        ("org/model", "hub", ""),
        ("bare", "missing", "no config.json"),
        ("broken", "missing", "config.json is not valid JSON"),
        ("listed", "missing", "not a JSON object"),
    ],
)
def test_kinds_of_models(tmp_path: Path, name: str, kind: str, detail: str) -> None:
    (tmp_path / "bare").mkdir()
    write(tmp_path / "broken/config.json", "{")
    write(tmp_path / "listed/config.json", "[]")
    found = model(tmp_path, name)
    assert found.kind == kind
    assert detail in found.detail


def safetensors(shapes: list[list[int]]) -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            **{f"layer{i}": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for i, shape in enumerate(shapes)},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header


def test_a_local_model_is_measured_by_its_headers(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_positions": 32, "vocab_size": 100}
    write(tmp_path / "mine/config.json", json.dumps(config))
    write(tmp_path / "mine/model-00001.safetensors", safetensors([[10, 20], [5]]))
    write(tmp_path / "mine/model-00002.safetensors", safetensors([[3]]))
    found = model(tmp_path, "mine", model__from_scratch=False)
    assert (found.kind, found.parameters, found.size_source) == ("folder", 208, "files")
    assert (found.max_positions, found.has_tokenizer, found.assumed) == (32, False, True)
    assert found.quantized == ""
    for told, method in ({"quant_method": "gptq", "bits": 4}, "gptq"), ({"load_in_4bit": True}, "bitsandbytes"):
        write(tmp_path / "mine/config.json", json.dumps({**config, "quantization_config": told}))
        found = model(tmp_path, "mine", model__from_scratch=False)
        assert (found.quantized, found.nested_nf4) == (method, False)
    qlora = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    for changed, nested in ({}, True), ({"bnb_4bit_quant_type": "fp4"}, False), ({"load_in_4bit": False}, False):
        write(tmp_path / "mine/config.json", json.dumps({**config, "quantization_config": {**qlora, **changed}}))
        assert model(tmp_path, "mine", model__from_scratch=False).nested_nf4 is nested


def test_a_local_model_without_or_with_damaged_weights(tmp_path: Path) -> None:
    write(tmp_path / "mine/config.json", '{"model_type": "llama", "max_position_embeddings": 32}')
    assert "no weights" in model(tmp_path, "mine", model__from_scratch=False).detail
    assert model(tmp_path, "mine").kind == "folder"
    assert model(tmp_path, "mine").max_positions is None  # rotary
    for damaged in (b"", b"\xff" * 8, struct.pack("<Q", 4) + b"nope", struct.pack("<Q", 2) + b"[]"):
        write(tmp_path / "mine/model.safetensors", damaged)
        found = model(tmp_path, "mine", model__from_scratch=True)
        # The rest of config.json is as transformers completes it.
        assert (found.kind, found.parameters, found.size_source) == ("folder", 6_738_415_616, "config")


def test_the_hub_cache(tmp_path: Path) -> None:
    assert model(tmp_path, "org/model").cached is False
    write(tmp_path / "hf/hub/models--org--model/snapshots/abc/config.json", "{}")
    assert model(tmp_path, "org/model").cached is True
    assert train(tmp_path, "org/model").cached is False
    write(tmp_path / "hf/hub/datasets--org--texts/snapshots/abc/data.jsonl", "")
    assert train(tmp_path, "org/texts").cached is True


def test_offline(tmp_path: Path) -> None:
    assert look(tmp_path, {"HF_HUB_OFFLINE": "1"}).offline
    assert not look(tmp_path, {"HF_HUB_OFFLINE": "0"}).offline
    assert not look(tmp_path).offline


def test_a_custom_task_has_data_and_model_of_its_own(tmp_path: Path) -> None:
    found = look(tmp_path, task="custom", data__train="nowhere.txt")
    assert (found.train, found.eval, found.model) == (None, None, None)


def test_build_locks_matter_to_deepspeed_only(tmp_path: Path) -> None:
    lock = write(tmp_path / "ext/cpu_adam/lock", "")
    os.utime(lock, (1, 1))
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "ext")}
    plan = {"strategy__kind": "deepspeed", "strategy__zero_stage": 2}
    assert look(tmp_path, environ, **plan).build_locks == (str(lock),)
    assert look(tmp_path, environ).build_locks == ()
    with lock.open():  # a builder holds it open
        assert look(tmp_path, environ, **plan).build_locks == ()


@pytest.mark.parametrize(
    ("task", "content", "columns", "says"),
    [
        (
            "text_classification",
            "good film,pos\nbad,neg\nso,pos\n",
            ("good film", "pos"),
            'labels would be called "pos" and that of texts',
        ),
        ("text_classification", "good film,1\nbad,0\n", ("good film", "1"), "line 1 seems to be data"),
        ("text_regression", "good film,3.5\nbad,1\n", ("good film", "3.5"), "line 1 seems to be data"),
        ("text_classification", "0,1\ngood film,1\nbad,0\n", ("0", "1"), ""),  # as pandas writes columns without names
        ("text_classification", "film,pos\ngood,yes\nbad,no\n", ("film", "pos"), ""),
    ],
)
def test_a_table_without_names_of_columns_does_not_lose_its_first_row(
    task: str, content: str, columns: tuple[str, str], says: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.csv", content)
    text, label = columns
    found = train(tmp_path, "a.csv", task=task, data__text_column=text, data__label_column=label, data__packing=False)
    assert says in found.detail
    assert bool(found.detail) == bool(says)
