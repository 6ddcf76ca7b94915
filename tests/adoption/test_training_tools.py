"""Files of training tools as projects: what they decide, and that every other value is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwiz import config
from trainwiz.adoption import adopt
from trainwiz.adoption.ledger import leaves
from trainwiz.config import tools
from trainwiz.decide import decide
from trainwiz.errors import UsageError
from trainwiz.ui import adoption as report
from trainwiz.workflows.create import import_files

AXOLOTL = """\
base_model: some/model
datasets:
  - path: some/data
adapter: qlora
load_in_4bit: true
lora_r: 8
lora_alpha: 32
lora_target_linear: true
sequence_len: 1024
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 2
learning_rate: 2e-4
lr_scheduler: cosine
bf16: auto
gradient_checkpointing: true
loss_watchdog_threshold: 5.0
deepspeed: zero2.json
optimizer: paged_adamw_8bit
val_set_size: 0.05
peft_use_rslora: true
peft_use_dora: true
chat_template: chatml
special_tokens:
  pad_token: <|pad|>
  sep_token: <s>
  additional_special_tokens: [<|im_start|>, <|im_end|>]
tokens: [<tool_call>]
lora_modules_to_save: [embed_tokens, lm_head]
"""
LLAMA_FACTORY = """\
model_name_or_path: some/model
stage: dpo
template: own
finetuning_type: full
dataset: one,two
cutoff_len: 512
per_device_train_batch_size: 1
max_steps: 100
num_train_epochs: 3
warmup_ratio: 0.1
max_grad_norm: 0.5
save_steps: 50
seed: 7
pref_beta: 0.2
optim: adamw_apex_fused
adam_beta2: 0.95
add_tokens: <think>,</think>
resize_vocab: true
"""
SILENT = """\
model_name_or_path: some/model
stage: sft
template: own
finetuning_type: lora
dataset: one
"""
CASES = {
    "axolotl": (
        AXOLOTL,
        {
            "model.name": "some/model",
            "model.adapter": "qlora",
            "model.lora_rank": 8,
            "model.lora_alpha": 32,
            "model.lora_targets": "all-linear",
            "model.activation_checkpointing": "full",
            "task": "sft",
            "data.packing": True,
            "batch.sequence_length": 1024,
            "batch.per_device_batch_size": 2,
            "batch.gradient_accumulation_steps": 4,
            "schedule.n_epochs": 2,
            "schedule.lr_scheduler_type": "cosine",
            "optimizer.learning_rate": 2e-4,
            "precision.mixed_precision": "bf16",
            "strategy.kind": "deepspeed",
            "strategy.zero_stage": 2,
            "optimizer.name": "paged_adamw_8bit",
            "data.train": "some/data",
            "data.eval": "5%",
            "model.lora_rslora": True,
            "model.lora_dora": True,
            "model.modules_to_save": "embed_tokens,lm_head",
            "data.chat_template": "chatml",
            "data.special_tokens": "pad_token=<|pad|>,<|im_start|>,<|im_end|>",
            "data.added_tokens": "<tool_call>",
            # What Axolotl takes where a file is silent, and a plan would not.
            "optimizer.beta2": 0.999,
            "optimizer.weight_decay": 0.0,
            "schedule.warmup_ratio": 0.03,
            "seed": 42,
        },
        {"loss_watchdog_threshold", "special_tokens.sep_token"},
    ),
    "llamafactory": (
        LLAMA_FACTORY,
        {
            "task": "preference",
            "preference.loss": "dpo",
            "batch.per_device_batch_size": 1,
            "batch.sequence_length": 512,
            "schedule.train_strategy": "steps",
            "schedule.n_steps": 100,
            "schedule.warmup_ratio": 0.1,
            "optimizer.gradient_clipping": 0.5,
            "checkpoint.checkpointing_steps": 50,
            "seed": 7,
            "preference.beta": 0.2,
            "optimizer.name": "adamw",
            "optimizer.weight_decay": 0.0,
            "optimizer.learning_rate": 5e-5,
            "data.eval": None,
            "data.added_tokens": "<think>,</think>",
        },
        {"template", "dataset", "num_train_epochs"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_file_becomes_answers_and_a_list(name: str, tmp_path: Path) -> None:
    text, answers, left = CASES[name]
    file = tmp_path / "train.yaml"
    file.write_text(text)
    (tmp_path / "zero2.json").write_text(
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'
    )
    files = import_files.together([str(file)], default=False, versions=())
    assert files.tool_file is not None
    assert files.tool_file.tool is tools.load()[name]
    adoption = adopt(None, files.deepspeed, None, files.tool_file)
    carried = {key: one.value for key, one in adoption.carried.items()}
    assert answers.items() <= carried.items()
    plan = decide({**carried, "machine.device": "cpu"}, None).plan
    rest = [one for one in adoption.remainder(plan) if one.place.file == str(file)]
    assert left <= {one.path for one in rest}
    # Nothing is dropped in silence: each value is carried over, the same anyway, or named.
    same = {"deepspeed", "load_in_4bit", "adam_beta2", "resize_vocab"}
    same |= {"special_tokens.pad_token", "special_tokens.additional_special_tokens"}
    named = {one.path for one in adoption.carried.values()} | {one.path for one in rest} | same
    assert {path for path, _ in leaves(files.tool_file.document)} <= named
    assert all(one.place.line == 1 + text[: text.index(f"{one.path.rpartition('.')[2]}:")].count("\n") for one in rest)


JOBS = {
    "job.yaml": "num_nodes: 2\nresources:\n  accelerators: A100:4\nrun: torchrun --nnodes=2 train.py\n",
    "job.sbatch": "#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\nsrun torchrun --nnodes 2 train.py\n",
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_says_the_world(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(JOBS[name])
    files = import_files.together([str(tmp_path / name)], default=False, versions=())
    carried = {key: one.value for key, one in adopt(None, None, None, files.tool_file).carried.items()}
    assert carried == {"machine.num_machines": 2, "machine.num_processes": 8, "machine.device": "cuda"}


def carried(text: str, folder: Path) -> dict[str, object]:
    file = folder / "train.yaml"
    file.write_text(text)
    files = import_files.together([str(file)], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    return {key: one.value for key, one in adoption.carried.items()}


@pytest.mark.parametrize(
    ("lines", "how", "lost"),
    [
        ("gradient_checkpointing: true\nactivation_offloading: true\n", "offload", set()),
        ("gradient_checkpointing: true\nactivation_offloading: legacy\n", "offload", set()),
        ("gradient_checkpointing: true\nactivation_offloading: false\n", "full", set()),
        ("gradient_checkpointing: true\nactivation_offloading: hidden_states\n", "offload", set()),
        ("gradient_checkpointing: true\nselective_checkpointing: true\n", "selective", {"selective_checkpointing"}),
        ("gradient_checkpointing: true\nselective_checkpointing: false\n", "full", set()),
        (
            "gradient_checkpointing: true\nselective_checkpointing: {save: [attention], offload: true}\n",
            "selective",
            {"selective_checkpointing.save", "selective_checkpointing.offload"},
        ),
        (
            "gradient_checkpointing: true\nselective_checkpointing: true\nactivation_offloading: hidden_states\n",
            "offload",
            {"selective_checkpointing"},
        ),
        ("gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n", "full", set()),
        (
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: true}\n",
            "full",
            {"gradient_checkpointing_kwargs.use_reentrant"},
        ),
        ("gradient_checkpointing: offload\n", "offload", set()),
        ("gradient_checkpointing: offload_disk\n", "offload", {"gradient_checkpointing"}),
        ("gradient_checkpointing: true\nactivation_offloading: disk\n", "offload", {"activation_offloading"}),
        ("gradient_checkpointing: false\nactivation_offloading: true\n", "none", {"activation_offloading"}),
        ("enable_activation_checkpointing: true\n", "full", set()),
        (
            "enable_activation_checkpointing: true\nenable_activation_offloading: true\n",
            "offload",
            set(),
        ),
    ],
)
def test_where_recomputed_layers_keep_their_inputs(lines: str, how: str, lost: set[str], tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    head = "model: {_component_: torchtune.x}" if "enable" in lines else "base_model: some/model\ndatasets: []"
    file.write_text(f"{head}\n{lines}")
    files = import_files.together([str(file)], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    assert adoption.carried["model.activation_checkpointing"].value == how
    rest = adoption.remainder(decide({"model.activation_checkpointing": how, "machine.device": "cpu"}, None).plan)
    assert {one.path for one in rest if "checkpointing" in one.path or "activation" in one.path} == lost


@pytest.mark.parametrize(
    ("head", "whole"),
    [
        ("model: some/model\ntuner_type: lora\ndataset: a.jsonl\nmodules_to_save: [embed_tokens, lm_head]\n", "swift"),
        ("model_name_or_path: some/model\ndataset_name: a/b\nuse_peft: true\nlora_modules_to_save: [lm_head]\n", "trl"),
        ("model_name_or_path: some/model\nstage: sft\ntemplate: own\nfinetuning_type: lora\n", "llamafactory"),
    ],
)
def test_every_tool_says_how_an_adapter_is_scaled_and_measured(head: str, whole: str, tmp_path: Path) -> None:
    found = carried(head + "use_rslora: true\nuse_dora: true\n", tmp_path)
    assert (found["model.lora_rslora"], found["model.lora_dora"]) == (True, True)
    expected = {"swift": "embed_tokens,lm_head", "trl": "lm_head", "llamafactory": None}
    assert found.get("model.modules_to_save") == expected[whole]


AXOLOTL_LORA = "base_model: some/model\ndatasets: []\nadapter: lora\n"
FACTORY_LORA = "model_name_or_path: some/model\nstage: sft\ntemplate: own\nfinetuning_type: lora\n"


@pytest.mark.parametrize(
    ("lines", "targets", "left"),
    [
        (f"{AXOLOTL_LORA}lora_target_modules: [q_proj, v_proj]\n", "q_proj,v_proj", set()),
        (f"{AXOLOTL_LORA}lora_target_linear: true\n", "all-linear", set()),
        (
            f"{AXOLOTL_LORA}lora_target_modules: [q_proj]\nlora_target_linear: true\n",
            "all-linear",
            {"lora_target_modules"},
        ),
        (f"{AXOLOTL_LORA}lora_target_modules: 'layers.[0-9]+.q_proj'\n", None, {"lora_target_modules"}),
        (f"{FACTORY_LORA}lora_target: q_proj, v_proj\n", "q_proj,v_proj", set()),
        (f"{FACTORY_LORA}lora_target: all\n", "all-linear", set()),
    ],
)
def test_the_layers_that_get_an_adapter(lines: str, targets: str | None, left: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(lines)
    files = import_files.together([str(tmp_path / "train.yaml")], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    found = adoption.carried.get("model.lora_targets")
    assert (found and found.value) == targets
    answers = {key: one.value for key, one in adoption.carried.items()} | {"machine.device": "cpu"}
    assert {one.path for one in adoption.remainder(decide(answers, None).plan) if "target" in one.path} == left


# docs/decisions/files.md: An import takes a tool's defaults, not trainwiz's
@pytest.mark.parametrize(("bits", "adapter"), [("load_in_4bit: true", "qlora"), ("load_in_8bit: true", "lora")])
def test_only_four_bits_are_qlora(bits: str, adapter: str, tmp_path: Path) -> None:
    assert carried(AXOLOTL_LORA + bits + "\n", tmp_path)["model.adapter"] == adapter


def test_what_a_file_leaves_out_is_as_its_tool_has_it(tmp_path: Path) -> None:
    usual = {
        "batch.per_device_batch_size": 8,
        "batch.gradient_accumulation_steps": 1,
        "schedule.train_strategy": "epochs",
        "schedule.n_epochs": 3.0,
        "schedule.n_warmup_steps": 0,
        "schedule.lr_scheduler_type": "linear",
        "optimizer.learning_rate": 5e-5,
        "optimizer.weight_decay": 0.0,
        "optimizer.gradient_clipping": 1.0,
        "optimizer.beta2": 0.999,
        "model.lora_rank": 8,
        "seed": 42,
    }
    found = carried(SILENT, tmp_path)
    assert usual.items() <= found.items()
    assert not {"optimizer.beta1", "optimizer.epsilon"} & set(found), "the plan's own numbers"
    assert "schedule.n_epochs" not in carried(f"{SILENT}max_steps: 7\n", tmp_path)
    assert "schedule.n_warmup_steps" not in carried(f"{SILENT}warmup_ratio: 0.1\n", tmp_path)
    assert "optimizer.name" not in carried(f"{SILENT}optim: adalomo\n", tmp_path)


def test_one_file_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AXOLOTL)
    (tmp_path / "b.yaml").write_text("distributed_type: MULTI_GPU\n")
    with pytest.raises(UsageError, match="cannot be imported together"):
        import_files.together([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")], default=False, versions=())


def test_a_report_names_secrets_without_their_values(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(AXOLOTL + "hf_token: CANARY-1\nwandb_key: CANARY-2\nmlflow_uri: https://anna:CANARY-3@host/x\n")
    files = import_files.together([str(file)], default=False, versions=())
    adoption = adopt(None, files.deepspeed, None, files.tool_file)
    decided = decide({**{key: one.value for key, one in adoption.carried.items()}, "machine.device": "cpu"}, None)
    told = report.to_dict(adoption.carried, adoption.remainder(decided.plan), decided)
    assert {"hf_token", "wandb_key", "mlflow_uri"} <= {one["path"] for one in told["left"]}
    assert "CANARY" not in str(told)


@pytest.mark.parametrize(
    ("lines", "train", "held_out", "named"),
    [
        ("datasets:\n- {path: a/b, name: main, split: test, type: alpaca}\n", "a/b:main:test", None, {"type: alpaca"}),
        (
            "datasets:\n- {path: json, data_files: [x.jsonl, y.jsonl]}\n- path: a/b\n  split: train[:5%]\n",
            "x.jsonl, y.jsonl, a/b",
            None,
            {"split: train[:5%]"},
        ),
        ("datasets: [{path: s3://b/x.jsonl}]\n", None, None, {"[{path: s3://b/x.jsonl}]"}),
        ("pretraining_dataset: a/b\ntest_datasets: [{path: ./x.jsonl, split: train}]\n", "a/b", "./x.jsonl", set()),
        ("datasets: []\n", None, None, set()),
    ],
)
def test_the_data_of_a_tool_is_the_data_of_the_plan(
    lines: str, train: str | None, held_out: str | None, named: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(f"base_model: some/model\nmicro_batch_size: 1\n{lines}")
    adoption = adopt(None, None, None, import_files.together([str(file)], default=False, versions=()).tool_file)
    found = {key: one.value for key, one in adoption.carried.items()}
    rest = adoption.remainder(decide({**found, "machine.device": "cpu"}, None).plan)
    assert (found.get("data.train"), found.get("data.eval")) == (train, held_out)
    assert found["task"] == ("causal_lm" if "pretraining" in lines else "sft")
    assert {one.value for one in rest if one.path == "datasets"} == named


def test_trl_names_its_data_by_four_keys(tmp_path: Path) -> None:
    text = "model_name_or_path: a/m\ndataset_name: a/b\ndataset_config: en\ndataset_test_split: test\n"
    found = carried(text, tmp_path)
    assert (found["data.train"], found["data.eval"]) == ("a/b:en", "a/b:en:test")


CATALOGUE = """\
{"one": {"file_name": "one.jsonl", "columns": {"prompt": "q", "response": "a", "images": "pictures"}},
 "two": {"file_name": "two.jsonl", "columns": {"prompt": "question", "response": "answer"}},
 "talks": {"hf_hub_url": "a/talks", "subset": "en", "formatting": "sharegpt", "num_samples": 9,
           "columns": {"messages": "talk"}, "tags": {"role_tag": "who", "content_tag": "value"}},
 "usual": {"hf_hub_url": "a/b", "columns": {"prompt": "instruction", "query": "input", "response": "output"}},
 "pages": {"file_name": "pages", "columns": {"prompt": "content"}},
 "elsewhere": {"ms_hub_url": "c/d"}}
"""
LF = "model_name_or_path: a/m\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\ndataset: "
SWIFT = "model: a/m\ntuner_type: lora\ndataset: "
TUNE = "model: {_component_: torchtune.models.x}\ndataset: {_component_: torchtune.datasets."


@pytest.mark.parametrize(
    ("text", "said", "left"),
    [
        (f"{LF}one\nmax_samples: 7\n", ("{data}/one.jsonl", "prompt=q,completion=a", 7), "columns.images: pictures"),
        (f"{LF}usual\n", ("a/b", None, None), None),
        (f"{LF}two, usual\n", ("{data}/two.jsonl, a/b", None, None), None),
        (f"{LF}one,two\n", ("{data}/one.jsonl, {data}/two.jsonl", None, None), "prompt=question,completion=answer"),
        (f"{LF}talks\n", ("a/talks:en", "messages=talk", None), "tags.role_tag: who"),
        (f"{LF}talks\n", ("a/talks:en", "messages=talk", None), "num_samples: 9"),
        (f"{LF}pages\n".replace("sft", "pt"), ("{data}/pages", "content", None), None),
        (f"{LF}elsewhere\n", (None, None, None), "elsewhere"),
        (f"{LF}unlisted\n", (None, None, None), "unlisted"),
        (f"{LF}a/online\ndataset_dir: ONLINE\n", ("a/online", None, None), None),
        (f"{SWIFT}['./x.jsonl#5', 'HF::a/b:en/zh']\n", ("./x.jsonl, a/b:en, a/b:zh", None, None), "#5"),
        (f'{SWIFT}a/b\nuse_hf: true\ncolumns: \'{{"q": "query"}}\'\n', ("a/b", "prompt=q", None), None),
        (f"{SWIFT}[x.jsonl, a/b]\n", (None, None, None), "[x.jsonl, a/b]"),
        (f"{TUNE}alpaca_cleaned_dataset, split: 'train[:5%]'}}\n", ("yahma/alpaca-cleaned", None, None), "split"),
        (
            f"{TUNE}instruct_dataset, source: json, data_files: x.json, column_map: {{input: q, output: a}}}}\n",
            ("x.json", "prompt=q,completion=a", None),
            None,
        ),
        (f"{TUNE}text_completion_dataset, source: a/b, column: body}}\n", ("a/b", "body", None), None),
    ],
)
def test_data_by_name_and_by_column(
    text: str, said: tuple[str | None, str | None, int | None], left: str | None, tmp_path: Path
) -> None:
    """What LLaMA-Factory's catalogue, ms-swift's and torchtune's files say of data is the plan's, or named."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(CATALOGUE)
    (tmp_path / "train.yaml").write_text(text)
    tool_file = import_files.together([str(tmp_path / "train.yaml")], default=False, versions=()).tool_file
    adoption = adopt(None, None, None, tool_file)
    found = {key: one.value for key, one in adoption.carried.items()}
    train, columns, rows = said
    assert found.get("data.train") == (train and train.replace("{data}", str(tmp_path / "data")))
    assert found.get("data.columns", found.get("data.text_column")) == columns
    assert found.get("data.max_rows") == rows
    rest = adoption.remainder(decide({**found, "machine.device": "cpu"}, None).plan)
    of_data = [f"{one.path} {one.value}" for one in rest if one.path.startswith(("dataset", "columns", "use_hf"))]
    assert any(left in one for one in of_data) if left else not of_data
    if train:
        assert found["task"] == ("causal_lm" if "completion_" in text or "stage: pt" in text else "sft")


TORCHTUNE = """
model: {{_component_: torchtune.models.{model}, lora_attn_modules: [q_proj, v_proj, output_proj], lora_rank: 64,
  lora_alpha: 128, apply_lora_to_mlp: True}}
checkpointer: {{_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: models/own/}}
optimizer: {{_component_: {optimizer}, lr: 3e-4}}
{lines}
"""


@pytest.mark.parametrize(
    ("model", "optimizer", "lines", "said"),
    [
        (
            "llama3_2.lora_llama3_2_1b",
            "torch.optim.AdamW",
            "dtype: bf16\nclip_grad_norm: null",
            {
                "model.name": "models/own",
                "model.adapter": "lora",
                "model.lora_rank": 64,
                "model.lora_alpha": 128,
                "model.lora_targets": "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
                "precision.mixed_precision": "bf16",
                "precision.weights": None,
                "optimizer.weight_decay": 0.01,
                "optimizer.gradient_clipping": 0.0,
                "schedule.lr_scheduler_type": "constant",
                "schedule.n_warmup_steps": 0,
            },
        ),
        (
            "phi3.qlora_phi3_mini",
            "bitsandbytes.optim.PagedAdamW8bit",
            "lr_scheduler: {_component_: x.get_cosine_schedule_with_warmup, num_warmup_steps: 9}\nclip_grad_norm: 1.0",
            {
                "model.adapter": "qlora",
                "model.lora_targets": "qkv_proj,o_proj,gate_up_proj,down_proj",
                "optimizer.name": "paged_adamw_8bit",
                "optimizer.gradient_clipping": 1.0,
                "schedule.lr_scheduler_type": "cosine",
                "schedule.n_warmup_steps": 9,
            },
        ),
        (
            "llama3_2.llama3_2_1b",
            "torch.optim.AdamW",
            "dtype: bf16\ncompile: True",
            {
                "model.adapter": "none",
                "model.lora_rank": None,
                "model.compile": True,
                "precision.weights": "bfloat16",
            },
        ),
    ],
)
def test_the_components_of_torchtune(
    model: str, optimizer: str, lines: str, said: dict[str, object], tmp_path: Path
) -> None:
    """Its names of models, optimizers and schedules say what other tools have keys for, and so do its defaults."""
    found = carried(TORCHTUNE.format(model=model, optimizer=optimizer, lines=lines), tmp_path)
    assert {key: found.get(key) for key in said} == said


@pytest.mark.parametrize(("key", "value"), [("model", "true"), ("model", "[a]"), ("checkpointer", "7")])
def test_what_is_no_component_of_torchtune_builds_nothing(key: str, value: str, tmp_path: Path) -> None:
    """Another value in the place of one is passed over."""
    components = {"model": "{_component_: torchtune.models.x}", "checkpointer": "{_component_: x}", key: value}
    lines = "".join(f"{name}: {said}\n" for name, said in components.items())
    assert "model.name" not in carried(
        f"{lines}tokenizer: {{_component_: torchtune.models.x}}\ndataset: {{_component_: torchtune.datasets.y}}\n",
        tmp_path,
    )


TRL_KEYS = "model_name_or_path: a/m\ndataset_name: a/b\nlearning_rate: 1e-5\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{TRL_KEYS}logging_step: 1\n", "tool_file"),
        (f"{TRL_KEYS}refresh: true\ndata_tag: x\nhf_learning_rate: 1\nlora_only: true\n", "unknown"),
        ("base_model: a/m\ndatasets: []\nadapter: lora\n", "tool_file"),
        ("_wandb: {value: {}}\nbase_model: {value: a/m}\ndatasets: {value: []}\nadapter: {value: lora}\n", "unknown"),
        ("zero_optimization: {stage: 2}\ntrain_micro_batch_size_per_gpu: 1\n", "deepspeed"),
        ("zero_optimization: {stage: 2}\ntrain_micro_batch_size_per_gpu: ${batch}\n", "unknown"),
    ],
)
def test_files_that_only_look_like_a_tools(text: str, kind: str) -> None:
    """A script's own arguments beside TRL's, what wandb keeps of a run, and what Hydra fills in before it is read."""
    assert config.kind_of(config.read("train.yaml", text)) == kind


@pytest.mark.parametrize(("enabled", "kind"), [("false", "inert"), ("true", "lost")])
def test_what_a_file_turns_off_is_not_lost(enabled: str, kind: str, tmp_path: Path) -> None:
    profiler = f"profiler: {{_component_: torchtune.training.setup_torch_profiler, enabled: {enabled}, num_cycles: 1}}"
    (tmp_path / "train.yaml").write_text(TUNE + "x}\n" + profiler + "\n")
    files = import_files.together([str(tmp_path / "train.yaml")], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    answers = {key: one.value for key, one in adoption.carried.items()} | {"machine.device": "cpu"}
    left = {one.path: one.kind for one in adoption.remainder(decide(answers, None).plan)}
    assert left["profiler.num_cycles"] == kind


def of_script(text: str, tmp_path: Path) -> tuple[dict[str, object], dict[str, str]]:
    """What a shell script's training is in a plan, and what is left out, with its reason."""
    (tmp_path / "train.sh").write_text(text)
    files = import_files.together([str(tmp_path / "train.sh")], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    answers = {key: one.value for key, one in adoption.carried.items()}
    plan = decide({**answers, "machine.device": "cpu"}, None).plan
    return answers, {one.path: str(one.why) for one in adoption.remainder(plan)}


SCRIPT = """\
#!/bin/bash
MODEL="${MODEL:-some/model}"
BATCH=4
RATE=1e-5
if [ -n "$FAST" ]; then
  RATE=1e-4
fi
ARGS=(
  --weight_decay 0.2   # as before
  --packing true
)
[ -n "$EXTRA" ] &&
  ARGS+=(--seed 3)
for LENGTH in 1024 2048; do
swift sft --model "$MODEL" --train_type lora --dataset a.jsonl --per_device_train_batch_size $BATCH \\
  --learning_rate $RATE --max_length $LENGTH --output_dir $OUT/run "${ARGS[@]}"
done
"""


def test_variables_and_arrays_of_a_script(tmp_path: Path) -> None:
    """A variable with one value is that value; what a branch or a loop changes is named, and decides nothing."""
    found, left = of_script(SCRIPT, tmp_path)
    said = {
        "model.name": "some/model",
        "model.adapter": "lora",
        "batch.per_device_batch_size": 4,
        "optimizer.weight_decay": 0.2,
        "data.packing": True,
    }
    assert said.items() <= found.items()
    assert "batch.sequence_length" not in found
    assert "has no value in the file" in left["learning_rate"]
    assert "has no value in the file" in left["max_length"]
    assert "perhaps.ARGS" in left
    assert not {"variables.MODEL", "variables.BATCH", "variables.then", "variables.do", "train_type"} & set(left)
    assert "runs/" in left["output_dir"]


def test_a_variable_that_leads_in_a_circle_or_nowhere(tmp_path: Path) -> None:
    found, left = of_script("A=$B\nB=$A\nswift sft --model $A --dataset $C --seed 7\n", tmp_path)
    assert found["seed"] == 7
    assert {"model", "dataset"} <= set(left)
    assert "model.name" not in found


def test_what_swift_decides_without_being_told(tmp_path: Path) -> None:
    """LoRA with its own rate, rank and decay, 16 samples of all ranks, recomputed layers: swift 4.6's own numbers."""
    usual = {
        "model.adapter": "lora",
        "model.lora_rank": 8,
        "model.lora_alpha": 32,
        "model.lora_dropout": 0.05,
        "model.activation_checkpointing": "full",
        "batch.real_batch_size": 16,
        "optimizer.learning_rate": 1e-4,
        "optimizer.weight_decay": 0.1,
        "schedule.n_epochs": 3.0,
        "schedule.lr_scheduler_type": "cosine",
    }
    found, _ = of_script("swift sft --model some/model --dataset a.jsonl\n", tmp_path)
    assert usual.items() <= found.items()
    assert "batch.gradient_accumulation_steps" not in found
    whole, left = of_script("swift sft --model some/model --dataset a.jsonl --train_type full\n", tmp_path)
    assert whole["optimizer.learning_rate"] == 1e-5
    assert whole["model.adapter"] == "none"
    assert "model.lora_rank" not in whole
    assert "train_type" not in left


@pytest.mark.parametrize(
    "text",
    [
        "base_model: Qwen/Qwen3-8B\ndatasets:\n- path: a/b\nmicro_batch_size: 1\n",
        "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ntemplate: qwen3\nfinetuning_type: full\n",
        "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: a/b\nlearning_rate: 1e-5\n",
        (
            "checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: Qwen/Qwen3-8B}\n"
            "model: {_component_: torchtune.models.qwen3.qwen3_8b_instruct}\n"
        ),
    ],
)
def test_all_weights_stay_all_weights_where_they_do_not_fit(text: str, tmp_path: Path) -> None:
    """On a GPU that is too small for it, a plan of its own would train an adapter."""
    answers = carried(text, tmp_path)
    assert answers["model.adapter"] == "none"
    assert decide({**answers, "machine.device": "cuda"}, None).plan.model.adapter == "none"


def test_llamafactory_trains_an_adapter_unless_told(tmp_path: Path) -> None:
    found = carried("model_name_or_path: some/model\nstage: sft\ntemplate: own\ndataset: x\n", tmp_path)
    assert (found["model.adapter"], found["model.lora_rank"], found["model.lora_dropout"]) == ("lora", 8, 0.0)
    four = carried("model_name_or_path: some/model\nstage: sft\ntemplate: own\nquantization_bit: 4\n", tmp_path)
    assert four["model.adapter"] == "qlora"


LOGGED = """\
root: /models
epochs: ${rounds}
rounds: 3
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: '${checkpointer.checkpoint_dir}/t.model'}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: '${root}/one', model_type: X}
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
dataset: {_component_: torchtune.datasets.alpaca_dataset}
metric_logger: {_component_: torchtune.training.metric_logging.WandBLogger, project: mine, name: first, group: g}
device: cuda
shuffle: true
output_dir: ${root}/${absent}
"""


def test_torchtune_replaces_references_and_logs_to_a_service(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(LOGGED)
    files = import_files.together([str(tmp_path / "train.yaml")], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    found = {key: one.value for key, one in adoption.carried.items()}
    said = {
        "model.name": "/models/one",
        "schedule.n_epochs": 3,
        "tracking.log_with": "wandb",
        "tracking.project": "mine",
        "tracking.run_name": "first",
    }
    assert said.items() <= found.items()
    left = {one.path: one.kind for one in adoption.remainder(decide({**found, "machine.device": "cpu"}, None).plan)}
    assert left == {"metric_logger.group": "lost", "output_dir": "inert"}
    away = LOGGED.replace("${checkpointer.checkpoint_dir}", "/elsewhere").replace("${root}/one", "${nowhere}/one")
    (tmp_path / "train.yaml").write_text(away.replace("shuffle: true", "shuffle: false\nmodel_: 1"))
    files = import_files.together([str(tmp_path / "train.yaml")], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    assert adoption.carried["model.name"].value == "${nowhere}/one", "what is not in the file stays as it is written"


@pytest.mark.parametrize(
    ("lines", "said", "lost"),
    [
        ("report_to: wandb\nrun_name: first\n", {"tracking.log_with": "wandb", "tracking.run_name": "first"}, set()),
        ("report_to: [comet_ml, tensorboard]\n", {"tracking.log_with": "tensorboard"}, {"report_to"}),
        ("report_to: none\n", {}, set()),
    ],
)
def test_where_the_metrics_go(lines: str, said: dict[str, object], lost: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(FACTORY_LORA + lines)
    files = import_files.together([str(tmp_path / "train.yaml")], default=False, versions=())
    adoption = adopt(None, None, None, files.tool_file)
    found = {key: one.value for key, one in adoption.carried.items()}
    assert {key: value for key, value in found.items() if key.startswith("tracking.log_with")} == {
        key: value for key, value in said.items() if key == "tracking.log_with"
    }
    assert said.items() <= found.items()
    left = {one.path for one in adoption.remainder(decide({**found, "machine.device": "cpu"}, None).plan)}
    assert left & {"report_to", "run_name"} == lost


def test_axolotl_reports_to_wandb_by_its_project(tmp_path: Path) -> None:
    found = carried(f"{AXOLOTL_LORA}wandb_project: mine\nwandb_name: first\nreinit_weights: true\n", tmp_path)
    assert (found["tracking.log_with"], found["tracking.project"]) == ("wandb", "mine")
    assert found["tracking.run_name"] == "first"
    off = carried(f"{AXOLOTL_LORA}wandb_project: mine\nwandb_mode: disabled\n", tmp_path)
    assert "tracking.log_with" not in off


def test_a_scripts_own_file_is_not_axolotls() -> None:
    text = "base_model: a/b\ndataset: {name: c/d}\nnum_epochs: 1\nsequence_len: 512\nbatch_size: 4\n"
    assert config.kind_of(config.read("config.yaml", text)) != "tool_file"
    assert config.kind_of(config.read("config.yaml", text + "micro_batch_size: 1\n")) == "tool_file"
