"""What was decided: the one source of truth, kept in `trainwiz.yaml`.

Frozen; unknown keys are refused. `parse` is the way in for anything a person wrote, `with_changes` for changes
by dotted key (`batch.real_batch_size`). A plan only promises that each value alone is legal; whether the values
agree with each other and with the machine is for the rules to say.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic.types import JsonValue
from pydantic_core import ErrorDetails, PydanticCustomError

from trainwiz import vocabulary as v
from trainwiz.errors import PlanError
from trainwiz.message import Message, say

FORMAT_VERSION = 1


def _printable(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("must not contain line breaks or control characters")
    return text


def _yaml_no(value: object) -> object:
    # YAML 1.1 reads an unquoted `no` as false; here it can only mean the word.
    return "no" if value is False else value


def _free_setting(path: str) -> str:
    if path in v.DECIDED_SETTINGS:
        raise PydanticCustomError("setting_decided", "a key of the plan", {"decides": v.DECIDED_SETTINGS[path]})
    free = any(path == name or (name.endswith(".") and path.startswith(name)) for name in v.FREE_SETTINGS)
    if not free or not all(path.split(".")):
        raise PydanticCustomError("setting_foreign", "no setting that a plan may give")
    return path


Text = Annotated[str, AfterValidator(_printable), Field(max_length=4096)]
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Model(_Section):
    """Which model, whether it starts from random weights, whether only an adapter is trained, and torch.compile."""

    name: Text = "tiny"
    from_scratch: bool = True
    compile: bool = False
    adapter: v.Adapter = "none"
    lora_rank: Annotated[int, Field(ge=1, le=65536)] = 16
    lora_alpha: Annotated[int, Field(ge=1, le=1_000_000)] = 32
    lora_targets: Annotated[Text, Field(pattern=r"^[A-Za-z_][\w.-]*(,[A-Za-z_][\w.-]*)*$")] = "all-linear"
    merge_adapter: bool = False


class Data(_Section):
    """What to train and evaluate on; `eval` empty means no evaluation, `packing` is for text that is generated."""

    train: Text = v.EMBEDDED
    eval: Text | None = v.EMBEDDED
    num_workers: Annotated[int, Field(ge=0, le=1024)] = 0
    packing: bool = True


class MachineChoice(_Section):
    """Where it runs. `num_processes` is the world: ranks over all machines."""

    device: v.Device = "cpu"
    num_machines: Annotated[int, Field(ge=1, le=65536)] = 1
    num_processes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    main_process_ip: Text | None = None
    main_process_port: Annotated[int, Field(ge=0, le=65535)] = 29500

    @property
    def ranks_per_machine(self) -> int:
        """Ranks on each machine (floor: a world that does not divide is a finding of its own)."""
        return max(1, self.num_processes // self.num_machines)


class Strategy(_Section):
    """How training state is spread over the ranks."""

    kind: v.StrategyKind = "single"
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    offload_optimizer_device: v.OffloadDevice = "none"
    offload_param_device: v.OffloadDevice = "none"
    nvme_path: Text | None = None
    zero3_init: bool = False
    zero3_save_16bit_model: bool = False

    @property
    def label(self) -> str:
        """The strategy in one word: single, ddp, zero0 … zero3, fsdp, or a plugin of Colossal-AI."""
        return f"zero{self.zero_stage}" if self.kind == "deepspeed" else self.kind


class Precision(_Section):
    """The format that the forward and backward pass compute in."""

    mixed_precision: Annotated[v.MixedPrecision, BeforeValidator(_yaml_no)] = "no"


class Batch(_Section):
    """The batch equation: real = per device × accumulation × world."""

    real_batch_size: Count = 32
    per_device_batch_size: Count = 8
    gradient_accumulation_steps: Count = 4
    sequence_length: Annotated[int, Field(ge=2, le=10**7)] = 256


class Schedule(_Section):
    """How long, and how the learning rate moves; all counted in optimizer updates."""

    train_strategy: v.TrainStrategy = "steps"
    n_epochs: Count | None = None
    n_steps: Count | None = 100
    n_warmup_steps: CountOrZero = 0
    lr_scheduler_type: v.SchedulerType = "cosine"


class Optimizer(_Section):
    """The optimizer; `gradient_clipping` 0 means off."""

    name: v.OptimizerName = "adamw"
    learning_rate: Positive = 3e-4
    weight_decay: PositiveOrZero = 0.1
    gradient_clipping: PositiveOrZero = 1.0


class Checkpoint(_Section):
    """`checkpointing_steps` in updates (0: only at the end); the limit counts complete checkpoints (null: all)."""

    checkpointing_steps: CountOrZero = 100
    checkpoints_total_limit: CountOrZero | None = 3
    background: bool = False
    on_failed_save: v.OnFailedSave = "continue"


class Tracking(_Section):
    """Metrics always go to metrics.jsonl; `log_with` adds a tracker. `logging_steps` in updates."""

    log_with: v.Tracker = "none"
    logging_steps: Count = 10


class Supervision(_Section):
    """What `launch` does when a run stands still or fails; `hang_limit` in seconds (0: learned from the run)."""

    on_hang: v.OnHang = "wait"
    hang_limit: PositiveOrZero = 0.0
    max_restarts: CountOrZero = 0


class Plan(_Section):
    """A whole plan, as kept in `trainwiz.yaml`."""

    version: Annotated[int, Field(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    task: v.Task = "causal_lm"
    engine: v.Engine = "accelerate"
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 42
    model: Model = Model()
    data: Data = Data()
    machine: MachineChoice = MachineChoice()
    strategy: Strategy = Strategy()
    precision: Precision = Precision()
    batch: Batch = Batch()
    schedule: Schedule = Schedule()
    optimizer: Optimizer = Optimizer()
    checkpoint: Checkpoint = Checkpoint()
    tracking: Tracking = Tracking()
    supervision: Supervision = Supervision()
    deepspeed: dict[Annotated[str, AfterValidator(_free_setting)], JsonValue] = {}
    """Path in ds_config.json → value: settings of DeepSpeed beyond the plan's keys. null leaves one to DeepSpeed."""
    ignore: dict[Annotated[str, Field(pattern=r"^TW\d{1,3}$")], Text] = {}
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
        """sha256 of what decides the training: the plan's values, but not how it is watched over."""
        text = json.dumps(self.model_dump(mode="json", exclude={"supervision"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def fields() -> dict[str, FieldInfo]:
    """Every settable key by its dotted name, in the plan's order."""
    return dict(_fields(Plan, ""))


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def parse(values: Mapping[str, Any], source: str = "") -> Plan:
    """A plan from nested values, as YAML gives them.

    Raises `PlanError` naming every wrong key with its value, the legal ones, and the nearest known key.
    """
    if not isinstance(values, Mapping):
        raise PlanError([say("a plan is a mapping of keys to values, not {kind}", kind=_kind(values))], source)
    try:
        return Plan.model_validate(dict(values))
    except ValidationError as error:
        raise PlanError([_problem(e) for e in error.errors()], source) from None


def parse_value(key: str, text: str) -> Any:
    """One value written on the command line, by the type of its key (`no` stays the word, `8` becomes 8).

    An empty text or `null` means None where the key allows it. Raises `PlanError`.
    """
    info = fields().get(key)
    if info is None:
        raise PlanError([unknown_key(key)])
    kind: Any = info.annotation
    for constraint in info.metadata:
        kind = Annotated[kind, constraint]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    candidates: tuple[Any, ...] = (None, text) if text in ("", "null") else (text,)
    for candidate in candidates:
        try:
            return adapter.validate_python(candidate)
        except ValidationError as error:
            failure = error
    raise PlanError([_problem({**e, "loc": (*key.split("."), *e["loc"])}) for e in failure.errors()])


def with_changes(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """The plan with values replaced by dotted key. Raises `PlanError`."""
    values = plan.model_dump()
    problems = [unknown_key(key) for key in changes if key not in fields()]
    if problems:
        raise PlanError(problems)
    for key, value in changes.items():
        *sections, name = key.split(".")
        target = values
        for section in sections:
            target = target[section]
        target[name] = value
    return parse(values)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """`{"batch.real_batch_size": 8}` → `{"batch": {"real_batch_size": 8}}`."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = value
    return result


def flat(plan: Plan) -> dict[str, Any]:
    """Every value of the plan by its dotted key."""
    return {key: plan.get(key) for key in fields()}


def unknown_key(key: str) -> Message:
    """What to say of a key that no plan has, with the nearest that it does have."""
    known = [*fields(), *Plan.model_fields]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6) or [
        k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]
    ]
    if near:
        return say("{key}: unknown key; did you mean {near}?", key=key, near=near[0])
    return say("{key}: unknown key; `trainwiz explain keys` lists them all", key=key)


def _problem(error: ErrorDetails) -> Message:
    key = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    value, context = _shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return unknown_key(key)
        case "literal_error":
            return say("{key}: {value} is not one of {legal}", key=key, value=value, legal=context["expected"])
        case "greater_than":
            return say("{key}: {value} must be greater than {limit}", key=key, value=value, limit=context["gt"])
        case "greater_than_equal":
            return say("{key}: {value} must be at least {limit}", key=key, value=value, limit=context["ge"])
        case "less_than_equal":
            return say("{key}: {value} must be at most {limit}", key=key, value=value, limit=context["le"])
        case "int_parsing" | "int_type" | "int_from_float":
            return say("{key}: {value} is not a whole number", key=key, value=value)
        case "float_parsing" | "float_type" | "finite_number":
            return say("{key}: {value} is not a number", key=key, value=value)
        case "bool_parsing" | "bool_type":
            return say("{key}: {value} is neither true nor false", key=key, value=value)
        case "model_type" | "dict_type" | "model_attributes_type":
            return say("{key}: {value} stands where a section of keys belongs", key=key, value=value)
        case "string_type":
            return say("{key}: {value} is not a text", key=key, value=value)
        case "string_too_long":
            return say("{key}: the text is longer than {limit} characters", key=key, limit=context["max_length"])
        case "string_pattern_mismatch" if key == "model.lora_targets":
            return say(
                "{key}: {value} is neither all-linear nor names of modules (q_proj,v_proj)", key=key, value=value
            )
        case "string_pattern_mismatch":
            return say("ignore: {value} is neither a rule's id (TW401) nor the beginning of one (TW4)", value=value)
        case "setting_decided":
            return say("deepspeed: {value} is decided by {key}; set that", value=value, key=context["decides"])
        case "setting_foreign":
            return say("deepspeed: {value} is no setting that the training loop can work with", value=value)
        case "value_error" if "control" in str(context.get("error")):
            return say("{key}: {value} must not contain line breaks or control characters", key=key, value=value)
        case "value_error":
            return say("{key}: must not be empty", key=key)
    return say("{key}: {value}: {problem}", key=key, value=value, problem=error["msg"])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _kind(value: object) -> str:
    return type(value).__name__
