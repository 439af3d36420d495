"""Parameters and names of other libraries, answered with what replaces them here.

Foolbox, torchattacks, ART and CleverHans call the same things by other names, and give step sizes
in pixel units, where besiege takes fractions of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import LANGUAGE
from besiege.attacks.directions import Chain, Diverse, Momentum, ScaleCopies, Translation
from besiege.attacks.other_names import (
    AGAIN,
    BUDGETED,
    BUDGETS,
    ELSEWHERE,
    ITERATIONS,
    LENGTHS,
    NAMES,
    RENAMED,
)
from besiege.attacks.suites import SUITES, suite_name
from besiege.core.errors import InputError, ThreatError, UnknownNameError
from besiege.core.text import short
from besiege.core.threat import Threat, as_fraction
from besiege.core.vocabulary import UnknownParameter, parameters

USUAL = Threat.parse("linf:8/255")
"""The budget of examples where none is known."""


@dataclass(frozen=True)
class Reply:
    """What replaces one parameter.

    Attributes
    ----------
    given : mapping
        Our parameters as text.
    why : str
        What is different here, where it is more than the name.
    around : str
        What the attack becomes a part of: ``repeat({}, 5)``.
    supposed : bool
        Whether the budget is supposed, because none is known.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    around: str = "{}"
    supposed: bool = False


@dataclass(frozen=True)
class Asked:
    """A parameter that an attack does not have, and the attack."""

    name: str
    value: Any
    thing: Any
    threat: Threat | None

    @property
    def attack(self) -> str:
        return _called(self.thing)

    @property
    def known(self) -> set[str]:
        return {f.name for f in parameters(self.thing)}

    def renamed(self, ours: str) -> Reply | None:
        if ours not in self.known:
            return None
        value = self.value.lower() if ours == "rule" else self.value
        return Reply({ours: LANGUAGE.text(value)})

    def share(self) -> str | None:
        """A length in pixel units as a fraction of the budget; None for what is no length."""
        eps = None if self.threat is None else self.threat.eps
        try:
            return _number(as_fraction(self.value) / as_fraction(eps or USUAL.eps or 1))
        except ThreatError:
            return None


def translated(problem: UnknownParameter, threat: Threat | None = None) -> str | None:
    """What to write instead of parameters of another library; None where that is not known.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> parse("pgd(eps_iter=2/255, nb_iter=10)", Threat.parse("linf:8/255"))
    Traceback (most recent call last):
        ...
    besiege.core.errors.AttackError: 'pgd' has no parameters 'eps_iter' and 'nb_iter': write \
'pgd(schedule=constant(0.25), steps=10)'. Step sizes are fractions of the budget
    """
    thing, known = problem.thing, {f.name for f in parameters(problem.thing)}
    shown, around, replies = _own(thing), "{}", {}
    threat = _own_budget(problem.given, threat) or threat
    for name, value in problem.given.items():
        if name in known:
            shown[name] = LANGUAGE.text(value)
            continue
        reply = _reply(Asked(name, value, thing, threat))
        if reply is None:
            return None
        shown |= reply.given
        around = around.replace("{}", reply.around)
        replies[name] = reply
    inside = [*map(LANGUAGE.text, problem.positional), *(f"{n}={v}" for n, v in shown.items())]
    name = _called(thing)
    text = around.format(f"{name}({', '.join(inside)})" if inside else name)
    if not _readable(text):  # advice that cannot be followed is not given
        return None
    write = (
        f"with the budget {USUAL} write" if any(r.supposed for r in replies.values()) else "write"
    )
    *first, last = (f"'{name}'" for name in replies)
    names = f"{', '.join(first)} and {last}" if first else last
    said = f"'{short(problem.source)}' has no parameter{'s' * (len(replies) > 1)} {names}"
    reasons = dict.fromkeys(reply.why for reply in replies.values() if reply.why)
    return ". ".join([f"{said}: {write} '{text}'", *reasons])


def _own_budget(given: Mapping[str, Any], threat: Threat | None) -> Threat | None:
    """The threat with the budget that is given as a parameter: step sizes are meant with it."""
    sizes = [given[name] for name in BUDGETS if name in given]
    try:
        return Threat((threat or USUAL).norm, sizes[0]) if sizes else None
    except ThreatError:
        return None


def renamed(name: str) -> str | None:
    """What a name of another library is called here, as a sentence; None where not known."""
    known = suite_name(name)
    if known in SUITES:
        listed = ", ".join(SUITES[known].attacks)
        return (
            f"'{short(name)}' is a suite, not an attack: give suite='{known}' to an evaluation, or "
            f"use one of its attacks ({listed})"
        )
    plain = name.casefold().replace("-", "").replace("_", "")
    for norm in ("linf", "l2", "l1", "l0"):
        plain = plain.removeprefix(norm)
    ours = NAMES.get(plain.removesuffix("attack").removesuffix("method"))
    known_so = ours is None or ours == name.casefold()  # then near matches say as much
    return None if known_so else f"'{short(name)}' is called {ours} here"


def _reply(asked: Asked) -> Reply | None:
    own = RENAMED.get(asked.attack, {}).get(asked.name)
    if own is not None:
        return asked.renamed(own)
    return next((reply for rule in _RULES if (reply := rule(asked)) is not None), None)


# Rules: each answers some names, or returns None.


def _steps(asked: Asked) -> Reply | None:
    return asked.renamed("steps") if asked.name in ITERATIONS else None


def _restarts(asked: Asked) -> Reply | None:
    if asked.name not in AGAIN:
        return None
    if "restarts" not in asked.known:
        return Reply(around=f"repeat({{}}, {asked.value!r})")
    given = {"restarts": LANGUAGE.text(asked.value)}
    if asked.name.endswith("random_init") and isinstance(asked.thing, Ascent):
        # The number of random starts: without any, the attack starts at the clean image.
        start = {"start": "uniform" if asked.value else "origin"}
        return Reply({**(given if asked.value else {}), **start})
    return Reply(given)


def _step_size(asked: Asked) -> Reply | None:
    ascends = isinstance(asked.thing, Ascent) and not asked.thing.radius.searches
    if asked.name == "rel_stepsize" and ascends:
        return Reply({"schedule": f"constant({asked.value!r})"})
    slot = "schedule" if ascends else "rate" if asked.attack in BUDGETED else None
    if asked.name not in LENGTHS:
        return None
    if slot is None:
        own = asked.attack in ("apgd", "apgdt", "fab", "fabt", "square", "deepfool")
        return Reply(why=f"{asked.attack} chooses its step sizes itself") if own else None
    part = asked.share()
    if part is None:
        return None
    supposed = asked.threat is None or asked.threat.eps is None
    text = f"constant({part})" if ascends else part
    return Reply({slot: text}, "Step sizes are fractions of the budget", supposed=supposed)


def _weights(asked: Asked) -> Reply | None:
    """Weights and rates of C&W and the attacks made like it, which are relative by default."""
    rate = {"learning_rate", "lr", "stepsize", "step_size"}
    ours = "rate" if asked.name in rate else "first" if asked.name in ("initial_const", "c") else ""
    if not ours or asked.attack not in ("cw", "optmargin", "zoo", "ead"):
        return None
    if asked.attack == "ead" and ours == "rate":
        return asked.renamed("rate")
    why = "With compat=True weights and rates are as published; by default they are relative"
    return Reply({ours: LANGUAGE.text(asked.value), "compat": "True"}, why)


def _start(asked: Asked) -> Reply | None:
    if asked.name not in ("random_start", "rand_init", "random_init"):
        return None
    if not isinstance(asked.thing, Ascent) or not isinstance(asked.value, bool):
        return None
    return Reply({"start": "uniform" if asked.value else "origin"})


def _links(asked: Asked) -> Reply | None:
    """A parameter of a link of the direction, such as the decay of a momentum."""
    kind, ours = _LINKED.get(asked.name, (None, ""))
    if kind is None or not isinstance(asked.thing, Ascent):
        return None
    links = asked.thing.direction.links if isinstance(asked.thing.direction, Chain) else ()
    if not any(isinstance(link, kind) for link in links):
        return None
    try:
        changed = tuple(
            replace(link, **{ours: asked.value})  # type: ignore[type-var]  # all are dataclasses
            if isinstance(link, kind)
            else link
            for link in links
        )
    except (TypeError, ValueError, InputError):
        return None
    return Reply({"direction": LANGUAGE.text(Chain(changed))})


def _draws(asked: Asked) -> Reply | None:
    if asked.name not in ("eot_iter", "eot_samples", "n_eot"):
        return None
    return Reply(around=f"averaged({{}}, {asked.value!r})")


def _elsewhere(asked: Asked) -> Reply | None:
    if asked.name in BUDGETS:
        norm = (asked.threat or USUAL).norm
        budget = _own_budget({asked.name: asked.value}, asked.threat) or norm.example
        return Reply(why=f"The budget is part of the threat: threat='{budget}'")
    why = ELSEWHERE.get(asked.name)
    return None if why is None else Reply(why=why)


_RULES: tuple[Callable[[Asked], Reply | None], ...] = (
    *(_steps, _restarts, _weights, _step_size, _start, _links, _draws, _elsewhere),
)


_LINKED: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(("decay", "decay_factor", "momentum"), (Momentum, "decay")),
    "diversity_prob": (Diverse, "probability"),
    "resize_rate": (Diverse, "least"),
    "len_kernel": (Translation, "size"),
    "m": (ScaleCopies, "count"),
}


# Texts.


def _called(thing: Any) -> str:
    """The registered name of an attack or of a class of attacks."""
    if not isinstance(thing, type):
        return LANGUAGE.name_of(thing)
    found = (n for registry in LANGUAGE.registries for n, one in registry.items() if one is thing)
    return next(found, thing.__name__)


def _own(thing: Any) -> dict[str, str]:
    """The parameters of an attack that differ from those of its name, as text."""
    if isinstance(thing, type):
        return {}
    return dict(_differing(thing, LANGUAGE.find(_called(thing))))


def _differing(thing: Any, usual: Any) -> Iterator[tuple[str, str]]:
    for f in parameters(thing):
        default = f.default if isinstance(usual, type) else getattr(usual, f.name, None)
        if getattr(thing, f.name) != default:
            yield f.name, LANGUAGE.text(getattr(thing, f.name))


def _number(value: Fraction) -> str:
    """A fraction as a short decimal where that is exact."""
    decimal = f"{float(value):g}"
    return decimal if Fraction(decimal) == value else f"{value.numerator}/{value.denominator}"


def _readable(text: str) -> bool:
    """Whether a text can be read."""
    try:
        LANGUAGE.read(text)
    except (InputError, UnknownNameError):
        return False
    return True
