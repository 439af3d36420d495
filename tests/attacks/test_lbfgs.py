"""Batched L-BFGS in a box against SciPy's, row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.victims import normal, uniform
from torch import Tensor

from besiege.attacks.lbfgs import Descent

ROWS, SIZE = 12, 10
Function = Callable[[Tensor, Tensor], Tensor]


def quadratic() -> Function:
    """One random quadratic per row, some badly conditioned."""
    root = normal(ROWS, SIZE, SIZE, dtype=torch.float64)
    root = root * torch.logspace(-1, 0.5, SIZE, dtype=torch.float64)
    bend = root @ root.transpose(1, 2) + 0.05 * torch.eye(SIZE, dtype=torch.float64)
    pull = 3 * normal(ROWS, SIZE, seed=1, dtype=torch.float64)

    def value(x: Tensor, rows: Tensor) -> Tensor:
        return 0.5 * (x * (bend[rows] @ x[..., None])[..., 0]).sum(1) + (pull[rows] * x).sum(1)

    return value


def valley(x: Tensor, rows: Tensor) -> Tensor:
    """Rosenbrock's, with one steepness per row."""
    steep = 10.0 + 10.0 * rows[:, None]
    return (steep * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1) + 1.0


def run(
    function: Function, start: Tensor, box: tuple[float, float], rows: Tensor, calls: int = 400
) -> tuple[Descent, Tensor]:
    descent, asked = Descent(start, box, tolerance=1e-12), torch.zeros(len(start))
    for _ in range(calls):
        if descent.done.all():
            break
        x = descent.trial.clone().requires_grad_()
        assert x.min() >= box[0] and x.max() <= box[1]
        value = function(x, rows)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        asked += ~descent.done
        descent.tell(value.detach(), gradient)
    return descent, asked


@pytest.mark.parametrize("box", [(-0.5, 0.5), (-40.0, 40.0)], ids=["tight", "wide"])
@pytest.mark.parametrize("kind", ["quadratic", "valley"])
def test_it_ends_where_scipy_ends(kind: str, box: tuple[float, float]) -> None:
    function = quadratic() if kind == "quadratic" else valley
    # On the side of the valley's lower end: it has two.
    start = uniform(ROWS, SIZE).double() - (0.5 if kind == "quadratic" else 0.0)
    start = start.clamp(*box)
    every = torch.arange(ROWS)
    found, asked = run(function, start, box, every)
    assert found.done.all()
    calls = []
    for row in range(ROWS):

        def one(z: np.ndarray, at: Tensor = every[row : row + 1]) -> tuple[float, np.ndarray]:
            x = torch.from_numpy(z)[None].requires_grad_()
            value = function(x, at)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            return float(value.detach()), gradient[0].numpy()

        known = minimize(
            one,
            start[row].numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=[box] * SIZE,
            options={"ftol": 1e-14, "gtol": 1e-9, "maxiter": 2000},
        )
        calls.append(known.nfev)
        assert float(found.value[row]) == pytest.approx(known.fun, rel=1e-4)
    # And about as quickly.
    assert float(asked.mean()) < 1.6 * np.mean(calls)


def test_entries_at_a_bound_come_back_from_it() -> None:
    """They start pressed against bounds to which the minimum does not belong."""
    start = torch.tensor([[0.0, 1.0, 0.0, 1.0]]).double()
    goal = torch.tensor([[0.3, 0.6, -2.0, 5.0]]).double()
    stiff = torch.tensor([[1.0, 30.0, 2.0, 0.1]]).double()
    found, _ = run(lambda x, _: (stiff * (x - goal) ** 2).sum(1), start, (0.0, 1.0), torch.zeros(1))
    assert torch.allclose(found.x, goal.clamp(0, 1), atol=1e-5)


def test_a_row_is_the_same_alone_and_among_others() -> None:
    function, box = quadratic(), (-0.5, 0.5)
    start, every = uniform(ROWS, SIZE).double() - 0.5, torch.arange(ROWS)
    whole, asked = run(function, start, box, every)
    assert len(set(asked.tolist())) > 3  # rows end at their own time
    for row in range(0, ROWS, 3):
        # A neighbour keeps matrix products as they are; it is another one.
        rows = torch.tensor([row, (row + 1) % ROWS])
        pair, _ = run(function, start[rows], box, rows)
        assert torch.equal(pair.x[0], whole.x[row]) and pair.value[0] == whole.value[row]


def test_rows_can_leave_on_the_way() -> None:
    function, box, every = valley, (-2.0, 2.0), torch.arange(ROWS)
    start = uniform(ROWS, SIZE).double() - 0.5
    whole, _ = run(function, start, box, every, calls=30)
    part, _ = run(function, start, box, every, calls=12)
    kept = torch.tensor([1, 4, 5])
    part = part.at(kept)
    assert len(part) == 3
    for _ in range(18):
        x = part.trial.clone().requires_grad_()
        value = function(x, kept)
        part.tell(value.detach(), torch.autograd.grad(value.sum(), x)[0])
    assert torch.equal(part.x, whole.x[kept])


def test_values_never_rise_and_what_is_done_stays() -> None:
    function, start = quadratic(), uniform(ROWS, SIZE).double() - 0.5
    descent, last = Descent(start, (-0.5, 0.5)), torch.full((ROWS,), torch.inf).double()
    for _ in range(120):
        done, x = descent.done.clone(), descent.x
        point = descent.trial.clone().requires_grad_()
        value = function(point, torch.arange(ROWS))
        (gradient,) = torch.autograd.grad(value.sum(), point)
        # Nonsense about rows that are done changes nothing.
        descent.tell(value.detach() - 1e3 * done, gradient + 1e3 * done[:, None])
        assert (descent.value <= last).all()
        assert torch.equal(descent.x[done], x[done]) and not descent.moved[done].any()
        last = descent.value
    assert descent.done.all()


def test_without_a_slope_there_is_nothing_to_do() -> None:
    descent = Descent(torch.full((2, 1, 2, 2), 0.5))
    descent.tell(
        torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 2, 2)
    )
    assert descent.done.tolist() == [True, False]
    assert (descent.trial[1] < 0.5).all()


def test_a_first_guess_of_the_curvature_is_used() -> None:
    descent = Descent(torch.full((1, 3), 0.5), curvature=torch.tensor([4.0]).double())
    descent.tell(torch.zeros(1), torch.tensor([[0.4, -0.8, 0.0]]))
    assert torch.allclose(descent.trial, torch.tensor([[0.4, 0.7, 0.5]]))
