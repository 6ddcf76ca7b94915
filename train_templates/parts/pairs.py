"""Preferences as samples: the tokens of their answers, and micro-batches of them.

On disk each preference is two documents, the chosen answer after its prompt, and the rejected one; one of them is empty
if a row has a single answer. Tokens that are given and not learned are stored as their complement.
"""

from __future__ import annotations

# feature: judges
from contextlib import suppress

# end: judges
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

import chat
import conversations
import preferences
from encoders import Notes, merge

# feature: weighted
from mixture import Mixture

# end: weighted
from preferences import Preference, preference_of

# feature: weighted
from source_weights import Part, times

# end: weighted
# feature: eval
from sources import held_out, is_part

# end: eval
from sources import Row

# feature: prompts
from sources import hash_of

# end: prompts
from token_cache import Recipe, Tokens, tell

Batch = dict[str, Tensor]
Ids = np.ndarray[Any, Any]
# feature: writes
IGNORED = -100  # a label that does not count; the default of cross_entropy
# end: writes
# feature: two_answers
SINGLE = False
# end: two_answers
# feature: kto
SINGLE = True  # a row may have one answer only
# end: kto


def recipe(config: Any, source: str, split: str) -> Recipe:
    """Return how the preferences of a source become tokens."""
    # feature: own_data
    return chat.recipe_of(config, source, split, encode=encoded)
    # end: own_data
    # feature: embedded_data
    return chat.recipe_of(config, source, split, embedded=preferences.embedded_preferences, encode=encoded)
    # end: embedded_data


def encoded(talker: chat.Chat, rows: list[Row]) -> tuple[list[list[int]], Notes]:
    """Return the documents of preferences, two of each, and notes on them."""
    documents: list[list[int]] = []
    notes: Notes = {}
    for row in rows:
        # feature: plain_columns
        found = row[1] if isinstance(row[1], Preference) else conversations.read(row, preference_of)
        # end: plain_columns
        # feature: own_columns
        columns = talker.columns
        found = row[1] if isinstance(row[1], Preference) else conversations.read(row, preference_of, columns)
        # end: own_columns
        if not SINGLE and len(found.answers) == 1:
            raise SystemExit(
                f"{found.place}: this conversation cannot be used: it has one answer with a label, and this loss "
                "compares two; set preference.loss kto (task preference)"
            )
        told = preferences.notes_on(found)
        for talk in (found.chosen, found.rejected):
            if talk is None:
                documents.append([])
                continue
            talk.place, talk.empty = found.place, 0
            told += [*conversations.notes_on(talk, talker.reads), *talker.formatted(talk)]
            samples = chat.samples_of(talker, talk)
            if len(samples) != 1:
                raise SystemExit(
                    f"{found.place}: this conversation cannot be used with the chat template: it renders an answer "
                    "that chosen and rejected share differently in later turns; keep one of them"
                )
            documents += samples
        merge(notes, dict.fromkeys(told, (1, found.place)))
    return documents, notes


class Answers(Dataset[Any]):
    """Samples of the data, and the log-probabilities that the model gave them before the training."""

    sizes: Tensor
    """Tokens of each sample's longest answer, by which the loop groups them within a real batch."""
    # feature: reference
    references: Tensor
    """For each sample, two log-probabilities in fp32, which references.py fills in: NaN until then."""
    # feature: weighted
    equal_to: Tensor
    """For each sample, the first one that is identical: a source may be seen several times in an epoch."""
    # end: weighted
    # end: reference

    def __init__(self, config: Any, tokens: Tokens, evaluation: bool = False) -> None:
        self.config, self.tokens = config, tokens
        # feature: writes
        self.length = config.sequence_length  # predictions
        # end: writes
        # feature: judges
        self.length = config.sequence_length - 1  # tokens behind the first one
        # end: judges
        table = np.concatenate(list(tokens.documents()))
        sizes = table["size"].astype(np.int64)
        self.bounds = np.stack((sizes.cumsum() - sizes, sizes.cumsum()), axis=1).reshape(-1, 2, 2)
        self.first = table["first"].astype(np.int64).reshape(-1, 2)
        kept = self.kept(evaluation)
        # feature: weighted
        if isinstance(tokens, Mixture) and not evaluation:
            kept = kept.repeat(self.times(kept, tokens, np.bitwise_xor(*table["hash"].reshape(-1, 2).T)))
        # end: weighted
        longest = np.minimum(sizes.reshape(-1, 2), self.length + 1)
        # feature: two_answers
        self.chosen = [(row, 0) for row in kept.tolist()]
        self.sizes = torch.from_numpy(longest[kept].max(1))
        # end: two_answers
        # feature: kto
        self.chosen = [(row, side) for side in (0, 1) for row in kept.tolist() if longest[row, side]]
        self.sizes = torch.tensor([longest[place] for place in self.chosen])
        prompts = {row: hash_of(self.prompt(row).tobytes()) for row in kept.tolist()}
        # For each sample, the one before it, or before those that have the same prompt.
        self.mates: list[int] = []
        for i, (row, _) in enumerate(self.chosen):
            same = i > 0 and prompts[row] == prompts[self.chosen[i - 1][0]]
            self.mates.append(self.mates[-1] if same else i - 1)
        # end: kto
        # feature: reference
        # feature: weighted
        first: dict[tuple[int, int], int] = {}
        self.equal_to = torch.tensor([first.setdefault(place, i) for i, place in enumerate(self.chosen)])
        # end: weighted
        self.references = torch.full((len(self.chosen), 2), float("nan"))
        # end: reference

    def kept(self, evaluation: bool) -> Ids:
        """Return the rows that are used. Says how many are cut or left out, and why."""
        config, name = self.config, self.tokens.about["data"]
        sizes = self.bounds[:, :, 1] - self.bounds[:, :, 0]
        longest, there = sizes.max(1), sizes > 0
        used = (longest >= config.min_tokens) & (longest <= (config.max_tokens or longest.max()))
        if config.min_tokens or config.max_tokens:
            limits = f"{config.min_tokens} to {config.max_tokens or 'any number of'} tokens"
            tell(f"{name}: documents of {limits}: {used.sum():,} of {len(used):,}")
        cut = used & (longest > self.length + 1)
        learnable = (~there | ((self.first <= self.length) & (self.first < sizes))).all(1)
        told = f"{(cut & learnable).sum()} cut to {self.length} tokens, {(used & ~learnable).sum()} dropped"
        tell(f"{name}: samples: {used.sum()}, {told}")
        used &= learnable
        # feature: eval
        if is_part(config.eval_data) and used.any():
            # Preferences with the same prompt stay together, so that none is trained on and evaluated.
            rows = np.flatnonzero(used).tolist()
            prompts = np.array([hash_of(self.prompt(row).tobytes()) for row in rows], dtype=np.uint64)
            used[used] = held_out(prompts, config.eval_data) == evaluation
        # end: eval
        return np.flatnonzero(used)

    # feature: weighted
    def times(self, kept: Ids, tokens: Mixture, hashes: Ids) -> Ids:
        """Return how many times an epoch has each row that is kept: its answers count, or what is learned of them."""
        if tokens.by == "tokens":
            counts = [sum(int((self.ids(row, side) >= 0).sum()) for side in (0, 1)) for row in kept.tolist()]
        else:
            answers = (self.bounds[kept, :, 1] > self.bounds[kept, :, 0]).sum(1)
            counts = answers if SINGLE else np.ones_like(answers)
        sizes, parts, begin = np.array(counts, dtype=np.int64), [], 0
        for part in tokens.parts:
            end = begin + sum(map(len, part.documents())) // 2
            own = (kept >= begin) & (kept < end)
            parts.append(Part(part.about["data"], sizes[own], hashes[kept[own]]))
            begin = end
        found, lines = times(parts, tokens.weights, tokens.by)
        for line in lines:
            tell(line)
        return np.concatenate(found)

    # end: weighted
    # feature: prompts
    def prompt(self, row: int) -> Ids:
        """Return the tokens before a row's answer."""
        side = int(self.bounds[row, 0, 0] == self.bounds[row, 0, 1])
        start = self.bounds[row, side, 0]
        return self.tokens.ids[start : start + self.first[row, side]]

    # end: prompts
    def ids(self, row: int, side: int) -> Ids:
        """Return the tokens of an answer after its prompt."""
        return self.tokens.ids[slice(*self.bounds[row, side])][: self.length + 1].astype(np.int64)

    def __len__(self) -> int:
        return len(self.chosen)

    # feature: two_answers
    def __getitem__(self, index: int) -> dict[str, Any]:
        row, _ = self.chosen[index]
        return {
            "rows": [self.ids(row, 0), self.ids(row, 1)],
            # feature: reference
            "references": self.references[index],
            # end: reference
            # feature: writes
            "beta": self.config.beta,
            # end: writes
            # feature: simpo
            "gamma": self.config.gamma,
            # end: simpo
        }

    # end: two_answers
    # feature: kto
    def __getitem__(self, index: int) -> dict[str, Any]:
        row, side = self.chosen[index]
        config, mate = self.config, self.chosen[self.mates[index]]
        prompt, answer = self.ids(row, side)[: self.first[row, side]], self.ids(*mate)[self.first[mate] :]
        return {
            # The answer, and one to another prompt, which measures how far the model has moved from its start.
            "rows": [self.ids(row, side), np.concatenate((prompt, answer))[: self.length + 1]],
            "references": self.references[index],
            "beta": config.beta,
            "sign": -1.0 if side else 1.0,
            "weight": config.undesirable_weight if side else config.desirable_weight,
        }

    # end: kto


# feature: judges
def padding_of(tokenizer: Any) -> int | None:
    """Return a token that no answer ends with, if any: transformers uses it to find where a padded row ends."""
    from transcripts import two_messages

    text = tokenizer.apply_chat_template(two_messages(tokenizer), tokenize=False)
    used = {*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id}
    special = sorted(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
    known = (tokenizer.pad_token_id, tokenizer.unk_token_id, *special)
    return next((i for i in known if i is not None and i not in used), None)


def padded_by(tokenizer: Any) -> Any:
    """Return the tokenizer, which pads as the model expects it, if it has a token for that."""
    if (padding := padding_of(tokenizer)) is not None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    return tokenizer


def expect_one_document() -> None:
    """Keep transformers from looking for packed documents, for which each forward would wait for the device."""
    with suppress(ImportError):  # transformers before 4.53 does not look
        from transformers import masking_utils

        masking_utils.find_packed_sequence_indices = lambda _positions: None


# end: judges
# feature: eval
# feature: two_answers
def comparison_sums(losses: Tensor, rewards: Tensor, counted: Tensor) -> Tensor:
    """Return sums over the pairs that count: loss, 1, whether the chosen answer has the higher reward, both rewards."""
    right = rewards[:, 0] > rewards[:, 1]
    numbers = torch.stack((losses, torch.ones_like(losses), right, rewards[:, 0], rewards[:, 1]))
    return (numbers * counted).sum(1)


def comparison_metrics(sums: list[float]) -> dict[str, float]:
    """Return the metrics of the whole evaluation set, from the sums over it."""
    loss, right, chosen, rejected = (part / sums[1] for part in (sums[0], *sums[2:]))
    return {
        "eval_loss": loss,
        "eval_accuracy": right,
        "eval_margin": chosen - rejected,
        "eval_reward_chosen": chosen,
        "eval_reward_rejected": rejected,
    }


# end: two_answers
# end: eval
# feature: writes
def collate(samples: list[dict[str, Any]], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch, padded at the end to its longest row, and the number of samples that count.

    Of n samples, the first n rows are the first ones of each. A sample whose `counted` is false only pads the last
    batch of an epoch and counts zero.
    """
    rows = [sample.pop("rows") for sample in map(dict, samples)]
    batch = {
        name: torch.stack([torch.as_tensor(sample[name], dtype=torch.float32) for sample in samples])
        for name in samples[0]
        if name != "rows"
    }
    batch["counted"] = torch.tensor(counted, dtype=torch.float32)
    # feature: plain_pairs
    batch |= padded([chosen for chosen, _ in rows] + [rejected for _, rejected in rows])
    # end: plain_pairs
    # feature: orpo
    # Chosen answers are also learned as in fine-tuning: all tokens of them and of their prompts.
    batch |= padded([chosen for chosen, _ in rows] + [rejected for _, rejected in rows], whole=len(rows))
    batch["mean"] = torch.ones(())  # the loop puts in that of the real batch
    # end: orpo
    # feature: kto
    batch |= padded([answer for answer, _ in rows])
    batch |= {f"other_{name}": part for name, part in padded([other for _, other in rows]).items()}
    batch["mean"] = torch.zeros(())  # the loop puts in that of the real batch
    # end: kto
    return batch, sum(counted)


def padded(rows: list[Ids], whole: int = 0) -> Batch:
    """Return inputs, labels, and which tokens are an answer's, padded at the end. Shape of each: (rows, longest).

    The first `whole` rows have labels for all of their tokens, the others for their answers only.
    """
    shape = len(rows), max(1, *(len(row) - 1 for row in rows))
    inputs, labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, IGNORED)
    learned = torch.zeros(shape, dtype=torch.bool)
    for i, row in enumerate(map(torch.from_numpy, rows)):
        ids, answers = row.where(row >= 0, ~row), row[1:] >= 0
        inputs[i, : len(answers)], learned[i, : len(answers)] = ids[:-1], answers
        labels[i, : len(answers)] = ids[1:] if i < whole else ids[1:].masked_fill(~answers, IGNORED)
    return {"inputs": inputs, "labels": labels, "learned": learned}


# end: writes
