"""Scores and averages over several ranks, and over batches of unequal size."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.training import loop_source
from trainwiz.script.tree import Loop, dotted

_TOKEN_MODELS = ("ForCausalLM", "ForSeq2SeqLM", "ForMaskedLM", "ForConditionalGeneration", "LMHeadModel")
_PADDING = ("DataCollatorForSeq2Seq", "DataCollatorWithPadding", "DataCollatorForLanguageModeling", "pad_sequence")
_COUNTS = ("num_items", "num_tokens", "n_tokens", "token_count", "ntokens")


@rule("TW705", level=Level.ERROR, field="script")
def metrics_are_gathered(script: Script) -> Iterator[Violation]:
    """A metric sees the predictions of all ranks, by gather_for_metrics.

    Without it: each rank scores its own share, and what the main process prints is the score of 1/N of the data.
    Why: a prepared loader gives each rank every N-th batch.
    Instead: `predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))` before
    add_batch.
    Source: https://huggingface.co/docs/accelerate/quicktour (distributed evaluation)
    """
    for call in script.called("Metric.add_batch", "Metric.add"):
        if not _over_prepared(script, call.node) or script.ranks.mentions_rank(call.node.func):
            continue
        given = [*call.node.args, *[k.value for k in call.node.keywords]]
        calls = [n for value in given for n in script.names.feeding(value) if isinstance(n, ast.Call)]
        if not any("gather" in dotted(n.func) for n in calls):
            yield violation(
                "{name} sees this rank's share of the data only",
                remedy("gather predictions and references with accelerator.gather_for_metrics first"),
                name=dotted(call.node.func),
                place=script.place(call.node),
            )


@rule("TW706", level=Level.WARNING, field="script")
def repeated_samples_are_cut(script: Script) -> Iterator[Violation]:
    """Evaluation gathers with gather_for_metrics, not with gather.

    Without it: the last batch is filled up with samples from the beginning, so that all ranks have equally many; gather
    keeps those, and they count twice in the score.
    Why: accelerate's loaders have even_batches on; only gather_for_metrics knows how many samples were added.
    Instead: accelerator.gather_for_metrics; or cut the gathered tensors to len(dataset) yourself.
    Source: https://huggingface.co/docs/accelerate/package_reference/accelerator (gather_for_metrics)
    """
    for call in script.called("Accelerator.gather"):
        loops = script.tree.loops(call.node)
        training = any(b.loop in loops for b in script.training.backwards)
        if training or not _over_prepared(script, call.node) or _cuts(script, call.node):
            continue
        yield violation(
            "gather keeps the samples that fill up the last batch; they count twice",
            remedy("use accelerator.gather_for_metrics"),
            place=script.place(call.node),
        )


@rule("TW707", level=Level.WARNING, field="script")
def tokens_weigh_the_same(script: Script) -> Iterator[Violation]:
    """With accumulation and padded sequences, the loss is a sum over tokens divided by all tokens of the update.

    Without it: a micro-batch of few tokens weighs as much as one of many: the gradient is not that of one big batch.
    For 16 ragged sequences it was off by more than its own length.
    Why: the model's loss is the mean over its micro-batch's tokens, and accumulation takes the mean of these means.
    Instead: loss with reduction="sum" (or num_items_in_batch=…), times ranks and accumulation, divided by the number of
    tokens of the whole update; or samples packed to equal length.
    Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation (variable size training samples)
    """
    accumulates = script.called("Accelerator.accumulate") and _accumulation(script)
    if not (accumulates or script.training.windows) or not _pads(script) or _counts_tokens(script):
        return
    for backward in script.training.backwards:
        parts = list(script.names.feeding(backward.loss))
        if any(isinstance(n, ast.Attribute) and n.attr == "loss" for n in parts):
            yield violation(
                "the mean of the micro-batches' means: padded sequences have unequal numbers of tokens",
                remedy("sum the loss over tokens, and divide by the tokens of the whole update"),
                place=script.place(backward.call),
            )


@rule("TW708", level=Level.HINT, field="script")
def averages_know_their_counts(script: Script) -> Iterator[Violation]:
    """A mean over samples is a sum divided by their number, not by the number of batches.

    Without it: the last, smaller batch weighs as much as a full one, and on tokens a short batch as much as a long one;
    perplexity made from it is off. With several ranks the number is that of one rank's share.
    Why: `total += loss` over a loader, then `total / len(loader)`, is a mean of means.
    Instead: add loss × count and count, over all ranks (accelerator.reduce), and divide once.
    Source: https://huggingface.co/docs/transformers/perplexity
    """
    seen: set[ast.AST] = set()
    for node in script.tree.nodes:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_len(node.right)):
            continue
        loader = dotted(node.right.args[0])  # type: ignore[attr-defined]
        for total in (n for n in ast.walk(node.left) if isinstance(n, ast.Name)):
            loop = _adds_losses(script, total.id, node)
            if loop and node not in seen and _goes_over(script, loop, loader) and not _drops_last(script, loader):
                seen.add(node)
                yield violation(
                    "the mean of the batches' means: a smaller last batch weighs as much as a full one",
                    remedy("add up loss × count and count, and divide once"),
                    place=script.place(node),
                )


def _over_prepared(script: Script, node: ast.AST) -> bool:
    return any(
        (source := loop_source(loop)) is not None and script.engines.is_prepared(source)
        for loop in script.tree.loops(node)
    )


def _cuts(script: Script, node: ast.AST) -> bool:
    """Whether the function cuts something to a length itself."""
    scope = script.tree.scope(node)
    return any(isinstance(n, ast.Slice) and n.upper is not None for n in ast.walk(scope)) or (
        scope is not script.tree.module and "samples_seen" in ast.unparse(scope)
    )


def _accumulation(script: Script) -> bool:
    """Whether an Accelerator is told to accumulate."""
    for call in script.called("accelerate.Accelerator", "accelerate.accelerator.Accelerator"):
        value = call.keyword("gradient_accumulation_steps")
        if value is not None and not (isinstance(value, ast.Constant) and value.value == 1):
            return True
    return False


def _pads(script: Script) -> bool:
    """Whether sequences of different lengths are padded batch by batch, for a model of tokens."""
    names = {n.attr for n in script.tree.nodes if isinstance(n, ast.Attribute)}
    names |= {n.id for n in script.tree.nodes if isinstance(n, ast.Name)}
    if not any(name.endswith(_TOKEN_MODELS) for name in names):
        return False
    if names & set(_PADDING):
        return True
    for call in script.calls:
        padding = call.keyword("padding")
        if isinstance(padding, ast.Constant) and padding.value in (True, "longest"):
            return True
    return False


def _counts_tokens(script: Script) -> bool:
    for node in script.tree.nodes:
        name = ""
        if isinstance(node, ast.Name | ast.Attribute):
            name = dotted(node)
        elif isinstance(node, ast.keyword):
            name = node.arg or ""
            if name == "reduction" and isinstance(node.value, ast.Constant) and node.value.value == "sum":
                return True
        if any(count in name for count in _COUNTS):
            return True
    return False


def _is_len(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "len" and bool(node.args) and bool(dotted(node.args[0]))


def _adds_losses(script: Script, total: str, at: ast.AST) -> Loop | None:
    """The loop that adds a loss to the name in each turn."""
    for assignment in script.names.assigned(total, at):
        node = assignment.node
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and "loss" in ast.unparse(node.value):
            loops = script.tree.loops(node)
            weighted = any(isinstance(n, ast.Mult) for n in ast.walk(node.value))
            if loops and not weighted and loops[0] not in script.tree.loops(at):
                return loops[0]
    return None


def _goes_over(script: Script, loop: Loop, loader: str) -> bool:
    source = loop_source(loop)
    if source is None:
        return False
    names = {dotted(n) for n in script.names.feeding(source) if isinstance(n, ast.Name | ast.Attribute)}
    return loader in names


def _drops_last(script: Script, loader: str) -> bool:
    for call in script.called("DataLoader", "torch.utils.data.DataLoader"):
        statement = script.tree.statement(call.node)
        if isinstance(statement, ast.Assign) and loader in [dotted(t) for t in statement.targets]:
            value = call.keyword("drop_last")
            if isinstance(value, ast.Constant) and value.value is True:
                return True
    return False
