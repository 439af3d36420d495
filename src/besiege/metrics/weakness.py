"""What the attacks on a model left undone, in words: too few steps or draws, or hidden gradients.

An advice names the setting that is to blame, and never what the attacks did already.
"""

from __future__ import annotations

from besiege.metrics.evidence import Evidence, Trial

STEPS = 40
"""Attacks with fewer steps are called short: `pgd` takes so many by default."""
DRAWS = 20
"""Averages over fewer draws are called few: the suite `adaptive` takes so many."""


def on_the_model(evidence: Evidence) -> list[Trial]:
    """The attacks that queried the model itself, guards and images made elsewhere apart."""
    return [trial for trial in evidence.attacks if trial.access != "transfer"]


def too_short(evidence: Evidence) -> str:
    """A sentence about the longest gradient-based attack, if it is short or averages few draws."""
    seeing = [trial for trial in on_the_model(evidence) if trial.sees]
    if not seeing:
        return ""
    averages = evidence.stochastic and _averages(evidence)
    best = max(seeing, key=lambda trial: (_draws(evidence, trial) * averages, trial.longest or 0))
    steps, draws = best.longest, _draws(evidence, best)
    parts = []
    if steps is not None and max(trial.longest or 0 for trial in seeing) < STEPS:
        parts.append(f"takes only {steps} step{'s' if steps != 1 else ''}")
    if averages and draws < DRAWS:
        parts.append(f"averages only {draws} draws")
    return f"'{best.text}' {' and '.join(parts)}: give it more." if parts else ""


def suite(evidence: Evidence) -> str:
    """The suite that can run on the model: one gradient of a stochastic one is noise."""
    return "adaptive" if evidence.stochastic else "standard"


def advice(evidence: Evidence) -> str:
    """What to do where attacks without gradients break more than attacks with gradients."""
    short = too_short(evidence)
    attack = f"attack what masks them ({_remedies(evidence)})"
    if short:
        return (
            f"The gradient-based attacks are weak: {short} If they still miss these images, "
            f"gradients are masked: {attack}."
        )
    return (
        "Gradients are masked, so gradient-based attacks say little about this model: "
        f"{attack}, and use other losses and more queries."
    )


def _remedies(evidence: Evidence) -> str:
    layers = " and ".join(evidence.surrogates)
    remedies = [
        f"another surrogate for {layers}" if layers else "a surrogate for layers without gradients"
    ]
    if evidence.stochastic and not _averages(evidence):
        remedies.append(f"averaged(ATTACK, {DRAWS}), because the model is stochastic")
    return ", ".join(remedies)


def _averages(evidence: Evidence) -> bool:
    """Whether an attack on the model averages over its draws, or each answer pools several."""
    return any(_draws(evidence, trial) > 1 for trial in on_the_model(evidence))


def _draws(evidence: Evidence, trial: Trial) -> int:
    return trial.draws * evidence.pooled
