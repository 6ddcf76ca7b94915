"""What becomes of each value of typical and strange files, as reviewed in tests/golden/adoptions.yaml."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import reviewed
from test_import import imported

TWO = "num_processes: 2\n"
DEEPSPEED = f"distributed_type: DEEPSPEED\n{TWO}"
BESIDE = f"{DEEPSPEED}deepspeed_config:\n  deepspeed_config_file: ds.json\n"
FSDP = f"distributed_type: FSDP\n{TWO}mixed_precision: bf16\nfsdp_config:\n"
SIZES = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}


def zero(stage: int, **more: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **more}, **SIZES}


CASES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "one process": ("distributed_type: 'NO'\nnum_processes: 4\nnum_machines: 1\nmachine_rank: 0\ngpu_ids: all\n", None),
    "a cpu": ("distributed_type: 'NO'\nuse_cpu: true\nmixed_precision: 'no'\n", None),
    "cpu ranks": (f"distributed_type: MULTI_CPU\n{TWO}mpirun_config: {{mpirun_ccl: '1'}}\n", None),
    "one gpu of many": ("distributed_type: MULTI_GPU\nnum_processes: 1\ngpu_ids: '1, 2'\ndebug: true\n", None),
    "several machines": (
        (
            "distributed_type: MULTI_GPU\nnum_processes: 16\nnum_machines: 2\nmachine_rank: 1\n"
            "main_process_ip: 10.0.0.1\nmain_process_port: 29501\n"
            "rdzv_backend: c10d\nsame_network: true\nmixed_precision: fp16\n"
        ),
        None,
    ),
    "a port out of range": (f"distributed_type: MULTI_GPU\n{TWO}main_process_port: 70000\nfp16: true\n", None),
    "unknown keys": (
        (
            f"distributed_type: MULTI_GPU\n{TWO}mixed_precison: bf16\nnothing_like_it_at_all: 3\n"
            "dynamo_config: {dynamo_backend: INDUCTOR, dynamo_bakend: x, qqqqqq: 1}\n"
        ),
        None,
    ),
    "blocks of others": (
        (
            f"distributed_type: MULTI_GPU\n{TWO}fsdp_config: {{fsdp_version: 2}}\ndeepspeed_config: {{}}\n"
            "megatron_lm_config: null\nfp8_config: {backend: TE}\ncompute_environment: LOCAL_MACHINE\n"
            "main_training_function: train\ntpu_env: [a]\ndowncast_bf16: 'no'\n"
            "parallelism_config: {parallelism_config_tp_size: 1}\n"
        ),
        None,
    ),
    "sagemaker": (
        f"compute_environment: AMAZON_SAGEMAKER\ndistributed_type: MULTI_GPU\n{TWO}ec2_instance_type: ml.p3\n",
        None,
    ),
    "a block": (
        (
            f"{DEEPSPEED}mixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: false\n"
            "  zero3_save_16bit_model: true\n  gradient_clipping: 0.0\n  gradient_accumulation_steps: 4\n"
            "  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /fast\n  offload_param_device: none\n"
            "  deepspeed_multinode_launcher: pdsh\n  deepspeed_moe_layer_cls_names: Layer\n"
        ),
        None,
    ),
    "a block without a stage": (f"{DEEPSPEED}deepspeed_config: {{gradient_clipping: 0.5}}\n", None),
    "offloaded to two disks": (
        BESIDE,
        zero(
            3,
            offload_optimizer={"device": "nvme", "nvme_path": "/one"},
            offload_param={"device": "nvme", "nvme_path": "/two"},
            stage3_gather_16bit_weights_on_model_save="auto",
        ),
    ),
    "offloaded to one disk": (
        BESIDE,
        zero(
            3,
            offload_optimizer={"device": "nvme", "nvme_path": "/one"},
            offload_param={"device": "nvme", "nvme_path": "/one"},
        ),
    ),
    "a path without an offload": (
        BESIDE,
        zero(2, offload_optimizer={"device": "cpu", "nvme_path": "/one"}, offload_param={"nvme_path": "none"}),
    ),
    "the oldest offload": (BESIDE, zero(2, cpu_offload=True, overlap_comm=True, reduce_bucket_size=1000)),
    "the oldest offload, turned off": (BESIDE, zero(2, cpu_offload=False, cpu_offload_param=False)),
    "only a stage": (BESIDE, {"zero_optimization": {"stage": 1}}),
    "no stage": (BESIDE, {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0}),
    "everything auto": (
        BESIDE,
        {
            "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "auto"}},
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto"},
        },
    ),
    "half precision": (
        BESIDE,
        {**zero(2), "fp16": {"enabled": True, "initial_scale_power": 8}, "bf16": {"enabled": False}},
    ),
    "an optimizer and a schedule": (
        BESIDE,
        {
            **zero(2),
            "gradient_clipping": 1.5,
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1},
            },
            "scheduler": {
                "type": "WarmupDecayLR",
                "params": {
                    "total_num_steps": 500,
                    "warmup_num_steps": 50,
                    "warmup_min_lr": 0,
                    "warmup_max_lr": 2e-4,
                    "warmup_type": "linear",
                },
            },
        },
    ),
    "another optimizer and schedule": (
        BESIDE,
        {
            **zero(2),
            "optimizer": {"type": "Lamb", "params": {"lr": 1e-4}},
            "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}},
        },
    ),
    "sgd and a warm-up": (
        BESIDE,
        {
            **zero(0),
            "optimizer": {"type": "SGD", "params": {"lr": "auto", "momentum": 0.8}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_min_lr": 0.01}},
        },
    ),
    "a cosine": (
        BESIDE,
        {
            **zero(1),
            "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 90, "warmup_num_steps": "auto"}},
        },
    ),
    "settings that trainwiz does not have": (
        BESIDE,
        {
            **zero(3, mics_shard_size=2, zero_hpz_partition_size=2, stag=3),
            "steps_per_prnt": 10,
            "steps_per_print": 10,
            "wall_clock_breakdown": True,
            "activation_checkpointing": {"partition_activations": True},
            "amp": {"enabled": False},
        },
    ),
    "said twice": (
        (
            f"{DEEPSPEED}mixed_precision: fp16\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
            "  gradient_accumulation_steps: 2\n  zero_stage: 3\n  zero3_init_flag: true\n"
        ),
        {**zero(2), "bf16": {"enabled": True}},
    ),
    "fsdp 1": (
        (
            f"{FSDP}  fsdp_version: 1\n  fsdp_sharding_strategy: 2\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
            "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 1000\n"
            "  fsdp_reshard_after_forward: true\n  fsdp_use_orig_params: true\n  fsdp_offload_params: true\n"
        ),
        None,
    ),
    "fsdp 1 with little": (f"{FSDP}  fsdp_sharding_strategy: FULL_SHARD\n", None),
    "fsdp 2": (
        (
            f"{FSDP}  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_min_num_params: 1000\n"
            "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
            "  fsdp_reshard_after_forward: false\n  fsdp_cpu_ram_efficient_loading: false\n"
        ),
        None,
    ),
    "fsdp 2 as it comes": (f"{FSDP}  fsdp_version: 2\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n", None),
}


def became(name: str, folder: Path) -> dict[str, Any]:
    """What is carried into the plan, what is left, and what DeepSpeed is told beside the plan's keys."""
    accelerate, deepspeed = CASES[name]
    here = Path.cwd()
    os.chdir(folder)
    try:
        Path("acc.yaml").write_text(accelerate)
        if deepspeed is not None:
            Path("ds.json").write_text(json.dumps(deepspeed, indent=1))
        made = imported(*(["acc.yaml", "ds.json"] if deepspeed is not None else ["acc.yaml"]))
    finally:
        os.chdir(here)
    return {
        "carried": {
            key: f"{one.value} {one.place.file}:{one.place.line} {reviewed.numbers(one.why) or ''}".rstrip()
            for key, one in made.adoption.carried.items()
        },
        "left": [
            f"{left.place.file}:{left.place.line} {left.kind} {left.path} {left.value} ({left.key}) "
            f"{reviewed.numbers(left.why)}"
            for left in made.left
        ],
        "settings": [f"{path}: {value}" for path, value in made.plan.deepspeed.items()],
    }


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return reviewed.table(
        "adoptions",
        lambda: {name: became(name, tmp_path_factory.mktemp("case")) for name in CASES},
        request.config,
    )


@pytest.mark.parametrize("name", CASES)
def test_files_become_what_was_reviewed(name: str, golden: dict[str, Any], tmp_path: Path) -> None:
    assert became(name, tmp_path) == golden[name]
    assert len(golden) == len(CASES)
