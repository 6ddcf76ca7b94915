"""What ms-swift's arguments refuse."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.tool import as_number, switched_on
from trainwiz.finding import Level, Violations
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import clash, lacking

_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")


@rule("TW861", level=Level.ERROR, field="packing")
def packing_needs_flash_attention(tool_file: ToolFile) -> Violations:
    """packing and padding_free need attn_impl: flash_attn.

    Without it: ms-swift stops: `The "packing" feature requires a flash attention implementation`.
    Why: only FlashAttention knows where one sample of a row ends and the next begins.
    Instead: set attn_impl: flash_attn.
    Source: read in ms-swift 4.6.0 (`_check_padding_free`)
    """
    key = next((key for key in ("packing", "padding_free") if switched_on(tool_file.get(key))), None)
    if key and tool_file.get("attn_impl") not in _FLASH:
        yield lacking(tool_file, key, "attn_impl: flash_attn")


@rule("TW862", level=Level.ERROR, field="quant_method")
def a_method_has_its_bits(tool_file: ToolFile) -> Violations:
    """quant_method needs quant_bits; bnb supports 4 or 8.

    Without it: ms-swift stops: `Please set the quant_bits`, or `bnb not support quant_bits`.
    Why: a method can quantize to several widths.
    Instead: set quant_bits: 4 or 8.
    Source: read in ms-swift 4.6.0 (`QuantizeArguments`)
    """
    method, bits = tool_file.get("quant_method"), tool_file.get("quant_bits")
    if method in ("bnb", "hqq", "eetq", "quanto") and bits is None:
        yield lacking(tool_file, "quant_method", "quant_bits")
    elif method == "bnb" and as_number(bits) not in (4, 8):
        yield clash(tool_file, "quant_method", "quant_bits")


@rule("TW863", level=Level.ERROR, field="use_vllm")
def vllm_has_a_mode(tool_file: ToolFile) -> Violations:
    """In GRPO, use_vllm and vllm_mode must be set together.

    Without it: ms-swift stops: `vllm_mode is required when use_vllm is true`, or `vllm_mode is not supported when
    use_vllm is false`.
    Why: vLLM runs as a server or in the trainer's own processes.
    Instead: set vllm_mode: colocate or server.
    Source: read in ms-swift 4.6.0 (`RLHFArguments`)
    """
    if tool_file.get("rlhf_type") != "grpo":
        return
    if switched_on(tool_file.get("use_vllm")) and tool_file.get("vllm_mode") is None:
        yield lacking(tool_file, "use_vllm", "vllm_mode")
    elif tool_file.get("vllm_mode") is not None and not switched_on(tool_file.get("use_vllm")):
        yield lacking(tool_file, "vllm_mode", "use_vllm: true")


@rule("TW864", level=Level.ERROR, field="ref_model")
def some_methods_have_no_reference(tool_file: ToolFile) -> Violations:
    """ref_model needs full training with DPO, KTO, PPO or GRPO.

    Without it: ms-swift stops: `CPO/ORPO or LoRA training does not require a ref_model to be passed in`.
    Why: LoRA's reference is the model without the adapter; CPO and ORPO have none.
    Instead: remove ref_model.
    Source: read in ms-swift 4.6.0 (`RLHFArguments`)
    """
    full = tool_file.get("tuner_type", tool_file.get("train_type")) == "full"
    unused = tool_file.get("rlhf_type") == "grpo" and as_number(tool_file.get("beta")) == 0
    if tool_file.get("ref_model") is None or tool_file.get("rlhf_type") is None or unused:
        return
    if tool_file.get("rlhf_type") in ("cpo", "orpo"):
        yield clash(tool_file, "ref_model", "rlhf_type")
    elif (
        tool_file.get("tuner_type") == "lora"
        and not full
        and tool_file.get("rlhf_type") in ("dpo", "kto", "ppo", "grpo")
    ):
        yield clash(tool_file, "ref_model", "tuner_type")


@rule("TW865", level=Level.ERROR, field="num_generations")
def grpo_compares_answers(tool_file: ToolFile) -> Violations:
    """GRPO needs num_generations above 1.

    Without it: ms-swift stops: `num_generations must be greater than 1 for GRPO`.
    Why: the answers to a prompt are compared with each other.
    Instead: set num_generations: 8.
    Source: read in ms-swift 4.6.0 (`RLHFArguments`)
    """
    taught = tool_file.get("teacher_model") is not None or tool_file.get("teacher_model_server") is not None
    if tool_file.get("rlhf_type") == "grpo" and as_number(tool_file.get("num_generations")) == 1 and not taught:
        yield clash(tool_file, "num_generations", "rlhf_type")
