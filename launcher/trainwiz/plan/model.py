"""The types of a plan: each section with its keys, what is legal for each alone, and its default.

A default stands here if it is the same for every machine, model and dataset, and nowhere else. A key without one
depends on other facts: `decide` finds a value for it, and a plan must say it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic.types import JsonValue
from pydantic_core import PydanticCustomError

from trainwiz import vocabulary as v

FORMAT_VERSION = 1


def _printable(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("must not contain line breaks or control characters")
    return text


def _counted(value: object) -> object:
    # pydantic takes true for 1: a `patience: true` would mean one evaluation.
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "no number")
    return value


def _measured(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "no number")
    return value


def _different(text: str) -> str:
    names = [part.partition("=")[0].strip() for part in text.split(",")]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise PydanticCustomError("twice", "named twice", {"name": twice})
    if not all(names):
        raise PydanticCustomError("nameless", "an empty name")
    return text


def _modules(text: str) -> str:
    if text != v.ALL_LINEAR and v.ALL_LINEAR in text.split(","):
        raise PydanticCustomError("all_and_some", "all layers beside some")
    return text


def _repository(text: str) -> str:
    if text.endswith(".git") or "--" in text or ".." in text:  # as huggingface_hub has it
        raise PydanticCustomError("string_pattern_mismatch", "no name of a repository")
    return text


def _evaluated(text: str) -> str:
    part = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)(%?)\s*", text)
    if part and (float(part[1]) == 0 or (part[2] and float(part[1]) >= 100)):
        raise PydanticCustomError("part", "no part of the data")
    return text


def _yaml_no(value: object) -> object:
    # YAML 1.1 reads an unquoted `no` as false; here it can only mean the word.
    return "no" if value is False else value


def _parameters(value: object) -> object:
    """`7B` and `350M`, as models' names say it, beside plain numbers."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([bm])\s*", value.lower()) if isinstance(value, str) else None
    return round(float(found[1]) * {"b": 1e9, "m": 1e6}[found[2]]) if found else value


def _joined(value: object) -> object:
    # A list in a file; everywhere else a plan has one text, with commas between the sources.
    if isinstance(value, list | tuple) and value:
        if wrong := [name for name in value if not isinstance(name, str) or not name.strip() or "," in name]:
            raise PydanticCustomError("source_name", "no name of a source", {"name": repr(wrong[0])})
        return ", ".join(name.strip() for name in value)
    return value


def _listed_numbers(value: object) -> object:
    # A list in a file; a single number is what YAML makes of one.
    numbers = value if isinstance(value, list | tuple) else [value]
    if numbers and all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        return ", ".join(map(str, numbers))
    return value


def _mapped(value: object) -> object:
    # A mapping in a file; everywhere else a plan has one text, with commas between.
    if isinstance(value, dict) and value and all(isinstance(name, str) for each in value.items() for name in each):
        return ",".join(f"{word}={name}" for word, name in value.items())
    return value


def _tokens(value: object) -> object:
    # A list or, of special tokens, a mapping in a file, as tools have it: {pad_token: <pad>}.
    if isinstance(value, dict) and value:
        more = value.get(v.MORE_SPECIAL_TOKENS) or []
        if unknown := next((role for role in value if role not in (*v.TOKEN_ROLES, v.MORE_SPECIAL_TOKENS)), None):
            raise PydanticCustomError("token_role", "no role of a token", {"role": str(unknown)})
        roles = [f"{role}={token}" for role, token in value.items() if role != v.MORE_SPECIAL_TOKENS]
        value = [*roles, *(more if isinstance(more, list) else [more])]
    if isinstance(value, list | tuple) and value:
        if wrong := [token for token in value if not isinstance(token, str) or not token.strip() or "," in token]:
            raise PydanticCustomError("token", "no token", {"token": repr(wrong[0])})
        return ",".join(token.strip() for token in value)
    return value


def _special(text: str) -> str:
    for part in text.split(","):
        role, mark, token = part.partition("=")
        if mark and role.endswith("_token") and (role not in v.TOKEN_ROLES or not token):
            raise PydanticCustomError("token_role", "no role of a token", {"role": role})
    roles = [part.partition("=")[0] for part in text.split(",") if part.startswith(_ROLES)]
    if twice := next((role for role in roles if roles.count(role) > 1), ""):
        raise PydanticCustomError("twice", "two tokens for a role", {"name": twice})
    return text


def _tokens_once(text: str) -> str:
    tokens = text.split(",")
    if twice := next((token for token in tokens if tokens.count(token) > 1), ""):
        raise PydanticCustomError("twice", "named twice", {"name": twice})
    return text


def _column_words(text: str) -> str:
    pairs = re.split(rf"[,，](?=\s*(?:{'|'.join(v.COLUMN_WORDS)})\s*=)", text)
    words = [pair.partition("=")[0].strip() for pair in pairs]
    if not all(pair.partition("=")[2].strip() for pair in pairs) or not set(words) <= set(v.COLUMN_WORDS):
        raise PydanticCustomError("column_words", "no column for a word")
    if any(re.search(r"[,，]\s*\w+\s*=", pair.partition("=")[2]) for pair in pairs):
        raise PydanticCustomError("column_words", "another word within a column")
    if len(set(words)) < len(words):
        raise PydanticCustomError("column_words", "two columns for a word")
    return ",".join(f"{word}={pair.partition('=')[2].strip()}" for word, pair in zip(words, pairs, strict=True))


def _free_setting(path: str) -> str:
    if path in v.DECIDED_SETTINGS:
        raise PydanticCustomError("setting_decided", "a key of the plan", {"decides": v.DECIDED_SETTINGS[path]})
    free = any(path == name or (name.endswith(".") and path.startswith(name)) for name in v.FREE_SETTINGS)
    if not free or not all(path.split(".")):
        raise PydanticCustomError("setting_foreign", "no setting that a plan may give")
    return path


def _time_limit(value: object) -> object:
    # YAML 1.1 reads an unquoted 12:00:00 as 43200, which could as well be meant as minutes or hours.
    if isinstance(value, int) and not isinstance(value, bool):
        raise PydanticCustomError("time_limit", "no length of time with a unit")
    return value


# Letters and digits of patterns are spelled out: \w and \d mean those of all scripts, and a repetition of them in a
# pattern takes megabytes and milliseconds when pydantic compiles it.
Text = Annotated[str, AfterValidator(_printable), Field(max_length=4096)]
Sources = Annotated[
    str,
    BeforeValidator(_joined),
    AfterValidator(_printable),
    Field(max_length=65536),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""One source of data, or several: a list, or their names with commas between."""
Weights = Annotated[
    Text,
    BeforeValidator(_listed_numbers),
    Field(pattern=r"^([0-9]+\.?[0-9]*|\.[0-9]+)(, *([0-9]+\.?[0-9]*|\.[0-9]+))*$"),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}, "minItems": 1}]}),
]
"""A number for each source of data: a list, or the numbers with commas between."""
Columns = Annotated[
    str,
    BeforeValidator(_mapped),
    AfterValidator(_printable),
    AfterValidator(_column_words),
    Field(max_length=4096),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]}),
]
"""What columns are read as: a mapping, or `prompt=问题,completion=回答`."""
Count = Annotated[int, BeforeValidator(_counted), Field(ge=1, le=10**9)]
CountOrZero = Annotated[int, BeforeValidator(_counted), Field(ge=0, le=10**9)]
Share = Annotated[float, BeforeValidator(_measured), Field(ge=0, lt=1, allow_inf_nan=False)]
"""At least 0, and less than 1."""
Parts = Annotated[Text, Field(pattern=r"^[^\s,]+(,[^\s,]+)*$"), AfterValidator(_different)]
"""Parts of parameters' names, separated by commas: `embed,layers.0.`."""
ByName = Annotated[
    Text,
    Field(pattern=r"^[^\s,=]+=([0-9]+\.?[0-9]*|\.[0-9]+)(,[^\s,=]+=([0-9]+\.?[0-9]*|\.[0-9]+))*$"),
    AfterValidator(_different),
]
"""Numbers by parts of parameters' names: `head=10,embed=0.1`."""
WrittenMetrics = Annotated[Text, Field(pattern=r"^(exact_match|bleu|rouge)(, *(exact_match|bleu|rouge))*$")]
"""Metrics of what the model generates, separated by commas: `exact_match,bleu`."""
NewTokens = Annotated[
    Text,
    BeforeValidator(_tokens),
    Field(pattern=r"^[^\s,]+(,[^\s,]+)*$"),
    AfterValidator(_tokens_once),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""Tokens that a tokenizer gets: a list, or separated by commas: `<tool_call>,</tool_call>`."""
SpecialTokens = Annotated[
    NewTokens,
    AfterValidator(_special),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "object"},
            ]
        }
    ),
]
"""The same, with roles: `<|im_start|>,eos_token=<|im_end|>`, or a mapping from roles to tokens."""
Modules = Annotated[
    Text,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*(,[A-Za-z_][A-Za-z0-9_.-]*)*$"),
    AfterValidator(_different),
    AfterValidator(_modules),
]
"""Names of modules, separated by commas: `q_proj,v_proj`."""
Repository = Annotated[
    Text,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$"),
    AfterValidator(_repository),
]
"""A repository of the hub: `organization/name`."""
TimeLimit = Annotated[
    Text,
    BeforeValidator(_time_limit),
    Field(pattern=r"^([1-9][0-9]{0,4}[mhd]|([0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9])$"),
]
"""A length of time: `90m`, `12h`, `2d`, `12:00:00` or `1-12:00:00`."""
Name = Annotated[Text, Field(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.@+-]*[A-Za-z0-9])?$")]
"""A name that a scheduler's administrator gave: an account."""
Names = Annotated[
    Text,
    Field(
        max_length=253,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.@+-]*[A-Za-z0-9])?(,[A-Za-z0-9]([A-Za-z0-9_.@+-]*[A-Za-z0-9])?)*$",
    ),
]
"""One of them, or several of which Slurm takes the first that is free: `gpu,spare`."""
Claim = Annotated[
    Text, Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")
]
"""A volume of Kubernetes or SkyPilot: a name of RFC 1123, which has no capitals."""
GpuType = Annotated[Text, Field(max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")]
"""A kind of GPU as the scheduler names it; Kubernetes has it as the value of a label."""
Label = Annotated[Text, Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
"""A name as Kubernetes has it, of a namespace or of a queue of Kueue."""
JobName = Annotated[Text, Field(max_length=40, pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$")]
"""A name that every scheduler takes, with room for what Kubernetes adds."""
Quantity = Annotated[Text, Field(pattern=r"^[1-9][0-9]{0,5}[MGT]i?$")]
"""An amount of memory: `64G`, `512Gi`."""
Folder = Annotated[Text, Field(pattern=r"^/[^\\:\"'$`]*$")]
"""An absolute path."""
Image = Annotated[
    Text,
    Field(
        max_length=512,
        pattern=r"^([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:[0-9]+)?/|[A-Za-z0-9-]+:[0-9]+/)?"
        r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
        r"(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@[a-z0-9]+:[a-f0-9]+)?$",
    ),
]
"""A container image: `registry/name:tag`. Only a registry and a tag may have capitals."""
Infra = Annotated[Text, Field(max_length=253, pattern=r"^[A-Za-z0-9*][A-Za-z0-9_.:@*-]*(/[A-Za-z0-9_.:@*-]+){0,9}$")]
"""Where SkyPilot may rent: `aws`, `gcp/us-central1`, `k8s/context`."""
Positive = Annotated[float, BeforeValidator(_measured), Field(gt=0, allow_inf_nan=False)]
PositiveOrZero = Annotated[float, BeforeValidator(_measured), Field(ge=0, allow_inf_nan=False)]


_ROLES = tuple(f"{role}=" for role in v.TOKEN_ROLES)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Model(_Section):
    """Which model, from which weights, how its layers compute, which weights are trained, and how it is saved."""

    name: Text = "tiny"
    parameters: (
        Annotated[int, BeforeValidator(_counted), BeforeValidator(_parameters), Field(ge=1, le=10**14)] | None
    ) = None
    from_scratch: bool
    compile: bool = False
    activation_checkpointing: v.ActivationCheckpointing
    attention: v.Attention = "auto"
    kernels: v.Kernels = "none"
    loss_chunk: Annotated[int, BeforeValidator(_counted), Field(ge=16, le=10**6)] = v.LOSS_CHUNK
    frozen: Parts | None = None
    neftune_alpha: PositiveOrZero = 0.0
    adapter: v.Adapter = "none"
    lora_rank: Annotated[int, BeforeValidator(_counted), Field(ge=1, le=65536)] = 16
    lora_alpha: Annotated[int, BeforeValidator(_counted), Field(ge=1, le=1_000_000)]
    lora_targets: Modules = "all-linear"
    lora_dropout: Share = 0.0
    lora_rslora: bool = False
    lora_dora: bool = False
    modules_to_save: Modules | None = None
    merge_adapter: bool = False
    output_dtype: v.OutputDtype = "source"
    push_to_hub: Repository | None = None
    push_public: bool = False


class Data(_Section):
    """What to train and evaluate on; `eval` empty means no evaluation, `packing` is for text that is generated."""

    train: Sources = v.EMBEDDED
    source_weights: Weights | None = None
    weigh_by: v.WeighBy = "tokens"
    eval: Annotated[Sources, AfterValidator(_evaluated)] | None
    columns: Columns | None = None
    text_column: Text = "text"
    image_column: Text = "image"
    label_column: Text = "label"
    max_rows: CountOrZero = 0
    image_size: Annotated[int, BeforeValidator(_counted), Field(ge=4, le=4096)] = 32
    augmentation: v.Augmentation = "shift"
    min_tokens: CountOrZero = 0
    max_tokens: CountOrZero = 0
    cache_dir: Text = ".cache"
    num_workers: Annotated[int, BeforeValidator(_counted), Field(ge=0, le=1024)]
    packing: bool
    train_on: v.TrainOn = "answers"
    chat_template: Text | None = None
    special_tokens: SpecialTokens | None = None
    added_tokens: NewTokens | None = None

    @property
    def all_tokens(self) -> tuple[str, ...]:
        """The tokens that the tokenizer is to have, without their roles."""
        parts = [part for tokens in (self.special_tokens, self.added_tokens) if tokens for part in tokens.split(",")]
        return tuple(part.partition("=")[2] if part.startswith(_ROLES) else part for part in parts)


class MachineChoice(_Section):
    """Where it runs. `num_processes` is the world: ranks over all machines."""

    device: v.Device
    num_machines: Annotated[int, BeforeValidator(_counted), Field(ge=1, le=65536)] = 1
    num_processes: Annotated[int, BeforeValidator(_counted), Field(ge=1, le=1_000_000)]
    main_process_ip: Text | None = None
    main_process_port: Annotated[int, BeforeValidator(_counted), Field(ge=0, le=65535)] = 29500
    numa_binding: v.NumaBinding = "auto"

    @property
    def ranks_per_machine(self) -> int:
        """Ranks on each machine (floor: a world that does not divide is a finding of its own)."""
        return max(1, self.num_processes // self.num_machines)


class Strategy(_Section):
    """How training state is spread over the ranks."""

    kind: v.StrategyKind
    zero_stage: Annotated[int, BeforeValidator(_counted), Field(ge=0, le=3)] | None
    offload_optimizer_device: v.OffloadDevice
    offload_param_device: v.OffloadDevice
    nvme_path: Text | None = None
    sync_each_batch: bool = False
    zero3_init: bool
    zero3_save_16bit_model: bool

    @property
    def label(self) -> str:
        """The strategy in one word: single, ddp, zero0 … zero3, fsdp, or a plugin of Colossal-AI."""
        return f"zero{self.zero_stage}" if self.kind == "deepspeed" else self.kind


class Precision(_Section):
    """The format that the forward and backward pass compute in, and that of the trained weights."""

    mixed_precision: Annotated[v.MixedPrecision, BeforeValidator(_yaml_no)]
    weights: v.WeightDtype = "float32"


class Batch(_Section):
    """The batch equation: real = per device × accumulation × world."""

    real_batch_size: Count
    per_device_batch_size: Count
    gradient_accumulation_steps: Count
    sequence_length: Annotated[int, BeforeValidator(_counted), Field(ge=2, le=10**7)]


class Schedule(_Section):
    """How long, and how the learning rate moves; counted in optimizer updates, or in shares of all of them."""

    train_strategy: v.TrainStrategy
    n_epochs: Count | None
    n_steps: Count | None
    n_warmup_steps: CountOrZero
    warmup_ratio: Share = 0.0
    lr_scheduler_type: v.SchedulerType = "cosine"
    min_lr_ratio: Annotated[float, BeforeValidator(_measured), Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    decay_ratio: Annotated[float, BeforeValidator(_measured), Field(gt=0, le=1, allow_inf_nan=False)] = 0.1
    decay_type: v.DecayType = "1-sqrt"
    polynomial_power: Positive = 1.0


class Optimizer(_Section):
    """The optimizer; `gradient_clipping` 0 means off, betas and epsilon of null are the usual ones of the optimizer."""

    name: v.OptimizerName = "adamw"
    learning_rate: Positive
    weight_decay: PositiveOrZero
    gradient_clipping: PositiveOrZero = 1.0
    beta1: Share | None = None
    beta2: Share | None = None
    epsilon: Positive | None = None
    ema_decay: Share = 0.0
    rates: ByName | None = None
    decays: ByName | None = None


class Evaluation(_Section):
    """When the model is evaluated (`evaluation_steps` in updates, 0: after each epoch), and what is made of it."""

    evaluation_steps: CountOrZero = 0
    best_metric: Annotated[Text, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    best_mode: v.BestMode = "auto"
    patience: CountOrZero = 0
    gather_outputs: bool = False
    generation_metrics: WrittenMetrics | None = None
    generated_answers: CountOrZero = 200
    max_new_tokens: Count = 128


class Preference(_Section):
    """How the task preference compares answers; `beta` null is the loss's usual value, the other numbers are of one."""

    loss: v.PreferenceLoss = "dpo"
    beta: Positive | None = None
    gamma: PositiveOrZero = 0.5
    desirable_weight: PositiveOrZero = 1.0
    undesirable_weight: PositiveOrZero = 1.0


class Checkpoint(_Section):
    """`checkpointing_steps` in updates (0: only at the end); the limit counts complete checkpoints (null: all)."""

    checkpointing_steps: CountOrZero
    checkpoints_total_limit: CountOrZero | None = 3
    # docs/decisions/checkpoints.md: Only syncing, hashing and renaming run in the background
    background: bool = False
    on_failed_save: v.OnFailedSave = "continue"


class Tracking(_Section):
    """Metrics always go to metrics.jsonl; `log_with` adds a tracker. `logging_steps` in updates, `tags` with commas."""

    log_with: v.Tracker = "none"
    project: Text = "train"
    run_name: Text | None = None
    tags: Annotated[Text, AfterValidator(_different)] | None = None
    logging_steps: Count


class Supervision(_Section):
    """What `launch` does when a run stands still or fails; `hang_limit` in seconds (0: learned from the run)."""

    on_hang: v.OnHang = "wait"
    hang_limit: PositiveOrZero = 0.0
    max_restarts: CountOrZero = 0


class Cluster(_Section):
    """Who starts the machines, and what they are asked for: `kind` none is this machine, or several by hand.

    `grace` is the seconds from the request to stop until the end, in which a checkpoint is saved. What is asked for
    (`cpus`, `memory`, `gpu_type`) is that of one machine, and of `time_limit` null is the scheduler's own.
    """

    kind: v.ClusterKind = "none"
    job_name: JobName = "train"
    time_limit: TimeLimit | None = None
    grace: Annotated[int, BeforeValidator(_counted), Field(ge=10, le=86_400)] = 120
    requeue: bool = True
    gpu_type: GpuType | None = None
    cpus: Annotated[int, BeforeValidator(_counted), Field(ge=1, le=4096)] | None = None
    memory: Quantity | None = None
    setup: Text | None = None
    folder: Folder | None = None
    partition: Names | None = None
    account: Name | None = None
    qos: Name | None = None
    queue: Label | None = None
    namespace: Label | None = None
    image: Image | None = None
    volume: Claim | None = None
    shared_memory: Quantity | None = "8Gi"
    workload: v.Workload = "trainjob"
    infra: Infra | None = None
    spot: bool = False

    @property
    def time_limit_seconds(self) -> int | None:
        """The limit in seconds."""
        if self.time_limit is None:
            return None
        if self.time_limit[-1] in _UNIT_SECONDS:
            return int(self.time_limit[:-1]) * _UNIT_SECONDS[self.time_limit[-1]]
        days, _, clock = self.time_limit.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds


_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


# docs/decisions/house.md: Constant defaults are in the plan, decided ones only in `decide`
class Plan(_Section):
    """A whole plan, as kept in `trainwiz.yaml`."""

    version: Annotated[int, BeforeValidator(_counted), Field(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    task: v.Task = v.USUAL_TASK
    engine: v.Engine
    seed: Annotated[int, BeforeValidator(_counted), Field(ge=0, le=2**32 - 1)] = 42
    model: Model
    data: Data
    machine: MachineChoice
    strategy: Strategy
    precision: Precision
    batch: Batch
    schedule: Schedule
    optimizer: Optimizer
    preference: Preference = Preference()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint
    tracking: Tracking
    supervision: Supervision = Supervision()
    cluster: Cluster = Cluster()
    deepspeed: dict[Annotated[str, AfterValidator(_free_setting)], JsonValue] = {}
    """Path in ds_config.json → value: settings of DeepSpeed beyond the plan's keys. null leaves one to DeepSpeed."""
    ignore: dict[Annotated[str, Field(pattern=r"^TW[0-9]{1,3}$")], Text] = {}
    """Rule id (or a prefix of one) → why this project may break it."""

    def get(self, key: str) -> Any:
        """The value at a dotted key. Raises `KeyError` for a key that no plan has."""
        value: Any = self
        for part in key.split("."):
            if not isinstance(value, BaseModel) or part not in type(value).model_fields:
                raise KeyError(key)
            value = getattr(value, part)
        return value

    def digest(self) -> str:
        """sha256 of what decides the training: not how large the model is said to be, who watches over it, or where."""
        ignored: Any = {
            "supervision": True,
            "cluster": True,
            "ignore": True,
            "model": {"parameters"},
            "machine": {"main_process_ip", "main_process_port"},
        }
        decisive = self.model_dump(mode="json", exclude=ignored)
        text = json.dumps(decisive, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def fields() -> Mapping[str, FieldInfo]:
    """Every settable key by its dotted name, in the plan's order."""
    return MappingProxyType(dict(_fields(Plan, "")))


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


@functools.cache
def sections() -> frozenset[str]:
    """The names of the groups of keys."""
    return frozenset(key.partition(".")[0] for key in fields() if "." in key)


def defaults() -> dict[str, Any]:
    """The default of each key that has one, by dotted key."""
    return {key: info.get_default() for key, info in fields().items() if not info.is_required()}


def flat(plan: Plan) -> dict[str, Any]:
    """Every value of the plan by its dotted key."""
    return {key: plan.get(key) for key in fields()}
