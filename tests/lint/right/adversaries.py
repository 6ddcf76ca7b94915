"""Two models, two optimizers under accelerate: the discriminator learns each time, the generator every fifth."""

import torch
from accelerate import Accelerator


def main(generator, critic, loader, steps):
    accelerator = Accelerator()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    generator, critic, generator_optimizer, critic_optimizer, loader = accelerator.prepare(
        generator, critic, generator_optimizer, critic_optimizer, loader
    )
    for i, real in enumerate(loader):
        noise = torch.randn(len(real), 64, device=accelerator.device)
        critic_optimizer.zero_grad()
        accelerator.backward(critic(generator(noise).detach()).mean() - critic(real).mean())
        critic_optimizer.step()
        if i % 5 == 0:
            generator_optimizer.zero_grad()
            accelerator.backward(-critic(generator(noise)).mean())
            accelerator.clip_grad_norm_(generator.parameters(), 1.0)
            generator_optimizer.step()
        if i % 100 == 0 and accelerator.is_main_process:
            accelerator.save(accelerator.unwrap_model(generator).state_dict(), f"generator-{i}.pt")
        if i == steps:
            break
