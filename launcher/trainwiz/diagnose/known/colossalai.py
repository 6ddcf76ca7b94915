"""Errors of Colossal-AI's Booster and its plugins."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 1
SIGNATURES = {
    "colossal_device": Signature(
        r"AssertionError: device is required",
        r"No usable kernel found for \w+ on the current machine",
        cause="this Colossal-AI plugin needs a GPU: only TorchDDPPlugin runs without one",
        remedy="start it on a machine with GPUs, or try strategy.kind colossal_ddp",
    ),
    "colossal_precision": Signature(
        r"AssertionError: (?P<what>\w+Plugin only supports \[.*\] training)",
        r"AssertionError: (?P<what>precision \w+ is not supported)",
        r"TypeError: (?P<what>Can't instantiate abstract class (?:BF16|FP8)MixedPrecision)",
        cause="this Colossal-AI plugin does not support the precision: {what}",
        remedy="set precision.mixed_precision: no or fp16 with TorchDDP, bf16 with the other plugins",
    ),
    "colossal_scale": Signature(
        r"div_scale should remain default",
        cause="ColossalAI's CPUAdam got parameters on the GPU, for which it cannot undo the scale of the loss",
        remedy="use HybridAdam, which updates on both; or keep all parameters of the optimizer on the CPU "
        "(GeminiPlugin(offload_optim_frac=1.0))",
    ),
    "colossal_optimizer": Signature(
        r"AssertionError: You should use an optimizer in the available list",
        cause="Gemini accepts only FusedAdam, CPUAdam and HybridAdam",
        remedy="set optimizer.name to adamw or strategy.kind to colossal_zero2; in a script, use HybridAdam",
    ),
    "colossal_no_plugin": Signature(
        r"/colossalai/booster/booster\.py\"[^\n]*\n\s+optimizer\.backward\(loss\)\n"
        r"AttributeError: '(?P<optimizer>\w+)' object has no attribute 'backward'",
        cause="booster.backward needs an optimizer that a plugin has wrapped, but {optimizer} is not: the Booster "
        "has no plugin, or the optimizer was not passed to boost()",
        remedy="give the Booster a plugin (at least TorchDDPPlugin), and use the optimizer that booster.boost returns",
    ),
    "colossal_bucket": Signature(
        r"param bucket max size (?P<bucket>\d+) is exceeded ?by tensor \(size (?P<size>\d+)\)",
        cause="a parameter has {size} elements, but the buckets of Colossal-AI's ZeRO hold only {bucket}",
        remedy="pass a larger reduce_bucket_size_in_m (in millions of elements) to LowLevelZeroPlugin, or update "
        "Colossal-AI",
    ),
    "colossal_no_sync": Signature(
        r"AssertionError: The plugin \S+ does not support no_sync",
        r"AssertionError: ZeRO2\(partition_grads\) and no_sync are not compatible",
        cause="this Colossal-AI plugin does not support no_sync: ZeRO 2, Gemini or TorchFSDP",
        remedy="remove it: gradients of repeated backward passes add up; Gemini needs "
        "enable_gradient_accumulation=True",
    ),
    # docs/decisions/colossalai.md: TorchFSDP gets the model without the optimizer
    "colossal_fsdp_optimizer": Signature(
        r"TypeError: \w+\.__init__\(\) got an unexpected keyword argument '(?P<name>decoupled_weight_decay)'",
        cause="TorchFSDPPlugin rebuilds the optimizer from its defaults, which include {name} in this torch version",
        remedy="pass only the model to booster.boost, and wrap an optimizer of its parameters in OptimizerWrapper",
    ),
    "colossal_launcher": Signature(
        r"RuntimeError: Could not find '(?P<name>\w+)' in the torch environment",
        cause="Colossal-AI was started without a launcher: {name} is not set",
        remedy="run: torchrun --standalone --nproc_per_node N train.py, colossalai run, or trainwiz launch",
    ),
}
