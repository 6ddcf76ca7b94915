"""Where a training waits for its device: at log points, and in no micro-batch. A wait there is a GPU that stands still.

On a CPU, every operation is looked at that would make the host wait for a GPU (engine_children/waits.py).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import warm
from projects import make
from test_hooks import EXAMPLES
from test_sft import instructed

pytestmark = pytest.mark.train

CHILD = Path(__file__).parents[1] / "engine_children" / "waits.py"
STEADY = {"machine.device": "cpu", "strategy.kind": "single", "batch.sequence_length": 128, "data.eval": ""}
ARGUMENTS = (
    *("--real_batch_size", "8", "--per_device_batch_size", "4", "--gradient_accumulation_steps", "2"),
    *("--n_steps", "4", "--n_warmup_steps", "0", "--logging_steps", "3", "--checkpointing_steps", "0"),
)
EVALUATED = {"data.eval": "embedded"}
LORA = {"model.from_scratch": False, "model.adapter": "lora", "model.lora_rank": 4}
NOISY = {"model.neftune_alpha": 5.0, "optimizer.ema_decay": 0.9, "model.activation_checkpointing": "full"}
WRITES = {**EVALUATED, "evaluation.generation_metrics": "exact_match", "evaluation.max_new_tokens": 4}
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "causal_lm": ("causal_lm", {}),
    "causal_lm, unpacked": ("causal_lm", {"optimizer.name": "muon", "data.packing": False}),
    "sft, noise, average, recomputed": ("sft", {**NOISY, **WRITES, "evaluation.generated_answers": 8}),
    "sft, adapter": ("sft", {**LORA, **EVALUATED, "optimizer.name": "adafactor"}),
    "preference, dpo by adapter": ("preference", {**LORA, **EVALUATED}),
    "preference, kto": ("preference", {"data.eval": "8", "preference.loss": "kto"}),
    "preference, orpo": ("preference", {**EVALUATED, "preference.loss": "orpo"}),
    "reward_model": ("reward_model", {**LORA, **EVALUATED}),
    "text_classification": ("text_classification", EVALUATED),
    "text_regression": ("text_regression", EVALUATED),
    "text_multilabel": ("text_multilabel", EVALUATED),
    "image_classification": ("image_classification", {**EVALUATED, "data.augmentation": "color"}),
    "image_regression": ("image_regression", {**EVALUATED, "evaluation.gather_outputs": True}),
    "image_multilabel": ("image_multilabel", {**EVALUATED, "data.augmentation": "flip"}),
    "custom": ("custom", EVALUATED),
    "custom, two optimizers": ("custom", EVALUATED),
}
"""Every task, and what else has a part in a micro-batch."""
BY_TOKEN = "generation.py:"
"""Who writes waits for each token: it decides whether the text ends."""
OUTPUTS = "hooks.py:"
"""What a task of one's own returns of each micro-batch in an evaluation may be large, so the host keeps it."""


# docs/decisions/loop.md: Ranks agree on token counts and stop requests over gloo
@pytest.mark.parametrize("path", PATHS)
def test_the_device_is_read_at_log_points_only(path: str, tmp_path: Path) -> None:
    """Logged is update 3, update 1 is looked at once: three or two numbers are read there, elsewhere none."""
    task, values = PATHS[path]
    if values.get("model.adapter"):
        values = {**values, "model.name": str(instructed(tmp_path / "model", None))}
    folder = make(tmp_path / "project", {**STEADY, "task": task, **values})
    if path == "custom, two optimizers":
        shutil.copy(EXAMPLES / "gan.py", folder / "task.py")
    (done,) = warm.run(folder, [str(CHILD), *ARGUMENTS])
    assert done.code == 0, done.err
    read = [(update, line) for update, _, line in json.loads(done.out.splitlines()[-1]) if update]
    per_log = 5 if path == "custom, two optimizers" else 3  # and the loss of each turn
    assert [update for update, _ in read if update in (1, 2, 3)] == [1, 1, *[3] * per_log]
    assert all(line.startswith(("train.py:", "hooks.py:")) for update, line in read if update in (1, 2, 3))
    evaluation = Counter(line for update, line in read if update == "evaluation")
    assert bool(evaluation) == ("data.eval" in values)
    often = {line for line, times in evaluation.items() if times > 1}
    assert {line for line in often if not line.startswith((BY_TOKEN, OUTPUTS))} == set(), evaluation
