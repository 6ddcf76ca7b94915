"""Colossal-AI's plugins in a script: what they support, and what they do instead of Booster."""

from __future__ import annotations

import ast

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.tree import constant

_PRECISIONS = {"LowLevelZeroPlugin": ("fp16", "bf16", "fp32"), "GeminiPlugin": ("fp16", "bf16")}
_BOOSTERS = {"TorchDDPPlugin": ("fp16", "fp16_apex")}
"""The plugins that leave precision to Booster, with the precisions that work."""
_OWN = ("LowLevelZeroPlugin", "GeminiPlugin", "HybridParallelPlugin", "TorchFSDPPlugin", "MoeHybridParallelPlugin")
_STAGES = {"LowLevelZeroPlugin": ("stage", (1, 2)), "HybridParallelPlugin": ("zero_stage", (0, 1, 2))}
_GEMINIS = ("HybridAdam", "FusedAdam", "CPUAdam")
_KEEP_GRADIENTS = ("LowLevelZeroPlugin", "GeminiPlugin")


@rule("TW731", level=Level.ERROR, field="script")
def the_plugin_has_the_precision(script: Script) -> Violations:
    """A Colossal-AI plugin must use a precision that it supports.

    Without it: `AssertionError: precision fp32 is not supported` (Gemini), `only supports ['fp16', 'bf16', 'fp32']`
    (LowLevelZero), or with TorchDDPPlugin `TypeError: Can't instantiate abstract class BF16MixedPrecision`.
    Why: each plugin has its own way to compute; bf16 and fp8 of Booster's mixed_precision were never implemented.
    Instead: use bf16 with LowLevelZero or Gemini; with TorchDDPPlugin fp16, or torch.autocast in the forward pass.
    Source: seen with Colossal-AI 0.5.0
    """
    for call in _plugins(script, *_PRECISIONS):
        known = _PRECISIONS[call.last]
        yield from _outside(script, call, call.keyword("precision"), known, call.last)
    if _plugins(script, *_BOOSTERS) and not _plugins(script, *_OWN):
        for call in script.called("colossalai.booster.Booster"):
            yield from _outside(script, call, call.keyword("mixed_precision"), _BOOSTERS["TorchDDPPlugin"], "Booster")


@rule("TW732", level=Level.ERROR, field="script")
def the_plugin_has_the_stage(script: Script) -> Violations:
    """LowLevelZeroPlugin supports stages 1 and 2; HybridParallelPlugin 0 to 2, or 0 and 1 with pipelines.

    Without it: `AssertionError: LowLevelZeroPlugin only supports stage 1/2 training`, or a bare AssertionError.
    Why: only Gemini and TorchFSDPPlugin shard the weights.
    Instead: use stage 2, or GeminiPlugin(placement_policy="static", shard_param_frac=1.0).
    Source: seen with Colossal-AI 0.5.0
    """
    for call in _plugins(script, *_STAGES):
        name, stages = _STAGES[call.last]
        given, pipeline = constant(call.keyword(name)), constant(call.keyword("pp_size"))
        if isinstance(pipeline, int) and pipeline > 1:
            stages = (0, 1)
        if type(given) is int and given not in stages:
            yield violation(
                "{plugin} has no stage {stage}; choose one of {legal}",
                remedy("set {name}={stage}", name=name, stage=stages[-1]),
                plugin=call.last,
                stage=given,
                legal=", ".join(map(str, stages)),
                place=script.place(call.node),
            )


@rule("TW733", level=Level.ERROR, field="script")
def gemini_has_its_own_adam(script: Script) -> Violations:
    """Under GeminiPlugin, the optimizer must be HybridAdam, FusedAdam or CPUAdam.

    Without it: `AssertionError: You should use an optimizer in the available list` when the model is boosted.
    Why: Gemini moves the optimizer state between host and device in chunks, which only these optimizers support.
    Instead: use HybridAdam: from colossalai.nn.optimizer import HybridAdam
    Source: seen with Colossal-AI 0.5.0; colossalai/zero/gemini/gemini_optimizer.py
    """
    if not _plugins(script, "GeminiPlugin") or _plugins(script, *[n for n in _OWN if n != "GeminiPlugin"]):
        return
    if _plugins(script, "TorchDDPPlugin"):
        return  # the script chooses one of several plugins at run time
    for call in script.calls:
        module, _, name = script.names.resolved(call.node.func).rpartition(".")
        if module == "torch.optim" and name not in _GEMINIS:
            fix = remedy("use colossalai.nn.optimizer.HybridAdam")
            yield violation("Gemini does not accept torch's {name}", fix, name=name, place=script.place(call.node))


@rule("TW734", level=Level.ERROR, field="script")
def gemini_is_told_that_gradients_accumulate(script: Script) -> Violations:
    """Under GeminiPlugin, gradient accumulation needs enable_gradient_accumulation=True.

    Without it: the first backward pass overwrites the weights until the update: the next forward pass computes with
    gradients in their place, and the update sees only the last micro-batch; there is no message.
    Why: without this option, Gemini writes gradients into the chunks of the parameters.
    Instead: set GeminiPlugin(enable_gradient_accumulation=True)
    Source: seen with Colossal-AI 0.5.0 on CPU ranks (`reuse_fp16_chunk` in zero/gemini/gemini_ddp.py);
    hpcaitech/ColossalAI issue 2496
    """
    windows = [w for w in script.training.windows if w.backward.by == "Booster"]
    for call in _plugins(script, "GeminiPlugin") if windows else ():
        told = call.keyword("enable_gradient_accumulation")
        if not call.has_spread() and (told is None or constant(told) is False):
            yield violation(
                "line {line} accumulates micro-batches, but Gemini is not configured for it",
                remedy("add enable_gradient_accumulation=True"),
                line=script.place(windows[0].backward.call).line,
                place=script.place(call.node),
            )


@rule("TW735", level=Level.WARNING, field="script")
def the_plugin_decides_the_precision(script: Script) -> Violations:
    """Booster's mixed_precision works only with TorchDDPPlugin.

    Without it: Booster logs one line, `the mixed_precision argument will be ignored`, and the plugin computes in
    its own precision: fp16 by default.
    Why: the other plugins cast and shard the weights themselves.
    Instead: set precision="bf16" of the plugin, or mixed_precision=MixedPrecision(…) of TorchFSDPPlugin.
    Source: read in Colossal-AI 0.5.0 (booster/booster.py)
    """
    own = _plugins(script, *_OWN)
    if not own or _plugins(script, *_BOOSTERS):
        return
    for call in script.called("colossalai.booster.Booster"):
        if isinstance(constant(call.keyword("mixed_precision")), str):
            yield violation(
                "{plugin} ignores Booster's mixed_precision",
                remedy("pass the precision to the plugin"),
                plugin=own[0].last,
                place=script.place(call.node),
            )


@rule("TW736", level=Level.WARNING, field="script")
def the_plugin_clips(script: Script) -> Violations:
    """Under LowLevelZeroPlugin and GeminiPlugin, clip gradients with the plugin's max_norm.

    Without it: torch.nn.utils.clip_grad_norm_ finds no gradients on the parameters and clips nothing.
    Why: both plugins move gradients into their own buffers in the backward pass.
    Instead: set LowLevelZeroPlugin(max_norm=1.0)
    Source: read in Colossal-AI 0.5.0 (zero/low_level/low_level_optim.py, zero/gemini/gemini_ddp.py)
    """
    own = _plugins(script, *_KEEP_GRADIENTS)
    if not own or _plugins(script, *_BOOSTERS):
        return
    for call in script.called("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"):
        yield violation(
            "{plugin} keeps gradients in its own buffers: this call has no effect",
            remedy("pass max_norm to the plugin"),
            plugin=own[0].last,
            place=script.place(call.node),
        )


def _plugins(script: Script, *names: str) -> list[Call]:
    """The calls that create one of these plugins."""
    return [c for c in script.calls_of(*names) if c.name.startswith("colossalai.") and c.last in names]


def _outside(script: Script, call: Call, given: ast.expr | None, legal: tuple[str, ...], who: str) -> Violations:
    value = constant(given)
    if isinstance(value, str) and value not in legal:
        yield violation(
            "{who} does not support precision {value}; choose one of {legal}",
            remedy("write {value}", value="bf16" if "bf16" in legal else legal[0]),
            who=who,
            value=value,
            legal=", ".join(legal),
            place=script.place(call.node),
        )
