"""A Trainer of transformers at the top of a script: class weights, and a tokenizer that functions use as a global."""

import torch
from datasets import Dataset
from short_texts import WORDS, rows
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = class_weights.to(self.args.device)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.get("labels")
        outputs = model(**inputs)
        loss_fn = nn.CrossEntropyLoss(weight=self.class_weights)
        loss = loss_fn(outputs.logits.view(-1, self.model.config.num_labels), labels.view(-1))
        return (loss, outputs) if return_outputs else loss


set_seed(7)
dataset = Dataset.from_list(rows())
words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
if tokenizer.pad_token is None:
    tokenizer.pad_token = "#"


def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=8)


tokenized = dataset.map(tokenize, batched=True)
weights = torch.tensor([1.0, 2.0, 0.3])
config = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=3,
)
model = BertForSequenceClassification(config)
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=24,
    num_train_epochs=5,
    learning_rate=5e-3,
    lr_scheduler_type="constant",
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = WeightedTrainer(
    model=model, args=args, train_dataset=tokenized, processing_class=tokenizer, class_weights=weights
)
trainer.train()
for record in trainer.state.log_history:
    if "loss" in record:
        print(f"loss {record['loss']:.7f}")
