"""Which attacks a request runs: those it names, those of a suite, or the usual ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from besiege.attacks.attack import Attack, parse, split
from besiege.attacks.suites import DEFAULT, DEFAULT_TARGETED, DEFAULT_TRANSFER, SUITES
from besiege.attacks.suites import suite as suite_of
from besiege.core import presets
from besiege.core.errors import AttackError, ThreatError
from besiege.core.threat import Access, Goal, Norm, Threat
from besiege.evaluation.approach import on_substitute
from besiege.evaluation.checking import check_goal, fits, fitting

CURVE_STEPS = 20

Attacks = str | Attack | Sequence[str | Attack]


def read_attacks(
    attacks: Attacks | None, suite: Attacks | None, threat: Threat, **traits: bool
) -> tuple[dict[str, Attack], bool]:
    """The attacks by their texts, and whether each runs on the samples left by those before.

    `traits` are those of the model that a named suite may depend on (`Suite.attacks_for`).
    """
    if attacks is not None and suite is not None:
        raise AttackError("give attacks or a suite, not both")
    given: Sequence[str | Attack]
    if suite is not None:
        given = suite_attacks(suite, threat, **traits)
        if isinstance(suite, str) and suite in SUITES:
            _must_have_some(suite, given, threat)
    elif isinstance(attacks, str):
        given = split(attacks)
    elif isinstance(attacks, Sequence):
        given = attacks
    else:
        given = [] if attacks is None else [attacks]
    if not given:
        raise AttackError("no attack is listed: write for example attacks='pgd'")
    listed = Listed()
    for one in given:
        listed.add(one, threat)
    # Without a budget every attack of a suite searches the smallest perturbation of every sample.
    return listed.attacks, suite is not None and threat.eps is not None


class Listed:
    """Attacks by their texts, in the order they are added; each once."""

    def __init__(self) -> None:
        self.attacks: dict[str, Attack] = {}
        self._texts: dict[str, str] = {}

    def add(self, one: str | Attack, threat: Threat) -> None:
        """Add an attack under a threat; one that is there already is refused."""
        attack = parse(one, threat)
        if isinstance(one, str):
            presets.check_norms(one, threat)
        spelled = str(attack)
        if (same := self._texts.get(spelled)) is not None:
            both = f"'{same}'" if same == str(one) else f"'{same}', which is also '{one}',"
            raise AttackError(
                f"the attack {both} is listed twice: with the same seed both are the same"
            )
        # An attack of a user's file needs its path to be found again; presets keep their names.
        own = isinstance(one, str) and (".py:" in one or "@" in one)
        self._texts[spelled] = str(one) if own else spelled
        self.attacks[self._texts[spelled]] = attack


def suite_attacks(suite: Attacks, threat: Threat, **traits: bool) -> Sequence[str | Attack]:
    """The attacks of a named suite for a model with these traits, or of a given list."""
    if isinstance(suite, Attack):
        return [suite]
    if not isinstance(suite, str):
        if not isinstance(suite, Sequence):
            raise AttackError(f"a suite is a name or a list of attacks, not {type(suite).__name__}")
        return suite
    # A single word is a name, possibly mistyped; a list has a comma or parameters.
    if suite in SUITES or not set(suite) & set(",(:"):
        listed = suite_of(suite).attacks_for(threat.norm, **traits)
        return [text for text in listed if threat.goal in parse(text).goals] or listed
    return split(suite)


def _must_have_some(suite: str, listed: Sequence[str | Attack], threat: Threat) -> None:
    """Refuse a named suite without any attack that fits a threat."""
    seeing = replace(threat, access=Access.GRADIENT)  # the model's access is not known yet
    if not any(_fits(parse(one), seeing) for one in listed):
        try:
            fits(parse(listed[0]), seeing)
        except ThreatError as problem:
            raise ThreatError(
                f"the suite '{suite}' has no attack for the threat '{threat}': {problem}"
            ) from None


def usual(threat: Threat, alone: bool) -> tuple[Sequence[str] | None, str | None]:
    """The default attacks, or the default suite, for a threat."""
    on = threat if alone else on_substitute(threat)
    check_goal(on, on.access)
    listed: Sequence[str | Attack]
    if on.access < Access.GRADIENT:
        listed, suite = suite_attacks(str(on.access), on), str(on.access)
    else:
        listed, suite = _usual_list(on, alone), None
    fit = [str(one) for one in listed if _fits(parse(one), on)]
    if not fit:
        raise _nothing_usual(on, listed)
    return (fit, None) if suite is None else (None, suite)


def _usual_list(threat: Threat, alone: bool) -> tuple[str, ...]:
    """The default attacks with gradients."""
    if threat.eps is None:
        return (f"minimal(pgd(steps={CURVE_STEPS}))",)
    if not alone:
        return DEFAULT_TRANSFER
    return DEFAULT if threat.goal is Goal.UNTARGETED else DEFAULT_TARGETED


def _fits(attack: Attack, threat: Threat) -> bool:
    try:
        fits(attack, threat)
    except (AttackError, ThreatError):
        return False
    return True


def _nothing_usual(threat: Threat, listed: Sequence[str | Attack]) -> ThreatError:
    """The error that a threat has no default attacks, with what to write instead."""
    message = f"there are no default attacks for the threat '{threat}'"
    fit = fitting(threat)
    if fit:
        message += f": name some that fit, with attacks='{fit[0]}' ({', '.join(fit)})"
    else:
        norms = [str(n) for n in Norm if fitting(replace(threat, norm=n, written=None))]
        message += f", and no attack fits it: with {threat.access} access they work in "
        message += ", ".join(norms) or "no norm"
    wide = Threat.parse(threat.norm.example)
    bounded = replace(threat, eps=wide.eps, written=wide.written)
    first = next((one for one in listed if _fits(parse(one), bounded)), None)
    if threat.eps is None and first is not None:
        message += f", or 'minimal({first})', or give a budget such as '{threat.norm.example}'"
    return ThreatError(message)
