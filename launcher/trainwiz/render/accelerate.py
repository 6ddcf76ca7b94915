"""`accelerate.yaml`: what `accelerate launch --config_file` reads, with a comment where a value is not plain."""

from __future__ import annotations

from trainwiz import strategies, tasks, vocabulary
from trainwiz.command import settings
from trainwiz.plan import Plan
from trainwiz.render.values import commented


def text(plan: Plan) -> str:
    """The file."""
    head = f"For `accelerate launch --config_file {settings.ACCELERATE_FILE} train.py`; made from trainwiz.yaml."
    if plan.machine.device in vocabulary.UNPROVEN_DEVICES:
        head += f"\nUNPROVEN: written after accelerate's documentation, never run on {plan.machine.device} by trainwiz."
    return commented(settings.for_accelerate(plan), _comments(plan), head)


def _comments(plan: Plan) -> dict[str, str]:
    comments = {
        "num_processes": "ranks over all machines",
        "machine_rank": "give it on each machine: --machine_rank 0, 1, …; without it accelerate stops at once",
        "main_process_ip": "an address of machine 0 that all machines reach",
        "deepspeed_config.zero3_init_flag": "for from_pretrained: build the model already sharded",
        "deepspeed_config.deepspeed_multinode_launcher": "torchrun on each machine; no pdsh, no hostfile",
        "fsdp_config.fsdp_cpu_ram_efficient_loading": "train.py itself says who builds the model",
        "fsdp_config.fsdp_auto_wrap_policy": "one unit per layer; the model names its own layers (_no_split_modules)",
    }
    if tasks.of(plan).layer_of(plan):
        comments["fsdp_config.fsdp_auto_wrap_policy"] = "one unit per layer"
        comments["fsdp_config.fsdp_transformer_layer_cls_to_wrap"] = "as SHARDED_LAYERS in task.py says"
    if settings.distributed_type(plan) == "MULTI_CPU":
        comments["distributed_type"] = "accelerate launch would start ONE process; use torchrun, see README.md"
    elif plan.machine.device == "cpu" and strategies.of(plan).uses_deepspeed:
        comments["use_cpu"] = "true would turn DeepSpeed off; DS_ACCELERATOR=cpu chooses the CPU"
    return comments
