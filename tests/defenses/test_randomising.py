"""Randomising layers: resizing and padding, cubes, mixed colours."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError
from besiege.defenses import Jitter, RandMix, ResizePad, load

BOX = (0.0, 1.0)


def dice(rows: int, seed: int = 0) -> Dice:
    return Dice.throw(seed, torch.arange(rows))


def images(rows: int, channels: int = 3, size: int = 32) -> torch.Tensor:
    return torch.rand(rows, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_enlarging_and_padding_is_interpolation_at_a_place() -> None:
    x = images(300, 1, 8)
    made = ResizePad(1.0, to=12, fill=0.5)(x, BOX, dice(300))
    assert made.shape == (300, 1, 12, 12)
    sizes, corners = set(), set()
    for before, after in zip(x, made, strict=True):
        inside = (after[0] - 0.5).abs() > 1e-6
        rows, columns = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
        top, left, size = int(rows[0]), int(columns[0]), int(rows[-1] - rows[0]) + 1
        sizes.add(size)
        corners.add((size, top, left))
        if size == 12:
            assert top == left == 0
        wanted = functional.interpolate(before[None], size, mode="bilinear")[0, 0]
        got = after[0, top : top + size, left : left + size]
        assert torch.allclose(got, wanted, atol=1e-5)
    assert sizes == {8, 9, 10, 11, 12}, "both ends included"
    assert {c[1:] for c in corners if c[0] == 8} >= {(0, 0), (4, 4)}, "the last place too"


def test_nothing_may_happen_and_defaults_are_realsafes() -> None:
    x = images(60)
    made = ResizePad()(x, BOX, dice(60))
    same = [bool(torch.equal(a, b)) for a, b in zip(x, made, strict=True)]
    assert 0 < sum(same) < 40 and made.shape == x.shape
    white = ResizePad(0.5, fill=1.0)(torch.zeros(40, 1, 8, 8) + 0.25, BOX, dice(40))
    assert set(white.unique().tolist()) == {0.25, 1.0}  # type: ignore[no-untyped-call]


def test_a_cube_is_uniform_and_clamped() -> None:
    x = torch.full((50, 3, 16, 16), 0.5)
    made = Jitter(0.1)(x, BOX, dice(50)) - x
    assert float(made.abs().max()) <= 0.1 + 1e-6
    assert float(made.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)
    edge = Jitter(0.3)(torch.zeros(50, 1, 8, 8), BOX, dice(50))
    assert float(edge.min()) == 0 and float((edge == 0).double().mean()) == pytest.approx(
        0.5, abs=0.03
    )
    point = x.clone().requires_grad_(True)
    Jitter(0.6)(point, BOX, dice(50)).sum().backward()  # type: ignore[no-untyped-call]
    assert point.grad is not None and bool((point.grad == 1).all()), "also where it is clamped"


def test_randmix_by_hand() -> None:
    """Its colours are means of the centres, which are noisy pixels of the image itself."""
    x = images(6)
    layer = RandMix(centres=3, sigma=0.0, hard=True)
    made = layer(x, BOX, dice(6))
    for before, after in zip(x, made, strict=True):
        colours = {tuple(round(float(v), 5) for v in c) for c in after.flatten(1).T}
        own = {tuple(round(float(v), 5) for v in c) for c in before.flatten(1).T}
        assert len(colours) <= 3 and colours <= own
        # Every pixel takes the nearest of them.
        centres = torch.tensor(sorted(colours))
        far = torch.cdist(before.flatten(1).T, centres)
        nearest = centres[far.argmin(1)]
        assert (nearest - after.flatten(1).T).abs().max() < 1e-4
    soft = RandMix(centres=3, sigma=0.0)(x, BOX, dice(6))
    far = (2 * x[0].flatten(1).T[:, None] - 2 * _centres(made[0])[None]).square().sum(2)
    wanted = (-10 * far).softmax(1) @ _centres(made[0])
    assert torch.allclose(soft[0].flatten(1).T, wanted, atol=1e-4)


def _centres(image: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.unique(image.flatten(1).T, dim=0)
    return found


def test_randmix_draws_two_noises_and_prefers_distant_centres() -> None:
    grey = torch.full((400, 3, 8, 8), 0.5)
    made = RandMix(centres=1, sigma=0.1)(grey, BOX, dice(400))
    # One centre: the result is that pixel of the first copy, whatever the second is.
    colours = made.flatten(2)
    assert bool((colours == colours[:, :, :1]).all())
    assert float(colours[:, :, 0].std()) == pytest.approx(0.1, rel=0.08)
    x = images(200)

    def spread(apart: bool) -> float:
        layer = RandMix(centres=2, sigma=0.0, hard=True, apart=apart)
        colours = [_centres(image) for image in layer(x, BOX, dice(200))]
        return sum(float((c[0] - c[-1]).norm()) for c in colours) / 200

    assert spread(True) > 1.3 * spread(False)


@pytest.mark.parametrize("hard", [False, True])
def test_randmix_passes_gradients(hard: bool) -> None:
    x = images(4).requires_grad_(True)
    RandMix(hard=hard)(x, BOX, dice(4)).square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and float((x.grad != 0).double().mean()) > 0.9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("resize_pad(least=0)", "above 0"),
        ("resize_pad(to=0)", "whole number"),
        ("resize_pad(fill=2)", "from 0 to 1"),
        ("jitter(radius=0)", "above 0"),
        ("randmix(centres=0)", "whole number"),
        ("randmix(sigma=-1)", "from 0"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(BesiegeError, match=said):
        load(f"zoo:digits-natural+{text}")


def test_a_result_smaller_than_the_image_is_refused() -> None:
    with pytest.raises(InputError, match="write to=32 or more"):
        ResizePad(1.0, to=30)(images(1), BOX, dice(1))


def test_gradients_averaged_over_more_draws_are_nearer_to_the_expectation() -> None:
    data = besiege.data.load("digits", "test", count=12)
    victim = load("zoo:digits-natural+resize_pad(least=0.75)")

    def slope(draws: int, seed: int) -> torch.Tensor:
        total = torch.zeros_like(data.images)
        for draw in range(draws):
            x = data.images.clone().requires_grad_(True)
            logits = victim(x, Dice.throw(seed, data.ids).of("draw", draw))
            total += torch.autograd.grad(functional.cross_entropy(logits, data.labels), x)[0]
        return total.flatten(1)

    with victim.held():
        wanted = slope(400, 1)
        near = [
            float(functional.cosine_similarity(slope(draws, 2), wanted).mean())
            for draws in (1, 5, 20, 100)
        ]
    assert near == sorted(near), "cosines rise with the number of draws"
    assert near[0] < 0.75 < 0.9 < near[2] < near[3], near


def test_only_the_hard_mixture_has_a_surrogate() -> None:
    assert not RandMix().has_surrogate and RandMix(hard=True).has_surrogate


def test_a_size_that_a_network_does_not_take_names_the_layers() -> None:
    with pytest.raises(BesiegeError, match="12x12 pixels of 8x8, which its network does not take"):
        load("zoo:digits-natural+resize_pad(least=1, to=12)")(images(2, 1, 8), dice(2))


def test_the_two_copies_of_a_mixture_have_noise_of_their_own() -> None:
    # All four pixels are centres. With common noise each would be its own nearest centre.
    x = torch.full((200, 1, 2, 2), 0.5)
    made = RandMix(centres=60, sigma=0.05, hard=True, apart=False)(x, BOX, dice(200))
    doubled = [len(set(image.flatten().tolist())) < 4 for image in made]
    assert sum(doubled) > 60
