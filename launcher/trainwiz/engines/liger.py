"""Facts of liger-kernel: fused Triton kernels for layers of models from transformers."""

from __future__ import annotations

import re

TRIED = "0.8.5"
OLDEST = (0, 8)
"""What requirements.txt asks for: older ones also rename the classes of transformers' layers."""
OLDEST_CAPABILITY = (8, 0)
"""Its kernels are written for bf16, which GPUs before Ampere lack."""
FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "smollm3"),
    *("olmo2", "olmo3", "glm4", "gemma", "gemma2", "gemma3_text", "exaone4"),
)
"""Values of `model_type` for which its layers gave the loss and gradients of transformers 5.23's own.

Seen with models of two layers in fp32 on a CPU, where PyTorch's operators stood in for the kernels of norms and MLPs,
and Triton's interpreter ran those of the rotary positions. Mixtures of experts have kernels that need a GPU to start.
"""


def is_recent(version: str) -> bool:
    """Whether this version of liger-kernel patches layers as the generated script expects it to."""
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= OLDEST
