"""A recommender: two towers of embeddings, nested batches, rates by group, and an AUC over the whole evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

SHARDED_LAYERS: tuple[str, ...] = ()


@dataclass
class TaskConfig:
    """Settings of the task."""

    n_samples: int = 61
    n_users: int = 7
    n_items: int = 9
    width: int = 8


class Viewed(NamedTuple):
    """Items that a user has seen before, in lists of different length."""

    items: list[Tensor]
    lengths: Tensor


@dataclass(frozen=True)
class Batch:
    """Clicks of users on items."""

    ids: dict[str, Tensor]
    viewed: Viewed
    clicked: Tensor
    weights: Tensor
    source: str = "log"


class Clicks(Dataset[Any]):
    """Users click on items whose number has the same parity."""

    def __init__(self, config: TaskConfig, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.users = torch.randint(config.n_users, (config.n_samples,), generator=generator)
        self.items = torch.randint(config.n_items, (config.n_samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, index: int) -> tuple[int, int, list[int], float]:
        user, item = int(self.users[index]), int(self.items[index])
        return user, item, list(range(user % 3)), float(user % 2 == item % 2)


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    return Clicks(config, seed=0)


def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    return Clicks(config, seed=1)


def collate(samples: list[Any], counted: list[bool]) -> tuple[Batch, int]:
    users, items, viewed, clicked = zip(*samples, strict=True)
    batch = Batch(
        ids={"user": torch.tensor(users), "item": torch.tensor(items)},
        viewed=Viewed([torch.tensor(one).long() for one in viewed], torch.tensor([len(one) for one in viewed])),
        clicked=torch.tensor(clicked),
        weights=torch.tensor(counted).float(),
    )
    return batch, sum(counted)


class Towers(nn.Module):
    """The dot product of a user and an item, and a bias for what the user has seen."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(config.n_users, config.width), nn.Embedding(config.n_items, config.width)
        self.bias = nn.Linear(1, 1)

    def forward(self, batch: Batch) -> Tensor:
        users = self.users(batch.ids["user"])
        seen = torch.stack([self.items(items).sum(0) for items in batch.viewed.items])
        products = ((users + seen / (1 + batch.viewed.lengths)[:, None]) * self.items(batch.ids["item"])).sum(1)
        return products + self.bias(batch.viewed.lengths[:, None].to(products.dtype)).squeeze(1)


def build_model(config: TaskConfig) -> nn.Module:
    return Towers(config)


def parameter_groups(config: Any, model: Any) -> list[dict[str, Any]]:
    return [
        {"params": [*model.users.parameters(), *model.items.parameters()], "lr": 0.05, "weight_decay": 0.0},
        {"params": model.bias.parameters()},
    ]


def schedule(config: Any, update: int, total: int) -> float:
    return 1 / (1 + update) ** 0.5


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    losses = nn.functional.binary_cross_entropy_with_logits(model(batch).float(), batch.clicked, reduction="none")
    return (losses * batch.weights).sum()


def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    return torch.stack((loss_sum(model, batch), batch.weights.sum()))


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    loss, count = sums
    return {"eval_loss": loss / count}


def evaluation_outputs(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"scores": model(batch), "clicked": batch.clicked}


def metrics(outputs: dict[str, Tensor]) -> dict[str, float]:
    """The area under the ROC curve: the share of pairs, one clicked and one not, that are in the right order."""
    scores, clicked = outputs["scores"], outputs["clicked"].bool()
    difference = scores[clicked][:, None] - scores[~clicked][None, :]
    auc = ((difference > 0).float() + 0.5 * (difference == 0).float()).mean()
    return {"eval_auc": float(auc), "eval_rows": len(scores)}


def save_model(config: TaskConfig, model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
