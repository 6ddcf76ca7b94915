"""Errors of Colossal-AI's Booster and its plugins."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 1
SIGNATURES = (
    known(
        "colossal_device",
        r"AssertionError: device is required",
        r"No usable kernel found for \w+ on the current machine",
        cause=say("this Colossal-AI plugin needs a GPU: only TorchDDPPlugin runs without one"),
        remedy=say("start it on a machine with GPUs, or try strategy.kind colossal_ddp"),
    ),
    known(
        "colossal_precision",
        r"AssertionError: (?P<what>\w+Plugin only supports \[.*\] training)",
        r"AssertionError: (?P<what>precision \w+ is not supported)",
        r"TypeError: (?P<what>Can't instantiate abstract class (?:BF16|FP8)MixedPrecision)",
        cause=say("this Colossal-AI plugin does not support the precision: {what}"),
        remedy=say("set precision.mixed_precision: no or fp16 with TorchDDP, bf16 with the other plugins"),
    ),
    known(
        "colossal_optimizer",
        r"AssertionError: You should use an optimizer in the available list",
        cause=say("Gemini accepts only FusedAdam, CPUAdam and HybridAdam"),
        remedy=say("set optimizer.name to adamw or strategy.kind to colossal_zero2; in a script, use HybridAdam"),
    ),
    known(
        "colossal_no_sync",
        r"AssertionError: The plugin \S+ does not support no_sync",
        r"AssertionError: ZeRO2\(partition_grads\) and no_sync are not compatible",
        cause=say("this Colossal-AI plugin does not support no_sync: ZeRO 2, Gemini or TorchFSDP"),
        remedy=say(
            "remove it: gradients of repeated backward passes add up; Gemini needs enable_gradient_accumulation=True"
        ),
    ),
    known(
        # docs/decisions/colossalai.md: TorchFSDP gets the model without the optimizer
        "colossal_fsdp_optimizer",
        r"TypeError: \w+\.__init__\(\) got an unexpected keyword argument '(?P<name>decoupled_weight_decay)'",
        cause=say(
            "TorchFSDPPlugin rebuilds the optimizer from its defaults, which include {name} in this torch version"
        ),
        remedy=say("pass only the model to booster.boost, and wrap an optimizer of its parameters in OptimizerWrapper"),
    ),
    known(
        "colossal_launcher",
        r"RuntimeError: Could not find '(?P<name>\w+)' in the torch environment",
        cause=say("Colossal-AI was started without a launcher: {name} is not set"),
        remedy=say("run: torchrun --standalone --nproc_per_node N train.py, colossalai run, or trainwiz launch"),
    ),
)
