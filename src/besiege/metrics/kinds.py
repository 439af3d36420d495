"""Rules about kinds of attacks: without gradients, on other losses, towards several classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from besiege.core.errors import Finding
from besiege.metrics.evidence import Evidence, Trial

UNSEEN = 0.002
"""The share that attacks without gradients may break beyond those with them (Croce and Hein)."""
ANOTHER_LOSS = 0.05
"""What another loss may gain before the first one must be called misleading."""
ANOTHER_SCALE = 0.01
"""What dividing the logits may change."""
LEFT = 0.01
"""What an iterative attack may leave of a model without a defense."""
PROBE = 0.01
"""How far apart, in widths of the box, images must be whose scores are compared by chance: at 0.001
a noise of a tenth of a logit divides the cosine with the gradient by about 14."""
SIZES = {"linf": 28 * 28, "l2": 3 * 32 * 32, "l1": 3 * 32 * 32}
"""How many values an image must have for the usual budget to break every undefended model: in few
dimensions a network keeps some of its answers without any defense."""


def w08_without_gradients(evidence: Evidence) -> Iterator[Finding]:
    """An attack that sees less must not break what attacks with gradients do not."""
    seeing = [trial for trial in evidence.trials if trial.sees]
    for trial in evidence.trials:
        missed = 0 if trial.sees else evidence.missed(trial, seeing)
        if missed > UNSEEN * evidence.count:
            yield Finding(
                "W08",
                f"'{trial.text}' needs no gradients and breaks {missed} samples "
                f"({100 * missed / evidence.count:.1f} %) that no attack with gradients breaks.",
                "Gradients are likely masked, so that robustness is overstated even so: attack "
                "what masks them (a surrogate for layers without gradients, averaged(...) for "
                "chance), use other losses, and more queries.",
            )


def w22_undefended(evidence: Evidence) -> Iterator[Finding]:
    """A model without a defense must fall at the usual budget, or the attacks do not work."""
    known = evidence.covered_by_all()
    left, count = int(evidence.standing()[known].sum()), int(known.sum())
    if evidence.undefended and count and breaks_undefended(evidence) and too_many(left, count):
        yield Finding(
            "W22",
            f"this model has no defense, and {left} of {count} samples survived attacks of many "
            "steps at the usual budget.",
            "Every such model is known to fall to nearly nothing: the attacks or the evaluation "
            "are at fault. Check the preprocessing, the budget's units and the gradients.",
            "error",
        )


def breaks_undefended(evidence: Evidence) -> bool:
    """Whether the attacks are such that every model without a defense falls to them."""
    if evidence.eps is None or evidence.standard is None or evidence.count == 0:
        return False
    usual = evidence.eps >= evidence.standard * (1 - 1e-9)
    large = evidence.pixels >= SIZES.get(evidence.norm, evidence.pixels + 1)
    return usual and large and any(trial.iterates for trial in evidence.trials)


def too_many(left: int, count: int) -> bool:
    """More than one in a hundred, and more than a single sample."""
    return left > max(1, LEFT * count)


def w23_loss(evidence: Evidence) -> Iterator[Finding]:
    """A margin must not break far more than cross-entropy, which a large scale blinds."""
    climbs = [trial for trial in evidence.trials if trial.iterates]
    usual = [trial for trial in climbs if trial.losses == {"cross_entropy"}]
    others = [t for t in climbs if t.losses and not _on(t, "cross_entropy")]
    if usual and evidence.count:
        yield from _scales(evidence, usual, [t for t in climbs if _on(t, "cross_entropy/")])
    if not usual or not others or not evidence.count:
        return
    if evidence.chained:
        # What comes later sees only what is left: what it breaks of that is the difference.
        gains = {t.text: evidence.missed(t, usual) / evidence.count for t in others}
        first = usual[0]
    else:
        first = min(usual, key=evidence.accuracy)
        gains = {t.text: evidence.gain(first, t) for t in others}
    best = max(gains, key=lambda text: gains[text])
    if gains[best] > ANOTHER_LOSS:
        yield Finding(
            "W23",
            f"'{best}' breaks {100 * gains[best]:.1f} points more than '{first.text}', which "
            "climbs cross-entropy.",
            "The scale of the logits hides the way from cross-entropy: quote no figure of "
            "cross-entropy alone, and expect other losses (margin, dlr) and attacks without "
            "gradients to find more.",
        )


def _on(trial: Trial, loss: str) -> bool:
    return any(name.startswith(loss) for name in trial.losses)


def _scales(
    evidence: Evidence, usual: Sequence[Trial], divided: Sequence[Trial]
) -> Iterator[Finding]:
    """The same climb on divided logits must come to the same."""
    first = min(usual, key=evidence.accuracy)
    for trial in divided:
        if evidence.chained:
            gain = evidence.missed(trial, usual) / evidence.count
        else:
            gain = abs(evidence.gain(first, trial))
        if gain > ANOTHER_SCALE:
            yield Finding(
                "W23",
                f"dividing the logits changes accuracy by {100 * gain:.1f} points: '{trial.text}' "
                f"beside '{first.text}'.",
                "The scale of the logits decides, not the model: quote figures of losses that do "
                "not depend on it (margin, dlr) and of attacks without gradients.",
            )


def w42_small_probes(evidence: Evidence) -> Iterator[Finding]:
    """Differences of scores that lie close together drown in what a model draws by chance."""
    for trial in evidence.trials:
        probe = trial.probe
        if probe is None or probe >= PROBE or not trial.rows["chance"].any():
            continue
        left = int((trial.rows["correct"] & ~trial.rows["success"]).sum())
        if left:
            yield Finding(
                "W42",
                f"'{trial.text}' compares scores of images only {probe:g} apart, and this model "
                "answers by chance: the difference it looks for is smaller than what chance makes.",
                f"The {left} samples it left standing say little: raise sigma (to 0.05, say), or "
                "use attacks whose probes are wide, such as nattack and square.",
            )


def w39_few_classes(evidence: Evidence) -> Iterator[Finding]:
    """With few classes there are fewer to aim at than an attack means to try."""
    wrong = evidence.classes - 1
    short = [t for t in evidence.trials if t.targets is not None and t.targets > wrong]
    ratio = [t for t in evidence.trials if evidence.classes == 2 and "dlr" in t.losses]
    said = []
    if short:
        names = ", ".join(f"'{trial.text}'" for trial in short)
        most = max(trial.targets or 0 for trial in short)
        tried = "the only wrong one" if wrong == 1 else f"all {wrong} wrong ones"
        said.append(f"{names} aimed at {tried} instead of {most}")
    if ratio:
        said.append(
            "the ratio of the DLR loss does not exist, and the margin over its size at the clean "
            "image took its place"
        )
    if said:
        yield Finding(
            "W39",
            f"the model answers only {evidence.classes} classes: {'; '.join(said)}.",
            "Nothing is missing, and nothing needs to be done; other implementations fail here or "
            "try fewer attacks, so that their figures may differ.",
            "note",
        )
