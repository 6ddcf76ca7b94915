"""Metrics and averages over several ranks and over batches of different sizes."""

from __future__ import annotations

import ast
import re

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Call, Script
from trainwiz.script.outline import Outline
from trainwiz.script.training import loop_source
from trainwiz.script.tree import Loop, constant, dotted, operates, walk, written

_TOKEN_MODELS = ("ForCausalLM", "ForSeq2SeqLM", "ForMaskedLM", "ForConditionalGeneration", "LMHeadModel")
_PADDING = ("DataCollatorForSeq2Seq", "DataCollatorWithPadding", "DataCollatorForLanguageModeling", "pad_sequence")
_MEANS = re.compile(r"loss|\.mean\(|accuracy", re.IGNORECASE)
"""In what is appended to a list of the means of batches."""
_AVERAGES = ("sum", "numpy.mean", "statistics.mean", "statistics.fmean")
_COUNTS = ("num_items", "num_tokens", "n_tokens", "token_count", "ntokens")


@rule("TW705", level=Level.ERROR, field="script")
def metrics_are_gathered(script: Script) -> Violations:
    """Collect the predictions of all ranks with gather_for_metrics before computing a metric.

    Without it: each rank scores only its own share, and the main process prints the score of 1/N of the data.
    Why: a prepared loader gives each rank every N-th batch.
    Instead: call `predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))` before
    add_batch.
    Source: https://huggingface.co/docs/accelerate/quicktour (distributed evaluation)
    """
    for call in script.called("Metric.add_batch", "Metric.add"):
        if not _over_prepared(script, call.node) or script.ranks.mentions_rank(call.node.func):
            continue
        calls = [n for value in call.arguments for n in script.names.feeding(value) if isinstance(n, ast.Call)]
        if not any("gather" in dotted(n.func) for n in calls):
            yield violation(
                "{name} sees only this rank's share of the data",
                remedy("first gather predictions and references with accelerator.gather_for_metrics"),
                name=dotted(call.node.func),
                place=script.place(call.node),
            )


@rule("TW706", level=Level.WARNING, field="script")
def repeated_samples_are_cut(script: Script) -> Violations:
    """In evaluation, use gather_for_metrics, not gather.

    Without it: the last batch is padded with samples from the beginning, so that all ranks have the same number;
    gather keeps these samples, and they count twice in the score.
    Why: accelerate's loaders have even_batches on; only gather_for_metrics knows how many samples were added.
    Instead: use accelerator.gather_for_metrics; or truncate the gathered tensors to len(dataset) yourself.
    Source: https://huggingface.co/docs/accelerate/package_reference/accelerator (gather_for_metrics)
    """
    for call in script.called("Accelerator.gather"):
        loops = script.tree.loops(call.node)
        training = any(script.training.within(loop) for loop in loops[:1])
        if training or not _over_prepared(script, call.node) or _cuts(script, call.node):
            continue
        yield violation(
            "gather keeps the samples that pad the last batch; they are counted twice",
            remedy("use accelerator.gather_for_metrics"),
            place=script.place(call.node),
        )


@rule("TW707", level=Level.WARNING, field="script")
def tokens_weigh_the_same(script: Script) -> Violations:
    """With accumulation and padding, divide the summed loss by the number of tokens of the whole update.

    Without it: a micro-batch with few tokens weighs as much as one with many: the gradient is not that of one big
    batch. For 16 sequences of different lengths, the error was larger than the gradient itself.
    Why: the model's loss is the mean over the tokens of its micro-batch, and accumulation averages these means.
    Instead: compute the loss with reduction="sum" (or num_items_in_batch=…), multiply it by ranks and accumulation,
    and divide it by the number of tokens of the whole update; or pack the samples to equal length.
    Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation (variable size training
    samples)
    """
    accumulates = script.called("Accelerator.accumulate") and script.accumulation is not None
    if not (accumulates or script.training.windows) or not _pads(script):
        return
    if any(outline.once(_counts_tokens) for outline in script.tree.outlines):
        return
    for backward in script.training.backwards:
        parts = list(script.names.feeding(backward.loss))
        if any(isinstance(n, ast.Attribute) and n.attr == "loss" for n in parts):
            yield violation(
                "this averages the micro-batch means, but padded sequences have different numbers of tokens",
                remedy("sum the loss over tokens, and divide by the number of tokens in the whole update"),
                place=script.place(backward.call),
            )


@rule("TW708", level=Level.HINT, field="script")
def averages_know_their_counts(script: Script) -> Violations:
    """For a mean over samples, divide by the number of samples, not by the number of batches.

    Without it: the last, smaller batch weighs as much as a full one; for a mean over tokens, a short batch weighs
    as much as a long one, and perplexity computed from it is wrong. With several ranks, the result covers only one
    rank's share.
    Why: `total += loss` over a loader, then `total / len(loader)`, is a mean of means.
    Instead: add up loss × count and count, sum them over all ranks (accelerator.reduce), and divide once.
    Source: https://huggingface.co/docs/transformers/perplexity
    """
    yield from _mean_of_means(script)
    yield from _over_batches(script)
    seen: set[ast.AST] = set()
    for node in script.tree.each(_divisions):
        if not _is_len(node.right):
            continue
        loader = dotted(node.right.args[0])  # type: ignore[attr-defined]
        for total in (n for n in walk(node.left) if isinstance(n, ast.Name)):
            loop = _adds_losses(script, total.id, node)
            if loop and node not in seen and _goes_over(script, loop, loader) and not _drops_last(script, loader):
                seen.add(node)
                yield violation(
                    "this averages the batch means: a smaller last batch weighs as much as a full one",
                    remedy("add up loss × count and the counts, and divide once at the end"),
                    place=script.place(node),
                )


def _mean_of_means(script: Script) -> Violations:
    """The mean of a list to which a loop without backward pass appends the loss of each batch."""
    for call in script.calls_of(*(name.rpartition(".")[2] for name in _AVERAGES)):
        over = _mean_of(call)
        if over is not None and any(_appends_means(script, other, over, call) for other in script.methods("append")):
            yield violation(
                "this averages the batch means: a smaller last batch weighs as much as a full one",
                remedy("add up loss × count and the counts, and divide once at the end"),
                place=script.place(call.node),
            )


def _over_batches(script: Script) -> Violations:
    """A sum of the losses of an evaluation's batches, divided by their number, which the same loop counts."""
    added: dict[str, list[ast.AugAssign]] = {}
    for name, node in script.tree.each(_sums):
        added.setdefault(name, []).append(node)
    counts = {name for name, nodes in added.items() if all(constant(n.value) == 1 for n in nodes)}
    for mean in script.tree.each(_divisions) if counts else ():
        if not (counted := counts & {written(n) for n in _stored(mean.right)}):
            continue
        losses = [n for name in {written(n) for n in _stored(mean.left)} for n in added.get(name, ())]
        loops = {loop for name in counted for n in added[name] for loop in script.tree.loops(n)[:1]}
        if any(_is_unweighed(script, n, loops) and script.tree.scope(n) is script.tree.scope(mean) for n in losses):
            yield violation(
                "this averages the batch means: a smaller last batch weighs as much as a full one",
                remedy("add up loss × count and the counts, and divide once at the end"),
                place=script.place(mean),
            )


def _divisions(outline: Outline) -> list[ast.BinOp]:
    return [node for node in outline.kinds[ast.BinOp] if operates(node, ast.Div)]


def _sums(outline: Outline) -> list[tuple[str, ast.AugAssign]]:
    """What is added to names and slots."""
    added = [node for node in outline.kinds[ast.AugAssign] if isinstance(node.op, ast.Add)]
    return [(written(n.target), n) for n in added if isinstance(n.target, ast.Name | ast.Subscript)]


def _stored(node: ast.AST) -> list[ast.AST]:
    """The names and slots in an expression."""
    return [n for n in walk(node) if isinstance(n, ast.Name | ast.Subscript)]


def _is_unweighed(script: Script, node: ast.AugAssign, loops: set[Loop]) -> bool:
    """Whether this adds the loss of one batch, in one of these loops, which learns nothing."""
    around = script.tree.loops(node)[:1]
    if not around or around[0] not in loops or around[0] in script.training.turns:
        return False
    weighed = any(isinstance(n, ast.Mult) for n in walk(node.value))
    return "loss" in written(node).lower() and not weighed and "sum" not in written(node)


def _appends_means(script: Script, call: Call, over: str, mean: Call) -> bool:
    """Whether a call appends the mean loss of a batch to this list, in a loop over batches that learns nothing."""
    owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else call.node
    if call.method != "append" or dotted(owner) != over:
        return False
    loops = script.tree.loops(call.node)
    said = written(call.node)
    if not _MEANS.search(said) or "gather" in said or not loops:
        return False
    weighs = any(isinstance(n, ast.Mult) for n in walk(call.node))
    here = script.tree.scope(call.node) is script.tree.scope(mean.node) and loops[0] not in script.tree.loops(mean.node)
    learns = any(loop in script.training.turns for loop in loops)
    return here and not weighs and not learns and loop_source(loops[0]) is not None


def _mean_of(call: Call) -> str | None:
    """The list that a call averages: `sum(losses)` divided by its length, `np.mean(losses)`; None for anything else."""
    if call.name in _AVERAGES and len(call.node.args) == 1:
        return dotted(call.node.args[0]) or None
    return None


def _over_prepared(script: Script, node: ast.AST) -> bool:
    return any(
        (source := loop_source(loop)) is not None and script.engines.is_prepared(source)
        for loop in script.tree.loops(node)
    )


def _cuts(script: Script, node: ast.AST) -> bool:
    """Whether the function truncates something itself."""
    scope = script.tree.scope(node)
    return any(isinstance(n, ast.Slice) and n.upper is not None for n in walk(scope)) or (
        scope is not script.tree.module and "samples_seen" in written(scope)
    )


def _pads(script: Script) -> bool:
    """Whether a language model gets sequences that are padded batch by batch."""
    if not any(outline.once(_has_token_model) for outline in script.tree.outlines):
        return False
    if any(not outline.mentions.keys().isdisjoint(_PADDING) for outline in script.tree.outlines):
        return True
    return any(constant(call.keyword("padding")) in (True, "longest") for call in script.calls_with("padding"))


def _has_token_model(outline: Outline) -> bool:
    return any(name.endswith(_TOKEN_MODELS) for name in outline.mentions)


def _counts_tokens(outline: Outline) -> bool:
    if any(constant(keyword.value) == "sum" for keyword in outline.keywords.get("reduction", ())):
        return True
    named = {keyword or "" for keyword in outline.keywords} | {name.id for name in outline.of(ast.Name)}
    named.update(map(dotted, outline.of(ast.Attribute)))
    return any(count in name for name in named for count in _COUNTS)


def _is_len(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "len" and bool(node.args) and bool(dotted(node.args[0]))


def _adds_losses(script: Script, total: str, at: ast.AST) -> Loop | None:
    """The loop that adds a loss to the name in each iteration."""
    assigned = [assignment.node for assignment in script.names.assigned(total, at)]
    slots = [n for n in script.tree.of(ast.AugAssign) if _slot_of(n.target) == total]
    for node in [*assigned, *slots]:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and "loss" in written(node.value):
            loops = script.tree.loops(node)
            weighted = any(isinstance(n, ast.Mult) for n in walk(node.value))
            if loops and not weighted and loops[0] not in script.tree.loops(at):
                return loops[0]
    return None


def _slot_of(target: ast.expr) -> str:
    """The tensor or list in one of whose slots a sum is kept."""
    return dotted(target.value) if isinstance(target, ast.Subscript) else ""


def _goes_over(script: Script, loop: Loop, loader: str) -> bool:
    source = loop_source(loop)
    if source is None:
        return False
    names = {dotted(n) for n in script.names.feeding(source) if isinstance(n, ast.Name | ast.Attribute)}
    return loader in names


def _drops_last(script: Script, loader: str) -> bool:
    for call in script.called("DataLoader", "torch.utils.data.DataLoader"):
        statement = script.tree.statement(call.node)
        made = isinstance(statement, ast.Assign) and loader in [dotted(t) for t in statement.targets]
        if made and constant(call.keyword("drop_last")) is True:
            return True
    return False
