"""One law tried on one attack, norm and goal: runs the attack and reports violations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from besiege.attacks.attack import Attack, parse
from besiege.core import criterion
from besiege.core.knowledge import Knowledge
from besiege.core.oracle import Access, Oracle, padded
from besiege.core.record import Keep, Leave
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L0, L1, L2, Goal, Linf, Norm, Threat
from besiege.core.victim import Victim
from besiege.evaluation.crafting import Crafted, craft, keep_and_leave
from besiege.models.classifier import Classifier
from besiege.testing.law_violation import LawViolation, number, raised
from besiege.testing.victims import Array, Likeness, Shape, digits, images_of, natural, untrained

SETTINGS: tuple[tuple[Keep, Leave], ...] = (
    ("first", "success"),
    ("last", "end"),
    ("highest", "end"),
    ("smallest", "end"),
)
"""Keep and leave: the caller chooses both, so laws must hold for all of these."""

SIZES: dict[Norm, Fraction] = {
    Linf: Fraction(1, 10),
    L2: Fraction(1, 2),
    L1: Fraction(5, 4),
    L0: Fraction(3),
}
"""Budgets at which about half of the digits are broken, so that rows leave and rows stay."""

_FURTHER = {Goal.UNTARGETED: 1, Goal.LEAST_LIKELY: 4}
"""How many times larger a budget must be for the goal to be reached by about half."""

BRIEF = {
    **dict.fromkeys(("restarts", "times", "bisections"), 2),
    **dict.fromkeys(("steps", "tries", "rounds", "targets"), 3),
    **dict.fromkeys(("doublings", "copies"), 4),
    "scan": 5,
    **dict.fromkeys(("pairs", "probes", "votes", "coordinates"), 10),
    "population": 20,
}
"""Caps of the parameters that make an attack long, for laws about bookkeeping, not strength."""

STRONG = {"steps": 20, "restarts": 2, "times": 2, "bisections": 10, "scan": 16, "doublings": 6}
"""The same for laws about strength."""

Shelf = dict[tuple[object, ...], Crafted]
"""Results that several laws need, by the settings they were crafted with."""

HINT = "(draw from siege.dice, not from torch)"
"""The most frequent reason why rows depend on their neighbours."""


@dataclass(frozen=True)
class Trial:
    """A law, and what it is tried on.

    Attributes
    ----------
    law : str
        Number and name, as messages give it.
    attack, norm, goal
        What it is tried on.
    without : frozenset of str
        Parts of the law from which the attack is excepted.
    shelf : dict, optional
        Results that other laws crafted, and where `usual` puts its own.
    """

    law: str
    attack: Attack
    norm: Norm
    goal: Goal
    without: frozenset[str] = frozenset()
    shelf: Shelf | None = None

    def __str__(self) -> str:
        return f"{self.law}: {self.attack}, {self.norm}, {self.goal}"

    def demand(self, held: bool, seen: str) -> None:
        """Raise a `LawViolation` that names law, attack, norm and goal, unless the law held."""
        if not held:
            raise LawViolation(str(self), seen)

    def by(self, attack: Attack) -> Trial:
        """The same trial of another form of the attack."""
        return replace(self, attack=attack)

    def brief(self) -> Trial:
        """The same trial of a short form of the attack, for laws about bookkeeping."""
        return self.by(shortened(self.attack, BRIEF))

    @property
    def access(self) -> Access:
        """The least access it can be tried at."""
        ranked = self.goal in (Goal.LEAST_LIKELY, Goal.SECOND)
        return max(self.attack.access, Access.SCORE if ranked else Access.DECISION)

    def size(self, times: float = 1.0) -> Fraction:
        """A budget for digits at which some rows break and some do not, or a multiple of it."""
        eps = SIZES[self.norm] * _FURTHER.get(self.goal, 2) * Fraction(times)
        return Fraction(max(1, round(eps))) if self.norm is L0 else eps

    def budgets(self) -> list[Fraction | None]:
        """Budgets to try: the usual one, and none if the attack can minimise."""
        return [self.size(), None] if self.attack.minimal else [self.size()]

    def threat(self, eps: Fraction | None, access: Access | None = None) -> Threat:
        """The threat of this trial."""
        return Threat(self.norm, eps, self.goal, access or self.access)

    def aimed(self, samples: Samples, classes: int = 10) -> Samples:
        """The samples, with targets if the goal needs given ones."""
        if self.goal is not Goal.GIVEN:
            return samples
        targets = (samples.labels + 1 + samples.ids % (classes - 1)) % classes
        return replace(samples, targets=targets)

    def victim(self, rows: int = 16) -> tuple[Victim, Samples]:
        """The natural digits net and some digits."""
        return natural(), self.aimed(digits(rows))

    def untrained(self, shape: Shape, classes: int, rows: int = 5) -> tuple[Classifier, Samples]:
        """An untrained net and random images, labelled with its predictions."""
        victim = untrained(shape, classes)
        images = images_of(shape, rows)
        return victim, self.aimed(Samples.of(images, fresh(victim, images)), classes)

    def craft(
        self,
        victim: Victim,
        samples: Samples,
        eps: Fraction | None,
        *,
        access: Access | None = None,
        **options: Any,
    ) -> Crafted:
        """Run the attack on a copy of the samples, which other cases use too.

        Every image it sends is checked: it must be finite and in the box.
        """
        kind = type(self.attack)
        run, changed = kind.run, list[bool]()

        def watched(attack: Attack, siege: Siege) -> None:
            # Hold on to this ball: `settle` replaces it.
            ball, clean = siege.ball, siege.ball.center.clone()
            run(attack, siege)
            changed.append(not torch.equal(ball.center, clean))

        def checked(oracle: Oracle, x: Tensor, *rest: Any) -> Tensor:
            low, high = torch.aminmax(x.detach())  # both NaN where a value is
            box = oracle.victim.box
            self.demand(
                box[0] <= float(low) and float(high) <= box[1],
                f"it sent values from {number(float(low))} to {number(float(high))}, and the box "
                f"is {box}",
            )
            return ask(oracle, x, *rest)

        ask = Oracle._ask
        options["knowledge"] = Knowledge(substitute=self.substitute(victim, samples))
        with patch.object(kind, "run", watched), patch.object(Oracle, "_ask", checked):
            crafted = craft(
                victim, self.attack, _copied(samples), self.threat(eps, access), **options
            )
        self.demand(
            not any(changed), "it changed the clean images in place (clone siege.ball.center)"
        )
        return crafted

    def usual(
        self, eps: Fraction | None, keep: Keep | None = None, leave: Leave | None = None
    ) -> Crafted:
        """The result on the usual digits, crafted once for all laws that share a shelf.

        The caller gets copies, so that no law can change what another law sees.
        """
        victim, samples = self.victim()
        if self.shelf is None:
            return self.craft(victim, samples, eps, keep=keep, leave=leave)
        kept = keep_and_leave(victim, self.attack, self.threat(eps), keep, leave)
        key = (type(self.attack), str(self.attack), self.norm, self.goal, eps, *kept)
        if key not in self.shelf:
            self.shelf[key] = self.craft(victim, samples, eps, keep=keep, leave=leave)
        return _cloned(self.shelf[key])

    def substitute(self, victim: Victim, samples: Samples) -> Victim | None:
        """The substitute that the attack must be given, where it needs one."""
        if not any(part.needs_substitute for part in parts_of(self.attack)):
            return None
        channels, height, width = samples.images.shape[1:]
        return Likeness(victim, (channels, height, width))

    def same(self, one: Crafted, other: Crafted, between: str, rows: Tensor | None = None) -> None:
        """Demand bitwise equal results of two runs; `rows` are those of the first to compare.

        Forwards are left out: the number of candidates computed ahead may depend on the batch.
        """
        names = ["images", "success", "distance", "first_step", "first_query"]
        for name in [*names, "queries", "backwards"]:
            first, second = getattr(one, name), getattr(other, name)
            first = first if rows is None else first[rows]
            differs = (first != second).flatten(1).any(1) if first.dim() > 1 else first != second
            if bool(differs.any()):
                many = f"{int(differs.sum())} of {len(differs)} rows"
                row = int(differs.nonzero()[0, 0])
                seen = ""
                if first.dim() == 1:
                    values = number(first[row].item()), number(second[row].item())
                    seen = f" ({values[0]} and {values[1]} in row {row})"
                self.demand(False, f"{name} of {many} differ {between}{seen}")


@dataclass(frozen=True)
class Law:
    """A law as a function of attack, norm and goal that raises an `AssertionError`.

    Parameters
    ----------
    number : int
        As in the list of laws.
    name : str
        Its short name.
    check : callable
        Tries it.
    parts : tuple of str
        Parts an attack can be excepted from, written ``name:part``.
    """

    number: int
    name: str
    check: Callable[[Trial], None]
    parts: tuple[str, ...] = ()

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # shows what help() should show
        return self.check.__doc__

    def __call__(
        self,
        attack: str | Attack,
        norm: Norm,
        goal: Goal,
        *,
        without: Collection[str] = (),
        shelf: Shelf | None = None,
    ) -> None:
        """Try the law; an exception of the attack becomes the cause of a `LawViolation`."""
        named = f"law {self.number} ({self.name})"
        trial = Trial(named, parse(attack), norm, goal, frozenset(without), shelf)
        try:
            self.check(trial)
        except LawViolation:
            raise
        except Exception as problem:
            raise LawViolation(str(trial), raised(problem, parts_of(trial.attack))) from problem


def law(number: int, *parts: str) -> Callable[[Callable[[Trial], None]], Law]:
    """Make a law of a function that tries it."""

    def keep(check: Callable[[Trial], None]) -> Law:
        return Law(number, check.__name__, check, parts)

    return keep


def parts_of(attack: Attack) -> Iterator[Attack]:
    """The attack and every attack it is made of."""
    yield attack
    for value in _values(attack).values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Attack):
                yield from parts_of(part)


def changed(attack: Attack, change: Callable[[Attack], dict[str, Any]]) -> Attack:
    """The attack, and those it is made of, with some parameters changed."""
    new: dict[str, Any] = {}
    for name, value in _values(attack).items():
        if isinstance(value, Attack):
            new[name] = changed(value, change)
        elif isinstance(value, tuple) and any(isinstance(v, Attack) for v in value):
            new[name] = tuple(changed(v, change) if isinstance(v, Attack) else v for v in value)
    new |= change(attack)
    return replace(cast(Any, attack), **new) if new else attack


def shortened(attack: Attack, caps: dict[str, int]) -> Attack:
    """The attack with its parameters reduced to some caps."""

    def cut(part: Attack) -> dict[str, Any]:
        values = _values(part)
        return {
            name: cap
            for name, cap in caps.items()
            if isinstance(values.get(name), int) and values[name] > cap
        }

    return changed(attack, cut)


def has(attack: Attack, *names: str) -> bool:
    """Whether the attack, or one it is made of, has all these parameters."""
    return any(all(name in _values(part) for name in names) for part in parts_of(attack))


def _values(attack: Attack) -> dict[str, Any]:
    return {f.name: getattr(attack, f.name) for f in fields(cast(Any, attack)) if f.init}


def _cloned(crafted: Crafted) -> Crafted:
    """A copy of a result."""
    tensors: dict[str, Any] = {
        name: value.clone() for name, value in vars(crafted).items() if isinstance(value, Tensor)
    }
    return replace(crafted, **tensors)


def _copied(samples: Samples) -> Samples:
    """A copy of samples, with the same strides."""
    images, targets = samples.images, samples.targets
    return Samples(
        torch.empty_strided(images.shape, images.stride()).copy_(images),
        samples.labels.clone(),
        samples.ids.clone(),
        None if targets is None else targets.clone(),
    )


def changes(images: Tensor, samples: Samples) -> Array:
    """The perturbations: float32 differences, as float64 rows."""
    change: Array = (images - samples.images).flatten(1).double().numpy()
    return change


def reached(crafted: Crafted, samples: Samples, labels: Tensor) -> Tensor:
    """Whether the classes answered reach the attacker's goal."""
    return criterion.reached(labels, samples.labels, crafted.targets)


def fresh(victim: Victim, images: Tensor) -> Tensor:
    """The victim's labels, without a siege; the batch is padded as in one."""
    short = padded(len(images)) - len(images)
    filled = torch.cat([images, images[-1:].expand(short, -1, -1, -1)])
    with victim.held(), torch.no_grad(), torch.inference_mode(False):
        return victim(filled).argmax(1)[: len(images)]
