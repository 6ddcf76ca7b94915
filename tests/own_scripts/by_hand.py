"""A training loop in plain PyTorch, on one process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def make_data(n=32):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n, 6, generator=generator)
    return TensorDataset(x, (x[:, :1] * 2 - x[:, 1:2]).tanh())


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x)


def train():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = make_data()
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    model = Net(16).to(device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.8, 0.95))
    for epoch in range(6):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.7f}")


if __name__ == "__main__":
    train()
