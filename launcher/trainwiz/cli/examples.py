"""The commands by what they are for, and command lines that people type, for `--help`."""

from __future__ import annotations

from trainwiz.message import say

GROUPS = (
    (say("Begin"), ("init", "recipes", "plan", "update", "import", "adopt")),
    (say("Check"), ("check", "lint", "doctor", "rehearse", "explain", "agent-guide")),
    (say("Train"), ("prepare", "launch", "submit", "stop", "watch", "logs")),
    (say("Look at runs"), ("runs", "board", "report", "diff", "replay", "share", "diagnose")),
    (say("Use what was trained"), ("checkpoints", "export", "chat", "sample", "cache")),
)
"""Every command, in the order in which a project needs them."""
FIRST = ("trainwiz init my-project", "trainwiz launch my-project", "trainwiz diagnose training.log")
"""Examples below the list of commands."""
OF_COMMAND = {
    "init": (
        "trainwiz init my-project",
        "trainwiz init my-project --task sft --model Qwen/Qwen2.5-0.5B --data talks.jsonl --defaults --yes",
    ),
    "recipes": ("trainwiz recipes", "trainwiz init my-project --recipe NAME"),
    "plan": (
        "trainwiz plan --model meta-llama/Llama-3.1-8B --task sft --gpus 8xH100 --target 12h",
        "trainwiz plan my-project --over gpus=1,2,4,8",
        "trainwiz plan my-project --exact --gpus 8xH100",
    ),
    "update": (
        "trainwiz update my-project --set strategy.zero_stage=3",
        "trainwiz update my-project --set strategy.kind=fsdp --prove",
    ),
    "import": ("trainwiz import accelerate.yaml ds_config.json", "trainwiz import axolotl.yml --into my-project"),
    "adopt": ("trainwiz adopt train.py --into my-project",),
    "check": ("trainwiz check my-project", "trainwiz check ds_config.json --fix"),
    "lint": ("trainwiz lint train.py",),
    "doctor": ("trainwiz doctor my-project", "trainwiz doctor --json > machine.json"),
    "rehearse": ("trainwiz rehearse my-project",),
    "explain": ("trainwiz explain TW401", "trainwiz explain batch.real_batch_size"),
    "agent-guide": ("trainwiz agent-guide",),
    "prepare": ("trainwiz prepare my-project",),
    "launch": ("trainwiz launch my-project", "trainwiz launch my-project --resume", "trainwiz launch -- --n_steps 10"),
    "submit": ("trainwiz submit my-project --dry-run",),
    "stop": ("trainwiz stop",),
    "watch": ("trainwiz watch",),
    "logs": ("trainwiz logs --rank 1 -f",),
    "runs": ("trainwiz runs my-project", "trainwiz runs --state failed --since 7d"),
    "board": ("trainwiz board my-project",),
    "report": ("trainwiz report",),
    "diff": ("trainwiz diff 2026-11-20_10-00-00-1",),
    "replay": (
        "trainwiz replay",
        "trainwiz replay 2026-11-20_10-00-00-1 --dry-run",
        "trainwiz replay 2026-11-20_10-00-00-1 --compare latest",
    ),
    "share": ("trainwiz share",),
    "diagnose": ("trainwiz diagnose", "trainwiz diagnose slurm-1234.out"),
    "checkpoints": ("trainwiz checkpoints my-project",),
    "export": ("trainwiz export my-project", "trainwiz export my-project --gguf q8_0"),
    "chat": ("trainwiz chat my-project",),
    "sample": ('trainwiz sample my-project "Once upon a time"',),
    "cache": ("trainwiz cache",),
}
"""Examples of each command."""
