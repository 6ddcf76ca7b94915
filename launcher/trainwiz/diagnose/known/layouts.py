"""Tensors whose memory, dtype or place does not suit what is done with them."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 2
SIGNATURES = {
    "no_storage": Signature(
        r"RuntimeError: The tensor has a non-zero number of elements, but its data is not allocated yet",
        cause="a tensor without memory is used: a weight that is only a shard on this rank (FSDP, ZeRO 3, Gemini), "
        "or one on the meta or a fake device",
        remedy="call the wrapped model and not its inner modules or weights; gather before reading a weight "
        "(FSDP.summon_full_params, deepspeed.zero.GatheredParameters); materialize meta weights first",
    ),
    "mixed_weights": Signature(
        r"expected there to be only one unique element in",
        cause="ZeRO 3 gathers weights together that differ in dtype or device: usually quantized and other weights, "
        "or an fp32 adapter on a bf16 model",
        remedy="give all weights one dtype (dtype=torch.bfloat16 in from_pretrained); for a quantized model "
        "use ZeRO 2 or FSDP with "
        "bnb_4bit_quant_storage",
    ),
    "not_contiguous": Signature(
        r"RuntimeError: Tensors must be contiguous",
        r"view size is not compatible with input tensor's size and stride",
        r"FSDP does not support non-contiguous parameters|You are trying to save a non contiguous tensor",
        cause="the values of a tensor are not contiguous in memory, but this call requires it",
        remedy="call .contiguous() before it is communicated, sharded or saved; .reshape() instead of .view()",
    ),
    "fsdp_device": Signature(
        r"Inconsistent compute device and `device_id` on rank",
        cause="FSDP found the model on a different GPU than the one it was told to use",
        remedy="call torch.cuda.set_device(local_rank) first in the script, and build the model on that device",
    ),
    "lazy_module": Signature(
        r"Modules with uninitialized parameters can't be used with",
        cause="the model has lazy modules, whose weights do not exist before the first batch",
        remedy="run one batch through the model before it is wrapped; or give the layers their sizes",
    ),
    "scattered_scalar": Signature(
        r"chunk expects at least a 1-dimensional tensor",
        cause="DataParallel splits what the model is given among all GPUs that the script sees, and one of the values "
        "is a single number",
        remedy="start one rank for each GPU (torchrun, accelerate launch), which needs no splitting; or let the script "
        "see one GPU: CUDA_VISIBLE_DEVICES=0",
    ),
    "optimizer_before_fsdp": Signature(
        r"optimizer does not seem to reference any FSDP parameters",
        cause="the optimizer was made before FSDP wrapped the model: it holds weights that no longer exist",
        remedy="make the optimizer from the wrapped model's parameters; in Lightning, in configure_optimizers from "
        "self.trainer.model.parameters()",
    ),
    "peer_access": Signature(
        r"(?:CUDA error: |Cuda failure (?:\d+ )?'|CUDA IPC handle : \d+ )peer access is not supported between these",
        cause="two GPUs of this machine cannot read each other's memory",
        remedy="to go through host memory instead, run: NCCL_P2P_DISABLE=1 trainwiz launch",
    ),
    "varlen_lengths": Signature(
        r"cu_seqlens_[qk] must have shape",
        cause="the lengths given to flash-attn do not match the batch: the attention mask has another shape, or "
        "positions were mistaken for those of packed samples",
        remedy="compare the shapes of attention_mask and position_ids with input_ids; update transformers together "
        "with flash-attn; attn_implementation='sdpa' works without it",
    ),
    "quantized_merge": Signature(
        r"Cannot merge LORA layers when the model is (?:loaded in 8-bit mode|gptq quantized)",
        cause="an adapter is merged into quantized weights, which this version of peft does not support",
        remedy="load the model again without quantization (dtype=torch.bfloat16), put the adapter on it, then call "
        "merge_and_unload; or save the adapter alone",
    ),
}
