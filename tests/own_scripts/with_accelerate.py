"""A training loop with accelerate: options, accumulation, parameter groups, warm-up."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import get_scheduler


class Series(Dataset):
    def __init__(self, count, length):
        generator = torch.Generator().manual_seed(1)
        start = torch.rand(count, 1, generator=generator) * 6
        self.values = torch.sin(start + 0.3 * torch.arange(length + 1))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return {"past": self.values[i, :-1], "next": self.values[i, 1:]}


class Gru(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gru, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, past):
        return self.head(self.gru(past[..., None])[0]).squeeze(-1)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=6)
    return parser.parse_args()


def main():
    args = parse_args()
    set_seed(9)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    dataset = Series(24, 10)
    loader = DataLoader(dataset, batch_size=12, shuffle=True)
    model = Gru(args.width)
    decay = [p for n, p in model.named_parameters() if "weight" in n]
    rest = [p for n, p in model.named_parameters() if "weight" not in n]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 0.004}], lr=args.lr
    )
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=1, num_training_steps=args.epochs)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                predicted = model(batch["past"])
                loss = nn.functional.l1_loss(predicted, batch["next"])
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            total += loss.item() / 2
        print(f"loss {total:.7f}")


if __name__ == "__main__":
    main()
