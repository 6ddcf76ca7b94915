"""Precision in files of training tools."""

from __future__ import annotations

from trainwiz.config.tools import Recipe
from trainwiz.finding import Level, Violations
from trainwiz.rules.recipes.sentences import clash
from trainwiz.rules.registry import rule


@rule("TW801", level=Level.ERROR, field="fp16")
def one_half_precision(recipe: Recipe) -> Violations:
    """bf16 and fp16 cannot both be on.

    Without it: transformers stops: `At most one of fp16 and bf16 can be True, but not both`.
    Why: each is the type in which the whole forward and backward compute.
    Instead: keep bf16 on A100, H100 and newer; keep fp16 on V100 and T4.
    Source: seen with transformers 5.23.0 (`TrainingArguments._validate_args`)
    """
    if recipe.on("fp16") and recipe.on("bf16"):
        yield clash(recipe, recipe.key("fp16"), recipe.key("bf16"))
