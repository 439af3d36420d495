"""Attacks made of other attacks: repeat, each_target, cascade, best_of, averaged, minimal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.smallest import across, endless
from besiege.core.attack_registry import register
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L0, Goal, Norm


class Combined(Attack):
    """Base of attacks made of other attacks: what they take over from their parts."""

    @property
    def parts(self) -> tuple[Attack, ...]:
        """The attacks it is made of."""
        raise NotImplementedError

    @property
    def access(self) -> Access:  # type: ignore[override]  # a class attribute elsewhere
        return max(part.access for part in self.parts)

    @property
    def norms(self) -> frozenset[Norm]:  # type: ignore[override]  # a class attribute elsewhere
        return frozenset.intersection(*(part.norms for part in self.parts))

    @property
    def goals(self) -> frozenset[Goal]:  # type: ignore[override]  # a class attribute elsewhere
        return frozenset.intersection(*(part.goals for part in self.parts))

    @property
    def minimal(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return all(part.minimal for part in self.parts)

    @property
    def needs_substitute(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return any(part.needs_substitute for part in self.parts)

    @property
    def sends_codes(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return any(part.sends_codes for part in self.parts)

    @property
    def needs_cells(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return any(part.needs_cells for part in self.parts)

    @property
    def uses_starts(self) -> bool:
        return any(part.uses_starts for part in self.parts)

    @property
    def draws(self) -> int:
        return min(part.draws for part in self.parts)

    @property
    def one_step(self) -> bool:
        return any(part.one_step for part in self.parts)

    @property
    def mixes_rows(self) -> bool:
        return any(part.mixes_rows for part in self.parts)

    def cost(self, shape: tuple[int, ...], classes: int) -> int | None:
        """The sum of its parts' costs, times the most runs."""
        costs = [part.cost(shape, classes) for part in self.parts]
        known = [cost for cost in costs if cost is not None]
        return self.runs(classes) * sum(known) if len(known) == len(costs) else None

    def runs(self, classes: int) -> int:
        """How often each part is run at most."""
        return 1

    def usual_runs(self, classes: int) -> int:
        """How often each part is usually run, to estimate time."""
        return self.runs(classes)

    def passes(self, shape: tuple[int, ...], classes: int) -> int:
        return self.usual_runs(classes) * sum(part.passes(shape, classes) for part in self.parts)

    def all_runs(self, classes: int) -> int:
        """The most runs of the innermost attacks, in total."""
        inner = (p.all_runs(classes) if isinstance(p, Combined) else 1 for p in self.parts)
        return self.runs(classes) * sum(inner)

    def _launch(self, part: Attack, siege: Siege, *purpose: str | int) -> None:
        if len(siege):
            part.run(siege.view(dice=siege.dice.of(part.title(), *purpose)))


class Single(Combined):
    """An attack made of one attack."""

    attack: Attack

    def __post_init__(self) -> None:
        super().__post_init__()
        _must_be_attack(self.attack, self)

    @property
    def parts(self) -> tuple[Attack, ...]:
        return (self.attack,)


class Several(Combined):
    """An attack made of several attacks."""

    attacks: tuple[Attack, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.attacks:
            raise ValueError("no attacks given: write for example cascade(fgsm, pgd)")
        for attack in self.attacks:
            _must_be_attack(attack, self)

    @property
    def parts(self) -> tuple[Attack, ...]:
        return self.attacks


def leaves(attack: Attack) -> Iterator[Attack]:
    """The innermost attacks; the attack itself if it is not combined."""
    if not isinstance(attack, Combined):
        yield attack
        return
    for part in attack.parts:
        yield from leaves(part)


def _must_be_attack(value: object, owner: object) -> None:
    if not isinstance(value, Attack):
        raise ValueError(f"{type(owner).__name__.lower()} was given {value!r}, not an attack")
    if value.oblivious:
        raise ValueError(
            f"'{value}' is crafted on another model than the attacks beside it: put oblivious "
            "around everything, such as oblivious(repeat(pgd, 3)), or list the attacks one by one"
        )


@register("repeat")
@dataclass(frozen=True)
class Repeat(Single):
    """The attack several times with new random draws, on the rows not broken yet."""

    attack: Attack
    times: int = whole_number(5, positional=True)

    def runs(self, classes: int) -> int:
        return self.times

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        for turn in range(self.times):
            siege.settle()
            self._launch(self.attack, siege, turn)


@register("each_target")
@dataclass(frozen=True)
class EachTarget(Single):
    """The attack aimed at one wrong class after the other; any misclassification counts.

    Classes come in the order of falling clean score; `count` limits them. Decision-based attacks
    cannot be aimed: they only see whether an answer reaches the goal.
    """

    attack: Attack
    count: int | None = whole_number(None, positional=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.attack, "aim", "goal") != "goal":
            raise ValueError(f"'{self.attack}' chooses its own class; each_target cannot aim it")
        for part in leaves(self.attack):
            if part.access is Access.DECISION:
                raise ValueError(
                    f"'{part}' sees labels only and cannot be aimed at the classes of "
                    f"each_target: write '{part}', or 'repeat({part}, 3)' for new random draws"
                )

    @property
    def goals(self) -> frozenset[Goal]:  # type: ignore[override]  # a class attribute elsewhere
        return frozenset({Goal.UNTARGETED})

    def runs(self, classes: int) -> int:
        return classes - 1 if self.count is None else min(self.count, classes - 1)

    def usual_runs(self, classes: int) -> int:
        return self.count or 9

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        ranked = siege.ranked()
        for turn in range(self.runs(siege.classes)):
            ranked = siege.settle(ranked)
            if len(siege):
                dice = siege.dice.of(self.attack.title(), turn)
                self.attack.run(siege.view(aim=ranked[:, turn], dice=dice))


@register("cascade")
@dataclass(frozen=True)
class Cascade(Several):
    """Attacks one after the other, each on the rows the earlier ones did not break."""

    attacks: tuple[Attack, ...] = field(default=(), metadata={"each": True})

    def run(self, siege: Siege) -> None:
        for turn, attack in enumerate(self.attacks):
            siege.settle()
            self._launch(attack, siege, turn)


@register("best_of")
@dataclass(frozen=True)
class BestOf(Several):
    """Every attack on every row; the smallest success is kept."""

    attacks: tuple[Attack, ...] = field(default=(), metadata={"each": True})

    def run(self, siege: Siege) -> None:
        # No row leaves this view, so every attack gets every row; inside an attack rows leave as
        # the caller wants.
        rows = siege.view(keep="smallest", leave="end")
        for turn, attack in enumerate(self.attacks):
            dice = rows.dice.of(attack.title(), turn)
            view = rows.view(leave=siege.leaves, dice=dice)
            if len(view):
                attack.run(view)


@register("averaged")
@dataclass(frozen=True)
class Averaged(Single):
    """The attack on the expectation of a stochastic victim: every answer is a mean of `count`.

    Gradients, losses and logits are all averaged (Athalye et al. 2018).
    """

    attack: Attack
    count: int = whole_number(20, 2, positional=True)

    @property
    def draws(self) -> int:
        return self.count * self.attack.draws

    def runs(self, classes: int) -> int:
        return self.count

    def run(self, siege: Siege) -> None:
        view = siege.averaged(self.count)
        if len(view):  # the budget may be too small for one more mean
            self.attack.run(view.view(dice=siege.dice.of(self.attack.title())))


class RadiusBracket(NamedTuple):
    """The radii between which each row's smallest one lies, and how many were tried."""

    low: Tensor
    high: Tensor
    tried: Tensor

    @classmethod
    def of(cls, radius: Tensor) -> RadiusBracket:
        """Brackets that are open on both sides."""
        zero = torch.zeros_like(radius)
        return cls(zero, torch.full_like(radius, torch.inf), torch.zeros_like(zero))


@register("minimal")
@dataclass(frozen=True)
class Minimal(Single):
    """The smallest radius at which an attack succeeds, row by row (as RealSafe searches).

    Iterative attacks: double a first radius until the attack succeeds, then bisect; if the first
    radius succeeds at once, divide it by a large factor until the attack fails. One-step attacks,
    whose success need not grow with the radius: scan `scan` equal radii from below and bisect below
    the first that succeeds. The smallest success is kept, and its own distance, often less than
    the radius tried, tightens the bracket.

    Parameters
    ----------
    attack : Attack
        Attack to run at every radius.
    first : float, optional
        First radius; by default a 32nd of the largest useful one.
    doublings, bisections : int
        Most doublings and bisections.
    tolerance : float
        A row is done when its bracket is narrower than this fraction of its upper end.
    scan : int
        Radii scanned for a one-step attack.
    compat : bool
        Search as published: brackets end at the radii tried, whatever distance was found there,
        and are halved; radii may go beyond the farthest corner of the box, since steps grow with
        them; one-step attacks scan multiples of `first`; rows without a success are bisected up to
        the next radius, one-step ones up to `first`.
    attempts : int, optional
        Most radii tried in total.
    """

    attack: Attack
    first: float | None = number(None, above=0, what="a radius")
    doublings: int = whole_number(5, 0)
    bisections: int = whole_number(20, 0)
    tolerance: float = 1e-3
    scan: int = whole_number(32)
    compat: bool = yes_or_no(False, added=True)
    attempts: int | None = whole_number(None, added=True)

    minimal = True

    def runs(self, classes: int) -> int:
        coarse = self.scan if self.attack.one_step else self.doublings + 1
        most = coarse + self.bisections
        return most if self.attempts is None else min(most, self.attempts)

    def usual_runs(self, classes: int) -> int:
        return 10

    def run(self, siege: Siege) -> None:
        # A success does not end the search: no row leaves before its bracket is small.
        siege = siege.view(keep="smallest", leave="end")
        reach = siege.ball.radius
        if not self.compat:  # no more than the radius across the whole box is useful
            reach = torch.minimum(reach, across(siege.ball))
        first = torch.minimum(reach, across(siege.ball)) / 32
        if self.first is not None:
            # Published radii are those of images in [0, 1]; counts of pixel values do not grow.
            scaled = self.compat and siege.ball.norm is not L0
            first = torch.full_like(reach, self.first * (siege.ball.width if scaled else 1.0))
        search = self._scanned if self.attack.one_step else self._doubled
        self._bisect(siege, search(siege, first, reach))

    def _try(
        self, siege: Siege, radius: Tensor, at: RadiusBracket, rows: Tensor, turn: str
    ) -> Tensor:
        """Attack some rows at their radii and narrow their brackets; returns the unbroken rows."""
        dice = siege.dice.at(rows).of(self.attack.title(), turn)
        view = siege.view(rows, radius=radius[rows], dice=dice, leave="success")
        if len(view):
            self.attack.run(view)
        won, lost = rows[view.broken], rows[~view.broken]
        found = radius[won]
        at.high[won] = found if self.compat else siege.distance[won].minimum(found)
        at.low[lost] = radius[lost]
        at.tried[rows] += 1
        return lost

    def _going(self, at: RadiusBracket, mask: Tensor) -> Tensor:
        """The numbers of the rows in a mask that may be tried again."""
        if self.attempts is not None:
            mask = mask & (at.tried < self.attempts)
        return mask.nonzero()[:, 0]

    def _doubled(self, siege: Siege, radius: Tensor, reach: Tensor) -> RadiusBracket:
        radius = torch.minimum(radius.clamp_min(1.0 if siege.ball.norm is L0 else 0.0), reach)
        at = RadiusBracket.of(radius)
        for turn in range(self.doublings + 1):
            at, radius, reach = siege.settle(at, radius, reach)
            rows = self._going(at, torch.isinf(at.high))
            if len(rows) == 0:
                break
            if turn == self.doublings and not self.compat:
                radius = reach.clone()  # try the full radius of the threat before giving up
            lost = self._try(siege, radius, at, rows, f"double {turn}")
            radius[lost] = (2 * radius[lost]).minimum(reach[lost])
        if self.compat:
            at, radius = siege.settle(at, radius)
            at = at._replace(high=torch.where(torch.isinf(at.high), radius, at.high))
        return at

    def _scanned(self, siege: Siege, first: Tensor, reach: Tensor) -> RadiusBracket:
        at = RadiusBracket.of(reach)
        for turn in range(1, self.scan + 1):
            at, first, reach = siege.settle(at, first, reach)
            rows = self._going(at, torch.isinf(at.high))
            if len(rows) == 0:
                break
            share = turn / self.scan
            radius = (turn * first).minimum(reach) if self.compat else reach * share
            self._try(siege, radius, at, rows, f"scan {turn}")
        if self.compat:
            at, first, reach = siege.settle(at, first, reach)
            never = torch.isinf(at.high)
            low = torch.where(never, 0.0, at.low)
            at = at._replace(low=low, high=torch.where(never, first.minimum(reach), at.high))
        return at

    def _bisect(self, siege: Siege, at: RadiusBracket) -> None:
        for turn in range(self.bisections):
            at = siege.settle(at)
            low, high = at.low, at.high
            # Below a millionth of the box width a perturbation counts as zero.
            open_ = torch.isfinite(high) & (high > 1e-6 * siege.ball.width)
            open_ &= high - low > self.tolerance * high
            if siege.ball.norm is L0:
                open_ &= high - low > 1
            rows = self._going(at, open_)
            if len(rows) == 0:
                return
            middle = 0.5 * (low + high)
            if not self.compat:
                # Without a failure so far divide by a large factor: the first radius may be far
                # off.
                middle = torch.where(low > 0, middle, high / 8)
            if siege.ball.norm is L0:
                middle = torch.floor(middle).clamp_min(1.0)
            self._try(siege, middle, at, rows, f"bisect {turn}")
