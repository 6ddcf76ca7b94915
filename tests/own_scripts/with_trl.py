"""TRL's trainer for fine-tuning: it makes the tokens, the masks and the adapter itself."""

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<end>", *"abcdefghijklmnop"]


def words():
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token=" <end>")


def network():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    set_seed(7)
    config = AutoConfig.for_model("qwen2", vocab_size=len(WORDS) + 1, **sizes, **heads, bos_token_id=None)
    return AutoModelForCausalLM.from_config(config)


def rows(n=12):
    generator = torch.Generator().manual_seed(5)
    found = []
    for i in range(n):
        drawn = [WORDS[2 + int(k)] for k in torch.randint(16, (3 + i % 4,), generator=generator)]
        found.append({"prompt": " ".join(drawn[:2]), "completion": " " + " ".join(drawn[2:])})
    return Dataset.from_list(found)


def main():
    arguments = SFTConfig(
        output_dir="out",
        per_device_train_batch_size=12,
        num_train_epochs=5,
        learning_rate=2e-2,
        logging_steps=1,
        report_to=[],
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=network(),
        args=arguments,
        train_dataset=rows(),
        processing_class=words(),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]),
    )
    trainer.train()
    for record in trainer.state.log_history:
        if "loss" in record:
            print(f"loss {record['loss']:.7f}")


if __name__ == "__main__":
    main()
