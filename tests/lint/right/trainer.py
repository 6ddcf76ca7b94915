"""transformers' Trainer: it knows ranks, accumulation and checkpoints by itself."""

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main(args, data):
    set_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(args.output, gradient_accumulation_steps=4, bf16=True, save_total_limit=2),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    result = trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_model()
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(result.metrics, metrics)
        tokenizer.save_pretrained(args.output)


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # noqa: ARG002
        outputs = model(**inputs)
        loss = outputs.loss / 2
        return (loss, outputs) if return_outputs else loss
