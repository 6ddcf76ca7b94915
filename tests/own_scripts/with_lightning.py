"""A LightningModule and its data module."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(L.LightningModule):
    def __init__(self, width=16, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, betas=(0.8, 0.95))


class Points(L.LightningDataModule):
    def __init__(self, size=32):
        super().__init__()
        self.size = size

    def setup(self, stage):
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(self.size, 6, generator=generator)
        self.train = TensorDataset(x, (x[:, :1] * 2 - x[:, 1:2]).tanh())

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True)


if __name__ == "__main__":
    L.seed_everything(3)
    model = Regressor(width=8)
    data = Points()
    trainer = L.Trainer(max_epochs=6, gradient_clip_val=0.5, callbacks=[ModelCheckpoint("out")])
    trainer.fit(model, datamodule=data)
