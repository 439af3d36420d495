"""Minimising many functions at once inside a box, each row with its own curvature and steps."""

from __future__ import annotations

import torch
from torch import Tensor

from besiege.attacks.planes import inner
from besiege.core.rowwise import pick, rowwise

ARMIJO = 1e-4
"""The share of the fall its slope promises that a step must bring."""

BACK = (0.1, 0.5)
"""What a step that fell too little is cut to, at least and at most."""

TRIES = 12
"""So many cuts in a row end the search along one direction."""


class Descent:
    """Projected L-BFGS of all rows side by side: ask at `trial`, and `tell` what was found there.

    Entries at a bound that the gradient presses against stay; on the others the two loops over a
    row's last steps give a direction, which is cut to the box, and halved until the value falls
    enough along it (Armijo). Where that fails the row forgets its steps and goes along the
    gradient; where this fails too, or nothing is left to gain, the row is `done`. Every row has
    its own history, step and end: nothing of one depends on the others.

    Parameters
    ----------
    start : Tensor
        Points ``[rows, ...]``, inside the box.
    box : tuple of float
        Lowest and highest value of every entry.
    curvature : Tensor, optional
        A first guess of the second derivatives, ``[rows]``; without one the first step has at
        most length one.
    memory : int
        How many steps every row remembers.
    tolerance : float
        A row is done when a step lowers its value by less than this share.

    Attributes
    ----------
    x, value : Tensor
        Where every row stands, and its value there.
    trial : Tensor
        Where to ask next.
    moved : Tensor
        Which rows went to the point last told about.
    done : Tensor
        Which rows are at an end.

    Examples
    --------
    The nearest point of the unit box to (2, 0.5), and to (-1, 3):

    >>> goal = torch.tensor([[2.0, 0.5], [-1.0, 3.0]])
    >>> descent = Descent(torch.full((2, 2), 0.1), (0.0, 1.0))
    >>> while not descent.done.all():
    ...     away = descent.trial - goal
    ...     descent.tell((away**2).sum(1), 2 * away)
    >>> descent.x
    tensor([[1.0000, 0.5000],
            [0.0000, 1.0000]])
    """

    def __init__(
        self,
        start: Tensor,
        box: tuple[float, float] = (0.0, 1.0),
        *,
        curvature: Tensor | None = None,
        memory: int = 10,
        tolerance: float = 1e-7,
    ) -> None:
        rows, device = len(start), start.device
        self.x = self.trial = start
        self.box = box
        self.tolerance = tolerance
        self.value = torch.full((rows,), torch.inf, dtype=torch.float64, device=device)
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.moved = torch.zeros_like(self.done)
        self._gradient = self._direction = torch.zeros_like(start)
        self._step = torch.ones_like(self.value)
        self._slope = torch.zeros_like(self.value)
        self._tries = torch.zeros(rows, dtype=torch.int64, device=device)
        self._curvature = torch.full_like(self.value, torch.nan) if curvature is None else curvature
        # The last steps and what the gradient changed by, as a ring in every row.
        self._moves = start.new_zeros(rows, memory, *start.shape[1:])
        self._bends = torch.zeros_like(self._moves)
        self._count = torch.zeros_like(self._tries)

    def __len__(self) -> int:
        return len(self.x)

    def at(self, rows: Tensor) -> Descent:
        """Some of the rows."""
        other = object.__new__(Descent)
        for name, part in vars(self).items():
            setattr(other, name, part[rows] if isinstance(part, Tensor) else part)
        return other

    def tell(self, value: Tensor, gradient: Tensor) -> None:
        """What was found at `trial`; of rows that are done nothing is taken.

        `value` is ``[rows]``, `gradient` ``[rows, ...]``, of what is to be lowered.
        """
        value = value.double()
        going = ~self.done
        # Of the first point everything is taken: infinity was before it.
        enough = value <= self.value + ARMIJO * self._step * self._slope
        taken = going & (enough | torch.isinf(self.value))
        self.moved = taken
        failed = going & ~taken
        self._accept(taken, value, gradient)
        # Cut steps go on along their direction, until they are too many.
        over = failed & (self._tries >= TRIES)
        self.done |= over & (self._count == 0)
        self._count = torch.where(over, 0, self._count)
        new = (taken | over) & ~self.done
        self._turn(new)
        cut = failed & ~over
        self._step = torch.where(cut, self._step * self._shorter(value), self._step)
        self._tries = torch.where(cut, self._tries + 1, self._tries)
        x = self.x + self._direction * self._each(self._step)
        self.trial = pick(self.done, self.x, x.clamp(*self.box))

    def _accept(self, taken: Tensor, value: Tensor, gradient: Tensor) -> None:
        """Go to the trial points, and remember what was seen on the way."""
        move, bend = self.trial - self.x, gradient - self._gradient
        begun = taken & torch.isfinite(self.value)
        along, size = inner(move, bend), inner(bend, bend)
        known = begun & (along > 1e-10 * size)
        rows = known.nonzero()[:, 0]
        place = self._count[rows] % self._moves.shape[1]
        self._moves[rows, place] = move[rows]
        self._bends[rows, place] = bend[rows]
        self._count = torch.where(known, self._count + 1, self._count)
        gain = self.value - value
        little = begun & (gain <= self.tolerance * torch.maximum(self.value.abs(), value.abs()))
        self.x = pick(taken, self.trial, self.x)
        self._gradient = pick(taken, gradient, self._gradient)
        self.value = torch.where(taken, value, self.value)
        # A short step after many cuts says nothing about what a new direction would bring.
        self.done = self.done | (little & (self._tries == 0))

    def _turn(self, new: Tensor) -> None:
        """A new direction for some rows; those without any are done."""
        g, (low, high) = self._gradient, self.box
        stuck = ((self.x <= low) & (g > 0)) | ((self.x >= high) & (g < 0))
        free = (~stuck).to(g.dtype)
        downhill = -g * free
        direction = self._bent(downhill, free)
        move = (self.x + direction).clamp(low, high) - self.x
        slope = inner(g, move)
        # What is cut to the box need not go down any more: then along the gradient, which does.
        steep = slope >= -1e-12 * (inner(g, g) * inner(move, move)).sqrt()
        plain = (self.x + downhill * self._each(self._guess(downhill))).clamp(low, high) - self.x
        move = pick(steep, plain, move)
        slope = torch.where(steep, inner(g, plain), slope)
        self._count = torch.where(new & steep, 0, self._count)
        # What promises less than a hundredth of what would end it is rounding.
        self.done = self.done | (new & (slope >= -0.01 * self.tolerance * self.value.abs()))
        self._direction = pick(new, move, self._direction)
        self._slope = torch.where(new, slope, self._slope)
        self._step = torch.where(new, torch.ones_like(self._step), self._step)
        self._tries = torch.where(new, torch.zeros_like(self._tries), self._tries)

    def _guess(self, downhill: Tensor) -> Tensor:
        """How far along the gradient, for rows that remember nothing."""
        size = inner(downhill, downhill).sqrt().clamp_min(1e-300)
        unknown = torch.isnan(self._curvature)
        return torch.where(unknown, (1.0 / size).clamp_max(1.0), 1.0 / self._curvature)

    def _bent(self, q: Tensor, free: Tensor) -> Tensor:
        """The two loops over each row's last steps, on the free entries."""
        memory = self._moves.shape[1]
        rows = torch.arange(len(q), device=q.device)
        most = min(memory, int(self._count.max())) if len(q) else 0
        seen = []
        scale = self._guess(q)
        for back in range(1, most + 1):
            place = (self._count - back) % memory
            move, bend = self._moves[rows, place] * free, self._bends[rows, place] * free
            along, size = inner(move, bend), inner(bend, bend)
            # On the free entries alone a step may show no curvature.
            useful = (back <= self._count) & (along > 1e-10 * size)
            share = torch.where(useful, 1.0 / along.clamp_min(1e-300), 0.0)
            alpha = share * inner(move, q)
            q = q - bend * self._each(alpha)
            if back == 1:
                first = torch.zeros_like(useful)
            scale = torch.where(useful & ~first, along / size.clamp_min(1e-300), scale)
            first = first | useful
            seen.append((move, bend, share, alpha))
        q = q * self._each(scale)
        for move, bend, share, alpha in reversed(seen):
            q = q + move * self._each(alpha - share * inner(bend, q))
        return q

    def _shorter(self, value: Tensor) -> Tensor:
        """What to cut a step to: where the parabola through what is known has its lowest point."""
        fall = self._step * self._slope
        best = -0.5 * fall / (value - self.value - fall).clamp_min(1e-300)
        return torch.nan_to_num(best, nan=BACK[1]).clamp(*BACK)

    def _each(self, rows: Tensor) -> Tensor:
        return rowwise(rows.to(self.x.dtype), self.x)
