"""The protocol of a task: everything that the other rooms ask about one, so that none of them asks which it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trainwiz.message import Message, say
from trainwiz.tasks import generation
from trainwiz.tasks.networks import NetworkShape
from trainwiz.tasks.preference_losses import LOSSES
from trainwiz.tasks.shapes import ModelShape

if TYPE_CHECKING:
    from trainwiz.plan import Plan
    from trainwiz.vocabulary import PreferenceLoss
    from trainwiz.vocabulary import Task as TaskName

Shape = ModelShape | NetworkShape
MetricMode = Literal["min", "max"]
Samples = Literal[
    "documents",
    "conversations",
    "preferences",
    "labeled_texts",
    "scored_texts",
    "tagged_texts",
    "pictures",
    "scored_pictures",
    "tagged_pictures",
    "own",
]
"""What one sample is read from."""
MODEL_PROMPT = say("Model: tiny, gpt2-124m, llama-1b, a folder, or a hub id")
DATA_PROMPT = say("Training data: embedded, files, folders, patterns, or hub ids, separated by commas")

IMAGE_MODELS = say("Model: tiny, resnet18, a timm network (timm/convnext_tiny.fb_in22k), a folder or a hub id")
IMAGE_TABLES = say(
    "use a table of images and labels (.csv, .tsv, .jsonl, .json or .parquet), a folder with a metadata.csv, an .npz "
    "file, or embedded"
)
TABLE_NAMES = say(
    "use files (.jsonl, .json, .csv, .tsv, .parquet or .arrow), folders of them, patterns, hub ids "
    "(organization/name:subset:split), or embedded"
)


OF_CLASSES: Mapping[str, MetricMode] = {"eval_loss": "min", "eval_accuracy": "max", "eval_f1": "max"}
OF_LABELS: Mapping[str, MetricMode] = {**OF_CLASSES, "eval_f1_micro": "max"}
OF_NUMBERS: Mapping[str, MetricMode] = {"eval_loss": "min", "eval_mae": "min", "eval_r2": "max"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One thing to train for: its data, its models, and what its code needs."""

    name: TaskName
    """The value of `task` in a plan."""
    summary: Message
    """One line in the wizard's list."""
    samples: Samples
    """The kind of data, as `probe` reads it."""
    presets: Mapping[str, Shape] = field(default_factory=dict)
    """Models that it makes from a name alone."""
    from_hub: bool = False
    """Models and tokenizers come from transformers: a folder or a hub id may be named."""
    backbones: bool = False
    """Models come from timm: a network of timm, a folder or a hub id may be named."""
    auto_class: str = "AutoModelForCausalLM"
    """The class of transformers that makes them."""
    generative: bool = False
    """The model writes text: each token has logits."""
    compares: bool = False
    """Samples are answers that a loss compares, each in a row of its own; else several documents may share a row."""
    pairs: bool = False
    """A sample is two answers, each in a row of its own, which are scored."""
    labeled: bool = False
    """Each sample has a label to predict: a class or a number."""
    several_columns: bool = False
    """Whether its labels may also be in several columns, whose names have commas between."""
    text_column: bool = False
    """The plan names the column that texts are read from."""
    adapters: bool = False
    """An adapter (LoRA, QLoRA) may be trained in place of all weights."""
    model_prompt: Message = MODEL_PROMPT
    """How the wizard asks for the model."""
    data_prompt: Message = DATA_PROMPT
    """How the wizard asks for the training data."""
    data_names: Message | None = None
    """What `data.train` may name, as a remedy. None: the plan names no data."""
    data_forms: Message | None = None
    """The form that files must have, as a remedy."""
    packages: tuple[str, ...] = ()
    """What it needs beside torch and the engine."""
    named_packages: tuple[str, ...] = ()
    """What a model that is not a preset needs on top."""
    embedded_packages: tuple[str, ...] = ()
    """What its embedded data needs on top."""
    parts: tuple[str, ...] = ()
    """Templates that it shares with other tasks, beside those of every loop."""
    sharded_layer: str | None = None
    """The class that FSDP shards one by one, SHARDED_LAYERS of its template; None: the model names its own."""
    weight_decay: tuple[float, Message] = (0.0, say("common default"))
    """The default weight decay, and why."""
    regions: Mapping[str, bool] = field(default_factory=dict)
    """Regions of the templates that the task decides."""
    metrics: Mapping[str, MetricMode] = field(default_factory=lambda: {"eval_loss": "min"})
    """What an evaluation measures, and whether small or large values are good; of own code, what its example has."""
    gathered_metrics: Mapping[str, MetricMode] | None = None
    """The same where the outputs for all samples are gathered; None: the task has no such metrics."""
    gathered_region: str = ""
    """The region of scores.py that computes them; empty: the task computes them itself."""

    @property
    def packs(self) -> bool:
        """Several documents may share a row."""
        return self.generative and not self.compares

    @property
    def stores_tokens(self) -> bool:
        """Its data is tokenized ahead, and the tokens are kept on disk."""
        return self.packs or self.compares or self.pairs

    @property
    def weighs(self) -> bool:
        """Its data may be several sources with weights."""
        return self.from_hub or self.backbones

    @property
    def cuts(self) -> bool:
        """A long document becomes several samples; else what is too long for one is cut off."""
        return self.samples == "documents"

    @property
    def chats(self) -> bool:
        """Samples hold conversations, which a chat template writes as text."""
        return self.samples in ("conversations", "preferences")

    @property
    def longest_samples(self) -> Literal["rows", "pairs", "scored", "texts", "own"]:
        """What `plan --exact` makes a micro-batch of: samples of the greatest length, or those that the data has."""
        if self.compares:
            return "pairs"
        if self.pairs:
            return "scored"
        return "rows" if self.generative else "texts" if self.from_hub else "own"

    @property
    def talks(self) -> bool:
        """It trains on conversations."""
        return self.samples == "conversations"

    @property
    def own_code(self) -> bool:
        """Data and model are the user's own code in task.py; the plan names neither."""
        return self.samples == "own"

    @property
    def names_models(self) -> bool:
        """Models beyond the presets may be named: folders and hub ids."""
        return self.from_hub or self.backbones

    def layer_of(self, plan: Plan) -> str | None:
        """The class that FSDP shards one by one; None: the model names its own."""
        return None if self.backbones and self.shape(plan.model.name) is None else self.sharded_layer

    def rows(self, loss: PreferenceLoss) -> int:
        """Rows of tokens that one sample brings to a forward pass; `loss` compares answers."""
        if self.compares:
            return LOSSES[loss].rows
        return 2 if self.pairs else 1

    @property
    def state_is_whole(self) -> bool:
        """Whether the files have all weights, and the model says which of them it shares: those of transformers do."""
        return self.from_hub

    def measured(self, *, gathered: bool, written: str | None) -> Mapping[str, MetricMode]:
        """The metrics of an evaluation, and whether small or large values are good.

        `written` names those of what the model writes.
        """
        known = (self.gathered_metrics or {}) if gathered else self.metrics
        metrics = generation.chosen(written if self.packs else None).values()
        return {**known, **{name: "max" for metric in metrics for name in metric.measures}}

    def shape(self, model: str) -> Shape | None:
        """The shape of a preset; None for any other name."""
        return self.presets.get(model)

    @property
    def counted(self) -> Literal["tokens", "pictures", "samples"]:
        """What the loss is a mean over, and the speed counts."""
        if self.generative:
            return "tokens"
        return "pictures" if self.samples == "pictures" else "samples"

    def transformer(self, model: str) -> ModelShape | None:
        """The shape of a preset that is a transformer; None for any other name."""
        shape = self.presets.get(model)
        return shape if isinstance(shape, ModelShape) else None
