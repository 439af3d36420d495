"""The shipped figures: how each is computed, its section of the page and its terminal row."""

from __future__ import annotations

from besiege.metrics import figures
from besiege.metrics.attack_utility import attack_utility_figures
from besiege.metrics.attack_values import Stage
from besiege.metrics.cascade import cascade_figures
from besiege.metrics.classes import class_figures, confusion_figures
from besiege.metrics.clever import CleverFigures, clever_figures
from besiege.metrics.defense_values import Draws
from besiege.metrics.distances import distance_figures
from besiege.metrics.examination import ACTIVE, examination_figures
from besiege.metrics.ignoring import defense_figures
from besiege.metrics.proofs import certified_figures
from besiege.metrics.queries import query_figures
from besiege.metrics.registry import _FIGURES, Case, Figure, Row, Section
from besiege.metrics.rejection import rejection_figures
from besiege.metrics.replayed import replay_figures
from besiege.metrics.stochastic import chance_figures
from besiege.metrics.values import EvaluationFigures


def _robust_row(found: EvaluationFigures) -> Row | None:
    label = "never broken" if found.threat.eps is None else "robust"
    guards = sum(attack.guard for attack in found.attacks)
    count = len(found.attacks) - guards
    against = f"worst of {count} attacks" if count + guards > 1 else "under this attack"
    against = against.replace("1 attacks", "1 attack") if count == 1 else against
    against += f" and {guards} guard{'s' if guards > 1 else ''}" if guards else ""
    if found.model.counted:
        against = f"{found.model.counted} (quote this figure, with these words), {against}"
    return None if found.robust is None else Row(label, found.robust, against, bold=True)


def _clean_row(found: EvaluationFigures) -> Row | None:
    words = ", ".join(filter(None, [found.model.counted, "95 % intervals"]))
    return None if found.clean is None else Row("clean", found.clean, words)


def _defense_row(found: EvaluationFigures) -> Row | None:
    """What the defense is worth against either attacker, in one line."""
    return None if found.defense is None else Row("defense", "", str(found.defense))


def _examination_row(found: EvaluationFigures) -> Row | None:
    if found.examination is None:
        return None
    return Row("strong enough", found.examination.enough, found.examination.summary)


def _active_row(found: EvaluationFigures) -> Row | None:
    """The share of known examples that the attacks found, where the active test was decided."""
    checks = found.examination.checks if found.examination is not None else ()
    number = next((one.number for one in checks if one.name == ACTIVE), "")
    share, mark, words = number.partition(" known")
    return Row("active test", share, mark.strip() + words) if share else None


def _chance_row(found: EvaluationFigures) -> Row | None:
    if found.chance is None:
        return None
    draws = found.chance.evaluations
    words = f"right in a single draw, mean (sd) of {draws}, clean {found.chance.clean}"
    several = [one for one in found.chance.within if one.count > 1]
    if several:
        shares = (f"all of {one.count} draws {100 * one.accuracy:.1f} %" for one in several)
        words += f"; right in {', '.join(shares)}"
    return Row("one draw", found.chance.robust, words)


def _rejection_row(found: EvaluationFigures) -> Row | None:
    """The share of clean images that are rejected, beside the share that was intended."""
    if found.rejection is None:
        return None
    nominal = found.rejection.nominal
    words = "of the clean images, which is an error" + (
        "" if nominal is None else f"; the threshold was set for {100 * nominal:g} %"
    )
    return Row("rejected", found.rejection.clean.rejected, words)


def _clever_row(found: EvaluationFigures) -> Row | None:
    value: CleverFigures | None = found.figure("clever")
    if value is None or value.median is None:
        return None
    words = f"the median estimate by CLEVER, no bound: attacks refute {len(value.refuted)} of "
    return Row("CLEVER", f"{value.median:.4g}", f"{words}{value.attacked}")


def _certified_row(found: EvaluationFigures) -> Row | None:
    """The share that is proved, below the shares that are clean and that attacks left."""
    one = found.certified
    if one is None:
        return None
    words = f"by {one.method}: {one.proved} proved, {one.broken} broken, {one.open} open"
    if one.wrong:
        what = "misclassified or rejected" if found.model.rejects else "misclassified"
        words += f", {one.wrong} {what} when clean"
    if one.spared:
        words += f"; attacks left out {one.spared} of the proved"
    if one.votes is not None:
        words += f"; each certificate from {one.votes.n:,} votes, wrong with probability "
        words += f"{one.votes.alpha:g} at most"
    return Row("certified", one.certified, words)


def _gallery_title(found: EvaluationFigures) -> str:
    return "Misclassified images" if found.distances is None else "Images at the median size"


def _cascade(case: Case) -> tuple[Stage, ...]:
    return cascade_figures(case.evidence, case.seconds)


def _chance(case: Case) -> Draws | None:
    return chance_figures(case.evidence, case.draws)


SHIPPED = (
    Figure("robust", lambda case: figures.robust_rate(case.evidence), 1, row=_robust_row),
    Figure("clean", lambda case: figures.clean_rate(case.evidence), 2, row=_clean_row),
    Figure("defense", defense_figures, 2.5, row=_defense_row),
    Figure(
        "certified",
        certified_figures,
        3,
        Section("Between proof and attack", "certified.html", notebook=True),
        _certified_row,
    ),
    Figure(
        "examination",
        examination_figures,
        5,
        Section("Is this evaluation strong enough?", "examination.html", notebook=True),
        _examination_row,
    ),
    Figure("active_test", None, 6, row=_active_row),
    Figure(
        "attacks",
        figures.attack_figures,
        10,
        Section("The attacks", "attacks.html", notebook=True),
    ),
    Figure(
        "rejection",
        rejection_figures,
        15,
        Section("Right, wrong, rejected", "rejection.html", notebook=True),
        _rejection_row,
    ),
    Figure(
        "distances",
        lambda case: distance_figures(case.evidence),
        20,
        Section("Smallest perturbations", "distances.html", notebook=True),
    ),
    Figure(
        "clever",
        clever_figures,
        25,
        Section("Estimated distances", "clever.html", notebook=True),
        _clever_row,
    ),
    Figure(
        "attack_utility",
        attack_utility_figures,
        26,
        Section("What successful images look like", "attack_utility.html"),
    ),
    Figure(
        "replays",
        replay_figures,
        27,
        Section("Replayed images, beside attacks on this model", "replays.html"),
    ),
    Figure("cascade", _cascade, 30, Section("First attack to break each image", "cascade.html")),
    Figure("chance", _chance, 40, Section("Stochastic model", "chance.html"), _chance_row),
    Figure(
        "steps_curve",
        lambda case: figures.steps_figures(case.evidence),
        50,
        Section("Accuracy curves", "charts.html", notebook=True),
    ),
    Figure("queries_curve", lambda case: figures.queries_figures(case.evidence), 51),
    Figure("eps_curve", lambda case: figures.budget_figures(case.evidence), 52),
    Figure("eps_curves", lambda case: figures.budget_curves(case.evidence), 53),
    Figure(
        "by_class",
        lambda case: class_figures(case.evidence),
        55,
        Section("Accuracy by class", "by_class.html"),
    ),
    Figure(
        "confusion",
        lambda case: confusion_figures(case.evidence),
        56,
        Section("What broken images were classified as", "confusion.html"),
    ),
    Figure(
        "gallery",
        lambda case: figures.gallery(case.evidence),
        60,
        Section(_gallery_title, "gallery.html"),
    ),
    Figure("warnings", None, 70, Section("Warnings", "warnings.html", notebook=True)),
    Figure("history", None, 75, Section("Earlier results", "history.html", notebook=True)),
    Figure("threat", None, 80, Section("What the attacker may do", "threat.html")),
    Figure("cost", figures.cost_figures, 90),
    Figure("queries", query_figures, 91),
)
for one in SHIPPED:
    _FIGURES.add(one.name, one)
