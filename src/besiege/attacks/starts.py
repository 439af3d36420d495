"""Starting points of decision-based attacks, and bisection to the boundary.

Such an attack moves along the decision boundary, so it first needs a point beyond the boundary.
`find_start` searches for one; `to_boundary` bisects from there towards the clean image. Every image
shown to the victim counts as a query of its sample.
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
from besiege.core.threat import L2

NOISE = 50
"""Images of uniform noise tried at most; if the first ten fail, the others usually fail too."""

FIRST = 10
"""Noise images tried before anything else. Some victims assign all noise to one class; images of
that class never find a start this way."""

SIZES = tuple(0.05 * 1.5**k for k in range(10))
"""Standard deviations of the Gaussian noise tried on the image itself, in box widths."""

IMAGES = 50
"""Images of other classes, or of the target class, tried at most, nearest first."""

BLENDS = (0.75, 0.5)
"""Weights of the nearest other image in blends, for victims that recognise or have memorised the
image itself."""

TRIED = NOISE + len(SIZES) + IMAGES + len(BLENDS)
"""The most queries of `find_start`."""

RIVALS = 3
"""Further images towards which the boundary is searched: the first start usually decides in which
class an attack ends, and the boundary of another class may be nearer."""

CLOSER = 0.95
"""How much nearer the boundary must be there, as a fraction of the known distance."""

_ROUGH = 5
"""Bisections that leave about a twentieth of the bracket."""

NARROW = 1e-3
"""Default tolerance of the first boundary point, as a fraction of its distance."""

ENTRIES = 2**22
"""Pixel values compared at once while the nearest images are searched."""

_ROUNDS = 64
"""More bisections than any two float32 images allow."""


def adversarial(siege: Siege, answer: Answer, rows: Tensor | None = None) -> Tensor:
    """Which answers reach the attacker's goal, at any distance; unanswered queries do not.

    `rows` are the row numbers queried; an answer may hold k candidates of each.
    """
    samples, labels = siege.rows if rows is None else siege.rows[rows], answer.labels
    if labels.dim() == 1:
        reached = siege.record.reached(samples, labels)
    else:
        k = labels.shape[1]
        reached = siege.record.reached(samples.repeat_interleave(k), labels.flatten())
    return reached.view_as(labels) & (labels >= 0)


def find_start(siege: Siege, noise: int = NOISE, images: int = IMAGES) -> tuple[Tensor, Tensor]:
    """An adversarial starting image for every row, and which rows have one.

    Untargeted: uniform noise, then the image under Gaussian noise of growing size, then images of
    other classes and blends with them, then more noise. Targeted: images of the target class,
    nearest first, then noise. Other images come from ``siege.knowledge.starts``, the same for every
    row. A row stops at its first success and pays only for its own queries.

    Rows without a start leave (`Siege.give_up`), and so do rows whose clean image is already
    adversarial. This function does not settle the siege: call `Siege.settle` right after.

    Parameters
    ----------
    noise, images : int
        Most images of each kind tried.

    Returns
    -------
    Tensor
        ``[rows, ...]``, as the victim received them; the clean image of rows without a start.
    Tensor
        ``[rows]``, whether the row has a start.

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
    if not siege.targeted:
        search.images(images)
        search.blends()
    search.noise(first, noise)
    siege.leave(search.needless)
    siege.give_up(~search.found & ~search.needless)
    return search.start, search.found


class _Search:
    """The starts found so far; each method queries the rows that have none yet."""

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
        ball, dice = self.siege.ball, self.siege.dice.of("start sizes")
        for n, size in enumerate(SIZES):
            if len(rows := self._open()) == 0:
                return
            drawn = dice.at(rows).normal(tuple(ball.center.shape[1:]), n).to(ball.center)
            self._ask(rows, ball.center[rows] + size * ball.width * drawn)

    def images(self, most: int) -> None:
        """Images of the pool, nearest first."""
        for n in range(most):
            rows, images = self._neighbour(n)
            if len(rows) == 0:
                return
            self._ask(rows, images)

    def blends(self) -> None:
        """Blends with the nearest image of the pool."""
        for share in BLENDS:
            rows, other = self._neighbour(0)
            if len(rows) == 0:
                return
            center = self.siege.ball.center[rows]
            self._ask(rows, center + share * (other.to(center) - center))

    def _neighbour(self, n: int) -> tuple[Tensor, Tensor]:
        """The rows without a start that have an n-th nearest image in the pool, and those images.

        Distances cost no query; they are computed for the rows that got this far.
        """
        rows = self._open()
        if self.pool is None or n >= len(self.pool) or len(rows) == 0:
            return rows[:0], self.start[:0]
        if self._order is None:
            self._order = _nearest(self.siege, self.pool, rows)
        order, many = self._order
        rows = rows[many[rows] > n]
        return rows, self.pool.images[order[rows, n]]


def _nearest(siege: Siege, pool: Samples, among: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the pool's images of wanted classes per row, nearest first, and how many."""
    wanted, labels = siege.record.targets, pool.labels
    if wanted is not None:
        fits = labels[None] == wanted[siege.rows][:, None]
    else:
        fits = labels[None] != siege.record.labels[siege.rows][:, None]
    away = torch.full(fits.shape, torch.inf, dtype=torch.float64, device=labels.device)
    asked = torch.zeros_like(fits)
    asked[among] = fits[among]
    # Only images of wanted classes: that may be one class of a thousand, and images may be large.
    for pairs in torch.split(asked.nonzero(), max(1, ENTRIES // siege.ball.size)):
        row, other = pairs.unbind(1)
        change = pool.images[other].to(siege.ball.center) - siege.ball.center[row]
        away[row, other] = distances(change, siege.ball.norm)
    return away.argsort(dim=1, stable=True), fits.sum(1)


def start_cost(rounds: int) -> int:
    """The most queries a start can take, with so many bisections on the way to the boundary."""
    return TRIED + 2 * rounds + RIVALS * (1 + _ROUGH)


def begin(siege: Siege, tolerance: Callable[[Ball, Tensor], Tensor]) -> Tensor:
    """Points at the boundary for all rows, settled; rows without a start have left.

    `tolerance` maps the ball and the distances of the starts to the bisection tolerance.
    """
    x: Tensor = siege.settle(find_start(siege)[0])
    if len(siege):
        ball = siege.ball
        x = siege.settle(to_boundary(siege, ball.center, x, tolerance(ball, ball.distance(x))))
    return _rivalled(siege, x, tolerance)


def _rivalled(siege: Siege, x: Tensor, tolerance: Callable[[Ball, Tensor], Tensor]) -> Tensor:
    """Boundary points towards other images, where the boundary is nearer in that direction.

    An image that is no better costs one query. A better one is first bisected roughly, since the
    next may be better still; the best is bisected to the tolerance in the end.
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
    """Row numbers, and for each an image of a wanted class, nearest first.

    With a target class its nearest image was the start already, so the next ones follow.
    """
    first = int(siege.targeted)
    return neighbours(siege, first, first + RIVALS)


def neighbours(siege: Siege, first: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers, and for each its n-th nearest image of a wanted class, for n below `end`.

    The numbers are those of the rows at the beginning: settle the siege after the last image.
    """
    pool = siege.knowledge.starts
    if pool is None or not len(siege):
        return
    order, many = _nearest(siege, pool, torch.arange(len(siege), device=siege.rows.device))
    for n in range(first, min(end, len(pool))):
        rows = (many > n).nonzero()[:, 0]
        ball = siege.ball.at(rows)
        image = pool.images[order[rows, n]].to(ball.center)
        yield rows, ball.received(image.clamp(*ball.box))


def roughly(ball: Ball, far: Tensor) -> Tensor:
    """The default tolerance of a first boundary point."""
    return NARROW * far


def halvings(ratio: float) -> int:
    """Bisections after which a bracket is `ratio` times narrower."""
    return max(0, math.ceil(math.log2(ratio)))


def between(ball: Ball, near: Tensor, far: Tensor, share: Tensor, straight: bool = False) -> Tensor:
    """Images at a fraction `share` of the path from `near` to `far`, as the victim receives them.

    The path reduces the distance in the ball's norm fastest: a straight line in l2, clipping of all
    pixel values to a radius in linf, shrinkage by the same amount in l1. With `straight` it is a
    straight line in every norm.
    """
    change = far - near
    if straight:
        moved = change * ball.scaled(share)
    else:
        moved = ball.retreat(change, distances(change, ball.norm), share)
    return ball.received((near + moved).clamp_(*ball.box))


def to_boundary(
    siege: Siege,
    near: Tensor,
    far: Tensor,
    tolerance: Tensor | float,
    rows: Tensor | None = None,
    straight: bool = False,
) -> Tensor:
    """The nearest adversarial images on the paths from `near` to `far`, by bisection.

    `far` must be adversarial; `near` is assumed not to be. The result is always an image that the
    victim was shown and that is adversarial, never an untested midpoint. A row ends when its
    bracket is as narrow as its tolerance, or when the midpoint equals one of the ends bit for bit.
    Queries that a row cannot pay for are not answered: the row keeps its current result.

    Parameters
    ----------
    near, far : Tensor
        ``[rows, ...]``, for the given `rows` only, if any.
    tolerance : Tensor or float
        Width of the bracket, in the ball's norm; a number, or one per row.
    rows : Tensor, optional
        Row numbers, ascending, each once; all rows by default.
    straight : bool
        Whether paths are straight lines in every norm; the tolerance is then an l2 distance.

    Returns
    -------
    Tensor
        ``[rows, ...]``.
    """
    if rows is None:
        rows = torch.arange(len(siege), device=siege.rows.device)
    ball = siege.ball.at(rows)
    size = distances(far - near, L2 if straight else ball.norm)
    tolerance = torch.as_tensor(tolerance, dtype=torch.float64, device=size.device).expand_as(size)
    low, high = torch.zeros_like(size), torch.ones_like(size)
    under, over = ball.received(near).clone(), far.clone()
    at = torch.arange(len(rows), device=rows.device)
    for _ in range(_ROUNDS):
        at = at[(high[at] - low[at]) * size[at] > tolerance[at]]
        if len(at) == 0:
            break
        middle = 0.5 * (low[at] + high[at])
        image = between(ball.at(at), near[at], far[at], middle, straight)
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
