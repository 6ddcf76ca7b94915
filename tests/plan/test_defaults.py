"""Constant defaults: one place each, and the same for every machine, task and strategy."""

from __future__ import annotations

import ast
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trainwiz
from trainwiz import plan as plans
from trainwiz import strategies, tasks
from trainwiz.decide import decide
from trainwiz.store import machines

MACHINES = sorted((Path(__file__).parents[1] / "machines").glob("*.json"))
CHANGED: dict[str, Any] = {
    "task": "sft",
    "seed": 43,
    "model.name": "llama-1b",
    "model.parameters": 7_000_000_000,
    "model.compile": True,
    "model.frozen": "embed",
    "model.neftune_alpha": 5.0,
    "precision.weights": "bfloat16",
    "model.attention": "eager",
    "model.kernels": "liger",
    "model.loss_chunk": 2048,
    "model.adapter": "lora",
    "model.lora_rank": 24,
    "model.lora_targets": "q_proj",
    "model.lora_dropout": 0.1,
    "model.lora_rslora": True,
    "model.lora_dora": True,
    "model.modules_to_save": "embed_tokens",
    "model.merge_adapter": True,
    "model.output_dtype": "bfloat16",
    "model.push_to_hub": "me/mine",
    "model.push_public": True,
    "data.train": "chats.jsonl",
    "data.source_weights": "3, 1",
    "data.weigh_by": "samples",
    "data.train_on": "all",
    "data.chat_template": "chatml",
    "data.special_tokens": "eos_token=<|im_end|>",
    "data.added_tokens": "<tool>",
    "data.columns": "prompt=q,completion=a",
    "data.text_column": "body",
    "data.label_column": "stars",
    "data.image_column": "file",
    "data.image_size": 64,
    "data.augmentation": "none",
    "data.max_rows": 1000,
    "data.min_tokens": 8,
    "data.max_tokens": 4096,
    "data.cache_dir": "/shared/tokens",
    "machine.num_machines": 2,
    "machine.main_process_ip": "10.0.0.1",
    "machine.main_process_port": 29501,
    "machine.numa_binding": "never",
    "strategy.nvme_path": "/nvme",
    "strategy.sync_each_batch": True,
    "schedule.warmup_ratio": 0.05,
    "schedule.lr_scheduler_type": "linear",
    "schedule.min_lr_ratio": 0.1,
    "schedule.decay_ratio": 0.2,
    "schedule.decay_type": "linear",
    "schedule.polynomial_power": 2.0,
    "optimizer.name": "sgd",
    "optimizer.gradient_clipping": 2.0,
    "preference.loss": "simpo",
    "preference.beta": 2.5,
    "preference.gamma": 1.0,
    "preference.desirable_weight": 1.5,
    "preference.undesirable_weight": 2.0,
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-6,
    "optimizer.ema_decay": 0.99,
    "optimizer.rates": "head=10",
    "optimizer.decays": "embed=0",
    "evaluation.evaluation_steps": 50,
    "evaluation.best_metric": "eval_loss",
    "evaluation.best_mode": "max",
    "evaluation.patience": 3,
    "evaluation.gather_outputs": True,
    "evaluation.generation_metrics": "exact_match",
    "evaluation.generated_answers": 50,
    "evaluation.max_new_tokens": 64,
    "checkpoint.checkpoints_total_limit": 5,
    "checkpoint.background": True,
    "checkpoint.on_failed_save": "stop",
    "tracking.log_with": "tensorboard",
    "tracking.project": "mine",
    "tracking.run_name": "first",
    "tracking.tags": "small,fast",
    "supervision.on_hang": "stop",
    "supervision.hang_limit": 60.0,
    "supervision.max_restarts": 2,
    "cluster.kind": "slurm",
    "cluster.job_name": "pretrain",
    "cluster.time_limit": "12h",
    "cluster.grace": 300,
    "cluster.requeue": False,
    "cluster.gpu_type": "a100",
    "cluster.cpus": 16,
    "cluster.memory": "64G",
    "cluster.setup": "module load cuda",
    "cluster.folder": "/shared/project",
    "cluster.partition": "gpu",
    "cluster.account": "team",
    "cluster.qos": "high",
    "cluster.queue": "team",
    "cluster.namespace": "team",
    "cluster.image": "team/train:1",
    "cluster.volume": "data",
    "cluster.shared_memory": "16Gi",
    "cluster.workload": "jobset",
    "cluster.infra": "aws",
    "cluster.spot": True,
    "deepspeed": {"prescale_gradients": True},
    "ignore": {"TW416": "no checkpoints"},
}
"""Another legal value for every default."""
READERS = """if True:
    import json
    from trainwiz import plan
    from trainwiz.cli import run
    from trainwiz.decide import decide
    from trainwiz.render import plan_file

    decided = plan.flat(decide({}, None).plan)
    needed = {key: value for key, value in decided.items() if key not in plan.defaults()}
    schema = json.loads(plan_file.schema())
    print(json.dumps([decided, plan.flat(plan.parse(plan.nested(needed))), schema]))
    run(["explain", "keys"])
"""
"""What `init`, a plan file that leaves the defaults out, an editor and `explain` take for a default."""


def test_a_default_holds_for_every_machine_task_and_strategy() -> None:
    defaults = plans.defaults()
    answers: list[dict[str, Any]] = [{"task": task.name} for task in tasks.every()]
    answers += [{"strategy.kind": row.kind, "strategy.zero_stage": row.zero_stage} for row in strategies.every()]
    answers += [{"task": "sft", "model.adapter": "qlora"}, {"schedule.n_epochs": 3}, {"optimizer.name": "sgd"}]
    assert (len(defaults) > 20, len(MACHINES) > 4, len(answers) > 10) == (True, True, True)
    for machine, answer in itertools.product((None, *map(machines.read, MACHINES)), answers):
        decided = decide(answer, machine)
        for key in defaults.keys() - answer.keys() - {"version"}:
            assert decided.plan.get(key) == defaults[key], (key, answer)
            assert decided.sources[key].kind == "default"


def test_a_default_is_changed_in_one_file(tmp_path: Path) -> None:
    assert CHANGED.keys() == plans.defaults().keys() - {"version"}
    source = Path(trainwiz.__file__).parent
    shutil.copytree(source, tmp_path / "trainwiz", ignore=shutil.ignore_patterns("__pycache__"))
    model = tmp_path / "trainwiz" / "plan" / "model.py"
    model.write_text(with_defaults(model.read_text(), CHANGED))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "TRAINWIZ_LANG": "en"}
    read = subprocess.check_output([sys.executable, "-c", READERS], env=environ, text=True)
    values, *explained = read.splitlines()
    decided, parsed, schema = json.loads(values)
    for key, value in CHANGED.items():
        assert (decided[key], parsed[key], default_of(schema, key)) == (value, value, value), key
        shown = next(line for line in explained if line.startswith(f"{key}: "))
        assert shown.endswith(f"(default: {json.dumps(value).strip(chr(34))})")


def with_defaults(text: str, changed: dict[str, Any]) -> str:
    """The module with other values behind the fields of its sections, and nothing else changed."""
    lines = text.splitlines(keepends=True)
    *sections, plan = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    keys = {ast.unparse(field.annotation): f"{name}." for name, field in fields(plan)}
    found = {f"{keys[section.name]}{name}": field for section in sections[1:] for name, field in fields(section)}
    found |= dict(fields(plan))
    for key, value in changed.items():
        old = found[key].value
        assert old, key
        line = lines[old.lineno - 1]
        lines[old.lineno - 1] = line[: old.col_offset] + repr(value) + line[old.end_col_offset :]
    return "".join(lines)


def fields(section: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    for node in section.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def default_of(schema: dict[str, Any], key: str) -> Any:
    """The default of a key in a JSON Schema."""
    section, _, name = key.rpartition(".")
    if section:
        schema = schema["$defs"][schema["properties"][section]["$ref"].rpartition("/")[2]]
    return schema["properties"][name]["default"]
