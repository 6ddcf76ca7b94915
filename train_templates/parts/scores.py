"""Metrics that are not sums over samples: they are computed from the outputs for the whole evaluation set."""

from __future__ import annotations

from torch import Tensor

# feature: areas
from torch import nn

# end: areas


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, place, times = values.unique(return_inverse=True, return_counts=True)
    last = times.cumsum(0)
    return (last - (times - 1) / 2)[place].double()


# feature: areas
def area(scores: Tensor, positive: Tensor) -> float:
    """Return the area under the ROC curve: how often a positive sample scores above a negative one; ties count half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    above = float(ranks(scores)[positive].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


# end: areas
# feature: classes
def classification(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return loss, accuracy, macro F1, and macro AUC (one class against the rest).

    Shapes: (samples, classes), (samples). F1 is the mean over classes that occur or are predicted,
    AUC that over classes that some samples have and others do not.
    """
    logits, guessed, classes = logits.double(), logits.argmax(1), range(logits.shape[1])
    pairs = [(labels == c, guessed == c) for c in classes]
    f1 = [2 * float((a & g).sum()) / float(a.sum() + g.sum()) for a, g in pairs if a.any() or g.any()]
    shares = logits.softmax(1)
    areas = [area(shares[:, c], labels == c) for c in classes if 0 < int((labels == c).sum()) < len(labels)]
    return {
        "eval_loss": float(nn.functional.cross_entropy(logits, labels)),
        "eval_accuracy": float((guessed == labels).double().mean()),
        "eval_f1": sum(f1) / len(f1),
        "eval_auc": sum(areas) / len(areas) if areas else float("nan"),
    }


# end: classes
# feature: several
def several_labels(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the loss, how often all labels are correct, macro and micro F1, and macro AUC over the classes.

    Shapes: (samples, classes), (samples, classes). F1 is the mean over classes that occur or are predicted,
    AUC that over classes that some samples have and others do not.
    """
    logits, actual, guessed = logits.double(), labels > 0, logits > 0
    pairs = list(zip(actual.T, guessed.T, strict=True))
    f1 = [2 * float((a & g).sum()) / float(a.sum() + g.sum()) for a, g in pairs if a.any() or g.any()]
    both = float(actual.sum() + guessed.sum())
    areas = [area(logits[:, c], a) for c, (a, _) in enumerate(pairs) if 0 < int(a.sum()) < len(a)]
    return {
        "eval_loss": float(nn.functional.binary_cross_entropy_with_logits(logits, labels.double())),
        "eval_accuracy": float((actual == guessed).all(1).double().mean()),
        "eval_f1": sum(f1) / len(f1) if f1 else 0.0,
        "eval_f1_micro": 2 * float((actual & guessed).sum()) / both if both else 0.0,
        "eval_auc": sum(areas) / len(areas) if areas else float("nan"),
    }


# end: several
# feature: numbers
def regression(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the mean squared and the mean absolute error, R², and the correlations of Pearson and Spearman.

    Shapes: (samples), (samples).
    """
    predicted, labels = predicted.double(), labels.double()
    error = predicted - labels
    spread = float((labels - labels.mean()).square().sum())
    return {
        "eval_loss": float(error.square().mean()),
        "eval_mae": float(error.abs().mean()),
        "eval_r2": 1 - float(error.square().sum()) / spread if spread > 0 else 0.0,
        "eval_pearson": correlation(predicted, labels),
        "eval_spearman": correlation(ranks(predicted), ranks(labels)),
    }


def correlation(one: Tensor, other: Tensor) -> float:
    """Return the correlation of two rows of numbers; nan if one of them is constant."""
    one, other = one - one.mean(), other - other.mean()
    return float((one * other).sum() / (one.square().sum() * other.square().sum()).sqrt())


# end: numbers
