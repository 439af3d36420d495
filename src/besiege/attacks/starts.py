"""Where attacks that see only labels begin, and how they come to the boundary.

Such an attack walks along the boundary, so it needs a point beyond it first. `find_start` looks
for one, and `to_boundary` goes from there towards the clean image. Every image shown to the victim
on the way is a query of the sample it is shown for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from besiege.core.answer import Answer
from besiege.core.ball import Ball, distances
from besiege.core.samples import Samples
from besiege.core.siege import Siege

NOISE = 50
"""Images of uniform noise that are tried, as a rule for nothing if the first ten were."""

FIRST = 10
"""Those tried before anything else: some victims see one class in all noise, and images of that
class never start there."""

SIZES = tuple(0.05 * 1.5**k for k in range(10))
"""Standard deviations of the Gaussian noise tried on the image itself, in widths of the box."""

IMAGES = 50
"""Images of other classes, or of the target's, that are tried: the nearest ones."""

BLENDS = (0.75, 0.5)
"""How much of the nearest other image there is in blends, for victims who see through the image
itself, or have learned it by heart."""

RIVALS = 3
"""Images towards which the boundary is looked for besides: the first start decides, as a rule, on
which class an attack ends, and other classes may be nearer."""

CLOSER = 0.95
"""How much nearer it must be there, in shares of the distance known."""

_ROUGH = 5
"""Halvings that leave a twentieth."""

NARROW = 1e-3
"""How near to the boundary a walk begins that need not be closer, in shares of its distance."""

ENTRIES = 2**22
"""Entries of other images looked at together while the nearest are looked for."""

_ROUNDS = 64
"""More halvings than any two images of float32 have between them."""


def adversarial(siege: Siege, answer: Answer, rows: Tensor | None = None) -> Tensor:
    """Which answers are what the attacker wants, whatever the distance; unanswered ones are not.

    `rows` are the row numbers that were asked about; an answer may hold k candidates of each.
    """
    samples, labels = siege.rows if rows is None else siege.rows[rows], answer.labels
    if labels.dim() == 1:
        reached = siege.record.reached(samples, labels)
    else:
        k = labels.shape[1]
        reached = siege.record.reached(samples.repeat_interleave(k), labels.flatten())
    return reached.view_as(labels) & (labels >= 0)


def find_start(siege: Siege, noise: int = NOISE, images: int = IMAGES) -> tuple[Tensor, Tensor]:
    """An adversarial image for every row, to begin from, and which rows have one.

    Any error counts: uniform noise, then the image under Gaussian noise of growing size, then
    images of other classes and blends with them, then more noise. A class must be reached: images
    of that class, the nearest first, then noise. Other images come from ``siege.knowledge.starts``,
    the same for every row. A row stops at its first success and pays for what it saw.

    Rows without a start leave (`Siege.give_up`); so do rows whose clean image is adversarial, for
    which nothing is left to be found. Nobody settles here: do so right after.

    Parameters
    ----------
    noise, images : int
        How many of each kind are tried at most.

    Returns
    -------
    Tensor
        ``[rows, ...]``, as the victim received them; the clean image where nothing was found.
    Tensor
        ``[rows]``, where something was.

    Examples
    --------
    >>> import torch
    >>> from besiege.core.ball import ball
    >>> from besiege.core.dice import Dice
    >>> from besiege.core.oracle import Access, Oracle
    >>> from besiege.core.terms import Terms
    >>> from besiege.core.threat import L2
    >>> from besiege.testing.victims import linear
    >>> victim = linear()
    >>> samples = victim.samples(3)
    >>> siege = Siege.start(
    ...     Oracle(victim, Access.DECISION),
    ...     ball(L2, samples.images, torch.inf),
    ...     samples.labels,
    ...     Dice.throw(0, samples.ids),
    ...     Terms(keep="smallest", leave="end"),
    ... )
    >>> start, found = find_start(siege)
    >>> bool(found.all())
    True
    """
    search = _Search(siege)
    first = min(FIRST, noise)
    if siege.targeted:
        search.images(images)
        search.noise(0, first)
        search.sizes()
    else:
        search.noise(0, first)
        search.sizes()
        search.images(images)
        search.blends()
    search.noise(first, noise)
    siege.leave(search.needless)
    siege.give_up(~search.found & ~search.needless)
    return search.start, search.found


class _Search:
    """What was found so far; each way to look asks about the rows that have nothing yet."""

    def __init__(self, siege: Siege) -> None:
        self.siege = siege
        self.start = siege.ball.center.clone()
        self.found = torch.zeros_like(siege.rows, dtype=torch.bool)
        self.needless = siege.record.distance[siege.rows] == 0.0
        self.pool: Samples | None = siege.knowledge.starts
        self._order: tuple[Tensor, Tensor] | None = None

    def _open(self) -> Tensor:
        return (~self.found & ~self.needless).nonzero()[:, 0]

    def _ask(self, rows: Tensor, images: Tensor) -> None:
        siege, ball = self.siege, self.siege.ball.at(rows)
        images = ball.received(images.to(ball.center).clamp(*ball.box))
        good = adversarial(siege, siege.labels(images, rows), rows)
        self.start[rows[good]] = images[good]
        self.found[rows[good]] = True

    def noise(self, begin: int, end: int) -> None:
        low, high = self.siege.ball.box
        shape, dice = self.siege.ball.center.shape[1:], self.siege.dice.of("start noise")
        for n in range(begin, end):
            if len(rows := self._open()) == 0:
                return
            self._ask(rows, low + (high - low) * dice.at(rows).uniform(tuple(shape), n))

    def sizes(self) -> None:
        low, high = self.siege.ball.box
        center, dice = self.siege.ball.center, self.siege.dice.of("start sizes")
        for n, size in enumerate(SIZES):
            if len(rows := self._open()) == 0:
                return
            drawn = dice.at(rows).normal(tuple(center.shape[1:]), n).to(center)
            self._ask(rows, center[rows] + size * (high - low) * drawn)

    def images(self, most: int) -> None:
        """Images of the pool, from the nearest."""
        if self.pool is None or len(self.pool) == 0 or len(self._open()) == 0:
            return
        order, many = self._nearest()
        for n in range(min(most, len(self.pool))):
            rows = self._open()
            rows = rows[many[rows] > n]
            if len(rows) == 0:
                return
            self._ask(rows, self.pool.images[order[rows, n]])

    def blends(self) -> None:
        """Blends with the nearest image of the pool."""
        if self.pool is None or len(self.pool) == 0 or len(self._open()) == 0:
            return
        order, many = self._nearest()
        for share in BLENDS:
            rows = self._open()
            rows = rows[many[rows] > 0]
            if len(rows) == 0:
                return
            center, other = self.siege.ball.center[rows], self.pool.images[order[rows, 0]]
            self._ask(rows, center + share * (other.to(center) - center))

    def _nearest(self) -> tuple[Tensor, Tensor]:
        """The images of each row's classes in the order of their distance, and how many they are.

        Distances need no victim; they are computed for the rows that have come so far.
        """
        if self._order is None:
            assert self.pool is not None
            self._order = _nearest(self.siege, self.pool, self._open())
        return self._order


def _nearest(siege: Siege, pool: Samples, among: Tensor) -> tuple[Tensor, Tensor]:
    """For some rows, images of the classes to be reached by their distance, and how many."""
    wanted, labels = siege.record.targets, pool.labels
    if wanted is not None:
        fits = labels[None] == wanted[siege.rows][:, None]
    else:
        fits = labels[None] != siege.record.labels[siege.rows][:, None]
    away = torch.full(fits.shape, torch.inf, dtype=torch.float64, device=labels.device)
    asked = torch.zeros_like(fits)
    asked[among] = fits[among]
    # Only those that fit: of a thousand classes one may be wanted, and large images are many.
    for pairs in torch.split(asked.nonzero(), max(1, ENTRIES // siege.ball.size)):
        row, other = pairs.unbind(1)
        change = pool.images[other].to(siege.ball.center) - siege.ball.center[row]
        away[row, other] = distances(change, siege.ball.norm)
    return away.argsort(dim=1, stable=True), fits.sum(1)


def start_cost(rounds: int) -> int:
    """The most queries a start can take, with so many halvings on the way to the boundary."""
    return NOISE + len(SIZES) + IMAGES + len(BLENDS) + 2 * rounds + RIVALS * (1 + _ROUGH)


def begin(siege: Siege, tolerance: Callable[[Ball, Tensor], Tensor]) -> Tensor:
    """Points at the boundary for all rows, settled; those without a start have left.

    `tolerance` is how near to it, by ball and distance of the start.
    """
    x: Tensor = siege.settle(find_start(siege)[0])
    if len(siege):
        ball = siege.ball
        x = siege.settle(to_boundary(siege, ball.center, x, tolerance(ball, ball.distance(x))))
    return _rivalled(siege, x, tolerance)


def _rivalled(siege: Siege, x: Tensor, tolerance: Callable[[Ball, Tensor], Tensor]) -> Tensor:
    """Points of the boundary towards other images, where it is nearer there.

    A row pays one query for an image that is no better. A better one is bisected roughly, since
    the next may be better still, and what remains in the end as finely as is wanted.
    """
    if not len(siege):
        return x
    x, won = x.clone(), torch.zeros_like(siege.rows, dtype=torch.bool)
    rough = torch.zeros_like(siege.ball.radius)
    for rows, other in rivals(siege):
        ball = siege.ball.at(rows)
        far, size = ball.distance(x[rows]), ball.distance(other)
        image = between(ball, ball.center, other, (CLOSER * far / size).clamp_max(1.0))
        nearer = ball.distance(image) < far
        rows, image, far = rows[nearer], image[nearer], far[nearer]
        good = adversarial(siege, siege.labels(image, rows), rows)
        rows, image = rows[good], image[good]
        won[rows], rough[rows] = True, (1.0 - CLOSER) * far[good]
        x[rows] = to_boundary(siege, siege.ball.center[rows], image, rough[rows], rows)
    rows = won.nonzero()[:, 0]
    ball = siege.ball.at(rows)
    far = ball.distance(x[rows])
    near = between(ball, ball.center, x[rows], (1.0 - rough[rows] / far).clamp_min(0.0))
    x[rows] = to_boundary(siege, near, x[rows], tolerance(ball, far), rows)
    settled: Tensor = siege.settle(x)
    return settled


def rivals(siege: Siege) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers and for each an image of a class to be reached, the nearest ones first.

    Where one class must be reached, its nearest image was the start, and the next ones come.
    """
    pool = siege.knowledge.starts
    if pool is None or not len(siege):
        return
    order, many = _nearest(siege, pool, torch.arange(len(siege), device=siege.rows.device))
    first = int(siege.targeted)
    for n in range(first, min(first + RIVALS, len(pool))):
        rows = (many > n).nonzero()[:, 0]
        ball = siege.ball.at(rows)
        image = pool.images[order[rows, n]].to(ball.center)
        yield rows, ball.received(image.clamp(*ball.box))


def roughly(ball: Ball, far: Tensor) -> Tensor:
    """The tolerance of walks that need not begin closer."""
    return NARROW * far


def halvings(ratio: float) -> int:
    """How often a bracket is halved to become so many times narrower."""
    return max(0, math.ceil(math.log2(ratio)))


def between(ball: Ball, near: Tensor, far: Tensor, share: Tensor) -> Tensor:
    """Images a share of the way from `near` to `far`, as the victim receives them.

    The way is that on which the distance in the ball's norm falls fastest: straight in l2, with
    all entries cut to a radius in linf, shrunk by the same amount in l1.
    """
    change = far - near
    size = distances(change, ball.norm)
    return ball.received((near + ball.retreat(change, size, share)).clamp_(*ball.box))


def to_boundary(
    siege: Siege,
    near: Tensor,
    far: Tensor,
    tolerance: Tensor | float,
    rows: Tensor | None = None,
) -> Tensor:
    """The nearest adversarial images found on the ways from `near` to `far`, by bisection.

    `far` was seen to be adversarial, `near` is taken not to be. Of every bracket the far end is
    always an image that the victim was shown and that is adversarial: that one is given back,
    never a midpoint. A row ends when its bracket is as narrow as its tolerance, or when the image
    in the middle is one of the ends, bit for bit; others go on without it. What a row can not pay
    for is not answered: it keeps what it has.

    Parameters
    ----------
    near, far : Tensor
        ``[rows, ...]``, those of `rows` where these are given.
    tolerance : Tensor or float
        Width of the bracket, in the ball's norm; one number, or one per row.
    rows : Tensor, optional
        Row numbers, ascending, each once; all rows by default.

    Returns
    -------
    Tensor
        ``[rows, ...]``.
    """
    if rows is None:
        rows = torch.arange(len(siege), device=siege.rows.device)
    ball = siege.ball.at(rows)
    size = distances(far - near, ball.norm)
    tolerance = torch.as_tensor(tolerance, dtype=torch.float64, device=size.device).expand_as(size)
    low, high = torch.zeros_like(size), torch.ones_like(size)
    under, over = ball.received(near).clone(), far.clone()
    at = torch.arange(len(rows), device=rows.device)
    for _ in range(_ROUNDS):
        at = at[(high[at] - low[at]) * size[at] > tolerance[at]]
        if len(at) == 0:
            break
        middle = 0.5 * (low[at] + high[at])
        image = between(ball.at(at), near[at], far[at], middle)
        same = _equal(image, under[at]) | _equal(image, over[at])
        at, image, middle = at[~same], image[~same], middle[~same]
        if len(at) == 0:
            break
        answer = siege.labels(image, rows[at])
        good = adversarial(siege, answer, rows[at])
        high[at[good]], over[at[good]] = middle[good], image[good]
        low[at[~good]], under[at[~good]] = middle[~good], image[~good]
        at = at[answer.labels >= 0]
    return over


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b).flatten(1).all(1)
