"""The losses of the task preference: what each needs, and the values that its authors used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainwiz.vocabulary import PreferenceLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """One way to learn from preferences."""

    beta: float
    """The usual value of preference.beta."""
    learning_rate: float
    """The usual rate for all weights; that of adapters is about ten times larger."""
    two_answers: bool = True
    """A sample is two answers to one prompt; else one answer that is good or bad."""
    reference: bool = True
    """It compares with the model's log-probabilities before the training."""
    real_batch_mean: bool = False
    """It needs a mean over the real batch before the first micro-batch."""

    has_margin: bool = False
    """It has a margin, preference.gamma."""

    @property
    def rows(self) -> int:
        """Rows of tokens of a sample whose activations are in memory at once."""
        return 2 if self.two_answers else 1

    @property
    def regions(self) -> Mapping[str, bool]:
        """Regions of the templates."""
        return {
            "two_answers": self.two_answers,
            "plain_pairs": self.two_answers and not self.real_batch_mean,
            "reference": self.reference,
            "real_batch_mean": self.real_batch_mean,
        }


LOSSES: Mapping[PreferenceLoss, Loss] = {
    # https://arxiv.org/abs/2310.16944 (Zephyr), section 4.4
    "dpo": Loss(beta=0.1, learning_rate=5e-7),
    # https://arxiv.org/abs/2310.12036, section 5; the rate as for dpo
    "ipo": Loss(beta=0.1, learning_rate=5e-7),
    # https://arxiv.org/abs/2403.07691, appendix C
    "orpo": Loss(beta=0.1, learning_rate=5e-6, reference=False, real_batch_mean=True),
    # https://arxiv.org/abs/2402.01306, section 4.3
    "kto": Loss(beta=0.1, learning_rate=5e-7, two_answers=False, real_batch_mean=True),
    # https://arxiv.org/abs/2405.14734, section 4.2
    "simpo": Loss(beta=2.0, learning_rate=6e-7, reference=False, has_margin=True),
}
