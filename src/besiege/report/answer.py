"""The result of an evaluation in sentences, the same in the terminal and on the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import compress

from besiege.bench.words import class_in_words
from besiege.core.errors import Finding
from besiege.core.threat import CLASS
from besiege.metrics.attack_values import AttackFigures, Descent
from besiege.metrics.intervals import Rate
from besiege.metrics.values import DataFigures, Earlier, ThreatFigures
from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.formats import budget_unit, distance, interval, listed, p_value, share

SIGNIFICANT = 0.05
"""Differences with a p-value below it are called better or worse."""
IN_TURN = "all, one after the other"
"""The row of all attacks in the table of medians against passes."""


def counted(evaluation: Evaluation) -> list[AttackFigures]:
    """The attacks that were judged on at least one image, guards apart."""
    return [one for one in evaluation.attacks if one.accuracy is not None and not one.guard]


def strongest(evaluation: Evaluation) -> list[AttackFigures]:
    """The attacks that broke most images: several if equal, none if no image was broken.

    Without a budget: the attacks with the smallest area under the curve. In a suite, later attacks
    did not see what earlier ones broke: there it is the only one that broke any image, or none.
    """
    shown = counted(evaluation)
    if (sizes := evaluation.distances) is not None and any(a.broken for a in shown):
        areas = {attack.text: attack.area for attack in sizes.attacks}
        shown = [attack for attack in shown if attack.text in areas]
        least = min((areas[attack.text] for attack in shown), default=0.0)
        return [attack for attack in shown if areas[attack.text] == least]
    if is_cascade(evaluation):
        breakers = [attack for attack in shown if attack.broken]
        return breakers if len(breakers) == 1 else []
    most = max((attack.broken for attack in shown), default=0)
    return [attack for attack in shown if attack.broken == most] if most else []


def robust(evaluation: Evaluation) -> Rate | None:
    """The robust accuracy; None where no attack was judged."""
    return evaluation.robust if counted(evaluation) else None


def errors(evaluation: Evaluation) -> list[Finding]:
    """The warnings because of which figures must not be quoted."""
    return [warning for warning in evaluation.warnings if warning.level == "stop"]


UNKNOWN = "unknown"
"""The word that stays with a figure where a check did not run or a warning is open."""
UNKNOWN_MEANS = (
    f"{UNKNOWN}: whether the evaluation is strong enough is not known; quote the figure with that "
    "word."
)


def doubt(evaluation: Evaluation) -> str:
    """The word that its figures must be quoted with; empty without one."""
    found = evaluation.examination
    open_ = found is not None and found.enough == UNKNOWN
    return UNKNOWN if open_ and not errors(evaluation) else ""


def is_minimal(evaluation: Evaluation) -> bool:
    """Whether the threat has no budget: attacks search for the smallest perturbation."""
    return evaluation.threat.eps is None


def is_cascade(evaluation: Evaluation) -> bool:
    """Whether each attack ran only on the images that withstood the ones before."""
    return evaluation.mode == "suite"


def median_change(evaluation: Evaluation) -> float | None:
    """The median smallest perturbation, if a curve or an attack has one."""
    curve = evaluation.eps_curve
    stated = [curve.median] if curve else [a.median_distance for a in counted(evaluation)]
    return min((m for m in stated if m is not None and math.isfinite(m)), default=None)


def counted_in(evaluation: Evaluation) -> str:
    """What the cost of attacks is counted in: queries, or passes where one uses gradients."""
    paid = sum(not attack.given for attack in evaluation.attacks)
    return "queries" if len(evaluation.queries) == paid else "passes"


def typical(evaluation: Evaluation, attack: AttackFigures) -> float | None:
    """The median size of an attack's perturbations.

    Without a budget over all images, as for all attacks together; with a budget over the images
    that the attack broke.
    """
    sizes = evaluation.distances
    mine = {} if sizes is None else {one.text: one.median for one in sizes.attacks}
    return mine.get(attack.text, attack.median_distance)


@dataclass(frozen=True)
class Passed:
    """The median perturbation of an attack against forward and backward passes.

    A cell has the median after a number of passes, and whether the attack had already ended.
    """

    cells: tuple[tuple[float | None, bool], ...]
    in_all: float | None
    spent: float


@dataclass(frozen=True)
class Fall:
    """The median perturbation after a few round numbers of passes, with a row for each attack."""

    marks: tuple[int, ...]
    rows: dict[str, Passed]


def descent(evaluation: Evaluation, digits: str = "125") -> Fall | None:
    """The median perturbation against passes, of each attack and of all one after the other.

    It starts at the first number of passes within which one of them broke half of the images.
    Numbers of passes are one of `digits` followed by zeros.
    """
    if (sizes := evaluation.distances) is None:
        return None
    noted = {a.text: a.cost for a in sizes.attacks if a.cost is not None}
    if len(noted) > 1 and sizes.all.cost is not None:
        noted[IN_TURN] = sizes.all.cost
    known = [m for cost in noted.values() for m in zip(cost.passes, cost.median, strict=True)]
    begin = min((mark for mark, median in known if median is not None), default=None)
    if begin is None:
        return None
    round_ones = {mark for mark, _ in known if str(mark).rstrip("0") in (*digits,)}
    marks = tuple(sorted(mark for mark in round_ones if mark >= begin))
    rows = {
        text: Passed(tuple(_after(cost, mark) for mark in marks), cost.in_all, cost.spent)
        for text, cost in noted.items()
    }
    return Fall(marks, rows)


def _after(cost: Descent, mark: int) -> tuple[float | None, bool]:
    """The median after `mark` passes, and whether the attack had already ended."""
    before = [place for place, one in enumerate(cost.passes) if one <= mark]
    return cost.median[before[-1]] if before else None, mark > cost.passes[-1]


def headline(evaluation: Evaluation) -> str:
    """The answer in one sentence."""
    threat, rate = evaluation.threat, robust(evaluation)
    clean = share(evaluation.clean)
    if rate is None:
        why = _unjudged(evaluation)
        return f"{why}, so robustness is unknown; the clean accuracy is {clean}."
    if is_minimal(evaluation):
        median = median_change(evaluation)
        if median is None:
            return f"No smallest perturbation is known; the clean accuracy is {clean}."
        size = distance(median, budget_unit(threat))
        return f"The median smallest perturbation that breaks an image is {size} ({threat.norm})."
    kept = "still classified correctly"
    if threat.goal != "untargeted":
        kept = "classified correctly before and not as the target class under attack"
    elif evaluation.rejection is not None:
        kept = "classified correctly when clean and not accepted with a wrong class"
    if counted := evaluation.model.counted:
        kept += counted.removeprefix("right")
    return f"Under attack, {share(rate)} of the images are {kept}; without an attack, {clean}."


def _unjudged(evaluation: Evaluation) -> str:
    """Which attacks finished, where no image was judged under every attack."""
    done = [one.text for one in evaluation.attacks if one.complete and not one.failure]
    others = [one.text for one in evaluation.attacks if one.text not in done]
    if not done:
        return "No attack finished"
    if not others:
        return "No image was judged under every attack"
    return f"{listed(done)} finished, but {listed(others)} did not"


def meaning(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Explanations of the result, each with a title."""
    rate = robust(evaluation)
    if rate is None:
        return []
    said = [_certainty(evaluation, rate), _bound(evaluation), _breakers(evaluation)]
    if evaluation.defense is not None:
        said.append(("Defense", f"{evaluation.defense}, on the same images."))
    return said


def _certainty(evaluation: Evaluation, rate: Rate) -> tuple[str, str]:
    low, high = interval(rate)[1:-1].split(", ")
    size = " at any perturbation size" if is_minimal(evaluation) else ""
    return (
        "Interval",
        f"{rate.hits:,} of {rate.count:,} images withstood every attack{size}. For images like "
        f"these, and these attacks, the share is between {low} and {high} % with 95 % confidence.",
    )


def _bound(evaluation: Evaluation) -> tuple[str, str]:
    names = [attack.text for attack in counted(evaluation)]
    tried = f"the {len(names)} attacks tried" if len(names) > 1 else f"{names[0]} only"
    guards = sum(attack.guard for attack in evaluation.attacks)
    tried = f"{len(names)} attacks and {guards} guards" if guards else tried
    if is_minimal(evaluation):
        return (
            "Upper bound",
            f"These are the smallest perturbations found by {tried}. A stronger attack can only "
            "find smaller ones.",
        )
    return (
        "Upper bound",
        f"It is the worst case over {tried}. A stronger attack can only lower it, so the model is "
        "at most this robust.",
    )


def _breakers(evaluation: Evaluation) -> tuple[str, str]:
    title, most = "Strongest attack", strongest(evaluation)
    if not most:
        return _in_turn(evaluation) or (title, "No attack broke an image.")
    names = listed([attack.text for attack in most])
    if (sizes := evaluation.distances) is not None:
        best = {attack.text: attack.best for attack in sizes.attacks}
        count = max(best[attack.text] for attack in most)
        return (
            title,
            f"{names} found the smallest perturbations overall, and the smallest of all for "
            f"{count:,} of {sizes.broken:,} images.",
        )
    broken = f"{most[0].broken:,}" + (" each," if len(most) > 1 else "")
    clean = evaluation.clean
    of = " images" if clean is None else f" of the {clean.hits:,} correctly classified images"
    return title, f"{names} broke most: {broken}{of}."


def _in_turn(evaluation: Evaluation) -> tuple[str, str] | None:
    """Which attacks of a suite broke images first; None where none did."""
    shown = [(one.text, one.broken) for one in counted(evaluation) if one.broken]
    if not shown:
        return None
    (first, most), *later = shown
    clean = evaluation.clean
    of = " images" if clean is None else f" of the {clean.hits:,} correctly classified images"
    others = listed([f"{text} broke {count:,}" for text, count in later])
    return (
        "Broke first",
        f"{first} broke {most:,}{of}; of those that the attacks before it left, {others}. Each ran "
        "only on what was left, so the order decides these numbers and none is the strongest.",
    )


def latest(evaluation: Evaluation) -> Earlier | None:
    """The newest complete earlier evaluation of the same request."""
    done = (old for old in evaluation.history if old.complete and old.robust is not None)
    return next(done, None)


def verdict(old: Earlier) -> str:
    """Whether an evaluation is better than an earlier one, in words."""
    change, corrected = old.change, "corrected " if old.comparisons > 1 else ""
    if change is None:
        return f"not comparable: {old.why_not or 'no image was judged under both'}"
    images = f"on the same {change.count:,} images"
    if change.only_first == change.only_second == 0:
        return f"no difference {images}"
    if change.p >= SIGNIFICANT:
        return f"no clear change, {corrected}{p_value(change.p)} {images}"
    word = "better" if change.value > 0 else "worse"
    return f"{word}, {corrected}{p_value(change.p)} {images}"


def since(evaluation: Evaluation) -> str:
    """The change since the earlier evaluation in one sentence; empty without one."""
    old = latest(evaluation)
    if old is None:
        return ""
    if is_minimal(evaluation):
        unit = budget_unit(evaluation.threat)
        was = f"median {distance(old.median, unit)}"
        now = distance(median_change(evaluation), unit)
    else:
        was, now = f"{share(old.robust)} {interval(old.robust)}", share(robust(evaluation))
    return f"was {was}, now {now}: {verdict(old)}"


def is_complete(evaluation: Evaluation) -> bool:
    """Whether every attack was judged on all its images."""
    return evaluation.complete and all(a.complete and not a.failure for a in evaluation.attacks)


def troubles(evaluation: Evaluation) -> list[str]:
    """Sentences about failed and unfinished attacks, where no warning reports them."""
    reported = {warning.id for warning in errors(evaluation)}
    failed = [attack.text for attack in evaluation.attacks if attack.failure]
    short = [a.text for a in evaluation.attacks if not a.complete and not a.failure]
    sentences = []
    if failed and "FAILED" not in reported:
        sentences.append(
            f"{listed(failed)} failed: its missing images count as not attacked, never as robust."
        )
    if short and "UNFINISHED" not in reported:
        have = "have" if len(short) > 1 else "has"
        sentences.append(
            f"{listed(short)} {have} not finished: missing images never count as robust."
        )
    return sentences


def sample_choice(evaluation: Evaluation) -> str:
    """The images of an evaluation, in words."""
    return choice(evaluation.data, evaluation.threat)


def choice(data: DataFigures, threat: ThreatFigures) -> str:
    """The images of a data set that were chosen for a threat, in words."""
    where = f"{data.name} ({data.split})" if data.split else data.name
    count, total = data.count, data.total
    if total is None or count == total:
        return f"all {count:,} images of {where}"
    chosen = "" if data.seed is None else f", chosen with seed {data.seed}"
    if threat.goal.startswith(CLASS):
        target = class_in_words(int(threat.goal.removeprefix(CLASS)), data.class_names)
        chosen += f", without those of {target}"
    return f"{count:,} of the {total:,} images of {where}{chosen}"


def without_guards(evaluation: Evaluation) -> Evaluation:
    """The evaluation without its guards, which have no accuracy of their own: see `guards`."""
    kept = [not one.guard for one in evaluation.attacks]
    names = {one.text for one in compress(evaluation.attacks, kept)}
    return replace(
        evaluation,
        attacks=tuple(compress(evaluation.attacks, kept)),
        cascade=tuple(compress(evaluation.cascade, kept)),
        queries=tuple(one for one in evaluation.queries if one.text in names),
    )


def guards(evaluation: Evaluation) -> str:
    """What the guards found, in one sentence; empty without guards."""
    found = []
    for one in evaluation.attacks:
        if one.guard:
            name = one.text.removesuffix(" (guard)")
            tried = "" if one.tried is None else f"tried {one.tried:,}, "
            state = "failed" if one.failure else f"{tried}broke {one.broken:,}"
            found.append(f"{name} {state}" if one.complete or one.failure else f"{name} unfinished")
    return f"Guards ({GUARDS}): {'; '.join(found)}." if found else ""


GUARDS = "attacks without gradients of the model, on images that the attacks left"
"""What guards are."""


def elsewhere(evaluation: Evaluation) -> str:
    """The substitute that attacks were crafted on, in words; empty without one."""
    models = evaluation.threat.substitute
    if not models or not any(attack.transfer for attack in evaluation.attacks):
        return ""  # a guard may be crafted on a model that was not requested
    return f"transfer: crafted on {' and '.join(models)}, judged on the model"
