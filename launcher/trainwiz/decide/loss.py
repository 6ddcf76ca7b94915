"""How many tokens have their logits in memory at once: more make the head faster, as far as there is room for them."""

from __future__ import annotations

from dataclasses import replace

from trainwiz import quantities
from trainwiz.decide.decision import Decision
from trainwiz.decide.memory import ROOMY, smallest_gpu_bytes, work_of
from trainwiz.estimate.activations import Loss
from trainwiz.estimate.device import needs
from trainwiz.estimate.reserve import FILLED
from trainwiz.message import say
from trainwiz.vocabulary import LOSS_CHUNK

_LARGER = (8192, 4096, 2048)
_SMALLER = (512, 256, 128)
SMALLEST_CHUNK = _SMALLER[-1]
_LARGE_VOCABULARY = 8192
"""Words below which the head is too small to matter."""
_KEY = "model.loss_chunk"


# docs/decisions/loop.md: The loss's chunk is as large as memory allows
def decide_loss_chunk(d: Decision) -> None:
    """The largest chunk that leaves the peak as it is, or enough of the GPU free; a smaller one where none fits."""
    memory = smallest_gpu_bytes(d)
    if not d.task.generative:
        d.settle_default(_KEY, say("only language models have logits for each token"))
        return
    if memory is None or d.parameters is None or d.transformer is None:
        d.settle_default(_KEY, say("keeps the logits small; the model's layers or the GPU memory are unknown"))
        return
    if d.transformer.vocab_size < _LARGE_VOCABULARY:
        d.settle_default(_KEY, say("the vocabulary is small"))
        return
    tokens = replace(work_of(d), samples=d.values["batch.per_device_batch_size"]).tokens
    usual = _peak(d, LOSS_CHUNK)
    room = max(usual, ROOMY * memory)
    larger = next((chunk for chunk in _LARGER if chunk < 2 * tokens and _peak(d, chunk) <= room), None)
    if larger and usual <= FILLED * memory:
        shown = {"size": quantities.size(_peak(d, larger)), "memory": quantities.size(memory)}
        d.settle(_KEY, larger, say("larger chunks are faster; the peak is then {size} of {memory}", **shown))
    elif usual <= FILLED * memory:
        d.settle_default(_KEY, say("larger chunks are hardly faster, or would need more memory"))
    else:
        smaller = next((chunk for chunk in _SMALLER if _peak(d, chunk) <= FILLED * memory), _SMALLER[-1])
        less = say(
            "{size} per rank with chunks of {usual} tokens does not fit in {memory}; this needs {less}",
            size=quantities.size(usual),
            usual=LOSS_CHUNK,
            memory=quantities.size(memory),
            less=quantities.size(_peak(d, smaller)),
        )
        d.settle(_KEY, smaller, less)


def _peak(d: Decision, chunk: int) -> int:
    work = replace(work_of(d), samples=d.values["batch.per_device_batch_size"], loss=Loss(tokens_at_once=chunk))
    return needs(d.strategy, work).total
