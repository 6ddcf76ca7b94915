"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685): small matrices trained beside a frozen model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft

# feature: qlora
import torch

# end: qlora
from torch import Tensor

# feature: merged
import model_folder

# end: merged


# feature: qlora
def four_bits() -> dict[str, Any]:
    """Return arguments that load the frozen model in 4-bit NormalFloat (https://arxiv.org/abs/2305.14314)."""
    from accelerate import PartialState
    from transformers import BitsAndBytesConfig

    # Cards before Ampere compute in fp16 only.
    bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype="bfloat16" if bf16 else "float16",
    )
    return {"quantization_config": settings, "device_map": {"": PartialState().device}}


# end: qlora
def add(model: Any, rank: int, alpha: int, targets: str, *, dropout: float, rslora: bool) -> None:
    """Freeze the model and add an adapter. Checkpoints leave out the frozen weights, which can be loaded again.

    `rslora` is https://arxiv.org/abs/2312.03732.
    """
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets if targets == "all-linear" else targets.split(","),
        lora_dropout=dropout,
        use_rslora=rslora,
        task_type="CAUSAL_LM",
    )
    model.add_adapter(settings)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()

    def leave_out(_module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        for name in [name for name in state if name.startswith(prefix) and "lora_" not in name]:
            del state[name]

    def not_missing(_module: Any, keys: Any) -> None:
        # By the same rule as above: a list of frozen parameters would have one of the names of a shared weight only.
        keys.missing_keys[:] = [name for name in keys.missing_keys if "lora_" in name]

    model.register_state_dict_post_hook(leave_out)
    model.register_load_state_dict_post_hook(not_missing)


def save(model: Any, weights: dict[str, Tensor], folder: Path, output_dtype: str, tokenizer: Any) -> None:
    """Save the adapter in the format of peft, which names its base model, and the tokenizer it was trained with.

    The adapter stays in fp32. `output_dtype` is the type of the merged model.
    """
    model.save_pretrained(folder, state_dict={name: part for name, part in weights.items() if "lora_" in name})
    tokenizer.save_pretrained(folder)
    # feature: merged
    # Also save the merged model, which loads without peft.
    merged = peft.AutoPeftModelForCausalLM.from_pretrained(folder, dtype="float32").merge_and_unload()
    model_folder.save(merged, merged.state_dict(), folder.with_name("merged"), output_dtype, tokenizer)
    # end: merged
