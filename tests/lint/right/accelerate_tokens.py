"""accelerate with its own no_sync, the loss divided by the tokens of the whole update: gradients of one big batch."""

from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, DataCollatorForSeq2Seq


def main(args, data, tokenizer):
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    model = AutoModelForCausalLM.from_pretrained(args.model, revision=args.revision, trust_remote_code=args.trust)
    loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=DataCollatorForSeq2Seq(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    choice = [args.output if accelerator.is_main_process else None]
    output = broadcast_object_list(choice)[0]
    batches = iter(loader)
    for update in range(args.updates):
        window = [next(batches) for _ in range(args.accumulation)]
        tokens = sum((batch["labels"] != -100).sum() for batch in window)
        num_tokens = accelerator.gather(tokens).sum().item()
        for i, batch in enumerate(window):
            last = i == len(window) - 1
            with nullcontext() if last else accelerator.no_sync(model):
                loss = model(**batch, reduction="sum").loss
                loss = loss * accelerator.gradient_accumulation_steps * accelerator.num_processes / num_tokens
                accelerator.backward(loss)
        grad_norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if update % 10 == 0:
            accelerator.print(update, grad_norm.item())
        if update % args.save_every == 0:
            accelerator.save_state(f"{output}/checkpoint-{update:08d}")
