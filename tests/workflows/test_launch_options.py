"""Options of a generated train.py that do not exist are refused before any rank starts."""

from pathlib import Path

import pytest
from plans import BASE
from projects import SMALL, make

from trainwiz import fields
from trainwiz import plan as plans
from trainwiz.cli import run
from trainwiz.errors import UsageError
from trainwiz.render import script
from trainwiz.store import templates
from trainwiz.workflows.launch import script_options as options

LOOPS = {
    "accelerate": {},
    "colossalai": {"engine": "colossalai", "strategy.kind": "colossal_ddp"},
}


@pytest.mark.parametrize("changes", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("task", ["sft", "custom"])
def test_an_option_that_the_script_lacks_is_refused(task: str, changes: dict[str, str], tmp_path: Path) -> None:
    plan = plans.with_changes(BASE, {"task": task, **changes})
    written = {one.path: one.text for one in script.scripts(plan, templates.load())}
    for name in ("train.py", "task.py"):
        (tmp_path / name).write_text(written[name])
    for right in (["--n_steps", "3"], ["--n_steps=3", "--seed", "1"], ["--help"], [], ["--output_dir", "x"]):
        options.refuse_unknown(right, tmp_path)
    with pytest.raises(UsageError) as caught:
        options.refuse_unknown(["--seed", "1", "--n_step=3"], tmp_path)
    assert "train.py has no option --n_step" in str(caught.value)
    assert "did you mean --n_steps?" in str(caught.value.remedy)
    with pytest.raises(UsageError, match="no option --unknown"):
        options.refuse_unknown(["--unknown", "6"], tmp_path)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("train.py", "config = Config(**", "parser.add_argument('--mine')\n    config = Config(**"),
        ("task.py", "class TaskConfig:", "class TaskConfig(Mine):"),
        ("train.py", "import argparse", "import argparse,"),
    ],
)
def test_a_script_that_may_take_others_judges_for_itself(name: str, before: str, after: str) -> None:
    written = {one.path: one.text for one in script.scripts(BASE, templates.load())}
    assert before in written[name]
    written[name] = written[name].replace(before, after)
    assert fields.options(written["train.py"], written["task.py"]) is None


def test_a_launch_ends_before_it_starts_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "project", SMALL)
    assert run(["launch", str(folder), "--", "--unknown", "6"]) == 2
    said = capsys.readouterr().err
    assert "train.py has no option --unknown" in said
    assert not (folder / "runs").exists()
