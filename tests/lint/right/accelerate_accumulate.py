"""accelerate as its guides have it: accumulate(), a prepared schedule, gathered metrics, states saved by all ranks."""

import evaluate
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup


def main(args, train_data, eval_data):
    accelerator = Accelerator(
        gradient_accumulation_steps=args.accumulation,
        mixed_precision="bf16",
        log_with="wandb",
        project_config=ProjectConfiguration(project_dir=args.output, total_limit=3, automatic_checkpoint_naming=True),
    )
    set_seed(args.seed)
    accelerator.init_trackers("right", config=vars(args))
    with accelerator.main_process_first():
        train_data = train_data.map(str)
    model = AutoModelForSequenceClassification.from_pretrained(args.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_loader = DataLoader(train_data, batch_size=8, shuffle=True)
    eval_loader = DataLoader(eval_data, batch_size=64)
    total = -(-len(train_loader) // args.accumulation) * args.epochs
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=100, num_training_steps=total)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    bar = tqdm(range(total), disable=not accelerator.is_local_main_process)
    metric = evaluate.load("accuracy")
    done = 0
    for epoch in range(args.epochs):
        model.train()
        running = torch.zeros((), device=accelerator.device)
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                running += loss.detach()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                bar.update(1)
                done += 1
                if done % 10 == 0:
                    accelerator.log({"loss": accelerator.reduce(running).item()}, step=done)
                if done % args.save_every == 0:
                    accelerator.save_state()
        model.eval()
        for batch in eval_loader:
            with torch.no_grad():
                predictions = model(**batch).logits.argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
            metric.add_batch(predictions=predictions, references=references)
        score = metric.compute()
        accelerator.print(f"epoch {epoch}: {score}")
    accelerator.wait_for_everyone()
    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(args.output, state_dict=state)
    accelerator.end_training()
