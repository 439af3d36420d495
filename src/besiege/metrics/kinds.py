"""Warning rules about kinds of attacks: without gradients, with other losses, from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from besiege.core import rules
from besiege.core.errors import Finding
from besiege.metrics.chance import Apart, gain_above, share_above, weighed
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.weakness import advice

TRANSFERRED = 0.5
"""Largest share of the successes on a substitute that may fail on the model."""
SMALLER = 0.01
"""Relative difference of distances that the precision of searches explains."""
UNSEEN = 0.002
"""Largest share that only attacks without gradients may break (Croce and Hein)."""
ANOTHER_LOSS = 0.05
"""Largest share that another loss may break beyond cross-entropy."""
ANOTHER_SCALE = 0.01
"""Largest difference in accuracy that dividing the logits may make."""
LEFT = 0.01
"""Largest share of samples of a model without a defense that may withstand iterative attacks."""
PROBE = 0.01
"""Least distance, in widths of the box, between images whose scores a stochastic model compares:
at 0.001 a noise of a tenth of a logit divides the cosine with the gradient by about 14."""
SIZES = {"linf": 28 * 28, "l2": 3 * 32 * 32, "l1": 3 * 32 * 32}
"""Least number of pixel values for which the usual budget breaks every undefended model: in few
dimensions a network withstands some attacks without any defense."""


def w08_without_gradients(evidence: Evidence) -> Iterator[Finding]:
    """An attack without gradients must not break samples that attacks with gradients do not."""
    seeing = [trial for trial in evidence.trials if trial.sees]
    for trial in evidence.attacks:  # a check of its own judges the guards
        # An attack that ignores the defense has gradients, those of the undefended model.
        missed = 0 if trial.sees or trial.oblivious else evidence.missed(trial, seeing)
        above = share_above(missed, evidence.count, UNSEEN)
        if above == "no":  # the advice reads every attack
            continue
        yield from weighed(
            above,
            evidence.count,
            Finding(
                "W08",
                f"'{trial.text}' needs no gradients and breaks {missed} samples "
                f"({100 * missed / evidence.count:.1f} %) that no attack with gradients breaks.",
                f"Robustness may still be overstated. {advice(evidence)}",
            ),
        )


def w22_undefended(evidence: Evidence) -> Iterator[Finding]:
    """Attacks that work break a model without a defense at the usual budget."""
    known = evidence.covered_by_all()
    left, count = int(evidence.standing()[known].sum()), int(known.sum())
    if evidence.undefended and count and breaks_undefended(evidence) and too_many(left, count):
        yield Finding(
            "W22",
            f"this model has no defense, but {left} of {count} samples withstood iterative attacks "
            "at the usual budget.",
            "The accuracy of such a model is known to fall to nearly 0: the attacks or the "
            "evaluation are faulty. Check the preprocessing, the budget's units and the gradients.",
            "stop",
        )


def breaks_undefended(evidence: Evidence) -> bool:
    """Whether the attacks are known to break every model without a defense."""
    if evidence.eps is None or evidence.standard is None or evidence.count == 0:
        return False
    usual = evidence.eps >= evidence.standard * (1 - 1e-9)
    large = evidence.pixels >= SIZES.get(evidence.norm, evidence.pixels + 1)
    return usual and large and any(trial.iterates for trial in evidence.trials)


def too_many(left: int, count: int) -> bool:
    """More than one in a hundred, and more than a single sample."""
    return left > max(1, LEFT * count)


def w23_loss(evidence: Evidence) -> Iterator[Finding]:
    """A margin loss must not break far more than cross-entropy, which saturates at large logits."""
    ascents = [trial for trial in evidence.trials if trial.iterates]
    usual = [trial for trial in ascents if trial.losses == {"cross_entropy"}]
    others = [t for t in ascents if t.losses and not _on(t, "cross_entropy")]
    if not usual or not evidence.count:
        return
    yield from _scales(evidence, usual, [t for t in ascents if _on(t, "cross_entropy/")])
    if not others:
        return
    # Later attacks of a suite see unbroken samples only: compare what each newly broke.
    first = usual[0] if evidence.chained else min(usual, key=evidence.accuracy)
    apart = {t.text: _newly(evidence, usual, t) or evidence.apart(first, t) for t in others}
    best = max(apart, key=lambda text: apart[text].gain)
    yield from weighed(
        gain_above(apart[best], ANOTHER_LOSS),
        apart[best].judged,
        Finding(
            "W23",
            f"'{best}' breaks {100 * apart[best].gain:.1f} points more than '{first.text}', which "
            "maximises cross-entropy.",
            "Cross-entropy saturates where the logits are large: quote no figure of cross-entropy "
            "only, and expect other losses (margin, dlr) and attacks without gradients to break "
            "more.",
        ),
    )


def _newly(evidence: Evidence, before: Sequence[Trial], trial: Trial) -> Apart | None:
    """In a suite, what an attack broke of the samples that others left; None for a list."""
    if not evidence.chained:
        return None
    return Apart(evidence.missed(trial, before), 0, evidence.count)


def _on(trial: Trial, loss: str) -> bool:
    return any(name.startswith(loss) for name in trial.losses)


def _scales(
    evidence: Evidence, usual: Sequence[Trial], divided: Sequence[Trial]
) -> Iterator[Finding]:
    """The same attack on divided logits must give the same accuracy."""
    first = min(usual, key=evidence.accuracy)
    for trial in divided:
        apart = _newly(evidence, usual, trial) or evidence.apart(first, trial)
        apart = apart if apart.gain >= 0 else apart.reversed
        yield from weighed(
            gain_above(apart, ANOTHER_SCALE),
            apart.judged,
            Finding(
                "W23",
                f"dividing the logits changes accuracy by {100 * apart.gain:.1f} points: "
                f"'{trial.text}' compared with '{first.text}'.",
                "The result depends on the scale of the logits: quote figures of losses that do "
                "not depend on it (margin, dlr) and of attacks without gradients.",
            ),
        )


def w50_made_elsewhere(evidence: Evidence) -> Iterator[Finding]:
    """Images made elsewhere must not break what the evaluation's own attacks left."""
    mine = [trial for trial in evidence.trials if not trial.given]
    for trial in (one for one in evidence.trials if one.given):
        if evidence.eps is None:
            (_, before), (_, after) = map(evidence.smallest, (mine, [*mine, trial]))
            better, count = int((after < (1 - SMALLER) * before).sum()), len(before)
            seen = f"for {better} of {count} samples smaller perturbations than any attack"
        else:
            better = evidence.missed(trial, mine)
            count = int(evidence.standing(mine).sum())
            seen = f"adversarial examples for {better} of the {count} samples that every attack"
            seen += " left unbroken"
        if better:
            yield Finding(
                "W50",
                f"the attacks of this evaluation were too weak: '{trial.text}', which was made "
                f"elsewhere, has {seen}.",
                "Its images count, but robustness to the attack that made them may still be "
                "overstated: add that attack, or use more steps, restarts and other losses.",
            )


def w49_lost_in_transfer(evidence: Evidence) -> Iterator[Finding]:
    """Images that fool only the substitute they were crafted on show no robustness of the model."""
    right = evidence.clean["sample"][evidence.right]
    # That an attack ignores the defense is no fault of the attack: W33 asks for others.
    crafted = [t for t in evidence.attacks if t.elsewhere is not None and not t.oblivious]
    for trial in sorted(crafted, key=lambda one: -len(evidence.broken_ids(one)))[:1]:
        assert trial.elsewhere is not None
        fooled = trial.elsewhere & np.isin(trial.rows["sample"], right)
        there, here = int(fooled.sum()), int((fooled & evidence.broken(trial)).sum())
        if there >= rules.FEW and there - here > TRANSFERRED * there:
            yield Finding(
                "W49",
                f"'{trial.text}', which transfers best, fools the substitute on {there} images, "
                f"and this model on only {here} of them.",
                "The attack worked and did not transfer, so the images that stand say little about "
                "attackers who query this model or know its gradients: attack the model itself, or "
                "use a substitute that is closer to it.",
                "note",
            )


def w33_not_adaptive(evidence: Evidence) -> Iterator[Finding]:
    """A defense that hides gradients must meet attacks on it, not only on another model."""
    own = [trial for trial in evidence.attacks if trial.access != "transfer"]
    if not evidence.attacks:
        return
    weak = "Nothing here says how the model fares against an attacker who knows its defense: "
    if evidence.stochastic and not any(trial.draws * evidence.pooled > 1 for trial in own):
        yield Finding(
            "W33",
            "this model is stochastic, and no attack on it averages over its draws.",
            f"{weak}use --suite adaptive, or averaged(ATTACK, 20).",
        )
    elif evidence.surrogates and not own:
        yield Finding(
            "W33",
            f"{' and '.join(evidence.surrogates)} has no gradient of its own, and every attack was "
            "crafted on another model.",
            f"{weak}use --suite adaptive, whose attacks go through the surrogate of the layer.",
        )
    elif evidence.rejects and not own:
        yield Finding(
            "W33",
            "this model may reject images, and every attack was crafted on another model, without "
            "its detector.",
            f"{weak}use --suite adaptive, whose attacks fool classifier and detector together.",
        )
    elif not own and any(trial.oblivious for trial in evidence.attacks):
        yield Finding(
            "W33",
            "every attack ignores the defense of this model: it was crafted on the undefended one.",
            f"{weak}use --suite adaptive, whose attacks go through the defense.",
        )
    for trial in evidence.attacks:
        if trial.draws > 1 and (trial.access == "transfer" or not evidence.stochastic):
            yield Finding(
                "W33",
                f"'{trial.text}' averages {trial.draws} equal answers: the model that it was "
                "crafted on is deterministic.",
                f"The result is the same without averaged(...), at a {trial.draws}th of the cost.",
                "note",
            )


def w42_small_probes(evidence: Evidence) -> Iterator[Finding]:
    """Noise of a stochastic model hides score differences between images close together."""
    for trial in evidence.trials:
        probe = trial.probe
        if probe is None or probe >= PROBE or not trial.rows["chance"].any():
            continue
        left = int((trial.rows["correct"] & ~trial.rows["success"]).sum())
        if left:
            yield Finding(
                "W42",
                f"'{trial.text}' compares scores of images only {probe:g} apart, and this model is "
                "stochastic: its noise is larger than the differences.",
                f"The {left} samples it did not break say little: raise sigma (such as to 0.05), "
                "or use attacks with larger probes, such as nattack and square.",
            )


def w39_few_classes(evidence: Evidence) -> Iterator[Finding]:
    """A model with few classes has fewer targets than an attack is set to try."""
    wrong = evidence.classes - 1
    short = [t for t in evidence.trials if t.targets is not None and t.targets > wrong]
    differences = []
    if short:
        names = ", ".join(f"'{trial.text}'" for trial in short)
        most = max(trial.targets or 0 for trial in short)
        tried = "the only wrong class" if wrong == 1 else f"all {wrong} wrong classes"
        differences.append(f"{names} aimed at {tried} instead of {most}")
    if evidence.classes == 2 and any("dlr" in trial.losses for trial in evidence.trials):
        differences.append(
            "the DLR loss does not exist for 2 classes, and was replaced by the margin divided by "
            "its size at the clean image"
        )
    if differences:
        yield Finding(
            "W39",
            f"the model has only {evidence.classes} classes: {'; '.join(differences)}.",
            "Nothing is missing and nothing needs to be done. Other implementations fail here or "
            "try fewer attacks, so their figures may differ.",
            "note",
        )
