"""`trainwiz explain --json`: the manual for programs."""

import json
from typing import Any

import pytest

from trainwiz import plan, rules
from trainwiz.cli import run


def explained(topic: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(["explain", topic, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_rules_and_keys_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    [rule] = explained("tw401", capsys)
    assert (rule["rule"], rule["level"], rule["field"]) == ("TW401", "error", "batch.real_batch_size")
    assert "Instead: " in rule["manual"]
    assert len(explained("TW4", capsys)) == sum(each.id.startswith("TW4") for each in rules.load()) > 10
    keys = {each["key"]: each for each in explained("keys", capsys)}
    assert keys.keys() == plan.fields().keys()
    assert keys["seed"]["default"] == 42
    assert (keys["engine"]["decided_by_init"], keys["engine"]["legal"]) == (True, "accelerate | colossalai")
    assert explained("seed", capsys) == [keys["seed"]]
    assert explained("learning_rate", capsys) == [keys["optimizer.learning_rate"]], "also without its section"
    assert run(["explain", "TW999", "--json"]) == 2
    assert run(["explain", "batch.nothing", "--json"]) == 2
