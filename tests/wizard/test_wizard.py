"""The wizard in a real terminal: a pseudo-terminal, real keys, the installed command."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import projects
import pytest
import yaml

from trainwiz.store import answers as store
from trainwiz.wizard.terminal import plain

CPU = str(Path(__file__).parents[1] / "machines" / "cpu.json")
H100 = str(Path(__file__).parents[1] / "machines" / "8xh100.json")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
DOWN, END, HOME, PAGE_DOWN = "\x1b[B", "\x1b[F", "\x1b[H", "\x1b[6~"
BASIC = ("Task", "Model", "Training data", "CPU ranks|GPUs", "Real batch", "Strategy", "Length")


class Terminal:
    """`trainwiz` in a pseudo-terminal of its own."""

    def __init__(
        self,
        tmp_path: Path,
        *arguments: str,
        below: str = "",
        lang: str = "en",
        rows: int = 40,
        columns: int = 160,
        **environ: str,
    ) -> None:
        variables = {
            **os.environ,
            # With one at hand, the wizard asks where the training runs.
            "PATH": projects.path_without(["sbatch", "kubectl", "sky"], tmp_path / "programs"),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "TRAINWIZ_LANG": lang,
            "TERM": "xterm-256color",
            # Nobody answers there when prompt_toolkit asks where the cursor is.
            "PROMPT_TOOLKIT_NO_CPR": "1",
            **environ,
        }
        self.child: pexpect.spawn[str] = pexpect.spawn(
            sys.executable,
            ["-m", "trainwiz", *arguments],
            env=variables,
            cwd=str(tmp_path / below),
            encoding="utf-8",
            timeout=180,
            dimensions=(rows, columns),
        )
        self.seen = ""

    def expect(self, pattern: str) -> None:
        try:
            self.child.expect(pattern)
        finally:
            before = self.child.before if isinstance(self.child.before, str) else ""
            after = self.child.after if isinstance(self.child.after, str) else ""
            self.seen += ESCAPES.sub("", before + after)

    def asked(self, prompt: str) -> None:
        """Wait for a question that is not answered yet: its default stands in brackets, or its list below."""
        self.expect(rf">\x1b\[0;1m ({prompt})[^\n]*(?<!\x1b)\[[^\n]*\n[^>]*Ctrl-C")

    def enter(self, prompt: str, keys: str = "") -> None:
        """Wait for a question, then type and press Enter."""
        self.asked(prompt)
        self.child.send(keys + "\r")

    def press(self, prompt: str, key: str) -> None:
        """Wait for a question, then press one key."""
        self.asked(prompt)
        self.child.send(key)

    def end(self) -> int:
        self.expect(pexpect.EOF)
        self.child.wait()  # `close` would send it SIGHUP
        self.child.close()
        status = self.child.exitstatus
        return status if status is not None else -(self.child.signalstatus or 0)


Start = Callable[..., Terminal]


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.child.close(force=True)


@pytest.fixture
def start(tmp_path: Path, terminals: list[Terminal]) -> Start:
    def started(*arguments: str, **options: str) -> Terminal:
        terminals.append(Terminal(tmp_path, *arguments, **options))  # type: ignore[arg-type]
        return terminals[-1]

    return started


def plan(tmp_path: Path, name: str = "p") -> dict[str, dict[str, object]]:
    values: dict[str, dict[str, object]] = yaml.safe_load((tmp_path / name / "trainwiz.yaml").read_text())
    return values


def test_enter_all_the_way_on_this_machine(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p")
    for prompt in BASIC:
        terminal.enter(prompt)
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send("\r")
    assert terminal.end() == 0, terminal.seen
    assert "trainwiz launch p" in terminal.seen
    assert "written in p: trainwiz.yaml" in terminal.seen, "one paragraph, not a screen of lines"
    assert (tmp_path / "p" / "train.py").is_file()
    assert not store.session_file(tmp_path / "p", {"XDG_STATE_HOME": str(tmp_path / "state")}).exists()


LOGIN_NODE = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def at_a_login_node(tmp_path: Path) -> str:
    """A search path with a Slurm."""
    path = projects.path_without(["sbatch", "kubectl", "sky"], tmp_path / "programs")
    sbatch = tmp_path / "slurm" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(LOGIN_NODE)
    sbatch.chmod(0o755)
    return f"{sbatch.parent}{os.pathsep}{path}"


def test_a_login_node_is_asked_for_the_machines_of_its_job(tmp_path: Path, start: Start, at_a_login_node: str) -> None:
    """With the review, eight Enters; what the person says of the GPUs is planned for, kept and printed."""
    terminal = start("init", "p", PATH=at_a_login_node)
    for prompt in BASIC[:3]:
        terminal.enter(prompt)
    terminal.press("Where will it run", DOWN)
    terminal.expect(r"» slurm")
    terminal.child.send("\r")
    terminal.enter("Machines and GPUs of the job", "2x4xGTX9000")
    terminal.expect("neither a number of ranks nor known GPUs")
    terminal.enter("Machines and GPUs of the job", "2x4xH100")
    for prompt in ("Real batch", "Length"):
        terminal.enter(prompt)
    terminal.expect("The plan: press Enter to write it")
    terminal.expect("2 machines, each with 4 GPUs, started by slurm")
    terminal.child.send("\r")
    assert terminal.end() == 0, terminal.seen
    assert "trainwiz submit p" in terminal.seen
    assert "--machine 4xH100" in terminal.seen
    script = (tmp_path / "p" / "job.sbatch").read_text()
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gpus-per-node=4\n" in script
    assert plan(tmp_path)["precision"]["mixed_precision"] == "bf16"

    checked = projects.trainwiz("check", str(tmp_path / "p"))
    assert (checked.code, "TW105" in checked.out + checked.err) == (0, False), checked
    assert "this machine has no GPU: the machines of the slurm job are not checked here" in checked.err
    launched = projects.trainwiz("launch", str(tmp_path / "p"))
    assert launched.code == 1
    assert f"run: trainwiz submit {tmp_path / 'p'}" in launched.err


def test_a_person_at_a_login_node_can_stay_there(tmp_path: Path, start: Start, at_a_login_node: str) -> None:
    terminal = start("init", "p", PATH=at_a_login_node)
    for prompt in (*BASIC[:3], "Where will it run", "CPU ranks", "Real batch", "Length"):
        terminal.enter(prompt)
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send("\r")
    assert terminal.end() == 0, terminal.seen
    assert "trainwiz launch p" in terminal.seen
    assert not (tmp_path / "p" / "job.sbatch").exists()


def test_a_chinese_keyboard_and_tab(tmp_path: Path, start: Start) -> None:
    """Full-width ？ and ＜ are keys, full-width digits numbers; Tab completes the last of several paths."""
    for name in ("corpus one.txt", "other.txt"):
        (tmp_path / name).write_text("A line of text.\n" * 2000)
    terminal = start("init", "p", "--machine", CPU)
    terminal.press("Task", "？")
    terminal.enter("Task")
    terminal.press("Model", "＜")
    terminal.enter("Task")
    terminal.enter("Model")
    terminal.press("Training data", "corp\t")
    terminal.expect("us one.txt")  # the terminal may have drawn what was typed before
    terminal.child.send(", oth\t")
    terminal.expect(r"er\.txt")  # of other.txt: what is typed may be drawn before it is completed
    terminal.child.send("\r")
    terminal.enter("CPU ranks", "２")
    terminal.enter("Real batch", "６４")
    for prompt in BASIC[5:]:
        terminal.enter(prompt)
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send("\r")
    assert terminal.end() == 0, terminal.seen
    written = plan(tmp_path)
    assert written["batch"]["real_batch_size"] == 64
    assert written["machine"]["num_processes"] == 2
    assert [Path(one).name for one in str(written["data"]["train"]).split(", ")] == ["corpus one.txt", "other.txt"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("８，０００", "8,000"),
        ("0。1", "0.1"),
        ("ｄｄｐ", "ddp"),
        ("a.jsonl，b.jsonl", "a.jsonl,b.jsonl"),
        ("数据，一", "数据，一"),
        ("a.jsonl\r\n\n数据.jsonl\n", "a.jsonl, 数据.jsonl"),
    ],
)
def test_full_width_forms_count_as_the_plain_ones(typed: str, meant: str) -> None:
    assert plain(typed) == meant


def test_the_name_of_a_file_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ａ.txt").touch()
    assert plain("ａ.txt") == "ａ.txt"


def test_the_hint_shows_the_keys(start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU)
    terminal.expect(r"\? explains · < goes back · Ctrl-C")


def test_help_back_and_illegal_answers(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p", "--machine", H100)
    terminal.press("Task", "?")
    terminal.expect("The training task")
    terminal.enter("Task")
    terminal.enter("Model", "gpt2-124m")
    terminal.press("Training data", "<")
    terminal.expect(r"\x1b\[A\x1b\[J")  # the answered line above is erased
    terminal.enter("Model", "tiny")
    terminal.enter("Training data")
    terminal.enter("GPUs", "16")
    terminal.expect("✗[^\n]*16")
    terminal.enter("GPUs", "4")
    terminal.enter("Real batch", "100/8")
    terminal.expect("100 is not divisible by 8 × 4 = 32; nearest: 96")
    terminal.enter("Real batch", "96/8")
    terminal.press("Strategy", "\x02")
    terminal.press("Real batch", "\x02")
    terminal.enter("GPUs", "5")
    terminal.expect("your earlier answer 96 is no longer valid")
    terminal.press("Real batch", "<")
    terminal.enter("GPUs", "4")
    terminal.enter("Real batch", "64")
    terminal.enter("Strategy", DOWN)
    terminal.enter("Length", "3 lightyears")
    terminal.expect("is not a valid length")
    terminal.enter("Length", "2 epochs")
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send(DOWN * 7 + "\r")
    terminal.enter("Precision", DOWN)
    terminal.expect("Precision +fp16")
    terminal.child.send(END + "\r")
    terminal.expect("typing searches")
    terminal.child.send("seed\r")
    terminal.enter("Seed", "7")
    terminal.expect("yours: your answer")
    terminal.child.send("\x17")  # Ctrl-W
    assert terminal.end() == 0, terminal.seen
    values = plan(tmp_path)
    assert values["seed"] == 7
    assert values["machine"]["num_processes"] == 4
    assert values["batch"]["real_batch_size"] == 64
    assert values["precision"]["mixed_precision"] == "fp16"
    assert values["strategy"]["zero_stage"] == 2
    assert values["schedule"]["n_epochs"] == 2


def test_question_mark_and_less_than_are_characters_inside_a_text(tmp_path: Path, start: Start) -> None:
    (tmp_path / "a<b?.txt").write_text("some text " * 20000)
    terminal = start("init", "p", "--machine", CPU, "--yes")
    terminal.enter("Task")
    terminal.enter("Model")
    terminal.enter("Training data", str(tmp_path / "a<b?.txt"))
    for prompt in BASIC[3:]:
        terminal.enter(prompt)
    assert terminal.end() == 0, terminal.seen
    assert plan(tmp_path)["data"]["train"] == str(tmp_path / "a<b?.txt")


def test_ctrl_c_keeps_the_answers_and_resume_goes_on(tmp_path: Path, start: Start) -> None:
    (tmp_path / "here.json").write_text(Path(CPU).read_text())
    terminal = start("init", "p", "--machine", "here.json", "--strategy", "ddp")
    terminal.enter("Task")
    terminal.enter("Model", "gpt2-124m")
    terminal.press("Training data", "\x03")
    assert terminal.end() == 130, terminal.seen
    assert "trainwiz init p --resume" in terminal.seen
    kept = store.session_file(tmp_path / "p", {"XDG_STATE_HOME": str(tmp_path / "state")})
    assert str(kept) in terminal.seen
    assert not (tmp_path / "p").exists()

    # Neither the folder nor the machine is typed again: the last interrupted one goes on, and asks no more than it did.
    again = start("init", "--resume", "--yes")
    for prompt in BASIC[2:]:
        if prompt != "Strategy":
            again.enter(prompt)
    assert again.end() == 0, again.seen
    assert "> Task" not in again.seen
    assert "> Strategy" not in again.seen
    assert plan(tmp_path)["model"]["name"] == "gpt2-124m"
    assert not kept.exists()


def test_resume_keeps_the_language_and_the_place_that_paths_count_from(tmp_path: Path, start: Start) -> None:
    (tmp_path / "talks.txt").write_text("some text\n" * 50)
    words = ("--data", "talks.txt", "--answers", "more.yaml", "--on-conflict", "keep", "--machine", CPU)
    (tmp_path / "more.yaml").write_text("seed: 7\n")
    terminal = start("init", "p", "--lang", "zh", *words)
    terminal.press("任务", "\r")
    terminal.press("模型", "\x03")
    assert terminal.end() == 130, terminal.seen
    (tmp_path / "more.yaml").unlink()
    (tmp_path / "elsewhere").mkdir()
    again = start("init", "--resume", "--defaults", "--yes", below="elsewhere")
    assert again.end() == 0, again.seen
    assert (plan(tmp_path)["data"]["train"], plan(tmp_path)["seed"]) == (str(tmp_path / "talks.txt"), 7)
    assert "语言模型" in (tmp_path / "p" / "README.md").read_text()
    assert "语言模型" not in again.seen
    assert "下一步" in again.seen


def test_ctrl_c_at_the_first_question_leaves_nothing(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU)
    terminal.press("Task", "\x03")
    assert terminal.end() == 130
    assert not (tmp_path / "state").exists()


def test_a_lost_terminal_keeps_the_answers(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU)
    terminal.enter("Task", DOWN * 10)
    terminal.expect("CPU ranks")
    terminal.child.kill(signal.SIGKILL)
    terminal.end()
    kept = store.read(store.session_file(tmp_path / "p", {"XDG_STATE_HOME": str(tmp_path / "state")}))
    assert kept is not None
    assert dict(kept.answers) == {"task": "custom"}


def test_flags_are_not_asked_again(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU, "--yes", "--task", "custom", "--steps", "20", "--strategy", "ddp")
    for prompt in ("CPU ranks", "Real batch"):
        terminal.enter(prompt)
    assert terminal.end() == 0, terminal.seen
    assert plan(tmp_path)["schedule"]["n_steps"] == 20


def test_files_of_ones_own_are_asked_about(tmp_path: Path, start: Start) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "train.py").write_text("mine\n")
    terminal = start("init", "p", "--machine", CPU, "--defaults")
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send("\r")
    terminal.expect("-mine")
    terminal.enter("train.py")
    assert terminal.end() == 0, terminal.seen
    assert (tmp_path / "p" / "train.py").read_text() == "mine\n"
    assert "kept unchanged" in terminal.seen


def test_an_error_of_the_rules_leads_back_to_its_question(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p", "--machine", H100, "--defaults", "--set", "schedule.n_warmup_steps=500")
    terminal.expect("500")
    terminal.enter("Warm-up in updates", "5")
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send("\r")
    assert terminal.end() == 0, terminal.seen
    assert plan(tmp_path)["schedule"]["n_warmup_steps"] == 5


def test_chinese_does_not_break_it(start: Start) -> None:
    terminal = start("--lang", "zh", "init", "p", "--machine", CPU, lang="zh")
    terminal.expect("causal_lm")
    terminal.child.send("?")
    terminal.expect("task.py")
    terminal.expect("Ctrl-C")
    # Between two questions the terminal is not raw, and makes this signal of a Ctrl-C.
    terminal.child.kill(signal.SIGINT)
    assert terminal.end() == 130


def test_a_dumb_terminal_is_not_asked(start: Start) -> None:
    terminal = start("init", "p", TERM="dumb")
    assert terminal.end() == 2
    assert "cannot ask questions with TERM=dumb" in terminal.seen


def test_a_short_terminal_scrolls_the_review(start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU, "--defaults", rows=12)
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send("\x1b[A")
    terminal.expect("» details")
    terminal.child.send(DOWN + "\r")
    assert terminal.end() == 0, terminal.seen


def test_details_are_searched_paged_and_written_at_once(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU, "--defaults", rows=24)
    terminal.expect("The plan: press Enter to write it")
    terminal.child.send(END + "\r")
    terminal.expect("typing searches")
    terminal.child.send(END)
    terminal.expect("» cluster.kind")
    terminal.child.send(HOME)
    terminal.expect("» write the project")
    terminal.child.send(PAGE_DOWN)
    terminal.expect("» (data|model)[^\n]*")
    terminal.child.send("nothing like it\r")  # Enter chooses no line that nobody sees
    terminal.expect("nothing like it")
    terminal.child.send("\x7f" * len("nothing like it") + "weight_decay\r")
    terminal.enter("Weight decay", "0.3")
    terminal.expect("typing searches")
    terminal.child.send("Rate LEARNING\r")  # words of the question, in any order, of any case
    terminal.enter("Learning rate", "0.002")
    terminal.expect("typing searches")
    terminal.child.send("\x17")  # Ctrl-W
    assert terminal.end() == 0, terminal.seen
    assert plan(tmp_path)["optimizer"]["weight_decay"] == 0.3
    assert plan(tmp_path)["optimizer"]["learning_rate"] == 0.002


def test_a_search_in_chinese_finds_the_question(tmp_path: Path, start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU, "--defaults", rows=24, columns=80, lang="zh")
    terminal.expect("write|写入")
    terminal.child.send(END + "\r")
    terminal.expect("typing searches|输入即可搜索|搜索")
    terminal.child.send("权重衰减\r")
    terminal.expect("权重衰减[^\n]*\\[")
    terminal.child.send("０。３\r")
    terminal.expect("搜索")
    terminal.child.send("\x17")
    assert terminal.end() == 0, terminal.seen
    assert plan(tmp_path)["optimizer"]["weight_decay"] == 0.3


def test_a_narrow_terminal_shows_what_decides_and_breaks_no_word(start: Start) -> None:
    given = (
        "--task",
        "causal_lm",
        "--model",
        "llama-1b",
        "--num-processes",
        "8",
        "--real-batch-size",
        "64",
        "--precision",
        "bf16",
    )
    terminal = start("init", "p", "--machine", H100, *given, columns=80)  # type: ignore[arg-type]
    terminal.expect(r"\[embedded: built in; no download needed\]")
    terminal.child.send("\r")
    terminal.expect(r"ddp +[\d.]+ GiB per rank +every rank [^\n]*…")
    terminal.expect("every rank holds the full state; the least communication")  # the whole of the chosen line, below
    terminal.child.send("\r")
    terminal.expect("ddp  [0-9.]+ GiB per rank  every rank holds the full state; the( least)?\x1b")
    terminal.expect("  (least )?communication\x1b")
    terminal.child.send("\x03")
    assert terminal.end() == 130


def test_a_very_narrow_terminal_shows_values_in_the_review(start: Start) -> None:
    terminal = start("init", "p", "--machine", CPU, "--defaults", columns=40)  # type: ignore[arg-type]
    terminal.expect("Model +tiny")
    terminal.expect("Ctrl-C quits and keeps")
    terminal.child.send("\x03")
    assert terminal.end() == 130


def test_ctrl_c_before_any_answer_says_that_nothing_was_kept(tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "trainwiz", "init", str(tmp_path / "p")],
        encoding="utf-8",
        timeout=180,
        dimensions=(30, 120),
        env={**os.environ, "TRAINWIZ_LANG": "en", "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    child.expect("Ctrl-C quits")
    child.sendcontrol("c")
    child.expect("no answers to keep")
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    assert child.exitstatus == 130


def test_the_memory_bar_moves_with_what_is_typed(start: Start) -> None:
    terminal = start("init", "p", "--machine", H100, "--set", "model.name=meta-llama/Llama-3.1-8B", columns=200)

    def drawn() -> str:
        # What is typed first is no answer yet, so that the line is empty and then drawn as a whole.
        terminal.expect(r"(█[█▓▒·]{19} [\d.]+ GiB) (of 79.6 GiB )?per rank")
        return str(terminal.child.match[1])  # type: ignore[index, union-attr]

    for prompt in ("Task", "Training data", "GPUs"):
        terminal.enter(prompt)
    terminal.asked("Real batch")
    bars = [drawn()]
    for typed in ("512/", "64"):
        terminal.child.send(typed)
    bars.append(drawn())
    terminal.child.send("\x7f\x7f")
    terminal.child.send("8")
    bars.append(drawn())
    assert len(set(bars)) == 3, bars
    terminal.child.send("\r")
    terminal.asked("Strategy")
    drawn()
