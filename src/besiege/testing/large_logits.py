"""A model with large logits, for benchmarks: ``large_logits.py:digits`` is a model's text."""

from __future__ import annotations

from besiege.core.victim import Victim
from besiege.models.classifier import Classifier
from besiege.models.sources import load
from besiege.testing.impostors.scales import Scaled


def digits(scale: float = 1000.0) -> Victim:
    """The natural digits model with its logits multiplied: cross-entropy has no gradient.

    Examples
    --------
    >>> digits().classes
    10
    """
    (net,) = load("zoo:digits-natural").parts
    return Classifier(Scaled(net, scale), classes=10)
