"""The task: a chat model, trained on preferences. This file holds data, model and loss; the loop is in train.py.

A sample is two answers to one prompt, or one answer with a judgement. The loop divides the summed loss by the samples
of the whole real batch, over all micro-batches and ranks, so the gradient is that of one big batch for any split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# feature: torch_functions
import torch

# end: torch_functions
import transformers
from torch import Tensor, nn

# feature: lora
import adapter

# end: lora
import chat

# feature: own_template
import chat_template

# end: own_template
# feature: whole_model
import model_folder

# end: whole_model
# feature: whole_model
# feature: new_tokens
import new_tokens

# end: new_tokens
# end: whole_model
import pairs
import rows

# feature: loaded_weights
# feature: built_once
import sharding

# end: built_once
# end: loaded_weights
# feature: weighted
from mixture import mixture_of

# end: weighted
# feature: eval
from sources import is_part

# end: eval
# feature: eval
from token_cache import tell_repeated

# end: eval
from token_cache import Tokens, tokens_of

transformers.utils.logging.disable_progress_bar()  # the loop shows its own

Batch = pairs.Batch
SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the model from transformers names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"  # sources, as sources.py reads them
    # feature: eval
    eval_data: str = "embedded"  # the same, or a part of the training data: 5%, 200
    # end: eval
    # feature: weighted
    source_weights: str = "1,1"  # each source's share of an epoch, in the order of the sources
    weigh_by: str = "tokens"  # or samples
    # end: weighted
    # feature: own_columns
    columns: str = "prompt=question,completion=answer"  # what columns with other names are read as
    # end: own_columns
    max_rows: int = 0  # rows that are read of each source; 0: all
    min_tokens: int = 0  # samples whose longest answer with its prompt is shorter are left out
    max_tokens: int = 0  # longer ones are left out, too; 0: none
    beta: float = 0.1  # how strongly the loss keeps the model near its reference, or scales rewards
    # feature: simpo
    gamma: float = 0.5  # by how much the chosen answer's reward should be the higher one
    # end: simpo
    # feature: kto
    desirable_weight: float = 1.0  # of good answers in the loss
    undesirable_weight: float = 1.0
    # end: kto
    sequence_length: int = 256
    loss_chunk: int = 1024  # tokens whose logits are in memory at once
    # feature: chosen_attention
    attention: str = "sdpa"  # or eager, flash_attention_2, flex_attention
    # end: chosen_attention
    # feature: own_template
    chat_template: str = "chatml"  # or a file with a template in Jinja
    # end: own_template
    output_dtype: str = "source"  # dtype of the saved model: as it was loaded, or float32, bfloat16, float16
    cache_dir: str = ".cache"  # the tokenized data; can be shared, and deleted
    # feature: named_model
    model_name: str = "openai-community/gpt2"
    # end: named_model
    # feature: tokenizer
    tokenizer_name: str = "openai-community/gpt2"
    # end: tokenizer
    # feature: new_tokens
    special_tokens: str = "<|im_start|>,eos_token=<|im_end|>"  # added to the tokenizer if it lacks them
    added_tokens: str = ""  # other tokens: <tool_call>,</tool_call>
    # end: new_tokens
    # feature: lora
    frozen_dtype: str = "float32"  # dtype of the weights that are not trained
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str = "all-linear"  # or module names: q_proj,v_proj
    lora_dropout: float = 0.0  # of the adapter's inputs
    lora_rslora: bool = False  # scale by alpha / sqrt(rank)
    lora_dora: bool = False  # also learn the length of each row of a matrix
    modules_to_save: str = ""  # modules that are trained in full: embed_tokens,lm_head
    # end: lora
    # feature: preset_model
    model_type: str = "llama"
    vocab_size: int = 257
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    intermediate_size: int = 352
    max_position_embeddings: int = 1024
    # end: preset_model


def tokens(config: TaskConfig, source: str, split: str) -> Tokens:
    """Return the tokens of the data, from files that the first rank of each machine writes once."""
    # feature: weighted
    if split == "train":
        return mixture_of(config, pairs.recipe)
    # end: weighted
    return tokens_of(config.cache_dir, pairs.recipe(config, source, split))


def load_pairs(config: TaskConfig, source: str, split: str, evaluation: bool = False) -> pairs.Answers:
    """Return the preferences as samples."""
    return pairs.Answers(config, tokens(config, source, split), evaluation)


def load_train_data(config: TaskConfig) -> pairs.Answers:
    """Return the training data."""
    return load_pairs(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> pairs.Answers:
    """Return the evaluation data, or the part of the training data that is kept for it."""
    if is_part(config.eval_data):
        return load_pairs(config, config.train_data, "train", evaluation=True)
    tell_repeated(tokens(config, config.train_data, "train"), tokens(config, config.eval_data, "validation"))
    return load_pairs(config, config.eval_data, "validation")


# end: eval
collate = pairs.collate  # makes a micro-batch and its count from samples


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the pretrained model in fp32. The engine moves, casts and shards it."""
    # feature: built_by_all
    load = transformers.AutoModelForCausalLM.from_pretrained
    # end: built_by_all
    # feature: built_once
    load = sharding.Loader(transformers.AutoModelForCausalLM).from_pretrained
    # end: built_once
    model = load(
        config.model_name,
        **rows.FP32,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    # feature: new_tokens
    new_tokens.fit(model, config)
    # end: new_tokens
    return rows.with_log_probs(model, config.loss_chunk)


# end: pretrained_model
# feature: lora
def build_model(config: TaskConfig) -> nn.Module:
    """Return the frozen pretrained model with an adapter to train. The engine moves and shards it."""
    model = adapter.build(
        # feature: built_by_all
        transformers.AutoModelForCausalLM,
        # end: built_by_all
        # feature: built_once
        sharding.Loader(transformers.AutoModelForCausalLM),
        # end: built_once
        config,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    return rows.with_log_probs(model, config.loss_chunk)


# end: lora
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the named model with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name)
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    return rows.with_log_probs(model, config.loss_chunk)


# end: config_model
# feature: preset_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return a model of the configured shape with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.for_model(
        config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        bos_token_id=None,
        # feature: bytes
        eos_token_id=chat.Chat.END,
        # end: bytes
    )
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    shape.update(dict.fromkeys(rows.DROPOUTS & vars(shape).keys(), 0.0))
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    return rows.with_log_probs(model, config.loss_chunk)


# end: preset_model
def log_probs_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each label, 0 for those that do not count. Shape: (rows, longest)."""
    return model(inputs=inputs, labels=labels).view_as(labels)


# feature: two_answers
def two(values: Tensor) -> Tensor:
    """Return what belongs to chosen and rejected answers side by side. Shape: (samples, 2)."""
    return values.view(2, -1).T


# end: two_answers
# feature: reference
# feature: two_answers
def answer_log_probs(model: nn.Module, batch: Batch) -> Tensor:
    """Return the log-probabilities of chosen and rejected answers. Shape: (samples, 2)."""
    return two(log_probs_of(model, batch["inputs"], batch["labels"]).sum(1))


# end: two_answers
# feature: kto
def answer_log_probs(model: nn.Module, batch: Batch) -> Tensor:
    """Return the log-probabilities of the answers, and of answers to other prompts. Shape: (samples, 2)."""
    own, other = (log_probs_of(model, batch[f"{of}inputs"], batch[f"{of}labels"]).sum(1) for of in ("", "other_"))
    return torch.stack((own, other), dim=1)


# end: kto
# end: reference
# feature: dpo
def losses_and_rewards(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, and the rewards of its answers (https://arxiv.org/abs/2305.18290, equation 7)."""
    rewards = batch["beta"][:, None] * (answer_log_probs(model, batch) - batch["references"])
    return -nn.functional.logsigmoid(rewards[:, 0] - rewards[:, 1]), rewards


# end: dpo
# feature: ipo
def losses_and_rewards(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, and the rewards of its answers (https://arxiv.org/abs/2310.12036, equation 17).

    Log-probabilities are means over an answer's tokens, as the paper's authors computed them.
    """
    ratios = answer_log_probs(model, batch) - batch["references"]
    means = ratios / two(batch["learned"].sum(1))
    return (means[:, 0] - means[:, 1] - 1 / (2 * batch["beta"])) ** 2, batch["beta"][:, None] * ratios


# end: ipo
# feature: simpo
def losses_and_rewards(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, and the rewards of its answers (https://arxiv.org/abs/2405.14734, equation 6)."""
    sums = two(log_probs_of(model, batch["inputs"], batch["labels"]).sum(1))
    rewards = batch["beta"][:, None] * sums / two(batch["learned"].sum(1))
    return -nn.functional.logsigmoid(rewards[:, 0] - rewards[:, 1] - batch["gamma"]), rewards


# end: simpo
# feature: orpo
def losses_and_rewards(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, and the rewards of its answers (https://arxiv.org/abs/2403.07691, equation 6).

    The first part is the mean over all tokens of the real batch's chosen answers and their prompts: `mean` is how many
    they are per sample. The second one is a mean over samples, of which each answer's log-probability is one of tokens.
    """
    every = log_probs_of(model, batch["inputs"], batch["labels"])
    means = two((every * batch["learned"]).sum(1) / batch["learned"].sum(1))
    odds = means - torch.log(-torch.expm1(means))  # log(p / (1 - p))
    of_tokens = -every[: len(means)].sum(1) / batch["mean"]
    of_odds = -batch["beta"] * nn.functional.logsigmoid(odds[:, 0] - odds[:, 1])
    return of_tokens + of_odds, batch["beta"][:, None] * means


def real_batch_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return the tokens of the chosen answers and their prompts, and the samples, of which batches.py makes `mean`."""
    tokens = (batch["labels"][: len(batch["counted"])] != rows.IGNORED).sum(1)
    return torch.stack(((tokens * batch["counted"]).sum(), batch["counted"].sum()))


# end: orpo
# feature: kto
def losses_and_rewards(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, and the reward of its answer (https://arxiv.org/abs/2402.01306, equation 8).

    What the paper calls z is `mean`: how far the model is from its reference, on answers to other prompts.
    """
    ratios = log_probs_of(model, batch["inputs"], batch["labels"]).sum(1) - batch["references"][:, 0]
    gains = batch["sign"] * (ratios - batch["mean"].clamp(min=0))
    return batch["weight"] * (1 - torch.sigmoid(batch["beta"] * gains)), batch["beta"] * ratios


def real_batch_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return the summed log-ratios of answers to other prompts, and their number, of which batches.py makes `mean`."""
    others = log_probs_of(model, batch["other_inputs"], batch["other_labels"]).sum(1) - batch["references"][:, 1]
    return torch.stack(((others * batch["counted"]).sum(), batch["counted"].sum()))


# end: kto
def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss **summed** over the samples that count, a scalar in fp32. The loop divides it."""
    return (losses_and_rewards(model, batch)[0] * batch["counted"]).sum()


# feature: eval
# feature: two_answers
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: loss, samples, those whose chosen answer has the higher reward, and both rewards."""
    return pairs.comparison_sums(*losses_and_rewards(model, batch), batch["counted"])


evaluation_metrics = pairs.comparison_metrics  # of the whole evaluation set, from the sums over it


# end: two_answers
# feature: kto
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: the loss, and of good and of bad answers their number and their rewards."""
    losses, rewards = losses_and_rewards(model, batch)
    good, bad = batch["sign"] > 0, batch["sign"] < 0
    return (torch.stack((losses, good, rewards * good, bad, rewards * bad)) * batch["counted"]).sum(1)


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return the metrics of the whole evaluation set, from the sums over it. Rewards of no answers are left out."""
    loss, good, reward_good, bad, reward_bad = sums
    found = {"eval_loss": loss / (good + bad)}
    if good:
        found["eval_reward_chosen"] = reward_good / good
    if bad:
        found["eval_reward_rejected"] = reward_bad / bad
    if good and bad:
        found["eval_margin"] = reward_good / good - reward_bad / bad
    return found


# end: kto
# end: eval
# feature: whole_model
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with all that `pipeline` and `from_pretrained` load."""
    talker = chat.Chat(config)
    # feature: own_template
    chat_template.stop_after_answers(talker.tokenizer, model)
    # end: own_template
    model_folder.save(model, weights, folder, config.output_dtype, talker.tokenizer)


# end: whole_model
# feature: lora
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the adapter for peft's `AutoPeftModelForCausalLM.from_pretrained`, which also loads its base model."""
    talker = chat.Chat(config)
    # feature: own_template
    chat_template.stop_after_answers(talker.tokenizer, model)
    # end: own_template
    adapter.save(model, weights, folder, config.output_dtype, talker.tokenizer)


# end: lora
# feature: final_weights
def sample(config: TaskConfig, folder: Path, question: str = "", length: int = 200) -> str:
    """Return an answer of the trained model, loaded from where `save_model` saved it, to a question of its data."""
    question = question or chat.first_question(config)
    talker = chat.Chat(config)
    # feature: whole_model
    answer = rows.write_on(folder, talker.prompt(question), length)
    # end: whole_model
    # feature: lora
    answer = rows.write_on(folder, talker.prompt(question), length, config.model_name)
    # end: lora
    return rows.TOO_LARGE if answer is None else f"{question}\n{talker.decode(answer)}"


# end: final_weights
