"""The machine as the commands get it: remembered, from a file, looked at again, and fast."""

import json
import os
import statistics
import sys
from pathlib import Path

import pytest

from trainwiz.errors import UsageError
from trainwiz.process.capture import capture
from trainwiz.store import cache
from trainwiz.workflows import facts

FIXTURES = Path(__file__).parents[1] / "machines"


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    facts._pending.clear()
    facts._seen.clear()


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment with a torch that counts how often it is imported, and is quick."""
    import venv

    folder = tmp_path / "env"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "torch").mkdir()
    log = tmp_path / "imports"
    (site / "torch/__init__.py").write_text(
        f"open({str(log)!r}, 'a').write('torch\\n')\n__version__ = '2.9.0'\nclass version: cuda = None\n"
    )
    monkeypatch.setenv("TRAINWIZ_TEST_LOG", str(log))
    return str(folder / "bin/python")


def imports() -> int:
    log = Path(os.environ["TRAINWIZ_TEST_LOG"])
    return len(log.read_text().splitlines()) if log.exists() else 0


def look(python: str, **options: bool):  # type: ignore[no-untyped-def]
    return facts.machine(machine_file=None, python=python, folder=".", **options).interpreter


def another_process() -> None:
    """What a new process would find: only the cache."""
    facts._seen.clear()
    facts._pending.clear()


def test_torch_is_imported_once(python: str) -> None:
    first = look(python)
    assert (first.version("torch"), imports()) == ("2.9.0", 1)
    another_process()
    assert look(python) == first
    assert imports() == 1


def test_an_upgrade_is_noticed(python: str) -> None:
    look(python)
    another_process()
    (site,) = Path(python).parent.parent.glob("lib/python3*/site-packages")
    (site / "other-1.0.dist-info").mkdir()
    look(python)
    assert imports() == 2


def test_fresh_looks_again(python: str) -> None:
    look(python)
    look(python, fresh=True)
    assert imports() == 2


def test_not_waiting_starts_and_the_next_call_takes_it_up(python: str) -> None:
    assert look(python, wait=False) is None
    assert look(python, wait=False) is None, "it is not started twice"
    assert look(python).version("torch") == "2.9.0"
    assert imports() == 1
    assert look(python, wait=False).version("torch") == "2.9.0"


def test_an_unwritable_cache_only_costs_time(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert look(python).version("torch") == "2.9.0"
    look(python)
    assert imports() == 1, "within one process it is kept anyway"


@pytest.mark.parametrize("damage", ["{}", '{"%s": {"python": 3}}', '{"%s": {"python": "p", "gone": 1}}', "{"])
def test_a_damaged_cache_only_costs_time(python: str, damage: str) -> None:
    look(python)
    file = cache.folder() / "interpreters.json"
    (key,) = json.loads(file.read_text())
    file.write_text(damage.replace('"%s"', json.dumps(key)))
    another_process()
    assert look(python).version("torch") == "2.9.0"
    assert imports() == 2


def test_failures_are_not_remembered_for_the_next_process(python: str) -> None:
    (site,) = Path(python).parent.parent.glob("lib/python3*/site-packages")
    whole = (site / "torch/__init__.py").read_text()
    (site / "torch/__init__.py").write_text("raise OSError('libcudart.so.12')")
    assert look(python).error == "OSError: libcudart.so.12"
    (site / "torch/__init__.py").write_text(whole)  # fixed without a trace in site-packages
    another_process()
    assert look(python).error is None


def test_a_missing_python_is_asked_once(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")
    found = look(missing)
    assert found.error
    assert look(missing) is found
    assert not (cache.folder() / "interpreters.json").exists()


def test_a_machine_file_is_not_probed() -> None:
    machine = facts.machine(machine_file=str(FIXTURES / "8xh100.json"), python=None, folder="/nowhere")
    assert (len(machine.gpus), machine.probed) == (8, False)
    with pytest.raises(UsageError, match="No such file"):
        facts.machine(machine_file="/no/machine.json", python=None, folder=".")


WARM = """
import os
start = sum(os.times()[:4])
from trainwiz.workflows import facts
machine = facts.machine(machine_file=None, python=None, folder=".")
print(sum(os.times()[:4]) - start, machine.interpreter.version("torch") is not None)
import sys
heavy = {"torch", "pydantic", "deepspeed", "accelerate", "rich", "questionary", "typer"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_warm_machine_takes_milliseconds() -> None:
    facts.machine(machine_file=None, python=sys.executable, folder=".")
    seconds = []
    for _ in range(5):
        ended = capture([sys.executable, "-c", WARM], timeout=180)
        assert ended.code == 0, ended.stderr
        taken, there = ended.stdout.split()
        assert there == "True"
        seconds.append(float(taken))
    # Of a core, children included. The aim is 0.06 s; importing torch takes seconds.
    assert statistics.median(seconds) < 0.5
