"""The examination of an evaluation: checks of the model, of the attacks, and of their agreement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from besiege.core.examination import Check, Examination
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows
from besiege.metrics.weakness import advice, on_the_model, suite, too_short

TRANSFER = "transfer attacks only"
"""Why the strength of attacks is not asked for: what they miss tells about another model."""
WITHOUT_GRADIENTS = "no attack used the gradients of this model"
"""Why it is not asked for: checks compare such attacks with gradient-based ones, or test these."""
KINDS = ("examine", "again", "active")
"""Kinds of task whose rows are checks, in the order in which they are shown."""
ACTIVE = "the attacks find known adversarial examples"
"""The check of the active test."""
FEW = 0.02
"""The largest share of what gradient-based attacks left that others may break."""
ALONE = 1
"""So many images are allowed even where they are a larger share: one is no pattern."""
KNOWING = "attacks that know the defense break no less"
"""The check of the attacks on a defended model, where others ignored the defense."""


def examination_figures(case: Case) -> Examination | None:
    """All checks of an evaluation; None where it was not examined."""
    evidence = case.evidence
    tables = {name: evidence.others[name] for name in KINDS if name in evidence.others}
    if not tables:
        return None
    before = [check for name in KINDS[:1] for check in _checks(tables.get(name))]
    if "examine" not in tables:
        before = [Check("the model can be attacked", "not run", seen="the model was not examined")]
    after = [check for name in KINDS[1:] for check in _checks(tables.get(name))]
    checks = (*before, _without_gradients(evidence), *_knowing(evidence), *after)
    return Examination(checks, _not_asked(evidence, checks))


def _not_asked(evidence: Evidence, checks: Iterable[Check]) -> str:
    """Why no check can say whether the evaluation's own attacks are strong enough, or nothing."""
    mine = [trial for trial in evidence.trials if not trial.given]
    if not mine:
        return ""
    if all(trial.access == "transfer" for trial in mine):
        return TRANSFER
    tested = any(one.name == ACTIVE and one.outcome in ("passed", "failed") for one in checks)
    return "" if tested or any(trial.sees for trial in mine) else WITHOUT_GRADIENTS


def _checks(rows: Rows | None) -> Iterator[Check]:
    """The checks that a task stored, one in each row."""
    if rows is not None:
        for row in rows.records():
            words = {name: str(row[name]) for name in COLUMNS}
            yield Check(**words)  # type: ignore[arg-type]  # the words were outcomes and levels


COLUMNS = ("name", "outcome", "number", "seen", "advice", "rule", "level")
"""The columns of stored checks: the fields of a `Check`."""


def _without_gradients(evidence: Evidence) -> Check:
    """Whether attacks without gradients break what gradient-based ones left."""
    name = "attacks without gradients break no more"
    seeing = [trial for trial in evidence.trials if trial.sees]
    # What ignores the defense has gradients, those of the undefended model: see `_knowing`.
    blind = [t for t in evidence.trials if not (t.sees or t.given or t.oblivious)]
    if not seeing:
        return Check(name, "not applicable", seen="no attack uses gradients")
    if not blind:
        return Check(
            name,
            "not run",
            seen="only gradient-based attacks were listed",
            advice=f"Add one (square), or run --suite {suite(evidence)}.",
        )
    tried, broken = _tried(evidence, seeing, blind)
    number = f"{broken} of {tried} images"
    allowed = max(ALONE, FEW * tried)
    if broken <= allowed:
        lenient = broken > FEW * tried
        return Check(name, "passed", number + (": a single image is allowed" if lenient else ""))
    what, rule = "attacks without its gradients", "W08"
    elsewhere = [trial for trial in blind if trial.access == "transfer"]
    at_random = [trial for trial in blind if trial.random]
    if _tried(evidence, seeing, elsewhere)[1] == broken:
        what, rule = "images crafted on another model", "W09"
    elif 2 * (by_them := _tried(evidence, seeing, at_random)[1]) > broken:
        what, rule = "random points within the budget, or blends with other images,", "W10"
        what += "" if by_them == broken else " and other attacks without its gradients"
    seen = (
        f"{what} broke {broken} of the {tried} images they were tried on, all of which had "
        f"withstood the gradient-based attacks; at most {int(allowed)} of them may be broken."
    )
    return Check(name, "failed", number, seen, advice(evidence), rule)


def _knowing(evidence: Evidence) -> Iterator[Check]:
    """Whether attacks on a defended model break what an attack that ignores the defense breaks.

    In a suite the attack that ignores the defense comes first: others never see what it broke.
    """
    ignoring = [trial for trial in evidence.trials if trial.oblivious]
    own = on_the_model(evidence)
    if evidence.chained or not ignoring or not own:
        return
    tried, broken = _tried(evidence, own, ignoring)
    allowed, number = max(ALONE, FEW * tried), f"{broken} of {tried} images"
    if broken <= allowed:
        lenient = broken > FEW * tried
        number += ": a single image is allowed" if lenient else ""
        yield Check(KNOWING, "passed", number)
        return
    seen = (
        f"an attack that ignores the defense broke {broken} of the {tried} images that the attacks "
        f"on the model itself left; at most {int(allowed)} of them may be broken."
    )
    stronger = too_short(evidence) or "Use more steps, restarts, or another loss (loss=margin)."
    yield Check(
        KNOWING,
        "failed",
        number,
        seen,
        "An attacker who knows the defense can do the same and more, so these attacks are too weak "
        f"for this model. {stronger}",
        "W48",
    )


def _tried(evidence: Evidence, seeing: list[Trial], blind: list[Trial]) -> tuple[int, int]:
    """Of the images that gradient-based attacks left: those tried without, and those broken.

    In a suite, images that an earlier attack broke were left by no gradient-based attack.
    """
    attacked = {int(one) for trial in seeing for one in trial.rows["sample"]}
    left = attacked & set(evidence.clean["sample"][evidence.standing(seeing)].tolist())
    tried = {int(one) for trial in blind for one in trial.rows["sample"]} & left
    broken = {int(one) for trial in blind for one in evidence.broken_ids(trial)} & left
    return len(tried), len(broken)
