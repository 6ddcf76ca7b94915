"""docs/coming-from.md: the keys and commands that it names exist."""

import ast
import html
import importlib.util
import re
from pathlib import Path

from trainwiz.cli.app import COMMANDS
from trainwiz.engines import axolotl, llamafactory, trainer
from trainwiz.plan import Plan

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "coming-from.md").read_text()


def columns(heading: str) -> list[list[list[str]]]:
    """What stands in backticks in each cell of a section's table."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]


def plan_keys() -> set[str]:
    found = set(Plan.model_fields)
    for name, field in Plan.model_fields.items():
        found |= {f"{name}.{key}" for key in getattr(field.annotation, "model_fields", {})}
    return found


def test_each_key_of_a_plan_is_one() -> None:
    named = [key for row in columns("Keys") for key in row[-1] if not key.startswith("trainwiz ")]
    assert len(named) >= 30
    assert set(named) <= plan_keys()


def test_each_argument_of_the_trainer_is_one() -> None:
    """By the text of transformers: importing it takes seconds."""
    spec = importlib.util.find_spec("transformers")
    assert spec
    assert spec.submodule_search_locations
    source = (Path(spec.submodule_search_locations[0]) / "training_args.py").read_text()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    fields = {
        item.target.id
        for node in classes
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    named = {key for row in columns("Keys") for key in row[2]}
    assert len(named) > 15
    assert named <= fields


def test_each_key_of_axolotl_and_llamafactory_is_one() -> None:
    of_axolotl, of_llamafactory = ({key for row in columns("Keys") for key in row[place]} for place in (3, 4))
    assert min(len(of_axolotl), len(of_llamafactory)) > 20
    assert of_axolotl <= axolotl.KEYS
    assert of_llamafactory <= llamafactory.OWN_ARGUMENTS | trainer.ARGUMENTS | trainer.OLD_ARGUMENTS


def test_each_command_is_one() -> None:
    named = re.findall(r"`trainwiz (\w+)", PAGE + (DOCS / "coming-from.zh-CN.md").read_text())
    assert len(named) > 15
    assert set(named) <= set(COMMANDS)


def test_the_picture_shows_what_is_printed(tmp_path: Path) -> None:
    """`python docs/pictures/draw.py` draws it again."""
    spec = importlib.util.spec_from_file_location("draw", DOCS / "pictures" / "draw.py")
    assert spec
    assert spec.loader
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    printed = drawing.output(drawing.SCENES["plan"][0], str(tmp_path))
    assert len(printed.splitlines()) > 5
    for page, option in (("README.md", ""), ("README.zh-CN.md", "--lang zh ")):
        pattern = rf"    \$ trainwiz {option}plan --model.*\n((?:    .+\n)+)"
        (typed,) = re.findall(pattern, (DOCS.parent / page).read_text())
        words = " ".join(drawing.output(option + drawing.SCENES["plan"][0], str(tmp_path)).split())
        for line in typed.splitlines():
            assert line.strip() == "…" or " ".join(line.split()) in words, line
    for kind in drawing.THEMES:
        svg = (DOCS / "pictures" / f"plan-{kind}.svg").read_text()
        shown = html.unescape(re.sub(r"<[^>]*>", "", svg)).replace("\xa0", " ")
        for line in printed.splitlines():
            assert line.rstrip() in shown, line
        assert "url(http" not in svg, "nothing is fetched"
