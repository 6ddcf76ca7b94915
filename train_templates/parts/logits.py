"""What a model makes of its body's output: the logits of its head, and what surrounds that in some families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

LOGIT_SETTINGS = (
    *("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier"),
    *("logits_mup_width_multiplier", "logits_soft_cap", "output_logit_soft_cap", "unpadded_vocab_size"),
)
"""Settings with which some models (Gemma 2, Cohere, Granite, RecurrentGemma) change what a head is given or gives."""


def ends_with_head(model: Any) -> bool:
    """Return whether the logits are what the head, one layer, makes of the body's output, and nothing else."""
    config = model.config.get_text_config()
    bent = any(getattr(config, name, None) not in (None, 1.0) for name in LOGIT_SETTINGS)
    return not bent and set(model.children()) == {model.base_model, model.get_output_embeddings()}


def own_logits(model: Any, own: Callable[..., Any], arguments: dict[str, Any], output: type, hidden: Tensor) -> Tensor:
    """Return the logits of some tokens, (tokens, width) to (tokens, words), by the model's `own` forward.

    It knows what surrounds its head: a cap, a scale, a layer before. Its body, which has run, gives `hidden` at once.
    """
    body = model.base_model
    before = vars(body).get("forward")
    body.forward = lambda *_, **__: output(last_hidden_state=hidden[None])
    try:
        return own(**arguments).logits[0]  # type: ignore[no-any-return]
    finally:
        del body.forward
        if before is not None:
            body.forward = before
