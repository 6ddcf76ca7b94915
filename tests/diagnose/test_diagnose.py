"""What went wrong, from the words that programs really say: `logs/` holds them, `failures.py` makes them."""

import functools
import inspect
import io
import re
import string
import time
from collections import deque
from itertools import permutations
from pathlib import Path

import pytest
import yaml

from trainwiz.diagnose import SIGNATURES, Diagnosis, diagnose, log_text, of_log, read
from trainwiz.diagnose.endings import BY_CODE
from trainwiz.diagnose.general import EXPLANATIONS
from trainwiz.diagnose.launchers import first_failure
from trainwiz.diagnose.subject import SUBJECTS
from trainwiz.outcome import Outcome
from trainwiz.ui import diagnosis as shown

LOGS = {file.stem: file.read_text() for file in sorted((Path(__file__).parents[1] / "logs").glob("*.log"))}
FAILED = [name for name in LOGS if not name.startswith(("good--", "unknown--"))]
EXPLAINED = yaml.safe_load((Path(__file__).parents[1] / "truth" / "diagnose" / "explained.yaml").read_text())
NAMED = {name.partition("--")[0] for name in FAILED}


@functools.cache
def of(name: str) -> Diagnosis:
    found = of_log(LOGS[name], log=f"{name}.log")
    assert found is not None
    return found


def failed(code: int = 1, text: str = "", rank: int = 0, **more: object) -> Diagnosis:
    outcome = Outcome(exit_code=code if code > 0 else 128 - code, codes={rank: code}, first_failed=rank, **more)  # type: ignore[arg-type]
    found = diagnose(outcome, {rank: text}, log="runs/r/logs/rank-0.log")
    assert found is not None
    return found


def groups(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


# --- the table


def test_the_table_is_large_and_every_signature_has_a_log() -> None:
    names = [signature.name for signature in SIGNATURES]
    assert len(names) == len(set(names)) >= 40
    assert set(names) <= NAMED
    assert set(names) | {signature.name for signature in BY_CODE.values()} >= NAMED


@pytest.mark.parametrize("name", FAILED)
def test_a_failure_is_recognized_in_its_log_and_no_other_signature_comes_first(name: str) -> None:
    found = of(name)
    assert found.known
    assert found.name == name.partition("--")[0]
    if found.evidence:
        assert found.line is not None
        # The line is what stands at that number, but for the prefix of its rank.
        assert found.evidence[0][:60] in LOGS[name].split("\n")[found.line - 1]


@pytest.mark.parametrize("name", [name for name in LOGS if name.startswith("good--")])
def test_nothing_is_found_in_the_log_of_a_good_end(name: str) -> None:
    assert of_log(LOGS[name], log=name) is None


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_what_the_sentences_name_is_caught_by_every_pattern(signature: object) -> None:
    wanted = groups(signature.cause.template) | groups(signature.remedy.template)  # type: ignore[attr-defined]
    for pattern in signature.patterns:  # type: ignore[attr-defined]
        assert set(pattern.groupindex) == wanted, pattern.pattern


def test_what_the_remedies_name_is_really_there() -> None:
    from trainwiz import plan
    from trainwiz.cli.app import application

    remedies = [str(signature.remedy.template) for signature in (*SIGNATURES, *BY_CODE.values())]
    commands = {
        command.name: inspect.signature(command.callback).parameters for command in application().registered_commands
    }
    sections = "|".join(sorted({key.partition(".")[0] for key in plan.fields() if "." in key}))
    keys = {key for words in remedies for key in re.findall(rf"\b(?:{sections})\.[a-z_0-9]+", words)}
    python = {"model.resize_token_embeddings", "model.enable_input_require_grads", "model.save_pretrained"}
    python |= {"model.to_empty", "checkpoint.state_dict", "model.train", "model.load_state_dict"}
    assert len(keys) > 10
    assert keys - python <= set(plan.fields())
    named = [match for words in remedies for match in re.findall(r"trainwiz (?!in tmux)(\w+)(?: (--[a-z-]+))?", words)]
    assert len(named) > 20
    for command, option in named:
        assert command in commands, command
        assert not option or option[2:].replace("-", "_") in commands[command], option


@pytest.mark.parametrize("name", [name for name in LOGS if LOGS[name].startswith("# not run")])
def test_what_was_not_run_here_says_where_its_words_come_from(name: str) -> None:
    assert re.match(r"# not run here; the words are those of \S", LOGS[name])


def test_most_logs_were_really_made() -> None:
    made = [name for name in FAILED if re.match(r"# ran with Python 3\.\d+", LOGS[name])]
    assert len({name.partition("--")[0] for name in made}) >= 45


@pytest.mark.parametrize(
    "name", ["cuda_memory", "dtype", "missing_package", "nan_loss", "file_missing", "device_assert"]
)
def test_colors_carriage_returns_and_bytes_do_not_hide_it(name: str) -> None:
    colored = "\n".join(f"\x1b[31m{line}\x1b[0m\x00" for line in LOGS[name].splitlines())
    bar = " 10%|█         | 1/10\r 20%|██        | 2/10"
    found = of_log(f"{bar}{colored}\r\n", log="x")
    assert found is not None
    assert found.name == name
    assert found.evidence == of(name).evidence
    assert "\x1b" not in " ".join(found.last)


# --- time

_HARD = ("1", " ", "(", "[1]", "a ", "a.", "a=1, ", "Error: ", "RuntimeError: x ", 'File "')
"""What lines of a log repeat; a pattern that tries all ways to share it takes minutes for 8000 characters of them."""


def test_no_pattern_takes_long_for_what_a_line_repeats() -> None:
    patterns = {pattern for signature in (*SIGNATURES, *EXPLANATIONS.values()) for pattern in signature.patterns}
    patterns |= {re.compile(one.words) for one in SUBJECTS}
    for words in _HARD:
        line = (words * 8000)[:8000]
        for pattern in patterns:
            began = time.process_time()
            deque(pattern.finditer(line), maxlen=0)
            assert time.process_time() - began < 0.3, (words, pattern.pattern)  # 0.04 at most; squares are bounded


@pytest.mark.parametrize("words", _HARD[:3])
def test_a_line_of_a_megabyte_is_read_in_parts_that_do_not_grow(words: str) -> None:
    began = time.process_time()
    of_log(f"{words * 2**20}\nRuntimeError: x\n", log="x")
    assert time.process_time() - began < 3  # 0.1


# --- many ranks


def prefixed(rank: int, name: str, style: str = "[rank{}]: ") -> list[str]:
    lines = [line for line in LOGS[name].splitlines() if not line.startswith("#")]
    return [style.format(rank) + line for line in lines]


@pytest.mark.parametrize("style", ["[rank{}]: ", "[default{}]:", "node{0}: [rank{0}]: "])
def test_the_first_failure_is_found_among_many_ranks_in_any_order(style: str) -> None:
    for order in permutations([(0, "connection_lost--nccl"), (1, "index_range"), (2, "connection_lost--nccl")]):
        text = "\n".join(line for rank, name in order for line in prefixed(rank, name, style))
        found = of_log(text, log="x")
        assert found is not None
        assert (found.name, found.rank) == ("index_range", 1)
        assert found.exception.startswith("IndexError")


def test_lines_of_ranks_may_be_shuffled_into_each_other() -> None:
    one, other = prefixed(0, "connection_lost--nccl"), prefixed(1, "label_range")
    woven = [line for pair in zip(one, other, strict=False) for line in pair]
    rest = one[len(other) :] + other[len(one) :]
    found = of_log("\n".join(woven + rest), log="x")
    assert found is not None
    assert (found.name, found.rank) == ("label_range", 1)
    assert not any("NCCL" in line for line in found.last)


def test_a_launchers_report_of_itself_is_not_shown() -> None:
    found = of("unknown--deepspeed")
    assert (found.known, found.rank, found.last[-1]) == (False, 1, "ValueError: the second rank is wrong")
    assert of("missing_package--module").last[-1].endswith("No module named nothere")


def test_labels_of_srun_are_ranks() -> None:
    lines = [
        f"{rank}: {line}"
        for rank, name in ((3, "shape"), (0, "connection_lost--nccl"))
        for line in LOGS[name].splitlines()
    ]
    found = of_log("\n".join(lines), log="x")
    assert found is not None
    assert (found.name, found.rank) == ("shape", 3)


def test_an_unknown_exception_comes_before_what_it_did_to_the_others() -> None:
    found = of("unknown--torchrun")
    assert (found.known, found.name, found.rank) == (False, "unknown", 1)
    assert found.exception == "ValueError: the second rank is wrong"
    cut = LOGS["unknown--torchrun"].partition("W1121")[0]
    without_report = of_log(cut, log="x")
    assert without_report is not None
    assert (without_report.known, without_report.rank) == (False, 1)


def test_a_warning_long_before_the_end_counts_less_than_the_last_words() -> None:
    for warning in ("OSError: [Errno 28] skipping a sample", "CUDA out of memory. Tried to allocate 1 GiB: skipped"):
        found = of_log(f"{warning}\n" + "step\n" * 100 + LOGS["shape"], log="x")
        assert found is not None
        assert found.name == "shape"


def test_a_lost_connection_at_the_end_counts_less_than_a_cause_before_it() -> None:
    found = of_log(LOGS["shape"] + "cleaning up\n" * 100 + LOGS["connection_lost--nccl"], log="x")
    assert found is not None
    assert found.name == "shape"


NO_DRIVER = (
    "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: Found no NVIDIA "
    "driver on your system. (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:109.)\n"
)


def test_what_pythons_warnings_say_is_no_cause() -> None:
    assert of_log(f"{NO_DRIVER}update 1 loss 0.5\nfinished\n", log="x") is None
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n'
    found = of_log(f"{NO_DRIVER}{text}KeyError: 'lr'\n", log="x")
    assert found is not None
    assert (found.known, found.exception) == (False, "KeyError: 'lr'")
    assert failed(text=f"{NO_DRIVER}{text}RuntimeError: Found no NVIDIA driver on your system\n").name == "no_cuda"


def test_that_no_gpu_is_used_is_named_only_where_nothing_else_fails() -> None:
    found = of_log(f"{NO_DRIVER}update 1 loss 0.5\n", log="x")
    assert found is not None
    assert (found.name, found.certainty) == ("no_cuda", "likely")
    assert failed(text=NO_DRIVER + LOGS["shape"]).name == "shape"


@pytest.mark.parametrize(
    "before",
    [
        "WARNING: CUDA out of memory. Tried to allocate 1 GiB; skipped\n" + "update\n" * 100,
        "/usr/bin/ld: cannot find -laio: No such file or directory\n",
        "sh: 1: /usr/local/cuda/bin/nvcc: not found\n",
        "requests.exceptions.ReadTimeout: read timed out; trying again\n",
        LOGS["missing_package"] + "going on without it\n",
    ],
    ids=["memory", "libaio", "nvcc", "network", "handled"],
)
def test_what_was_said_before_is_no_cause_of_an_exception_of_ones_own(before: str) -> None:
    text = 'Traceback (most recent call last):\n  File "/project/train.py", line 3, in step\n    g()\n'
    for exception in ("KeyError: 'input_ids'", "mine.ConfigError: no such section"):
        found = of_log(f"{before}{text}{exception}\n", log="x")
        assert found is not None
        assert (found.known, found.exception) == (False, exception)
        assert "step, train.py:3" in str(found.cause)
    # What native code printed is of what it then raises.
    told = of_log(f"/usr/bin/ld: cannot find -laio\n{text}RuntimeError: the op was not loaded\n", log="x")
    assert told is not None
    assert told.name == "libaio"
    # And where the other ranks only lost a connection, the cause may stand far above.
    lost = of_log(LOGS["shape"] + "update\n" * 100 + LOGS["no_answer"], log="x")
    assert lost is not None
    assert lost.name == "shape"


def test_calls_of_a_compiler_without_an_end_are_looked_at_once() -> None:
    call = '  File "/v/site-packages/torch/_dynamo/output_graph.py", line 1446, in call_user_compiler\n    go(y)\n'
    text = call * 2000 + "[end\n"
    patterns = next(signature for signature in SIGNATURES if signature.name == "compile").patterns
    began = time.process_time()
    assert not [match for pattern in patterns for match in pattern.finditer(text)]
    assert time.process_time() - began < 2  # it took 5 where each call was followed to the end


@pytest.mark.parametrize("unit", ["x", "a/b", "lib", "[1,2,"])
def test_a_long_line_without_a_space_is_looked_at_once(unit: str) -> None:
    times = []
    for length in (10_000, 160_000):
        began = time.process_time()
        found = of_log(unit * (length // len(unit)) + "\n" + LOGS["shape"], log="x")
        times.append(time.process_time() - began)
        assert found is not None
        assert found.name == "shape"
    # Sixteen times the words; a pattern that begins anew at every letter would take 256 times as long.
    assert times[1] < 64 * max(times[0], 0.05)


def test_a_failure_long_before_the_end_of_the_log_is_not_called_its_end() -> None:
    for name in ("shape", "unknown--torchrun"):
        cut = LOGS[name].partition("W1121")[0]
        found = of_log(cut + "update 7 loss 0.5\n" * 100, log="x")
        assert found is not None
        assert found.how.template == "the log contains a failure, but continues for {n} more lines"
        assert abs(int(str(found.how.values["n"])) - 100) <= 3  # what is left of the traceback, and the end of line
        assert "continues" not in str(of(name).how)


@pytest.mark.parametrize(
    "exception", ["zipfile.BadZipFile", "triton.runtime.errors.OutOfResources", "Boom", "RuntimeError"]
)
def test_what_ends_a_traceback_is_its_exception_whatever_its_name(exception: str) -> None:
    text = f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n{exception}: no zip\n'
    assert failed(text=text).exception == f"{exception}: no zip"
    bare = text.replace(": no zip", ":\n    said below")
    assert failed(text=bare).exception == f"{exception}:"


def test_a_table_is_no_box_of_a_traceback() -> None:
    """rich frames both; what stands in a table is not code."""
    rows = "╭──────╮\n│ loss │\n│ ❱ 3 │ go() │\n╰──────╯\n"
    assert [line.text for line in log_text.read(rows)] == rows.splitlines()
    box = "╭─── Traceback (most recent call last) ───╮\n│ /a/train.py:3 in f │\n╰───────╯\nKeyError: 1\n"
    assert [line.text for line in log_text.read(box + rows)] == [
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 3, in f',
        "KeyError: 1",
        *rows.splitlines(),
    ]


def test_what_a_launcher_reports_is_no_word_of_the_script() -> None:
    own = "step 1\nno space left for the day\n"
    report = (
        'Traceback (most recent call last):\n  File "/v/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    assert log_text.last_of_script(log_text.read(own + report)) == "no space left for the day"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_card_of_a_launch_is_no_cause_of_its_own(lang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole output of a launch, as a pod's log has it, and the card alone, as people paste it."""
    monkeypatch.setenv("TRAINWIZ_LANG", lang)
    log = (
        'step 1\nTraceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n    import task\n'
        "  File \"/a/task.py\", line 1, in <module>\n    raise RuntimeError('no data')\nRuntimeError: no data\n"
    )
    first = of_log(log, log="x")
    assert first is not None
    card = "".join(f"{line}\n" for line in shown.card(first, log="x", fix=None, stream=io.StringIO()))
    for text in (log + card + "all files of this run are in runs/1\n", card):
        again = of_log(text, log="x")
        assert again is not None
        assert (again.name, again.exception, str(again.cause)) == (first.name, first.exception, str(first.cause))
    group = '  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 1, in f\n  | OSError: 5\n'
    assert "  | OSError: 5" in [line.text for line in log_text.read(group)]


def test_a_spawned_rank_that_was_killed_is_named() -> None:
    found = of("killed--spawn")
    assert (found.name, found.rank) == ("killed", 1)
    assert "SIGKILL" in str(found.how)
    assert first_failure("ProcessExitedException: process 3 terminated with exit code 7") == (3, 7)
    assert first_failure("srun: error: node0: task 2: Out Of Memory") == (2, -9)


def test_source_code_in_a_traceback_is_not_what_was_raised() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
        '    raise RuntimeError("CUDA out of memory. Tried to allocate")\n  File "b.py", line 4, in g\n    h()\n'
        "KeyError: 1\n"
    )
    found = of_log(text, log="x")
    assert found is not None
    assert found.name == "unknown"
    for name in FAILED:
        last = LOGS[name].rstrip().rpartition("\n")[2]  # where it was cut, the line of code is all that is left
        assert not any(line.startswith("    raise ") and line not in last for line in of(name).evidence), name


# --- what launchers say


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOGS["unknown--torchrun"], (1, 1)),
        ("failed (exitcode: -9) local_rank: 3 (pid: 12) of binary: python", (3, -9)),
        ("subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 42.", (None, 42)),
        ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", (None, -9)),
        ("[launch.py:325:sigkill_handler] ['python', 'x.py'] exits with return code = -11", (None, -11)),
        ("[launch.py:259] ['python', 'x.py', '--local_rank=1'] exits with return code = 2", (1, 2)),
        ("srun: error: node0: task 3: Exited with exit code 7", (3, 7)),
        ("srun: error: node0: task 1: Killed", (1, -9)),
        ("train.sh: line 4:  9141 Killed                  python train.py", (None, -9)),
        ("Segmentation fault (core dumped)", (None, -11)),
        ("the mosquitoes were Killed by spray", None),
    ],
)
def test_what_launchers_and_shells_say_of_the_end(text: str, expected: object) -> None:
    assert first_failure(text) == expected


def test_an_agents_own_traceback_is_not_the_ranks() -> None:
    last = of("unused_parameters").last
    assert not any("ChildFailedError" in line or "elastic" in line for line in last)


# --- exit codes, signals and what lay around


@pytest.mark.parametrize(("code", "word"), [(-9, "killed from outside"), (-11, "native code"), (-7, "/dev/shm")])
def test_a_signal_without_words_has_a_meaning(code: int, word: str) -> None:
    found = failed(code, "step 1\nstep 2")
    assert found.known
    assert word in str(found.cause)
    assert failed(128 - code, "step 1").cause == found.cause


def test_a_kill_for_memory_is_known_by_the_cgroups_count() -> None:
    found = failed(-9, "step 1", observed={"oom_kills": 1})
    assert (found.name, found.transient) == ("cgroup_memory", False)
    assert "out-of-memory kills counted by the cgroup during the run: 1" in str(found.observed[0])
    assert failed(-9, "step 1", observed={"oom_kills": 0}).name == "killed"


def test_words_from_long_before_a_kill_are_not_its_cause() -> None:
    text = "json.decoder.JSONDecodeError: line 3: skipped\n" + "step\n" * 100
    assert failed(-9, text).name == "killed"


QUIT = "terminate called without an active exception\n"
RAISED = 'Traceback (most recent call last):\n  File "/p/their.py", line 9, in f\n    g()\n'


@pytest.mark.parametrize(
    "between", ["", "[W1122 ProcessGroup.cpp:1] Warning: destroy_process_group() was not called\n"]
)
@pytest.mark.parametrize("exception", ["RuntimeError: the sky has fallen", "mine.ConfigError: no such section"])
def test_an_exception_explains_the_abort_that_follows_it(exception: str, between: str) -> None:
    found = failed(-6, f"update 38\n{RAISED}{exception}\n{between}{QUIT}")
    assert (found.known, found.name, found.exception) == (False, "unknown", exception)
    assert "f, their.py:9" in str(found.cause)
    recognized = failed(
        -6, f"{RAISED}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n{between}{QUIT}"
    )
    assert recognized.name == "cuda_memory"
    alone = of_log(f"update 38\n{RAISED}{exception}\n{between}{QUIT}", log="x")
    assert alone is not None
    assert (alone.known, alone.exception) == (False, exception)


def test_an_exception_long_before_an_abort_was_handled() -> None:
    handled = f"{RAISED}KeyError: 'a'\n[going on]\n" + "[update]\n" * 100
    assert failed(-6, handled).name == "aborted"
    assert failed(-6, handled + QUIT).name == "quit_while_ending"
    assert failed(-6, "update 38\n" + QUIT).name == "quit_while_ending"


def test_a_nearly_full_place_is_evidence() -> None:
    found = failed(
        -7,
        "",
        observed={
            "shm_free_bytes": 0,
            "shm_total_bytes": 64 * 2**20,
            "disk_free_bytes": 5 * 2**30,
            "disk_total_bytes": 10 * 2**30,
        },
    )
    assert [str(message) for message in found.observed] == ["/dev/shm was almost full: 0 MiB of 64 MiB free"]


def test_what_is_left_of_a_nearly_full_place_is_said_in_mib() -> None:
    observed = {"oom_kills": 2, "disk_free_bytes": 5 * 2**20 - 1, "disk_total_bytes": 100 * 2**20}
    assert [str(message) for message in failed(-7, "", observed=observed).observed] == [
        "out-of-memory kills counted by the cgroup during the run: 2",
        "runs/ was almost full: 4 MiB of 100 MiB free",
    ]
    assert failed(-7, "", observed={**observed, "oom_kills": 0, "disk_free_bytes": 5 * 2**20}).observed == ()


def test_only_the_exit_code_1_of_sys_exit_has_last_words() -> None:
    assert "its last message was: no data" in str(failed(1, "no data\n").cause)
    assert "exited with this code without raising" in str(failed(3, "no data\n").cause)
    assert "ended without an exception" in str(failed(1, "").cause)


def test_ranks_that_were_taken_down_are_told_apart() -> None:
    outcome = Outcome(exit_code=1, codes={0: -15, 1: 1, 2: 0, 3: -9}, first_failed=1)
    found = diagnose(outcome, {1: LOGS["shape"]})
    assert found is not None
    assert (found.rank, found.followed) == (1, (0, 3))


def test_unknown_is_said_to_be_unknown_with_the_place_to_look_at() -> None:
    found = failed(1, "step 1\n\nstep 2\n", rank=2)
    assert (found.known, found.transient, found.name) == (False, None, "unknown")
    assert "runs/r/logs/rank-0.log" in str(found.remedy)
    assert found.last == ("step 1", "step 2")
    assert "its last message was: step 2" in str(found.cause)
    assert "PYTHONFAULTHANDLER" not in str(found.remedy)  # nothing crashed
    assert str(found.how) == "rank 2 failed first with exit code 1"


LIBRARY = """Traceback (most recent call last):
  File "/home/u/p/train.py", line 30, in <module>
    main()
  File "/home/u/p/task.py", line 12, in collate
    return frame.loc[index]
  File "/venv/lib/python3.11/site-packages/pandas/core/indexing.py", line 1192, in __getitem__
    return self._getitem_axis(maybe_callable, axis=axis)
  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed
KeyError: 7
"""


def test_of_an_unknown_exception_the_line_of_ones_own_is_named() -> None:
    found = failed(1, LIBRARY)
    assert found.name == "unknown"
    assert "your own code was in collate, task.py:12" in str(found.cause)
    assert "task.py:12" in str(found.remedy)


def test_what_is_printed_behind_a_progress_bar_is_a_line_of_its_own() -> None:
    bar = "\r  3%|▎         | 12/400 [00:01<00:30, 12.5update/s, loss=1.2]"
    lines = [
        line.text for line in read(f"{bar}update 13: the loss is nan; the newest checkpoint is from before\n{bar}")
    ]
    assert lines[1] == "update 13: the loss is nan; the newest checkpoint is from before"
    assert len(lines) == 3
    found = failed(1, f"{bar}update 13: the loss is nan; the newest checkpoint is from before\n")
    assert found.evidence == ("update 13: the loss is nan; the newest checkpoint is from before",)


@pytest.mark.parametrize(
    ("name", "transient"),
    [
        ("node_failed", True),
        ("preempted", True),
        ("port_in_use", True),
        ("cuda_memory", False),
        ("shape", False),
        ("collective_timeout", None),
        ("hub_unreachable", None),
    ],
)
def test_whether_the_same_start_again_would_help(name: str, transient: bool | None) -> None:
    assert of(name).transient is transient


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(exit_code=0, codes={0: 0}),
        Outcome(exit_code=130, codes={0: -15}, first_failed=0, signal=2),
        Outcome(exit_code=143, codes={0: -9}, first_failed=0, signal=15, killed=(0,)),
    ],
)
def test_what_ended_as_it_was_asked_to_needs_no_diagnosis(outcome: Outcome) -> None:
    assert diagnose(outcome, {0: ""}) is None


def test_a_failure_during_a_stop_is_diagnosed() -> None:
    found = diagnose(Outcome(exit_code=1, codes={0: 1}, first_failed=0, signal=15), {0: LOGS["disk_full"]})
    assert found is not None
    assert found.name == "disk_full"


# --- the last words


def test_last_words_are_the_last_traceback_with_what_it_is_chained_to() -> None:
    text = (
        "Traceback (most recent call last):\n  File a\nOld: 1\nnoise\n"
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File b\n[rank0]:     ^^^^\n[rank0]: KeyError: 1\n"
        "[rank0]: During handling of the above exception, another exception occurred:\n"
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File c\n[rank0]: ValueError: 2\n"
    )
    lines = [line for line in read(text) if line.rank == 0]
    assert log_text.last_words(lines)[0] == "Traceback (most recent call last):"
    assert log_text.last_words(lines)[1:3] == ("  File b", "KeyError: 1")
    assert log_text.last_words(lines)[-1] == "ValueError: 2"
    assert log_text.exception(lines).text == "ValueError: 2"  # type: ignore[union-attr]
    assert log_text.last_words(read("\n".join(f"line {i}" for i in range(50))))[0] == "line 38"


def test_a_traceback_behind_a_progress_bar_is_seen() -> None:
    lines = read(
        " 50%|█████ | 4/8[rank3]: Traceback (most recent call last):\n[rank3]:   File x\n[rank3]: KeyError: 'a'"
    )
    assert [line.rank for line in lines] == [None, 3, 3, 3]
    assert log_text.exception(lines).text == "KeyError: 'a'"  # type: ignore[union-attr]


def test_a_diagnosis_is_plain_values_for_programs() -> None:
    told = of("deepspeed_batch").to_dict()
    assert told["name"] == "deepspeed_batch"
    assert told["cause"] == "DeepSpeed's batch equation does not hold: 8 != 4 * 4 * 1"
    assert isinstance(told["last_lines"], list)


# --- what hides a cause, or is all that there is


def test_what_python_ignores_while_it_ends_is_no_cause() -> None:
    own = 'Traceback (most recent call last):\n  File "train.py", line 8, in main\n    f()\nMyError: the data is bad\n'
    ignored = (
        "Exception ignored in: <function Iterator.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "loader.py", line 102, in __del__\n    self.shutdown()\nAssertionError: can only test a child process\n'
    )
    found = of_log(own + ignored + "the last line\n", log="a.log")
    assert found is not None
    assert (found.exception, found.last[-1]) == ("MyError: the data is bad", "the last line")
    assert of_log(own + ignored[: ignored.index("AssertionError")], log="a.log").exception == found.exception  # type: ignore[union-attr]
    alone = of_log(ignored, log="a.log")
    assert alone is not None
    assert alone.exception == "AssertionError: can only test a child process"


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        ("ValueError: something odd happened", "ValueError: something odd happened"),
        ("epoch 1\nmylib.BadThing.SomeError: no\n", "mylib.BadThing.SomeError: no"),
        ("ValueError: one\n" + "went on\n" * 5, None),
        ("UserWarning: odd\nvalue error: no\nErrors: 0\n", None),
    ],
)
def test_a_pasted_line_is_a_failure(text: str, exception: str | None) -> None:
    found = of_log(text, log="a.log")
    assert (found.exception if found else None) == exception


def by_rank(rank: int, error: str) -> str:
    text = f'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    step()\n{error}'
    return "".join(f"[rank{rank}]: {line}\n" for line in text.split("\n"))


LOST = "torch.distributed.DistBackendError: [1] is setting up NCCL communicator: Connection reset by peer"
BLAMED = "E1122 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 7)\n"


def test_a_rank_that_lost_its_connection_is_not_the_first_whatever_the_launcher_says() -> None:
    assert of_log(by_rank(0, LOST), log="a.log").name == "connection_lost"  # type: ignore[union-attr]
    found = of_log(by_rank(2, LOST) + by_rank(1, "KeyError: 'labels'") + by_rank(0, LOST) + BLAMED, log="a.log")
    assert found is not None
    assert (found.rank, found.exception) == (1, "KeyError: 'labels'")


def test_a_launcher_is_believed_where_nobody_says_more() -> None:
    found = of_log(by_rank(2, LOST) + by_rank(0, LOST) + BLAMED, log="a.log")
    assert found is not None
    assert (found.rank, found.name) == (0, "connection_lost")
    found = of_log(by_rank(0, "KeyError: 'labels'") + by_rank(1, "ValueError: no") + BLAMED, log="a.log")
    assert found is not None
    assert (found.rank, found.exception) == (0, "KeyError: 'labels'")


def test_a_launchers_last_word_explains_nothing_that_a_rank_said() -> None:
    own = 'Traceback (most recent call last):\n  File "train.py", line 8, in main\n    f()\nMyError: the data is bad\n'
    found = of_log(own + LOGS["child_failed"], log="a.log")
    assert found is not None
    assert (found.known, found.exception) == (False, "MyError: the data is bad")


def test_two_lines_of_nan_are_not_a_whole_training() -> None:
    assert of_log("{'loss': nan}\n{'loss': nan}\n{'loss': 0.3}\n{'loss': nan}\n", log="a.log") is None
    assert of_log("loss: nano\nloss: nano\nloss: nano\n", log="a.log") is None


def test_less_than_five_gigabytes_in_pieces_are_plain_lack_of_memory() -> None:
    text = LOGS["fragmentation"]
    assert of_log(text.replace("27.50 GiB is reserved", "4.50 GiB is reserved"), log="a.log").name == "cuda_memory"  # type: ignore[union-attr]


# --- what no signature explains


@pytest.mark.parametrize("name", EXPLAINED)
def test_an_unknown_exception_is_explained_by_its_own_words(name: str) -> None:
    case = EXPLAINED[name]
    found = of_log(case["log"], log="x")
    assert found is not None
    assert not found.known
    assert case["says"] in str(found.cause)


# --- what editors, pages and chats make of a log

BENT = {
    "indented": '  Traceback (most recent call last):\n    File "a.py", line 3, in f\n  MyError: it is bad\n',
    "flat": 'Traceback (most recent call last):\nFile "a.py", line 3, in f\ng(x)\nMyError: it is bad\n',
    "typeset": "Traceback (most recent call last):\nFile “a.py”, line 3, in f\ng(x)\nMyError：it is bad\n",
    "escaped": "Traceback (most recent call last):\n  File &quot;a.py&quot;, line 3, in f\nMyError: it is bad\n",
    "tagged": '<p>Traceback (most recent call last):\n  File "a.py", line 3, in f\n<b>MyError</b>: it is bad</p>\n',
    "one line": 'Traceback (most recent call last): File "a.py", line 3, in f g(x) MyError: it is bad\n',
    "code": '`Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g(x)\nMyError: it is bad`\n',
    "in a sentence": "训练后报错，MyError：it is bad\n",
}


@pytest.mark.parametrize("how", BENT)
def test_a_bent_traceback_is_read_as_python_printed_it(how: str) -> None:
    found = of_log(BENT[how], log="a.log")
    assert found is not None
    assert found.exception == "MyError: it is bad"
    assert ("a.py:3" in str(found.cause)) == (how != "in a sentence")


@pytest.mark.parametrize("words", ["cannot parse '<b>bold</b>' in row 3", "'&lt;b&gt;' is no &quot;tag&quot;"])
def test_markup_that_a_program_itself_printed_is_quoted_as_it_stands(words: str) -> None:
    text = f'step 1\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n    g(x)\nMyError: {words}\n'
    found = of_log(text, log="a.log")
    assert found is not None
    assert found.exception == found.last[-1] == f"MyError: {words}"


def test_words_on_the_next_line_belong_to_the_exception() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g(x)\nRuntimeError:\nthe queue is full\n'
    )
    assert "the queue is full" in str(of_log(text, log="a.log").cause)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python train.py\n段错误 (核心已转储)\n", "segfault"),
        ("State: {\nExitCode:137,\nOOMKilled:false,\n}\n", "killed"),
        ("State: {\nExitCode:137,\nOOMKilled:true,\n}\n", "cgroup_memory"),
        ("  exitcode  : -11 (pid: 36206)\n  error_file: <N/A>\n", "segfault"),
    ],
)
def test_shells_and_containers_report_in_their_own_words(text: str, name: str) -> None:
    assert of_log(text, log="a.log").name == name  # type: ignore[union-attr]
