"""Wrong values of the keys that people set: each is refused, with the key and the value, in both languages."""

from typing import Any

import pytest
from plans import BASE

from trainwiz import plan as plans
from trainwiz import vocabulary as v
from trainwiz.errors import PlanError
from trainwiz.language import spoken, text

WORDS: dict[str, tuple[Any, ...]] = {
    "evaluation.best_mode": ("maximum",),
    "optimizer.name": ("adam", "AdamW"),
    "schedule.lr_scheduler_type": ("cosine_with_restarts",),
    "schedule.decay_type": ("sqrt",),
    "model.adapter": ("dora", "full"),
    "model.attention": ("flash", "sdpa "),
    "model.output_dtype": ("bf16", "fp32"),
    "tracking.log_with": ("all", "comet"),
    "precision.weights": ("bf16",),
    "preference.loss": ("DPO", "sigmoid"),
    "data.augmentation": ("flips",),
    "data.train_on": ("prompts",),
    "data.weigh_by": ("rows",),
}
NUMBERS: dict[str, tuple[Any, ...]] = {
    "evaluation.evaluation_steps": (-1, 0.5),
    "evaluation.patience": (-1, 1.5),
    "evaluation.generated_answers": (-1,),
    "evaluation.max_new_tokens": (0,),
    "optimizer.learning_rate": (0, -1e-4, float("nan"), float("inf")),
    "optimizer.weight_decay": (-0.1,),
    "optimizer.gradient_clipping": (-1,),
    "optimizer.beta1": (1.0, -0.1),
    "optimizer.beta2": (1.0, 2),
    "optimizer.epsilon": (0, -1e-8),
    "optimizer.ema_decay": (1.0, -0.5),
    "schedule.warmup_ratio": (1.0, -0.1),
    "schedule.n_warmup_steps": (-1, 0.5),
    "schedule.min_lr_ratio": (1.1, -0.1),
    "schedule.decay_ratio": (0, 1.5),
    "schedule.polynomial_power": (0, -1),
    "model.lora_rank": (0, -8, 70000, 8.5),
    "model.lora_alpha": (0, -1, 0.5),
    "model.lora_dropout": (1.0, -0.1),
    "model.neftune_alpha": (-1, float("nan")),
    "model.loss_chunk": (0, 8),
    "data.image_size": (0, 3, 5000),
    "data.max_rows": (-1,),
    "data.min_tokens": (-1,),
    "data.max_tokens": (-1, 1.5),
    "preference.beta": (0, -0.1),
    "preference.gamma": (-1,),
    "preference.desirable_weight": (-1,),
    "preference.undesirable_weight": (-1,),
    "tracking.logging_steps": (0,),
    "checkpoint.checkpoints_total_limit": (-1,),
}
"""Each of these also refuses true and false, a word and a list."""
SWITCHES = (
    "model.lora_rslora",
    "model.lora_dora",
    "model.merge_adapter",
    "model.push_public",
    "evaluation.gather_outputs",
    "data.packing",
)
TEXTS: dict[str, tuple[Any, ...]] = {
    "evaluation.best_metric": ("eval loss", "eval-loss", ""),
    "evaluation.generation_metrics": ("blue", "bleu,", "bleu exact_match"),
    "optimizer.rates": ("head", "head=", "head=x", "head=-1", "head=1,head=2"),
    "optimizer.decays": ("=1", "bias=1;head=2", "bias=0,bias=1"),
    "model.lora_targets": ("q_proj q", "q_proj,", "q_proj,q_proj", "all-linear,q_proj", "layers[0]"),
    "model.modules_to_save": ("lm_head,", "lm_head,lm_head", "lm head"),
    "model.frozen": ("embed,", "embed, layers", "embed,embed"),
    "model.push_to_hub": ("mine", "a/b/c", "https://huggingface.co/a/b", "a/b.git", "a/b--c"),
    "tracking.tags": ("a,,b", "a,a", ""),
    "tracking.project": ("", "a\nb"),
    "data.eval": ("0%", "100%", "150%", "0"),
    "data.columns": ("question=q", "prompt", "prompt=a,prompt=b", {"prompt": 1}),
    "data.special_tokens": ("<a>,,<b>", "<a>,<a>", "mask_token=<a>", "pad_token=<a>,pad_token=<b>", {"sep": "<a>"}),
    "data.added_tokens": ("<a> <b>", "<a>,<a>", ["<a>", ""], {"role": "<a>"}),
    "data.source_weights": ("a", "1;2", "-1", [True]),
    "data.chat_template": ("", 3),
}


def problems(key: str, value: Any) -> list[Any]:
    """What is said of the value, alone and in a plan."""
    with pytest.raises(PlanError) as alone:
        plans.parse_values({key: value})
    with pytest.raises(PlanError) as within:
        plans.with_changes(BASE, {key: value})
    assert [text(each) for each in within.value.problems] == [text(each) for each in alone.value.problems]
    return list(alone.value.problems)


CASES = [
    *((key, value) for key, values in (WORDS | TEXTS).items() for value in values),
    *((key, value) for key, values in NUMBERS.items() for value in (*values, True, False, "many", [1])),
    *((key, value) for key in SWITCHES for value in (2, "maybe", [True])),
]


@pytest.mark.parametrize(("key", "value"), CASES, ids=[f"{key} {value!r}" for key, value in CASES])
def test_a_wrong_value_is_refused_with_the_key_and_the_value(key: str, value: Any) -> None:
    for problem in problems(key, value):
        said = text(problem)
        assert said.startswith(f"{key}: ")
        shown = str(next(iter(value)) if isinstance(value, dict) else value).strip("[]'\" ")
        assert repr(shown)[1:7].strip("'") in said or "must not be empty" in said
        with spoken("zh_CN"):
            assert any("\u4e00" <= letter <= "\u9fff" for letter in text(problem)), text(problem)


def test_every_word_and_number_of_a_key_that_people_set_is_tried() -> None:
    """A key that is added to one of these sections is added to the table, too."""
    sections = ("evaluation", "optimizer", "preference", "tracking")
    keys = {key for key in plans.fields() if key.partition(".")[0] in sections}
    assert keys - {*WORDS, *NUMBERS, *TEXTS, *SWITCHES} == {"tracking.run_name"}
    assert plans.defaults()["model.lora_targets"] == v.ALL_LINEAR


@pytest.mark.parametrize(
    ("written", "stage"),
    [("zero2", 2), ("ZeRO-3", 3), ("zero3+offload", 3), ("deepspeed_zero1", 1), ("zero stage 0", 0)],
)
def test_a_stage_in_place_of_the_kind_is_told_as_its_two_keys(written: str, stage: int) -> None:
    """Lists show strategies so, and `--strategy` takes them."""
    with pytest.raises(PlanError) as refused:
        plans.parse_value("strategy.kind", written)
    (problem,) = refused.value.problems
    assert text(problem).endswith(f"is two keys: strategy.kind=deepspeed and strategy.zero_stage={stage}")
    with pytest.raises(PlanError, match="is not one of"):
        plans.parse_value("strategy.kind", "zero4")
