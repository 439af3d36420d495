"""Projected L-BFGS inside a box, for many rows at once, each with its own state."""

from __future__ import annotations

import torch
from torch import Tensor

from besiege.attacks.planes import inner
from besiege.core.rowwise import pick, rowwise

ARMIJO = 1e-4
"""Fraction of the predicted decrease that a step must achieve."""

BACK = (0.1, 0.5)
"""Bounds of the factor by which a rejected step shrinks."""

TRIES = 12
"""Most rejected steps along one direction."""


class Descent:
    """Projected L-BFGS of all rows in parallel: evaluate at `trial`, then call `tell`.

    Coordinates at a bound whose gradient points outward stay fixed. On the others the two-loop
    recursion over a row's last steps gives a direction, which is clipped to the box and shortened
    until the value falls enough (Armijo). If that fails the row discards its history and uses the
    gradient; if this fails too, or nothing is left to gain, the row is `done`. Rows are independent
    of each other.

    Parameters
    ----------
    start : Tensor
        Points ``[rows, ...]``, inside the box.
    box : tuple of float
        Bounds of every coordinate.
    curvature : Tensor, optional
        First guess of the second derivatives, ``[rows]``; without one the first step has at most
        length one.
    memory : int
        Steps kept for every row.
    tolerance : float
        A row is done when a step lowers its value by less than this fraction.

    Attributes
    ----------
    x, value : Tensor
        The current point of every row, and its value.
    trial : Tensor
        The points to evaluate next.
    moved : Tensor
        Which rows accepted the last trial point.
    done : Tensor
        Which rows have converged.

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
        # Ring buffers of the last steps and the changes of the gradient.
        self._moves = start.new_zeros(rows, memory, *start.shape[1:])
        self._bends = torch.zeros_like(self._moves)
        self._count = torch.zeros_like(self._tries)

    def __len__(self) -> int:
        return len(self.x)

    def at(self, rows: Tensor) -> Descent:
        """The state of some rows."""
        other = object.__new__(Descent)
        for name, part in vars(self).items():
            setattr(other, name, part[rows] if isinstance(part, Tensor) else part)
        return other

    def tell(self, value: Tensor, gradient: Tensor) -> None:
        """Take the values ``[rows]`` and gradients ``[rows, ...]`` at `trial`.

        Those of rows that are done are ignored.
        """
        value = value.double()
        going = ~self.done
        # The first point is always accepted: the value before is infinite.
        enough = value <= self.value + ARMIJO * self._step * self._slope
        taken = going & (enough | torch.isinf(self.value))
        self.moved = taken
        failed = going & ~taken
        self._accept(taken, value, gradient)
        # Rejected steps shrink along their direction, until there were too many.
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
        """Move to the trial points and update the history."""
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
        # A short step after rejections does not show what a new direction would gain.
        self.done = self.done | (little & (self._tries == 0))

    def _turn(self, new: Tensor) -> None:
        """A new direction for some rows; rows without any are done."""
        g, (low, high) = self._gradient, self.box
        stuck = ((self.x <= low) & (g > 0)) | ((self.x >= high) & (g < 0))
        free = (~stuck).to(g.dtype)
        downhill = -g * free
        direction = self._bent(downhill, free)
        move = (self.x + direction).clamp(low, high) - self.x
        slope = inner(g, move)
        # Clipped to the box the direction may not descend: then use the gradient, which does.
        steep = slope >= -1e-12 * (inner(g, g) * inner(move, move)).sqrt()
        plain = (self.x + downhill * self._each(self._guess(downhill))).clamp(low, high) - self.x
        move = pick(steep, plain, move)
        slope = torch.where(steep, inner(g, plain), slope)
        self._count = torch.where(new & steep, 0, self._count)
        # A promised decrease below a hundredth of the tolerance is rounding.
        self.done = self.done | (new & (slope >= -0.01 * self.tolerance * self.value.abs()))
        self._direction = pick(new, move, self._direction)
        self._slope = torch.where(new, slope, self._slope)
        self._step = torch.where(new, torch.ones_like(self._step), self._step)
        self._tries = torch.where(new, torch.zeros_like(self._tries), self._tries)

    def _guess(self, downhill: Tensor) -> Tensor:
        """Step length along the gradient, for rows without a history."""
        size = inner(downhill, downhill).sqrt().clamp_min(1e-300)
        unknown = torch.isnan(self._curvature)
        return torch.where(unknown, (1.0 / size).clamp_max(1.0), 1.0 / self._curvature)

    def _bent(self, q: Tensor, free: Tensor) -> Tensor:
        """The two-loop recursion over each row's last steps, on the free coordinates."""
        memory = self._moves.shape[1]
        rows = torch.arange(len(q), device=q.device)
        most = min(memory, int(self._count.max())) if len(q) else 0
        seen = []
        scale, first = self._guess(q), torch.zeros_like(self.done)
        for back in range(1, most + 1):
            place = (self._count - back) % memory
            move, bend = self._moves[rows, place] * free, self._bends[rows, place] * free
            along, size = inner(move, bend), inner(bend, bend)
            # Restricted to the free coordinates a step may have no curvature.
            useful = (back <= self._count) & (along > 1e-10 * size)
            share = torch.where(useful, 1.0 / along.clamp_min(1e-300), 0.0)
            alpha = share * inner(move, q)
            q = q - bend * self._each(alpha)
            scale = torch.where(useful & ~first, along / size.clamp_min(1e-300), scale)
            first = first | useful
            seen.append((move, bend, share, alpha))
        q = q * self._each(scale)
        for move, bend, share, alpha in reversed(seen):
            q = q + move * self._each(alpha - share * inner(bend, q))
        return q

    def _shorter(self, value: Tensor) -> Tensor:
        """The factor of a rejected step: the minimum of the parabola through the known values."""
        fall = self._step * self._slope
        best = -0.5 * fall / (value - self.value - fall).clamp_min(1e-300)
        return torch.nan_to_num(best, nan=BACK[1]).clamp(*BACK)

    def _each(self, rows: Tensor) -> Tensor:
        return rowwise(rows.to(self.x.dtype), self.x)
