"""One GPU, plain torch: mixed precision, clipping, a schedule that counts updates, a checkpoint renamed into place."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

EPOCHS, ACCUMULATION = 3, 4


def train(model, data, path):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    updates = -(-len(loader) // ACCUMULATION) * EPOCHS
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
    scaler = torch.amp.GradScaler(device.type)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        running = torch.zeros((), device=device)
        for i, (inputs, labels) in enumerate(tqdm(loader)):
            inputs, labels = inputs.to(device), labels.to(device)
            with torch.autocast(device.type):
                loss = criterion(model(inputs), labels) / ACCUMULATION
            scaler.scale(loss).backward()
            running += loss.detach()
            if (i + 1) % ACCUMULATION == 0 or i + 1 == len(loader):
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
        print(f"epoch {epoch}: {running.item():.4f}")
        torch.save({"model": model.state_dict(), "epoch": epoch}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


def evaluate(model, data, device):
    correct = total = 0
    model.eval()
    with torch.no_grad():
        for inputs, labels in DataLoader(data, batch_size=64):
            predictions = model(inputs.to(device)).argmax(dim=-1).cpu()
            correct += (predictions == labels).sum().item()
            total += len(labels)
    return correct / total
