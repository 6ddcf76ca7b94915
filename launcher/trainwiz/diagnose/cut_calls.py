"""What a traceback that ends before its exception was doing, from its calls, and what usually goes wrong there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainwiz.diagnose.log_text import Frame
from trainwiz.diagnose.subject import Subject
from trainwiz.message import Message

# Specific before general: of the innermost call that any of them knows, the first is taken.
CALLS = (
    Subject(
        r"\b(?:_?save_(?:checkpoint|pretrained|model|state|file|to_disk|weights)|safe_save_file|write_record|"
        r"serialize_file|_flatten)\b|\btorch\.save\(|\bdcp\.(?:async_)?save\(",
        Message("saving a checkpoint"),
        Message(
            "usual causes are a full disk or quota (df -h), a folder that cannot be written, tensors that share memory "
            "(safetensors), and ranks that do not all take part (FSDP, ZeRO 3)"
        ),
    ),
    Subject(
        r"\b(?:load_(?:state(?:_dict)?|checkpoint|from_(?:json|checkpoint)|weights|file)|_load_from_checkpoint|"
        r"restore_from|resume_and_prepare|create_(?:default_)?local_(?:load_)?plan)\b|\btorch\.load\(|\bdcp\.load\(|"
        r"resume_from_checkpoint",
        Message("loading a checkpoint"),
        Message(
            "usual causes are a file that the folder lacks (trainer_state.json, the optimizer's state), names or "
            "shapes "
            "that differ from the model's, another number of ranks, and since torch 2.6 weights_only=True"
        ),
    ),
    Subject(
        r"\b(?:from_pretrained|snapshot_download|hf_hub_download|cached_files?|_get_config_dict|get_tokenizer|"
        r"load_model\w*|load_tokenizer\w*|load_target_model|load_flow_model)\b",
        Message("loading a model or a tokenizer"),
        Message(
            "usual causes are a wrong name or folder, files that are missing from it, no access to the hub, a "
            "transformers that is too old for the model, and too little memory"
        ),
    ),
    Subject(
        r"\b(?:fully_shard|FSDPParamGroup|FullyShardedDataParallel|prepare_model|_prepare_(?:one|fsdp|deepspeed)|"
        r"_wrap_model|DeepSpeedEngine|_configure_\w*optimizer)\b|\bdeepspeed\.initialize\(|accelerator\.prepare\(",
        Message("wrapping the model for several ranks"),
        Message(
            "usual causes are weights of different dtypes or devices, a layer class that the model does not have, "
            "batch "
            "sizes that contradict each other, an optimizer that does not fit, and too little memory"
        ),
    ),
    Subject(
        r"\b(?:init_process_group|_?env_rendezvous_handler|\w*[Rr]endezvous\w*|TCPStore|_create_\w*store|"
        r"init_distributed|_initialize_workers|_assign_worker_ranks)\b",
        Message("how the machines find each other"),
        Message(
            "usual causes are a wrong MASTER_ADDR or a port in use, a firewall, machines with different numbers of "
            "nodes "
            "or the same rank, and more ranks than GPUs"
        ),
    ),
    Subject(
        r"\b(?:_verify_\w*across_\w+|_sync_module_states|_?broadcast\w*|all_?reduce\w*|_?all_?gather\w*|barrier|"
        r"torch_distributed_zero_first|reduce_scatter\w*|new_group)\b|\bDistributedDataParallel\(|\bDDP\(",
        Message("communication between the ranks"),
        Message(
            "usual causes are another rank that failed before, GPUs or machines that cannot reach each other "
            "(NCCL_DEBUG=INFO shows how), two ranks on one GPU, and ranks that take different branches"
        ),
    ),
    Subject(
        r"^<module>\b.*:(?: *)(?:from \S+ import|import )|_find_and_load|_get_module\b|import_module|_LazyModule",
        Message("an import"),
        Message(
            "usual causes are a package that is missing or of another version, one with a compiled part for another "
            "torch, "
            "and a file of yours with the name of a package"
        ),
    ),
    Subject(
        r"\b(?:parse_args\w*|_?parse_known_args|add_arguments\w*|HfArgumentParser|validate_config|load_cfg|"
        r"get_train_args|"
        r"_add_subcommands|yaml|omegaconf|hydra_runner|get_config)\b",
        Message("reading the arguments or the configuration"),
        Message(
            "usual causes are a misspelled or an old key, a value of another type, a file that is missing, and a "
            "configuration that was written for another version"
        ),
    ),
    Subject(
        r"\b(?:load_dataset|load_from_disk|_generate_tables|_prepare_split\w*|encode_func|_?encode\w*|tokenize\w*|"
        r"__getitem__|\w*[Cc]ollat\w*|_next_data|_process_data|_try_get_(?:data|batch)|write_batch|get_dataset\w*)\b|"
        r"\.map\(",
        Message("the data or its batches"),
        Message(
            "usual causes are a file or a column that is missing, an empty or a broken sample, samples of different "
            "length, and a template that does not fit the conversations"
        ),
    ),
    Subject(
        r"\.backward\(|\brun_backward\b|_engine_run_backward",
        Message("the backward pass"),
        Message(
            "usual causes are too little GPU memory, weights that are all frozen, a tensor that was changed in place, "
            "and "
            "a layer that not every rank ran"
        ),
    ),
    Subject(
        r"\b(?:optimizer|scaler|lr_scheduler)\.step\(|\bclip_grad_norm_?\b",
        Message("the update of the weights"),
        Message(
            "usual causes are too little memory for the optimizer's state, gradients that are NaN or missing, and "
            "weights "
            "that were replaced after the optimizer was made"
        ),
    ),
    Subject(
        r"\bwandb\.\w+\(|init_trackers|swanlab|mlflow|SummaryWriter",
        Message("a tracker of experiments"),
        Message(
            "usual causes are a login or a network that is missing: turn the tracker off (WANDB_MODE=offline) to test"
        ),
    ),
    Subject(
        r"\b(?:LLM\(|from_engine_args|generate_sequences|greedy_search)\b|\.generate\(|/vllm/",
        Message("generating text"),
        Message(
            "usual causes are too little GPU memory beside the training, a model that vLLM does not know, and weights "
            "that "
            "are still sharded (ZeRO 3, FSDP)"
        ),
    ),
    Subject(
        r"\b(?:convert|_apply|_lazy_init|set_device)\b.*:|\.cuda\(|\.to\(",
        Message("placement of tensors or ranks"),
        Message(
            "usual causes are too little GPU memory, a GPU that this rank does not have, weights on the meta device, "
            "and a "
            "driver that does not fit torch"
        ),
    ),
    Subject(
        r"\b(?:start_processes|_?Popen|check_call|spawn|process\.start)\b",
        Message("starting processes"),
        Message(
            "usual causes are objects that cannot be pickled, code outside of `if __name__ == '__main__':`, and a "
            "limit of "
            "processes or memory"
        ),
    ),
    Subject(
        r"\b(?:forward|_?(?:wrapped_)?call_impl|training_step|compute_loss|cross_entropy)\b",
        Message("the forward pass"),
        Message(
            "usual causes are tensors of different shapes, dtypes or devices, too little GPU memory, and a model whose "
            "code is for another version of transformers"
        ),
    ),
)


def of(calls: Sequence[Frame]) -> Subject | None:
    """What the innermost call was about that says so."""
    for call in reversed(calls):
        told = f"{call.function} {call.place}: {call.source}"
        if found := next((subject for subject in CALLS if re.search(subject.words, told)), None):
            return found
    return None
