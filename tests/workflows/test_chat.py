"""`trainwiz chat` and `trainwiz sample`: a trained model answers, as transformers itself would let it."""

import hashlib
import io
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pexpect
import projects
import pytest
import torch
import warm
from safetensors.torch import save_model
from test_checkpoints_command import rewrite
from test_sft import CHATML, instructed
from test_tasks import load
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainwiz.cli import run as trainwiz
from trainwiz.errors import UsageError
from trainwiz.probe.chat import PROGRAM
from trainwiz.probe.inside import gather_weights
from trainwiz.workflows.chat import chat
from trainwiz.workflows.chat.model import Wanted
from trainwiz.workflows.chat.model import found as answering

pytestmark = pytest.mark.filterwarnings("default")
AUTO = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = instructed(tmp_path_factory.mktemp("chat") / "model", CHATML)
    trained = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for layer in trained.model.layers:
            for weight in layer.parameters():
                weight.mul_(12)  # so that what was said long ago decides what is written
        trained.lm_head.weight[256:] = 0  # and that nothing ends an answer early
    trained.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return instructed(tmp_path_factory.mktemp("base") / "model", None)


def expected(folder: Path, text: str) -> str:
    """What the model writes after a text, by transformers alone."""
    tokenizer, trained = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    ends = [256, *tokenizer.convert_tokens_to_ids(["<|im_end|>"])] if "<|im_end|>" in tokenizer.get_vocab() else 256
    written = trained.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=256,
    )
    return str(tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))


def shown(text: str) -> str:
    """As a terminal may see it."""
    from trainwiz.ui.safe import safe

    return safe(text)


def talk(*arguments: str, lines: str) -> projects.Done:
    done = forked.run([*arguments, "--python", warm.python()], text=lines, env=projects.environment())
    return projects.Done(done.returncode, done.stdout, done.stderr)


def test_a_conversation_goes_on_as_the_template_says(model: Path) -> None:
    """A line is a question; earlier questions and answers are part of the next prompt, until /reset."""
    done = talk("chat", str(model), "--system", "be brief", *GREEDY, lines="one?\n\ntwo?\n/reset\none?\n")
    assert done.code == 0, done.err
    system = "<|im_start|>system\nbe brief<|im_end|>\n"
    ask = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    first = expected(model, system + ask.format("one?"))
    second = expected(model, system + ask.format("one?") + first + "<|im_end|>\n" + ask.format("two?"))
    assert first != second
    assert done.out == "".join(f"{shown(answer)}\n" for answer in (first, second, first))
    assert "parameters in float32 on cpu" in done.err


def test_samples_as_json_with_seeds(model: Path) -> None:
    words = ("sample", str(model), "one?", "--times", "2", "--json", "--max-tokens", "8")
    found = [json.loads(talk(*words, "--seed", "5", lines="").out) for _ in range(2)]
    for answers in found:
        for answer in answers:
            del answer["seconds"]
    assert found[0] == found[1]
    texts = [answer["text"] for answer in found[0]]
    assert texts[0] != texts[1], "each has a seed of its own"
    assert {answer["reason"] for answer in found[0]} <= {"length", "end"}


def test_a_lone_text_is_a_prompt_unless_it_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my project").mkdir()
    assert chat.told("Once upon", []) == ("latest", ["Once upon"])
    assert chat.told("my project", []) == ("my project", [])
    assert chat.told("my-run", []) == ("my-run", [])
    assert chat.told("a b", ["Once"]) == ("a b", ["Once"])


def test_a_model_without_a_template_continues_texts(base: Path) -> None:
    whole = shown(f"Once upon{expected(base, 'Once upon')}") + "\n"
    for command, times in (("sample", 1), ("chat", 2)):
        done = talk(command, str(base), *GREEDY, lines="Once upon\n" * times)
        assert done.code == 0, done.err
        assert done.out == whole * times, "each line is a text of its own"
    assert "its tokenizer has no chat template" in done.err


def test_what_cannot_be_answered_is_said(model: Path) -> None:
    """Too much at once, and what the tokenizer's template refuses, end a pipe's talk and not a person's."""
    done = talk("chat", str(model), *GREEDY, lines="x" * 600 + "\none?\n")
    assert (done.code, done.out) == (1, "")
    assert "the conversation has 6" in done.err
    assert "the model is limited to 512, including its answer" in done.err


def test_an_empty_prompt_is_said_before_a_model_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert trainwiz(["sample", "no/such/folder"]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "does not generate text: BertForSequenceClassification"),
        ({}, "does not generate text: its config.json does not name a model class"),
    ],
)
def test_models_of_other_tasks_are_refused(
    config: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert trainwiz(["chat", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [(["/nowhere"], "/nowhere does not exist"), (["."], "no runs in"), (["--checkpoint", "3"], "no runs in")],
)
def test_where_there_is_no_model(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trainwiz(["chat", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_person_stops_an_answer_and_goes_on(model: Path) -> None:
    screen = pexpect.spawn(
        sys.executable,
        ["-m", "trainwiz", "chat", str(model), "--max-tokens", "100000", "--seed", "1"],
        env={**projects.environment(), "TERM": "dumb"},
        timeout=120,
        encoding="utf-8",
        codec_errors="replace",
    )
    screen.expect("> ")
    screen.sendline("x" * 600)
    screen.expect("start a new one: /reset")
    screen.expect("> ")
    screen.sendline("one?")
    screen.expect("one\\?\r\n")
    screen.expect("[^\r\n]")  # it has begun
    screen.sendintr()
    screen.expect_exact("[stopped]")
    screen.expect("tokens, ")
    screen.expect("> ")
    screen.sendline("/help")
    screen.expect("/reset starts over")
    screen.expect("> ")
    screen.sendline("/exit")
    screen.expect(pexpect.EOF)
    screen.wait()  # `close` would send it SIGHUP
    screen.close()
    assert screen.exitstatus == 0


def test_a_checkpoint_answers_and_is_kept_for_the_next_time(tmp_path: Path) -> None:
    """Gathered as `export` would; the second talk gathers nothing."""
    project = tmp_path / "project"
    task = load(project, "sft")
    checkpoint = project / "output" / "checkpoints" / "checkpoint-00000003"
    checkpoint.mkdir(parents=True)
    trained = task.build_model(task.TaskConfig())
    save_model(trained, str(checkpoint / "model.safetensors"))
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in checkpoint.iterdir()}
    rewrite(checkpoint, update=3, layout="whole", world=1, config={}, sha256=files)
    done = talk("chat", str(project), *GREEDY, lines="hello\n")
    assert done.code == 0, done.err
    assert "gathering the weights" in done.err
    (kept,) = (project / "output" / "exported").iterdir()
    assert kept.name.startswith("checkpoint-00000003-")
    assert done.out.rstrip("\n") == shown(expected(kept, "user:\nhello<|end|>assistant:\n")).rstrip("\n")
    again = talk("chat", str(checkpoint), *GREEDY, lines="hello\n")
    assert (again.out, "gathering" in again.err) == (done.out, False), again.err
    rewrite(checkpoint, config={"vocab_size": 1 << 18, "hidden_size": 4096})
    refused = talk("chat", str(checkpoint), *GREEDY, lines="hello\n")
    size = sum(file.stat().st_size for file in checkpoint.iterdir())
    assert refused.code == 1
    assert f"a model of at least 1,073,741,824 parameters; its files have {size:,} bytes" in refused.err


def talker_of(program: Any, tokenizer: Any) -> Any:
    """What asks a model, without the model."""
    talker = object.__new__(program.Model)
    talker.tokenizer, settings = tokenizer, SimpleNamespace(eos_token_id=256)
    talker.model = SimpleNamespace(generation_config=settings)
    return talker


def test_a_template_that_takes_content_as_parts(model: Path) -> None:
    """As templates of models that also see pictures: they leave out, or refuse, what is a text."""
    program, tokenizer = gather_weights.loaded(PROGRAM), AutoTokenizer.from_pretrained(model)
    parts = "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}"
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    for content in (parts, "{{ m.content[0].text }}", "{{ m.content[0]['text'] | trim }}"):
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }}:" + content + "<|im_end|>{% endfor %}"
        talker = talker_of(program, tokenizer)
        assert tokenizer.decode(talker.ids(asked)[0]) == "user:hi<|im_end|>"
        assert talker.end_tokens() == [256, *tokenizer.convert_tokens_to_ids(["<|im_end|>"])]


def test_a_template_without_end_is_given_up(model: Path) -> None:
    program, tokenizer = gather_weights.loaded(PROGRAM), AutoTokenizer.from_pretrained(model)
    program.TEMPLATE_SECONDS = 0.2
    for template, says in (
        ("{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3, "its chat template takes more than 0.2 s"),
        ("{{ messages[0].content * 9999999999 }}", "its chat template takes more than 512 MiB of memory"),
        ("{{ messages[0].content * 3000000 }}", "its chat template makes 3,000,000 characters of 1"),
    ):
        tokenizer.chat_template = template
        talker = talker_of(program, tokenizer)
        assert not talker.takes_parts
        began = time.process_time()
        with pytest.raises(program.Problem) as refused:
            talker.ids({"messages": [{"role": "user", "content": "a"}]})
        assert refused.value.said == {"problem": "refused", "detail": says}
        assert time.process_time() - began < 5
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.getrlimit(resource.RLIMIT_DATA)[1]


def test_a_model_that_its_checkpoint_does_not_hold(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before it takes memory; what other files hold is loaded."""
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    says = r"a model of at least 67,108,864 parameters; its files have 1,000 bytes"
    with pytest.raises(OverflowError, match=says), gather_weights.no_larger_than(tmp_path, OverflowError):
        torch.nn.Linear(1 << 13, 1 << 13)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "kilobytes"
    with pytest.raises(OverflowError), gather_weights.no_larger_than(tmp_path, OverflowError):
        torch.nn.ModuleList(torch.nn.PReLU() for _ in range(70_000))
    monkeypatch.setattr(gather_weights, "SMALL", 0)
    shape = AutoModelForCausalLM.from_pretrained(model).config
    with gather_weights.no_larger_than(tmp_path, OverflowError):
        assert AutoModelForCausalLM.from_pretrained(model).num_parameters() > 1000
    with pytest.raises(OverflowError), gather_weights.no_larger_than(tmp_path, OverflowError):
        AutoModelForCausalLM.from_config(shape)
    AutoModelForCausalLM.from_config(shape)


def test_of_a_project_the_newest_run_with_a_model_answers(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, failed = (tmp_path / "runs" / f"2026-11-20_10-00-0{n}-1" for n in (0, 1))
    shutil.copytree(model, trained / "model")
    failed.mkdir()
    (failed / "command.json").write_text("{}")
    assert answering(Wanted(target=str(tmp_path), cpu=True)).folder == trained / "model"
    assert f"run {failed.name} has no checkpoint; this is run {trained.name}" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no checkpoints in"):
        answering(Wanted(target=str(failed), cpu=True))


def test_the_program_says_what_it_cannot_load(model: Path, tmp_path: Path) -> None:
    """In words that `chat` knows, and never by a traceback on the channel."""
    broken = tmp_path / "broken"
    subprocess.run(["cp", "-r", str(model), str(broken)], check=True)
    (broken / "model.safetensors").write_bytes(b"no tensors")
    said = subprocess.run([warm.python(), str(PROGRAM), str(broken), "cpu"], capture_output=True, check=True).stdout
    assert json.loads(said)["problem"] == "not_loaded"
    config, canary = json.loads((model / "config.json").read_text()), tmp_path / "canary"
    (broken / "config.json").write_text(json.dumps({**config, "model_type": "new", "auto_map": AUTO}))
    (broken / "code.py").write_text(f"open({str(canary)!r}, 'w')\n")
    with pytest.raises(Exception, match="trust_remote_code"):
        gather_weights.loaded(PROGRAM).loaded(broken, "cpu")
    assert not canary.exists(), "nobody was asked, and no code of the folder ran"
    (broken / "tokenizer.json").unlink()
    (broken / "tokenizer_config.json").unlink()
    said = subprocess.run([warm.python(), str(PROGRAM), str(broken), "cpu"], capture_output=True, check=True).stdout
    assert json.loads(said)["problem"] == "no_tokenizer"
