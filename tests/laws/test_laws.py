"""Every registered attack, and attacks made of attacks, obey the laws."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from _pytest.mark import ParameterSet

from besiege.attacks.attack import Attack, parse
from besiege.core.threat import L2, Goal
from besiege.testing import EXCEPTIONS, LAWS, Case, cases, registered
from besiege.testing.trial import Shelf, Trial

COMPOSED = [
    "pgd(loss=margin, restarts=2)",
    "pgd(loss=dlr, schedule=cosine(0.5), start=sphere_start)",
    "bim(direction=chain(momentum(0.9), unit))",
    "bim(direction=top(0.1))",
    "minimal(pgd)",
    "minimal(fgsm)",
    "cascade(fgsm, pgd)",
    "best_of(bim, mim)",
    "best_of(minimal(fgsm), minimal(bim))",
    "repeat(pgd, 2)",
    "averaged(pgd, 2)",
    "oblivious(pgd)",
    "each_target(pgd, 3)",
    "minimal(cascade(fgsm, bim))",
    "cascade(averaged(bim, 2), repeat(each_target(pgd, 2), 2))",
    "repeat(sinifgsm, 2)",
]

# Made of what the fast run tries by itself: a search, a cascade, the best of several.
# Of these the fast run tries every law, of other combinations a few.
LIGHT = {
    *("pgd(loss=margin, restarts=2)", "minimal(fgsm)", "cascade(fgsm, pgd)", "averaged(pgd, 2)"),
    *("best_of(bim, mim)", "each_target(pgd, 3)"),
}
COVERED = {"minimal(cascade(fgsm, bim))", "best_of(minimal(fgsm), minimal(bim))"}

# Pieces may be put together that do not suit a norm; such an attack is weak, and lawful otherwise.
UNSUITED = {
    "bim": {"not_idle:linear": "its moves are not the steepest of the norms it is tried in here"}
}


# What was published in absolute terms.
PUBLISHED = [
    "alma(relative=False)",
    "blb(relative=False)",
    "cw(compat=True)",
    "ead(compat=True, rule='en')",
    "hopskipjump(probe=None)",
    "nattack(tanh=True)",
    "zoo(compat=True)",
    "zoo(compat=True, tanh=True, by='adam')",
]


# Attacks of many queries: their later norms, and the closed form, which tests of their own reach.
LONG = {"geoda", "hopskipjump", "nes_labels", "opt", "signopt", "zoo"}

# Laws of these that the fast run tries.
ALWAYS = {"feasible", "judged", "row_independent", "honest_accounts", "sound_queries"}

# Laws about what the siege does for every attack: no norm changes it.
SAME_IN_EVERY_NORM = {
    *("repeatable", "honest_accounts", "access", "scale_and_classes", "more_never_hurts"),
    "judged",
}

# Attacks that are another one with other settings, or other estimates of its gradient: what they do
# in later norms is what that one does.
LIKE_ANOTHER = {
    **dict.fromkeys(("dim", "illc", "llc", "mim", "rfgsm", "rllc", "sinifgsm", "tim"), "bim"),
    **dict.fromkeys(("nes_partial", "prgf", "rgf", "spsa"), "nes"),
    **{"apgdt": "apgd", "fabt": "fab"},
}

SHELVES: dict[str, Shelf] = defaultdict(dict)
"""What the laws of one attack share."""


def every() -> list[ParameterSet]:
    """All cases; `_can_wait` says which of them are tried in the slow run only."""
    return [
        pytest.param(attack, case, marks=pytest.mark.slow if _can_wait(attack, case) else ())
        for attack in registered()
        for case in cases(attack)
    ]


def _can_wait(attack: Attack, case: Case) -> bool:
    """Whether the first goal, or the first norm, shows in the fast run what this case would."""
    first = next(iter(cases(attack)))
    if case.goal is not first.goal:
        return True
    if attack.title() in LONG and case.law not in ALWAYS:
        return True
    later = case.norm is not first.norm
    covered = attack.title() in LONG or attack.title() in LIKE_ANOTHER
    return later and (case.law in SAME_IN_EVERY_NORM or covered)


def one_of_each() -> list[ParameterSet]:
    """Each law once per composed attack, with the norms and goals taken in turn."""
    chosen = []
    for turn, text in enumerate(COMPOSED):
        attack = parse(text)
        for number, law in enumerate(LAWS):
            own = [case for case in cases(attack) if case.law == law]
            case = own[(turn + number) % len(own)]
            waits = text in COVERED or (text not in LIGHT and law not in ALWAYS)
            chosen.append(pytest.param(attack, case, marks=pytest.mark.slow if waits else ()))
    return chosen


def name(value: object) -> str:
    return str(value)


@pytest.mark.parametrize(("attack", "case"), every(), ids=name)
def test_a_registered_attack_obeys_the_law(attack: Attack, case: Case) -> None:
    reason = case.check(attack, shelf=SHELVES[str(attack)])
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize(("attack", "case"), one_of_each(), ids=name)
def test_an_attack_made_of_attacks_obeys_the_law(attack: Attack, case: Case) -> None:
    unsuited = UNSUITED if "direction=" in str(attack) else None
    reason = case.check(attack, unsuited, SHELVES[str(attack)])
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("text", PUBLISHED)
def test_a_published_form_obeys_the_laws_about_the_box(text: str) -> None:
    LAWS["box_equivariant"](text, L2, Goal.UNTARGETED)
    if not text.startswith("ead"):  # as published, it takes gradients at points outside the box
        LAWS["sound_queries"](text, L2, Goal.UNTARGETED)


@pytest.mark.parametrize("text", ["cw(compat=True)", "nattack(tanh=True)", "blb"])
def test_functions_that_torch_vectorises_do_not_depend_on_neighbours(text: str) -> None:
    """Images whose entries fill no vectors: the last ones are often computed by other code."""
    trial = Trial("law 3", parse(text), L2, Goal.UNTARGETED).brief()
    victim, samples = trial.untrained((1, 5, 7), 4, 9)
    whole = trial.craft(victim, samples, trial.size(), keep="last", leave="end")
    for row in range(9):
        at = torch.tensor([row])
        alone = trial.craft(victim, samples.at(at), trial.size(), keep="last", leave="end")
        trial.same(whole, alone, "alone and in a batch", at)


def test_exceptions_name_attacks_laws_and_reasons_that_exist() -> None:
    names = {attack.title() for attack in registered()}
    for attack, granted in EXCEPTIONS.items():
        assert attack in names
        for law, reason in granted.items():
            name, colon, part = law.partition(":")
            assert name in LAWS
            assert not colon or part in LAWS[name].parts
            assert len(reason.split()) > 5


def test_every_norm_and_goal_an_attack_declares_is_tried_under_every_law() -> None:
    for attack in registered():
        tried = list(cases(attack))
        for law in LAWS:
            assert {case.norm for case in tried if case.law == law} == attack.norms
            assert {case.goal for case in tried if case.law == law} == attack.goals
