"""What the model generates, compared with the texts of the evaluation data: exact match, BLEU and ROUGE.

The model continues prompts greedily while it is evaluated. The prompt of each learned answer is everything before it.
For text without answers, the first half is the prompt. Which prompts share a batch depends on them alone, so the
metrics are the same for any number of ranks and any split of the real batch.
"""

from __future__ import annotations

import contextlib

# feature: compared_words
import re

# end: compared_words
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

# feature: bleu
import sacrebleu

# end: bleu
import torch
import torch.distributed as dist
import transformers

# feature: rouge
from rouge_score.rouge_scorer import RougeScorer

# end: rouge
from torch import Tensor

from batches import Agreement, Stopped

# feature: asked
from chat import Chat as Words

# end: asked
# feature: halved
from documents import Tokens as Words

# end: halved
PROMPTS = 8
"""Prompts of a batch. It does not depend on the micro-batch, since the sums of padded rows differ in the last bit."""
NOTHING = -1  # after the end of what was generated
IGNORED = -100  # a label that is given, but not learned
# feature: copied_weights
SHARDED = False
# end: copied_weights
# feature: partitioned_weights
SHARDED = True  # each rank needs the others for each token
# end: partitioned_weights
Prompt = tuple[list[int], list[int]]
"""The tokens that are given, and those that follow in the data."""


@torch.no_grad()
def metrics(config: Any, agreement: Agreement, model: Any, data: Any, device: torch.device) -> dict[str, float]:
    """Return the metrics of what the model generates for the first prompts of the evaluation data."""
    bare, world = getattr(model, "module", model), config.num_processes
    words = Words(config)
    room = getattr(bare.config.get_text_config(), "max_position_embeddings", None)
    asked, left_out = prompts(data, config.generated_answers, room and room - config.max_new_tokens)
    if not asked:
        raise SystemExit(
            f"evaluation by generation: no prompt leaves room for max_new_tokens {config.max_new_tokens}: "
            f"{left_out} are longer, and the model has {room} positions"
        )
    asked.sort(key=lambda prompt: len(prompt[0]))
    batches = [asked[i : i + PROMPTS] for i in range(0, len(asked), PROMPTS)]
    ends = ends_of(words.tokenizer, asked)
    written = []
    with generating(bare, ends, config, device) as generate:
        for first in range(0, len(batches), world):
            if agreement.reach(0)[1]:
                raise Stopped
            mine = batches[min(first + agreement.rank, len(batches) - 1)]  # the last one again, which is dropped
            written.append(generate([given for given, _ in mine]))
    texts = [
        (words.decode(until(row, ends)).strip(), words.decode(wanted).strip())
        for row, (_, wanted) in zip(in_order(written, len(asked)), asked, strict=True)
    ]
    found = {name: value for wanted in config.generation_metrics.split(",") for name, value in METRICS[wanted](texts)}
    return {**found, "eval_answers": float(len(texts)), "eval_answers_left_out": float(left_out)}


def prompts(data: Any, most: int, room: int | None) -> tuple[list[Prompt], int]:
    """Return the prompts of the rows in their order, `most` of them (0: all), and how many were too long."""
    found: list[Prompt] = []
    left_out = 0
    for index in range(len(data)):
        for prompt in prompts_of(*data[index]):
            fits = room is None or len(prompt[0]) <= room
            left_out += not fits
            found += [prompt] if fits else []
            if len(found) == most:
                return found, left_out
    return found, left_out


def prompts_of(inputs: Tensor, labels: Tensor, positions: Tensor) -> Iterator[Prompt]:
    """Yield the prompts of a row, whose documents begin where positions are 0."""
    starts = [*(positions == 0).nonzero().flatten().tolist(), len(positions)]
    for start, end in pairwise(starts):
        given, wanted = inputs[start:end].tolist(), labels[start:end].tolist()
        # feature: asked
        learned = [label != IGNORED for label in wanted]
        begins = [i for i, on in enumerate(learned) if on and not (i and learned[i - 1])]
        for i in begins:
            stop = learned.index(False, i) if False in learned[i:] else len(learned)
            yield given[: i + 1], wanted[i:stop]
        # end: asked
        # feature: halved
        half = len(given) // 2
        if half and IGNORED not in wanted:  # otherwise it is padding
            yield given[:half], wanted[half - 1 :]
        # end: halved


def ends_of(tokenizer: Any, asked: list[Prompt]) -> list[int]:
    """Return the tokens that end an answer: the tokenizer's, and special ones at the end of answers in the data.

    A template may learn a newline after the last of them.
    """
    special = {*tokenizer.all_special_ids, *(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)}
    said = {token for _, wanted in asked for token in wanted[-2:] if token in special}
    return sorted(said | {tokenizer.eos_token_id} - {None})


@contextlib.contextmanager
def generating(bare: Any, ends: list[int], config: Any, device: torch.device) -> Iterator[Callable[..., Tensor]]:
    """Restore the model's own forward pass, attention and settings while it generates.

    Kernels for packed documents need their bounds, and compiled layers would be compiled for each length.
    """
    text = bare.config.get_text_config()
    attention, settings, forward = text._attn_implementation, bare.generation_config, bare.__dict__.pop("forward")
    bare.generation_config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=config.max_new_tokens, eos_token_id=ends, pad_token_id=ends[0]
    )
    if attention in ("by_document", "each_document", "flex_attention"):
        text._attn_implementation = "sdpa"
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.mixed_precision)

    def generate(given: list[list[int]]) -> Tensor:
        longest = max(map(len, given))
        ids = torch.tensor([[ends[0]] * (longest - len(row)) + row for row in given], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in given], device=device)
        with torch.autocast(device.type, half, enabled=half is not None):
            found = bare.generate(ids, attention_mask=mask, synced_gpus=SHARDED and dist.is_initialized())
        rows = torch.full((PROMPTS, config.max_new_tokens), NOTHING, device=device)
        rows[: len(given), : found.shape[1] - longest] = found[:, longest:]
        return rows

    bare.eval()
    try:
        # feature: compile
        with torch.compiler.set_stance("force_eager"):
            yield generate
        # end: compile
        # feature: uncompiled
        yield generate
        # end: uncompiled
    finally:
        bare.forward, bare.generation_config, text._attn_implementation = forward, settings, attention
        bare.train()


def in_order(written: list[Tensor], prompts: int) -> list[list[int]]:
    """Return what all ranks generated, in the order of the prompts.

    The ranks take the batches in turn. The last batch may have fewer prompts, and ranks without a batch generate it
    again. What is left over comes last and is dropped.
    """
    mine = torch.stack(written)
    ranks = [mine]
    if dist.is_initialized():
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, mine)
    return torch.stack(ranks, dim=1).flatten(0, 2)[:prompts].tolist()


def until(row: list[int], ends: list[int]) -> list[int]:
    """Return what was generated before the first token that ends it."""
    return row[: next((i for i, token in enumerate(row) if token in (NOTHING, *ends)), len(row))]


Texts = list[tuple[str, str]]
"""What was generated, and what the data contains."""
# feature: compared_words
CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # kana and Chinese characters
# end: compared_words


# feature: exact_match
def exact_match(texts: Texts) -> Iterator[tuple[str, float]]:
    """Yield the share of answers that are the same, apart from surrounding spaces."""
    yield "eval_exact_match", sum(written == wanted for written, wanted in texts) / len(texts)


# end: exact_match
# feature: bleu
def bleu(texts: Texts) -> Iterator[tuple[str, float]]:
    """Yield corpus BLEU from 0 to 100, as sacrebleu computes it; Chinese is compared by its characters (`zh`)."""
    chinese = any(re.search(f"[{CJK}]", wanted) for _, wanted in texts)
    written, wanted = (list(column) for column in zip(*texts, strict=True))
    yield "eval_bleu", sacrebleu.corpus_bleu(written, [wanted], tokenize="zh" if chinese else "13a").score


# end: bleu
# feature: rouge
class Pieces:
    """Words in lower case, in any script; kana and Chinese characters one by one.

    The tokenizer of rouge-score drops all but a-z and 0-9; for English both are the same.
    """

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text."""
        return re.findall(rf"[{CJK}]|[^\W_{CJK}]+", text.lower())


def rouge(texts: Texts) -> Iterator[tuple[str, float]]:
    """Yield the mean F-measures from 0 to 1 of single pieces, pairs, and the longest common sequence."""
    names = {"rouge1": "eval_rouge_1", "rouge2": "eval_rouge_2", "rougeL": "eval_rouge_l"}
    scorer = RougeScorer(list(names), tokenizer=Pieces())
    scores = [scorer.score(wanted, written) for written, wanted in texts]
    for theirs, ours in names.items():
        yield ours, sum(score[theirs].fmeasure for score in scores) / len(scores)


# end: rouge
METRICS: dict[str, Callable[[Texts], Iterator[tuple[str, float]]]] = {
    # feature: exact_match
    "exact_match": exact_match,
    # end: exact_match
    # feature: bleu
    "bleu": bleu,
    # end: bleu
    # feature: rouge
    "rouge": rouge,
    # end: rouge
}
