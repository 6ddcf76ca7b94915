"""Precision in files of training tools."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Level, Violations
from trainwiz.rules.registry import rule
from trainwiz.rules.tools.sentences import clash


@rule("TW801", level=Level.ERROR, field="fp16")
def one_half_precision(tool_file: ToolFile) -> Violations:
    """bf16 and fp16 cannot both be enabled.

    Without it: transformers stops: `At most one of fp16 and bf16 can be True, but not both`.
    Why: each is the type of the whole forward and backward computation.
    Instead: keep bf16 on A100, H100 and newer; keep fp16 on V100 and T4.
    Source: seen with transformers 5.23.0 (`TrainingArguments._validate_args`)
    """
    if tool_file.on("fp16") and tool_file.on("bf16"):
        yield clash(tool_file, tool_file.key("fp16"), tool_file.key("bf16"))
