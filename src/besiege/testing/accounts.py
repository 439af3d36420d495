"""Laws about queries and access: 5 honest accounts, 6 access."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.errors import AccessError
from besiege.core.oracle import Access
from besiege.core.samples import Samples
from besiege.core.victim import Victim
from besiege.evaluation.checking import fitting
from besiege.evaluation.judging import judge
from besiege.testing.outcomes import honest, inside
from besiege.testing.trial import HINT, Trial, law
from besiege.testing.victims import Altered, Counting


@law(5, "moment")
def honest_accounts(trial: Trial) -> None:
    """Law 5: the meter counts exactly the images that the victim computes, within every budget.

    Checked for single samples and for the whole batch. Padding is counted separately and never
    sent to a metered victim, for which nothing is computed ahead either. The judge counts its own
    forwards. A success is recorded with the query that showed it.
    """
    trial = trial.brief()
    victim, samples = trial.victim()
    eps = trial.budgets()[-1]
    counting = Counting(victim)
    whole = trial.craft(counting, samples, eps, pad=False)
    sums = int(whole.forwards.sum()), int(whole.backwards.sum())
    trial.demand(
        (counting.forwards, counting.backwards) == sums,
        f"the victim computed {counting.forwards} images forwards and {counting.backwards} "
        f"backwards, and the meter says {sums[0]} and {sums[1]}",
    )
    trial.demand(
        bool((whole.queries >= trial.attack.draws).all())
        and bool((whole.queries <= whole.forwards).all()),
        "a row was charged less than its clean check, or more than was computed",
    )
    # The rows with most and with fewest queries: if possible, one that stayed and one that left.
    for row in {int(whole.queries.argmax()), int(whole.queries.argmin())}:
        _alone(trial, victim, samples, row, int(whole.queries[row]))
    _padding(trial, victim, samples, eps)
    counting = Counting(victim)
    verdicts = judge(counting, whole, samples, trial.threat(eps))
    trial.demand(
        counting.forwards == verdicts.forwards,
        f"the judge computed {counting.forwards} images and says {verdicts.forwards}",
    )
    if "moment" not in trial.without:
        _moment(trial, victim, samples)
    for budget in (1, 2, 7):
        # A budget below the draws of one averaged answer is refused.
        if budget >= trial.attack.draws:
            _within(trial, victim, samples, budget)


def _alone(trial: Trial, victim: Victim, samples: Samples, row: int, queries: int) -> None:
    """The account of one sample, from a run on this sample only."""
    alone = Counting(victim)
    eps = trial.budgets()[-1]
    one = trial.craft(alone, samples.at(torch.tensor([row])), eps, pad=False)
    trial.demand(
        (alone.forwards, alone.backwards) == (int(one.forwards), int(one.backwards)),
        f"sample {row} had {alone.forwards} forwards and {alone.backwards} backwards, and the "
        f"meter says {int(one.forwards)} and {int(one.backwards)}",
    )
    trial.demand(
        int(one.queries) == queries,
        f"sample {row} used {int(one.queries)} queries alone and {queries} in a batch {HINT}",
    )


def _moment(trial: Trial, victim: Victim, samples: Samples) -> None:
    """With one query less than its first success took, a row has no success."""
    crafted = trial.usual(trial.size())
    late = crafted.success & (crafted.first_query > trial.attack.draws)
    if not bool(late.any()):
        return
    row = late.nonzero()[:1, 0]
    needed = int(crafted.first_query[row])
    for budget in (needed, needed - 1):
        if budget < trial.attack.draws:
            continue
        broken = bool(trial.craft(victim, samples.at(row), trial.size(), queries=budget).success)
        trial.demand(
            broken == (budget == needed),
            f"its first success is recorded at query {needed}, but within {budget} queries there "
            f"is {'one' if broken else 'none'}",
        )


def _padding(trial: Trial, victim: Victim, samples: Samples, eps: Fraction | None) -> None:
    few = samples.at(torch.arange(5))
    counting = Counting(victim)
    padded = trial.craft(counting, few, eps)
    paid = int(padded.forwards.sum()) + padded.padding
    trial.demand(
        counting.forwards == paid,
        f"the victim was sent {counting.forwards} images, and forwards and padding are {paid}",
    )
    metered = Counting(victim, metered=True)
    crafted = trial.craft(metered, few, eps)
    trial.demand(
        metered.forwards == int(crafted.queries.sum()) and crafted.padding == 0,
        f"a metered victim was sent {metered.forwards} images for {int(crafted.queries.sum())} "
        f"queries, {crafted.padding} of them padding",
    )


def _within(trial: Trial, victim: Victim, samples: Samples, budget: int) -> None:
    counting = Counting(victim, metered=True)
    crafted = trial.craft(counting, samples, trial.size(), queries=budget)
    trial.demand(
        int(crafted.queries.max()) <= budget,
        f"a row used {int(crafted.queries.max())} queries of {budget}",
    )
    trial.demand(
        counting.forwards == int(crafted.queries.sum()),
        f"within {budget} queries the victim was sent {counting.forwards} images, and "
        f"{int(crafted.queries.sum())} were charged",
    )
    honest(trial, victim, samples, crafted, trial.size(), f"within {budget} queries")


@law(6)
def access(trial: Trial) -> None:
    """Law 6: below the access it needs it is refused; at decision access it sees labels only.

    It is refused before the first query, whether the threat or the victim grants too little, and
    the error names attacks that fit. At score access there is no backward pass. At decision access
    the result does not depend on the victim's confidence in its labels.
    """
    trial = trial.brief()
    victim, samples = trial.victim()
    eps = trial.size()
    for granted in Access:
        if granted < trial.attack.access:
            _refused(trial, victim, samples, granted)
        elif granted >= trial.access:
            counting = Counting(victim)
            crafted = trial.craft(counting, samples, eps, access=granted)
            when = f"at {granted} access"
            inside(trial, victim, samples, crafted, eps, when)
            honest(trial, victim, samples, crafted, eps, when)
            if trial.attack.access < Access.GRADIENT:
                trial.demand(
                    counting.backwards == 0, f"it sent {counting.backwards} images backwards {when}"
                )
    if trial.access is Access.DECISION:
        _sees_labels_only(trial, victim, samples)


def _refused(trial: Trial, victim: Victim, samples: Samples, granted: Access) -> None:
    needed = trial.attack.access
    for who, counting, allowed in (
        ("the threat", Counting(victim), granted),
        ("the victim", Counting(victim, access=granted), needed),
    ):
        message = ""
        try:
            trial.craft(counting, samples, trial.size(), access=allowed)
        except AccessError as refusal:
            message = str(refusal)
        trial.demand(bool(message), f"it ran although {who} grants {granted} access only")
        trial.demand(
            counting.forwards == 0,
            f"the victim was sent {counting.forwards} images before it was refused",
        )
        fit = fitting(trial.threat(trial.size(), allowed), granted)
        lacking = [name for name in [*fit, str(granted), str(needed)] if name not in message]
        trial.demand(not lacking, f"the refusal does not name {', '.join(lacking)}: {message}")


def _sees_labels_only(trial: Trial, victim: Victim, samples: Samples) -> None:
    eps = trial.size()

    def sure(logits: Tensor) -> Tensor:
        return 7.0 * functional.one_hot(logits.argmax(1), logits.shape[1]).to(logits)

    plain = trial.usual(eps, "last", "end")
    blunt = trial.craft(Altered(victim, sure), samples, eps, keep="last", leave="end")
    trial.same(plain, blunt, "with the victim's confidence, at decision access")
