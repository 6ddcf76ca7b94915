"""Colossal-AI: versions, and what each plugin of its Booster supports."""

from __future__ import annotations

TRIED = {"colossalai": "0.5.0", "transformers": "4.51.3"}
"""What the generated loop was run with; colossalai 0.5.0 declares this transformers."""
DEVICES = {
    "colossal_ddp": ("cuda", "npu", "cpu"),
    "colossal_zero1": ("cuda", "npu"),
    "colossal_zero2": ("cuda", "npu"),
    "gemini": ("cuda", "npu"),
    "colossal_fsdp": ("cuda",),
}
"""By `supported_devices` of each plugin (0.5.0); that TorchDDP trains on CPU ranks as well was seen."""
PRECISIONS = {
    "colossal_ddp": ("no", "fp16"),
    "colossal_zero1": ("bf16", "fp16", "no"),
    "colossal_zero2": ("bf16", "fp16", "no"),
    "gemini": ("bf16", "fp16"),
    "colossal_fsdp": ("bf16", "no"),
}
"""What each plugin computes in, the best first."""
