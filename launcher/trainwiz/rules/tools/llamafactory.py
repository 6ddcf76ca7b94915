"""What LLaMA-Factory's own parser refuses."""

from __future__ import annotations

from itertools import combinations

from trainwiz.config.spelling import nearest
from trainwiz.config.tools import ToolFile
from trainwiz.config.tools.tool import as_number, switched_on
from trainwiz.finding import Fix, Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import clash, lacking

_ONLY_SFT = ("predict_with_generate", "neat_packing", "train_on_prompt", "mask_history")
_NOT_UNDER_ZERO_3 = ("predict_with_generate", "pissa_init", "pure_bf16", "use_unsloth", "use_kt")
_ONLY_LORA = ("loraplus_lr_ratio", "use_rslora", "use_dora", "pissa_init")
_PROJECTING = ("use_galore", "use_apollo", "use_badam")
_STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")
_QLORA = {"finetuning_type": "lora", "quantization_bit": 4}
_METHODS = ("lora", "oft", "freeze", "full")


def _trains(tool_file: ToolFile) -> bool:
    return switched_on(tool_file.get("do_train"))


def _method(tool_file: ToolFile) -> str:
    return str(tool_file.get("finetuning_type", "lora"))


@rule("TW841", level=Level.ERROR, field="stage")
def only_supervised_training_has_it(tool_file: ToolFile) -> Violations:
    """predict_with_generate, neat_packing, train_on_prompt and mask_history belong to stage: sft.

    Without it: LLaMA-Factory stops: `` `neat_packing` cannot be set as True except SFT ``.
    Why: the other stages build their samples differently.
    Instead: remove it, or set stage: sft.
    Source: read in LLaMA-Factory 0.9.6 (`get_train_args`)
    """
    if tool_file.get("stage", "sft") == "sft":
        return
    for key in _ONLY_SFT:
        if switched_on(tool_file.get(key)):
            yield clash(tool_file, key, "stage")


@rule("TW842", level=Level.ERROR, field="quantization_bit")
def eight_bits_cannot_be_sharded(tool_file: ToolFile) -> Violations:
    """Under ZeRO 3 and FSDP, bitsandbytes can only quantize to 4 bits.

    Without it: LLaMA-Factory stops: `Only 4-bit quantized model can use fsdp+qlora or auto device map`.
    Why: only 4-bit weights can be stored in a type that can be sharded.
    Instead: set quantization_bit: 4, or shard with ZeRO 2.
    Source: read in LLaMA-Factory 0.9.6 (`configure_quantization`)
    """
    bits, method = as_number(tool_file.get("quantization_bit")), tool_file.get("quantization_method", "bnb")
    sharding = "deepspeed" if tool_file.zero_stage == 3 else "fsdp" if tool_file.get("fsdp") else None
    if bits == 8 and str(method).lower() in ("bnb", "bitsandbytes") and sharding:
        yield clash(tool_file, "quantization_bit", sharding)


@rule("TW843", level=Level.ERROR, field="deepspeed")
def what_zero_3_excludes(tool_file: ToolFile) -> Violations:
    """ZeRO 3 excludes predict_with_generate, pissa_init, pure_bf16, use_unsloth and use_kt.

    Without it: LLaMA-Factory stops: `` `pure_bf16` is incompatible with DeepSpeed ZeRO-3 ``.
    Why: they need whole weights on each GPU, or change weights that ZeRO 3 has split.
    Instead: shard with ZeRO 2, or remove the other key.
    Source: read in LLaMA-Factory 0.9.6 (`get_train_args`)
    """
    for key in _NOT_UNDER_ZERO_3 if tool_file.zero_stage == 3 else ():
        if switched_on(tool_file.get(key)):
            yield clash(tool_file, key, "deepspeed")


@rule("TW844", level=Level.ERROR, field="val_size")
def one_source_of_evaluation_data(tool_file: ToolFile) -> Violations:
    """Evaluation data comes from val_size or eval_dataset, not both; for a stream, val_size is a number of samples.

    Without it: LLaMA-Factory stops: `Cannot specify val_size if eval_dataset is not None`, `Streaming mode should have
    an integer val size`, or `max_samples is incompatible with streaming`.
    Why: both set the evaluation data, and a stream has no length to take a share of.
    Instead: keep one; for streams set val_size to a number of samples and remove max_samples.
    Source: read in LLaMA-Factory 0.9.6 (`DataArguments.__post_init__`)
    """
    share, streams = as_number(tool_file.get("val_size")) or 0, switched_on(tool_file.get("streaming"))
    if share > 1e-6 and tool_file.get("eval_dataset") is not None:
        yield clash(tool_file, "val_size", "eval_dataset")
    if streams and 1e-6 < share < 1:
        yield clash(tool_file, "val_size", "streaming")
    if streams and tool_file.get("max_samples") is not None:
        yield clash(tool_file, "max_samples", "streaming")


@rule("TW845", level=Level.ERROR, field="do_predict")
def predictions_are_generated(tool_file: ToolFile) -> Violations:
    """do_predict under stage: sft needs predict_with_generate.

    Without it: LLaMA-Factory stops: `Please enable predict_with_generate to save model predictions`.
    Why: without it, there are no texts to save.
    Instead: set predict_with_generate: true.
    Source: read in LLaMA-Factory 0.9.6 (`get_train_args`)
    """
    generates = switched_on(tool_file.get("predict_with_generate"))
    if tool_file.get("stage", "sft") == "sft" and switched_on(tool_file.get("do_predict")) and not generates:
        yield lacking(tool_file, "do_predict", "predict_with_generate: true")


@rule("TW846", level=Level.ERROR, field="stage")
def what_ppo_and_rewards_need(tool_file: ToolFile) -> Violations:
    """PPO needs a reward_model; PPO and reward models cannot load the best checkpoint at the end.

    Without it: LLaMA-Factory stops: `` `reward_model` is necessary for PPO training ``, or `RM and PPO stages do not
    support load_best_model_at_end`.
    Why: PPO learns only from the rewards, and both save additional parts besides the model.
    Instead: set reward_model; remove load_best_model_at_end.
    Source: read in LLaMA-Factory 0.9.6 (`FinetuningArguments.__post_init__`, `get_train_args`)
    """
    stage = tool_file.get("stage", "sft")
    if stage == "ppo" and tool_file.get("reward_model") is None:
        yield lacking(tool_file, "stage", "reward_model")
    if stage in ("rm", "ppo") and switched_on(tool_file.get("load_best_model_at_end")):
        yield clash(tool_file, "load_best_model_at_end", "stage")


@rule("TW847", level=Level.ERROR, field="finetuning_type")
def what_only_lora_has(tool_file: ToolFile) -> Violations:
    """loraplus_lr_ratio, use_rslora, use_dora, pissa_init and adapters need finetuning_type: lora.

    Without it: LLaMA-Factory stops: `` `use_dora` is only valid for LoRA training ``, or `Adapter is only valid for the
    LoRA method`.
    Why: they change how LoRA's matrices are created.
    Instead: set finetuning_type: lora, or remove them.
    Source: read in LLaMA-Factory 0.9.6 (`FinetuningArguments.__post_init__`, `_verify_model_args`)
    """
    method = _method(tool_file)
    wrong = [key for key in _ONLY_LORA if tool_file.get(key) not in (None, False)] if method != "lora" else []
    if method in _METHODS and method != "lora" and tool_file.get("adapter_name_or_path") is not None:
        wrong.append("adapter_name_or_path")
    for key in wrong if tool_file.has("finetuning_type") and method != "oft" else ():
        yield clash(tool_file, key, "finetuning_type")


@rule("TW848", level=Level.ERROR, field="use_galore")
def projected_gradients(tool_file: ToolFile) -> Violations:
    """GaLore, APOLLO and BAdam exclude each other and LoRA; GaLore and APOLLO exclude DeepSpeed.

    Without it: LLaMA-Factory stops: `Cannot use LoRA with GaLore, APOLLO or BAdam together`, or `GaLore and APOLLO are
    incompatible with DeepSpeed yet`.
    Why: each replaces the optimizer of the whole matrices, which LoRA does not train and DeepSpeed controls.
    Instead: set finetuning_type: full, and do not use DeepSpeed.
    Source: read in LLaMA-Factory 0.9.6 (`FinetuningArguments.__post_init__`, `get_train_args`)
    """
    on = [key for key in _PROJECTING if switched_on(tool_file.get(key))]
    for one, other in list(combinations(on, 2))[:1]:
        yield clash(tool_file, other, one)
    for key in on[:1]:
        if _method(tool_file) == "lora":
            yield lacking(tool_file, key, "finetuning_type: full")
        if key != "use_badam" and tool_file.get("deepspeed"):
            yield clash(tool_file, key, "deepspeed")


@rule("TW849", level=Level.ERROR, field="finetuning_type")
def words_of_the_method(tool_file: ToolFile) -> Violations:
    """stage and finetuning_type must be values that LLaMA-Factory knows.

    Without it: LLaMA-Factory stops: `Invalid fine-tuning method`, or trains nothing: `Unknown task`.
    Why: QLoRA is finetuning_type: lora with quantization_bit: 4.
    Instead: stage is pt, sft, rm, ppo, dpo or kto; finetuning_type is lora, oft, freeze or full.
    Source: read in LLaMA-Factory 0.9.6 (`FinetuningArguments`, `run_exp`)
    """
    for key, words in (("stage", _STAGES), ("finetuning_type", _METHODS)):
        value = tool_file.get(key)
        if isinstance(value, str) and value not in words:
            yield violation(
                "{key} is {value}; it must be one of {choices}",
                remedy("set finetuning_type: lora and quantization_bit: 4", _QLORA)
                if value == "qlora"
                else _near(key, value, words),
                where=key,
                key=key,
                value=value,
                choices=", ".join(words),
            )


def _near(key: str, value: str, words: tuple[str, ...]) -> Fix | None:
    near = nearest(value, words)
    return remedy("did you mean {key}?", {key: near}, key=near) if near else None


@rule("TW850", level=Level.ERROR, field="dataset")
def training_has_data(tool_file: ToolFile) -> Violations:
    """do_train needs a dataset; interleave_probs needs an interleaved mix and one number for each dataset.

    Without it: LLaMA-Factory stops: `Please specify dataset for training`, `interleave_probs is only valid for
    interleaved mixing`, or `The length of dataset and interleave probs should be identical`.
    Why: the names of datasets are looked up in dataset_info.json.
    Instead: set dataset; set mix_strategy: interleave_under.
    Source: read in LLaMA-Factory 0.9.6 (`get_train_args`, `DataArguments.__post_init__`)
    """
    if _trains(tool_file) and tool_file.get("dataset") is None:
        yield lacking(tool_file, "do_train", "dataset")
    shares, names = tool_file.get("interleave_probs"), tool_file.get("dataset")
    if shares is None:
        return
    if tool_file.get("mix_strategy", "concat") == "concat":
        yield lacking(tool_file, "interleave_probs", "mix_strategy: interleave_under")
    elif isinstance(shares, str) and isinstance(names, str) and shares.count(",") != names.count(","):
        yield violation(
            "{n} interleave_probs for {sets} datasets; {name} stops",
            remedy("give one number for each dataset"),
            where="interleave_probs",
            n=shares.count(",") + 1,
            sets=names.count(",") + 1,
            name=tool_file.name,
        )


@rule("TW851", level=Level.ERROR, field="pref_loss")
def smoothing_and_blocks(tool_file: ToolFile) -> Violations:
    """dpo_label_smoothing needs pref_loss: sigmoid; use_llama_pro excludes full training, and fp8 quantization.

    Without it: LLaMA-Factory stops: `` `dpo_label_smoothing` is only valid for sigmoid loss function ``,
    `` `use_llama_pro` is only valid for Freeze or LoRA training ``, or `FP8 training is not compatible with
    quantization`.
    Why: the other setting has no such term, has no such blocks, or already uses another type.
    Instead: remove one of the two.
    Source: read in LLaMA-Factory 0.9.6 (`FinetuningArguments.__post_init__`, `get_train_args`)
    """
    smoothing = as_number(tool_file.get("dpo_label_smoothing")) or 0
    if tool_file.get("stage") == "dpo" and tool_file.get("pref_loss", "sigmoid") != "sigmoid" and smoothing > 1e-6:
        yield clash(tool_file, "dpo_label_smoothing", "pref_loss")
    if switched_on(tool_file.get("use_llama_pro")) and _method(tool_file) == "full":
        yield clash(tool_file, "use_llama_pro", "finetuning_type")
    if switched_on(tool_file.get("fp8")) and tool_file.get("quantization_bit") is not None:
        yield clash(tool_file, "fp8", "quantization_bit")


@rule("TW852", level=Level.ERROR, field="do_eval")
def evaluations_of_llamafactory_have_data(tool_file: ToolFile) -> Violations:
    """do_eval, do_predict and predict_with_generate need eval_dataset or val_size.

    Without it: LLaMA-Factory stops: `Please make sure eval_dataset be provided or val_size >1e-6`.
    Why: training data is not used for evaluation.
    Instead: set eval_dataset, or val_size: 0.1.
    Source: read in LLaMA-Factory 0.9.6 (`get_train_args`)
    """
    asked = next((k for k in ("do_eval", "do_predict", "predict_with_generate") if switched_on(tool_file.get(k))), None)
    if asked and not tool_file.tool.evaluation_data(tool_file.document):
        yield lacking(tool_file, asked, "eval_dataset")
