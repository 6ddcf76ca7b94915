"""Beginnings that fit: a model, how it is trained and on which GPUs. One row each; all else is decided as always."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One beginning. Tests decide, check and render each of them."""

    name: str
    """As it is typed: model, method, GPUs."""
    gpus: str
    """The GPUs that it fits, as `--gpus` names them; empty: any machine."""
    task: str
    """The plan's `task`."""
    model: str
    """The plan's `model.name`."""
    adapter: str = "none"
    """The plan's `model.adapter`; `none`: all weights are trained."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Answers beyond these, by key of the plan."""

    @property
    def answers(self) -> dict[str, Any]:
        """All that it answers, by key of the plan."""
        own = {"task": self.task, "model.name": self.model, **self.more}
        return {**own, "model.adapter": self.adapter} if self.task in _WITH_ADAPTERS else own


_WITH_ADAPTERS = frozenset({"sft", "preference"})
_NEW = MappingProxyType({"model.from_scratch": True})
"""Random weights with the architecture of the model."""


def _sft(name: str, gpus: str, model: str, adapter: str, **more: Any) -> Recipe:
    return Recipe(name=name, gpus=gpus, task="sft", model=model, adapter=adapter, more=more)


def _tuned(name: str, gpus: str, model: str, adapter: str, loss: str = "dpo") -> Recipe:
    more = {"preference.loss": loss}
    return Recipe(name=name, gpus=gpus, task="preference", model=model, adapter=adapter, more=more)


def _pretrained(name: str, gpus: str, model: str, **more: Any) -> Recipe:
    return Recipe(name=name, gpus=gpus, task="causal_lm", model=model, more={**_NEW, **more})


RECIPES: tuple[Recipe, ...] = (
    Recipe(name="tiny-cpu", gpus="", task="causal_lm", model="tiny"),
    Recipe(name="tiny-chat-cpu", gpus="", task="sft", model="tiny", more=_NEW),
    Recipe(name="text-classes-cpu", gpus="", task="text_classification", model="tiny"),
    Recipe(name="digits-cpu", gpus="", task="image_classification", model="tiny"),
    _pretrained("gpt2-124m-new-1x4090", "1xRTX4090", "gpt2-124m"),
    _pretrained("gpt2-124m-new-8xa100", "8xA100", "gpt2-124m"),
    _pretrained("llama-1b-new-8xh100", "8xH100", "llama-1b"),
    _sft("qwen2.5-0.5b-full-1x4090", "1xRTX4090", "Qwen/Qwen2.5-0.5B-Instruct", "none"),
    _sft("qwen2.5-1.5b-lora-1xt4", "1xT4", "Qwen/Qwen2.5-1.5B-Instruct", "lora"),
    _sft("qwen2.5-1.5b-full-1xa100", "1xA100-80GB", "Qwen/Qwen2.5-1.5B-Instruct", "none"),
    _sft("qwen2.5-7b-qlora-1x4090", "1xRTX4090", "Qwen/Qwen2.5-7B-Instruct", "qlora"),
    _sft("qwen2.5-7b-qlora-2x4090", "2xRTX4090", "Qwen/Qwen2.5-7B-Instruct", "qlora"),
    _sft("qwen2.5-7b-lora-1xa100", "1xA100-80GB", "Qwen/Qwen2.5-7B-Instruct", "lora"),
    _sft("qwen2.5-7b-full-4xa100", "4xA100-80GB", "Qwen/Qwen2.5-7B-Instruct", "none"),
    _sft("qwen2.5-7b-full-8xh100", "8xH100", "Qwen/Qwen2.5-7B-Instruct", "none"),
    _sft("qwen2.5-14b-qlora-1xa100", "1xA100-80GB", "Qwen/Qwen2.5-14B-Instruct", "qlora"),
    _sft("llama-3.1-8b-qlora-1x4090", "1xRTX4090", "meta-llama/Llama-3.1-8B-Instruct", "qlora"),
    _sft("llama-3.1-8b-lora-1xa100", "1xA100-80GB", "meta-llama/Llama-3.1-8B-Instruct", "lora"),
    _sft("llama-3.1-8b-full-8xh100", "8xH100", "meta-llama/Llama-3.1-8B-Instruct", "none"),
    _sft("llama-2-13b-qlora-1x4090", "1xRTX4090", "meta-llama/Llama-2-13b-chat-hf", "qlora"),
    _sft("llama-2-13b-full-8xh100", "8xH100", "meta-llama/Llama-2-13b-chat-hf", "none"),
    _sft("mistral-7b-qlora-1x4090", "1xRTX4090", "mistralai/Mistral-7B-Instruct-v0.3", "qlora"),
    _sft("mistral-7b-full-8xa100", "8xA100-80GB", "mistralai/Mistral-7B-Instruct-v0.3", "none"),
    _sft("llama-2-70b-qlora-4x4090", "4xRTX4090", "meta-llama/Llama-2-70b-chat-hf", "qlora"),
    _sft("llama-2-70b-qlora-8xh100", "8xH100", "meta-llama/Llama-2-70b-chat-hf", "qlora"),
    _tuned("qwen2.5-0.5b-dpo-1x4090", "1xRTX4090", "Qwen/Qwen2.5-0.5B-Instruct", "none"),
    _tuned("qwen2.5-7b-dpo-lora-1xa100", "1xA100-80GB", "Qwen/Qwen2.5-7B-Instruct", "lora"),
    _tuned("qwen2.5-7b-simpo-qlora-2x4090", "2xRTX4090", "Qwen/Qwen2.5-7B-Instruct", "qlora", "simpo"),
)
"""By task, then by size."""


def named(name: str) -> Recipe | None:
    """The recipe of a name; None for one that is not in the list."""
    return next((recipe for recipe in RECIPES if recipe.name == name.strip().lower()), None)
