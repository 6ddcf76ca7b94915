"""A Trainer of transformers with a loss of its own."""

import torch
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, Trainer, TrainingArguments, set_seed


class Rows(Dataset):
    def __init__(self, n=24):
        generator = torch.Generator().manual_seed(5)
        self.ids = torch.randint(3, 50, (n, 8), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": int(self.ids[i, 0] % 2)}


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 1.0], device=outputs.logits.device)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=weight)
        return (loss, outputs) if return_outputs else loss


def model_init():
    config = AutoConfig.for_model(
        "bert",
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return AutoModelForSequenceClassification.from_config(config)


def main():
    set_seed(11)
    train_dataset = Rows()
    model = model_init()
    args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=24,
        learning_rate=5e-3,
        num_train_epochs=5,
        logging_steps=1,
        report_to=[],
        lr_scheduler_type="linear",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Weighted(model=model, args=args, train_dataset=train_dataset)
    trainer.train()
    for record in trainer.state.log_history:
        if "loss" in record:
            print(f"loss {record['loss']:.7f}")


if __name__ == "__main__":
    main()
