"""The generated metrics.py: what of an earlier file a resumed training keeps."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainwiz import resources
from trainwiz.probe.inside import gather_weights

LINES = [
    {"update": 1, "loss": 3.0, "grad_norm_pre_clip": 1.0},
    {"update": 2, "loss": 2.0, "grad_norm_pre_clip": 1.0},
    {"update": 2, "eval_loss": 2.5},
    {"update": 2, "failed_saves": 1},
    {"update": 3, "loss": 1.0, "grad_norm_pre_clip": 1.0},
]


@pytest.mark.parametrize(("start", "kept", "evaluated"), [(0, 0, 0), (1, 1, 0), (2, 4, 1), (3, 5, 0), (9, 5, 0)])
@pytest.mark.parametrize("rest", ["", '{"upd'])
def test_the_records_up_to_an_update_are_kept(start: int, kept: int, evaluated: int, rest: str, tmp_path: Path) -> None:
    metrics = gather_weights.loaded(resources.train_templates() / "parts" / "metrics.py")
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES) + rest)
    opened = metrics.Metrics(SimpleNamespace(output_dir=str(tmp_path)), True, start, 9)
    opened.bar.close()
    opened.track = lambda *_, **__: None
    opened.write({"update": start + 1, "loss": 0.5})
    assert opened.evaluated == evaluated
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [*LINES[:kept], {"update": start + 1, "loss": 0.5}]
