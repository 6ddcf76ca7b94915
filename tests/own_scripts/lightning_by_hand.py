"""What Lightning's Trainer does in with_lightning.py, as a bare loop: the losses that it must come to."""

import torch
from torch import nn

torch.manual_seed(3)
body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
generator = torch.Generator().manual_seed(7)
x = torch.randn(32, 6, generator=generator)
y = (x[:, :1] * 2 - x[:, 1:2]).tanh()
optimizer = torch.optim.AdamW(body.parameters(), lr=1e-2, betas=(0.8, 0.95))
for _ in range(6):
    loss = nn.functional.mse_loss(body(x), y)
    print(f"loss {loss.item():.7f}")
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(body.parameters(), 0.5)
    optimizer.step()
