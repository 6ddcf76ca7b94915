"""What `accelerate launch` is told for a plan: the values of accelerate.yaml. Checked against accelerate 1.15.

The generated train.py gives accelerate the same settings itself; these say how many processes of which kind are
started, and agree with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwiz import strategies, tasks

if TYPE_CHECKING:
    from trainwiz.plan import Plan

ACCELERATE_FILE = "accelerate.yaml"
DEEPSPEED_FILE = "ds_config.json"


# docs/decisions/deepspeed.md: accelerate.yaml holds only what acts, and each value once
def for_accelerate(plan: Plan) -> dict[str, Any]:
    """The values of accelerate.yaml.

    Under DeepSpeed they must not hold `mixed_precision`: accelerate refuses a YAML that says, beside
    `deepspeed_config_file`, anything that the JSON decides. `machine_rank` is null: it differs between machines, and
    null makes accelerate stop at once where it is not given, while 0 on two machines makes both wait for 15 minutes.
    `same_network` and `rdzv_backend`, which accelerate's own questionnaire writes, never act from a file.
    """
    machine = plan.machine
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type(plan),
        "num_machines": machine.num_machines,
        "num_processes": machine.num_processes,
        "main_process_port": machine.main_process_port,
        "main_training_function": "main",
        # With DeepSpeed or FSDP, `use_cpu` would turn them off and train plain DDP.
        "use_cpu": machine.device == "cpu" and not strategies.of(plan).needs_process_group,
        "debug": False,
        "enable_cpu_affinity": False,
    }
    if machine.num_machines > 1:
        values |= {"machine_rank": None, "main_process_ip": machine.main_process_ip}
    if strategies.of(plan).uses_deepspeed:
        return values | {"deepspeed_config": _deepspeed(plan)}
    # docs/decisions/loop.md: fp8 comes from torchao, with a scale per row
    precision = plan.precision.mixed_precision
    values["mixed_precision"] = "bf16" if precision == "fp8" else precision
    if strategies.of(plan).uses_fsdp:
        values["fsdp_config"] = _fsdp(plan)
    return values


def distributed_type(plan: Plan) -> str:
    """accelerate's word for the plan's strategy on its device."""
    return strategies.of(plan).distributed_type(plan.machine.device, plan.machine.num_processes)


# docs/decisions/deepspeed.md: `zero3_init_flag: false` does not stop transformers from building a model in parts
def _deepspeed(plan: Plan) -> dict[str, Any]:
    values: dict[str, Any] = {
        "deepspeed_config_file": DEEPSPEED_FILE,
        # Left out, accelerate takes true at stage 3.
        "zero3_init_flag": plan.strategy.zero_stage == 3 and plan.strategy.zero3_init,
    }
    if plan.machine.num_machines > 1:
        # torchrun on each machine. The default, pdsh, takes `--hostfile None` for this machine alone.
        values["deepspeed_multinode_launcher"] = "standard"
    return values


def _fsdp(plan: Plan) -> dict[str, Any]:
    values: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_offload_params": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_activation_checkpointing": False,
    }
    if layer := tasks.of(plan).layer_of(plan):
        values["fsdp_transformer_layer_cls_to_wrap"] = layer
    return values
