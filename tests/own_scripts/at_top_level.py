"""A training that runs as the script is imported, as most tutorials are written."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=16)
args = parser.parse_args()
torch.manual_seed(0)
FEATURES = 6


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x)


device = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(7)
x = torch.randn(32, FEATURES, generator=generator)
dataset = TensorDataset(x, (x[:, :1] * 2 - x[:, 1:2]).tanh())
loader = DataLoader(dataset, batch_size=32, shuffle=True)
model = Net(args.width).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.8, 0.95))


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


for epoch in range(6):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = loss_of(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.7f}")
