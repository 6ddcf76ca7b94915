"""A loop by hand over rows of unequal length: a masked mean, and labels of which some are ignored."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD = 0
torch.manual_seed(3)


class Rows(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(5)
        self.lengths = torch.randint(2, 12, (count,), generator=generator)
        self.words = torch.randint(1, 7, (count, 12), generator=generator)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return self.words[i, : self.lengths[i]]


def collate(rows):
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru, self.head = nn.Embedding(7, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 7)

    def forward(self, words):
        return self.head(self.gru(self.embed(words))[0])


class MaskedLoss(nn.Module):
    def forward(self, predicted, wanted, mask):
        each = nn.functional.cross_entropy(predicted.transpose(1, 2), wanted, reduction="none")
        total = (each * mask).sum()
        return total / mask.sum().clamp(min=1)


def main():
    loader = DataLoader(Rows(24), batch_size=24, shuffle=True, collate_fn=collate)
    model, masked = Tagger(), MaskedLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    for _epoch in range(6):
        for words in loader:
            mask = (words[:, 1:] != PAD).float()
            loss = masked(model(words[:, :-1]), words[:, 1:], mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
