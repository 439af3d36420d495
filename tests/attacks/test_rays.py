"""RayS on victims whose best signs are known, and on those it can do nothing about."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.victims import Spy, affine, smallest
from torch import Tensor, nn

from besiege.attacks import rays
from besiege.attacks.attack import parse
from besiege.attacks.rays import Rays, _around, _exhausted, _next, _size
from besiege.core.ball import Ball
from besiege.core.samples import Samples
from besiege.core.threat import Access, Linf, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, images_of, natural, untrained

THREAT = Threat(Linf, None, access=Access.DECISION)


def quarters(entries: int = 64) -> tuple[Classifier, Samples, float]:
    """Weights of one sign in each quarter of the image, and how far the boundary is."""
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0]).repeat_interleave(entries // 4)
    weight = signs * (0.5 + torch.rand(entries, generator=torch.Generator().manual_seed(1)))
    x = torch.full((1, 1, 1, entries), 0.5)
    bias = -float(weight @ x.flatten()) - 3.0
    victim = affine(torch.stack([0 * weight, weight]), torch.tensor([0.0, bias]))
    return victim, Samples.of(x, torch.tensor([0])), 3.0 / float(weight.abs().sum())


def test_the_best_signs_are_found_by_the_end_of_the_second_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim, samples, known = quarters()
    best: dict[int, float] = {}
    tell = rays._tell

    def told(ball: Ball, state: rays.State, tried: Tensor, good: Tensor) -> rays.State:
        after = tell(ball, state, tried, good)
        best[int(state.level)] = float(after.radius)
        assert bool((after.radius <= state.radius).all())
        return after

    monkeypatch.setattr(rays, "_tell", told)
    smallest(victim, Rays(steps=150, tolerance=0.01), samples, Linf)
    assert best[2] == pytest.approx(known, rel=0.01)
    assert best[1] > 1.2 * known  # quarters are what was missing
    assert list(best)[:4] == [-1, 0, 1, 2]


def test_every_level_is_made_of_all_entries_once() -> None:
    for entries in (1, 2, 7, 64, 100):
        flips = _around(entries)
        level, block = torch.tensor([0]), torch.tensor([0])
        seen: dict[int, list[tuple[int, int]]] = {}
        for _ in range(flips):
            size = int(_size(level, entries))
            seen.setdefault(int(level), []).append((int(block) * size, (int(block) + 1) * size))
            level, block = _next(level, block, entries)
        assert (int(level), int(block)) == (0, 0)  # and begins again
        for runs in seen.values():
            covered = [place for a, b in runs for place in range(a, min(b, entries))]
            assert covered == list(range(entries))
        assert len(seen[max(seen)]) == entries


def test_the_radius_never_grows_and_what_is_asked_are_signs_times_a_radius() -> None:
    victim, samples, _ = quarters()
    spy = Spy(victim)
    spy.metered = True
    made = smallest(spy, Rays(steps=40), samples, Linf)
    changes = (torch.cat(spy.images[1:]) - samples.images).flatten(1).abs()
    inner = changes.amax(1) < 0.499  # the corner is cut by the box
    spread = (changes.amax(1) - changes.amin(1))[inner]
    assert float(spread.max()) < 1e-6
    with torch.no_grad():
        good = victim(torch.cat(spy.images[1:])).argmax(1) == 1
    best = torch.where(good, changes.amax(1), torch.inf).cummin(0).values
    assert float(best[-1]) == pytest.approx(float(made.distance), rel=1e-6)
    assert made.descent is not None
    assert bool((made.descent[:, 1:] <= made.descent[:, :-1]).all())
    # A flip is asked about below the best radius, never above.
    assert bool((changes.amax(1)[1:] <= best[:-1] + 1e-6).all())


def test_whole_grid_steps_where_the_victim_has_a_grid() -> None:
    victim = copy.copy(natural())
    victim.grid = 1 / 255
    images = torch.round(images_of((1, 8, 8), 6) * 255) / 255
    samples = Samples.of(images, victim(images).argmax(1))
    spy = Spy(victim)
    made = craft(spy, Rays(steps=250), samples, THREAT)
    steps = torch.cat(spy.images) * 255
    assert float((steps - steps.round()).abs().max()) < 1e-3
    assert bool(made.success.all())
    radii = made.distance * 255
    assert float((radii - radii.round()).abs().max()) < 1e-3
    fine = smallest(natural(), Rays(steps=250), samples, Linf)
    assert float((made.distance - fine.distance).median()) < 2 / 255


@pytest.mark.parametrize("levels", [2, 16, 255])
def test_on_a_grid_no_image_is_asked_about_again_and_again(levels: int) -> None:
    victim = Linear((1, 4, 8), 2)
    images = torch.round(victim.samples(8).images * levels) / levels
    victim.grid = 1 / levels
    spy = Spy(victim)
    spy.metered = True
    made = craft(spy, Rays(), Samples.of(images, victim(images).argmax(1)), THREAT)
    asked = torch.cat(spy.images).flatten(1)
    assert len(asked) == int(made.queries.sum())
    clean = (asked[:, None] == images.flatten(1)).all(2).any(1)
    assert int(clean.sum()) == 8  # the survey's
    # Corners of the box are alike at several radii: about one a row.
    assert len(asked) - len(torch.unique(asked, dim=0)) <= 16
    # One step is the least there is: no round of flips follows.
    single = made.distance < 1.5 / levels
    assert bool(single.any()) == (levels < 255)
    assert bool((made.queries[single] < _around(32)).all())
    # The others are ended by one such round.
    assert bool((made.queries[~single] > _around(32)).all())
    assert bool(made.success.all())


def test_searches_on_a_grid_are_made_finer_where_they_are_coarser_than_it() -> None:
    radius, vain = torch.tensor([0.5, 0.25, 0.5, 1 / 255], dtype=torch.float64), torch.ones(4) > 0
    share = torch.tensor([1.0, 1.0, 0.004, 1.0], dtype=torch.float64)
    assert _exhausted(1 / 255, share, radius, vain).tolist() == [False, True, True, True]
    assert _exhausted(1 / 255, share, radius, ~vain).tolist() == [False, False, False, True]


class Corners(nn.Module):
    """Class 1 in the middle of a shell that no corner touches, class 0 everywhere else."""

    def forward(self, x: Tensor) -> Tensor:
        far = (x - 0.5).flatten(1).abs().amax(1)
        inside = ((far > 0.1) & (far < 0.2)).to(x)
        return torch.stack([1.0 - inside, inside], 1)


def test_where_all_corners_are_of_the_true_class_it_says_so_and_ends() -> None:
    victim = Classifier(Corners(), classes=2)
    x = torch.full((3, 1, 4, 4), 0.5)
    x[1] += 0.12  # this one is adversarial as it is
    samples = Samples.of(x, torch.tensor([0, 0, 0]))
    made = craft(victim, Rays(), samples, THREAT)
    assert made.no_start is not None
    assert made.success.tolist() == [False, True, False]
    assert made.no_start.tolist() == [True, False, True]
    assert made.queries.tolist() == [1 + 1 + _around(16) - 1, 1, 1 + 1 + _around(16) - 1]


def test_the_victim_counts_what_the_meter_says_and_rows_are_their_own() -> None:
    victim = untrained((3, 6, 6), 5)
    images = images_of((3, 6, 6), 5)
    samples = Samples.of(images, victim(images).argmax(1))
    counting = Counting(victim, metered=True)
    whole = craft(counting, Rays(steps=200), samples, THREAT, queries=150)
    assert counting.forwards == int(whole.queries.sum())
    assert int(whole.queries.max()) <= 150
    for row in range(5):
        one = craft(victim, Rays(steps=200), samples.at(torch.tensor([row])), THREAT, queries=150)
        assert torch.equal(one.images[0], whole.images[row])
        assert one.queries[0] == whole.queries[row]
        assert one.distance[0] == whole.distance[row]


def test_settings() -> None:
    assert isinstance(parse("rays@chen"), Rays)
    for wrong in ({"steps": 0}, {"tolerance": 0.0}, {"tolerance": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Rays(**wrong)
    assert Rays(steps=10).cost((3, 32, 32), 10) == 10
