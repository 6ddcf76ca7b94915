"""A model whose size nobody knows: asked for, and never planned for DDP."""

from __future__ import annotations

from pathlib import Path

import yaml
from projects import trainwiz

H100 = str(Path(__file__).parents[1] / "machines" / "8xh100.json")
CACHED = ("--set", "ignore.TW514=downloaded later")


def test_a_size_that_nobody_knows_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    init = ("init", str(folder), "--defaults", "--yes", "--machine", H100, *CACHED)
    done = trainwiz(*init, "--model", "nobody/nothing")
    assert done.code == 1
    assert "the size of nobody/nothing is unknown" in done.err
    assert not folder.exists()
    done = trainwiz(*init, "--model", "nobody/nothing", "--set", "model.parameters=13B")
    assert done.code == 0, done.err
    plan = yaml.safe_load((folder / "trainwiz.yaml").read_text())
    assert (plan["model"]["parameters"], plan["strategy"]["kind"]) == (13 * 10**9, "fsdp")
    # Another model takes back the size that was told of the first one.
    done = trainwiz(*init, "--model", "meta-llama/Llama-2-70b-hf", "--force")
    assert done.code == 0, done.err
    text = (folder / "trainwiz.yaml").read_text()
    assert "parameters: 68976648192  # found: a well-known model" in text
    assert yaml.safe_load(text)["strategy"]["zero_stage"] == 3
    (folder / "trainwiz.yaml").write_text(text.replace("68976648192", "7B"))
    done = trainwiz("check", str(folder), "--machine", H100)
    assert "model.parameters is 7,000,000,000" in done.out + done.err
