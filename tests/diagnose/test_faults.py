"""The menu of faults in real trainings on 2 ranks: the trials of benchmarks/faults.py, judged.

One column for each fault, taken in turn; `--whole-menu` runs every fault in all of them (about ten minutes).
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from patience import patience

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import faults

from trainwiz.diagnose import diagnose
from trainwiz.outcome import Outcome

COLUMNS = ("ddp:foreign", "deepspeed:generated", "ddp:generated", "deepspeed:foreign")
ELSEWHERE = ("launcher killed", "terminal lost")
"""In test_signals.py, each with a real training."""
VERDICT_SECONDS = {"SIGSTOP": 30.0, "a rank never starts": 30.0}
"""From the fault to the end of the launcher. Hangs: the limit (three times it before the first updates), two looks and
half the limit again; the other faults within the 4 s that ranks get when one has failed."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "column" not in metafunc.fixturenames:
        return
    chosen = [(fault, COLUMNS[n % 4]) for n, fault in enumerate(faults.FAULTS) if fault not in ELSEWHERE]
    if metafunc.config.getoption("--whole-menu"):
        chosen = [(fault, column) for fault in faults.FAULTS for column in COLUMNS]
    metafunc.parametrize(("fault", "column"), chosen)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Each column's folder, made when it is first wanted."""

    class Made(dict[str, Path]):
        def __missing__(self, column: str) -> Path:
            folder = tmp_path_factory.mktemp("made") / "p"
            line = faults.make(folder, *column.split(":"))
            (folder / "line.json").write_text(json.dumps(line))
            self[column] = folder
            return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.getbasetemp()))
        patch.setenv("TRAINWIZ_LANG", "en")
        yield Made()


def command(made: Path) -> list[str]:
    """The line that launches it, with ranks that begin at once."""
    line: list[str] = json.loads((made / "line.json").read_text())
    script = made / ("train.py" if (made / "train.py").exists() else "their.py")
    return line if warm.cold else warm.command(script, *line[1:])


@pytest.mark.train
def test_fault(made: dict[str, Path], fault: str, column: str) -> None:
    if why := faults.cannot(fault):
        pytest.skip(why)
    expected = faults.FAULTS[fault]
    engine, script = column.split(":")
    seen = faults.trial(engine, script, fault, ready=made[column], command=command(made[column]))
    said = " ".join(seen.said.split())
    in_order = script == "generated" and fault in ("a rank never starts", "terminal lost")
    # No script of others takes its process group down: gloo's threads may abort the interpreter after an exception.
    aborted = script == "foreign" and expected.says in said and expected.code == 1
    if fault == "exit code 42" and seen.code == 134:  # and after sys.exit, in the midst of an update
        expected = faults.Expected(code=134, cause="quit_while_ending", says="SIGABRT")
    assert seen.code in (expected.code, *((75,) if in_order else ()), *((134,) if aborted else ())), seen.said
    assert (seen.rank, seen.cause) == (expected.rank, expected.cause), seen.said
    assert expected.says in said, seen.said
    if expected.rank is not None and expected.cause != "hang":
        assert f"rank {expected.rank} failed first" in said
        assert "→ " in said
    assert seen.left == 0
    # A machine with other work takes its time to write a traceback; docs/reliability.md says what a quiet one does.
    assert seen.seconds < 4 * VERDICT_SECONDS.get(fault, 10.0) * patience()


def test_a_full_disk_is_told_from_what_is_free_where_no_word_could_be_written() -> None:
    full = Outcome(
        exit_code=1, codes={0: 1}, first_failed=0, observed={"disk_free_bytes": 0, "disk_total_bytes": 2**30}
    )
    found = diagnose(full, {0: "update 1\n"})
    assert found is not None
    assert (found.name, found.known) == ("disk_full", True)
    roomy = Outcome(exit_code=1, codes={0: 1}, first_failed=0, observed={"disk_free_bytes": 2**20})
    other = diagnose(roomy, {0: "update 1\n"})
    assert other is not None
    assert other.name == "unknown"
    spoken = diagnose(full, {0: 'Traceback (most recent call last):\n  File "a", line 1\nValueError: x\n'})
    assert spoken is not None
    assert spoken.name == "unknown"  # it died of something else, and said so


def test_an_exit_code_of_its_own_is_not_called_unknown() -> None:
    found = diagnose(Outcome(exit_code=42, codes={0: -15, 1: 42}, first_failed=1), {1: "update 1\n"})
    assert found is not None
    assert (found.name, found.transient) == ("exit_code", None)
    assert "rank-1.log" in str(found.remedy)
    plain = diagnose(Outcome(exit_code=1, codes={0: 1}, first_failed=0), {0: "bye\n"})
    assert plain is not None
    assert plain.name == "unknown"


SAMPLES = {
    "mean_loss": "nan",
    "pre_clip": "nan",
    "equation": "real_batch_size 8 = per_device_batch_size 3",
    "self.problem": "update 7 was not saved: rank 0: RuntimeError: x",
    "failure": "rank 0: RuntimeError: x",
    "columns": 'a "text"',
    "name": "seed",
    "found": "a.jsonl: these labels cannot be classes: text 1 of 2 has ' '",
    "place": "a.jsonl:7",
    "row[0]": "a.jsonl:7",
    "path": "a.jsonl",
    "after": " after a.jsonl:7",
    "type(error).__name__": "ValueError",
    "part": "5%",
}
"""What stands for a value in a sentence of the generated code; everything else is 7."""


def sentences_of_generated_code() -> list[str]:
    """Every sentence with which a generated program may end."""

    def text(node: ast.expr) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(text(part) for part in node.values)
        value = ast.unparse(node.value) if isinstance(node, ast.FormattedValue) else ast.unparse(node)
        return SAMPLES.get(value, "7")

    found = []
    for file in sorted((Path(__file__).parents[2] / "train_templates").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr):
                ends = ast.unparse(node.func)
                if ends in ("SystemExit", "Failed"):
                    found.append(text(node.args[0]))
                elif ends == "parser.error":
                    found.append(f"train.py: error: {text(node.args[0])}")
    return found


def test_every_sentence_that_generated_code_ends_with_is_known() -> None:
    sentences = sentences_of_generated_code()
    assert len(sentences) > 25
    outcome = Outcome(exit_code=1, codes={0: 1}, first_failed=0)
    found = {sentence: diagnose(outcome, {0: f"step 1\n{sentence}\n"}) for sentence in sentences}
    assert [sentence for sentence, diagnosis in found.items() if diagnosis is None or not diagnosis.evidence] == []
