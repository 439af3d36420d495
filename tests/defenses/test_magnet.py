"""MagNet: its signals, how they become one score, and that what passes is reformed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.defenses import (
    BitDepth,
    Blur,
    Calibration,
    Detected,
    Layer,
    MagNet,
    Median,
    ResizePad,
    load,
)
from besiege.defenses.calibrating import calibrate
from besiege.defenses.detecting import LANGUAGE
from besiege.defenses.magnet import divergence, error, quantiles, rarity
from besiege.testing import VICTIM_LAWS, conform_victim
from besiege.training import fit_detector

MODEL = "zoo:digits-natural"
TEST = besiege.data.load("digits", "test")


@dataclass(frozen=True)
class Bright(Layer):
    """Reconstructs images too brightly: beyond the box, unless it is clipped."""

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return x + 0.5


def knots(signals: int) -> Tensor:
    """Quantiles with which a signal is its own rarity."""
    return torch.arange(4.0).expand(signals, -1).clone()


def test_reconstruction_errors_are_means_over_pixel_values() -> None:
    change = torch.tensor([[[[0.5, -0.5], [0.0, 1.0]]]])
    assert float(error(change, 1)) == pytest.approx(0.5)
    assert float(error(change, 2)) == pytest.approx(0.375)
    assert float(error(change, 3)) == pytest.approx(0.3125)


def test_the_divergence_is_jensen_and_shannons_at_its_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (20 * torch.randn(6, 10, generator=generator) for _ in range(2))
    for heat in (1.0, 10.0, 40.0):
        p, q = ((z / heat).softmax(1).double() for z in (a, b))
        m = (p + q) / 2
        exact = ((p * (p / m).log()).nansum(1) + (q * (q / m).log()).nansum(1)) / 2
        assert torch.allclose(divergence(a, b, heat).double(), exact, atol=1e-5)
    # Without a temperature it saturates at ln 2: no image is more suspicious than another.
    sure = functional.one_hot(torch.arange(3), 10) * 60.0
    other = functional.one_hot(torch.arange(3) + 1, 10) * torch.tensor([[60.0], [80.0], [99.0]])
    assert float(divergence(sure, other, 1.0).sub(math.log(2)).abs().max()) < 1e-6
    hot = divergence(sure, other, 40.0)
    assert bool((hot.diff() > 1e-2).all()) and float(hot.max()) < 0.5


def test_divergences_and_their_gradients_are_finite_for_extreme_logits() -> None:
    a = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    made = divergence(a, torch.tensor([[-1e4, 1e4], [0.0, 0.0]]), 10.0)
    (slope,) = torch.autograd.grad(made.sum(), a)
    assert torch.isfinite(made).all() and torch.isfinite(slope).all()
    assert made.tolist() == [pytest.approx(math.log(2)), 0.0]


def test_rarity_is_the_logarithm_of_the_clean_quantile() -> None:
    clean = torch.rand(1024, 1, generator=torch.Generator().manual_seed(0))
    known = quantiles(clean)
    assert known.shape == (1, 11)
    for share in (0.5, 0.75, 0.875, 1 - 1 / 256):
        at = clean[:, 0].sort().values[math.ceil(1024 * share) - 1]
        assert float(rarity(at[None], known[0])) == pytest.approx(-math.log2(1 - share), abs=1e-4)
    rising = rarity(torch.linspace(-1, 3, 200), known[0])
    assert bool((rising.diff() > 0).all()), "also beyond the ends"
    x = torch.tensor([-1.0, 0.4, 5.0], requires_grad=True)
    (slope,) = torch.autograd.grad(rarity(x, known[0]).sum(), x)
    assert bool((slope > 0).all())


def test_signals_that_are_all_alike_have_quantiles() -> None:
    known = quantiles(torch.zeros(64, 2))
    assert bool((known.diff(dim=1) > 0).all())
    with pytest.raises(InputError, match="4 or more"):
        quantiles(torch.zeros(3, 1))


def test_any_signal_rejects_and_the_reformed_image_is_classified() -> None:
    inner, kind = load(MODEL), MagNet((Blur(1.0), Median(2)))
    victim = Detected(inner, kind, Calibration(0.5), {"quantiles": knots(6)})
    assert victim.passes == 2
    x = TEST.images[:20]
    dice = Dice.throw(0, torch.arange(20))
    with inner.held(), torch.no_grad():
        found = victim.examine(x)
        made = [one.transform(x, (0.0, 1.0), dice) for one in kind.reformers]
        reformed, own = inner(made[0]), inner(x)
        signals = [error(x - one, p) for one in made for p in (1, 2)]
        signals += [divergence(own, reformed, heat) for heat in (10, 40)]
    assert torch.equal(found.logits, reformed) and not torch.equal(reformed, own)
    assert torch.allclose(found.score, torch.stack(signals).amax(0), atol=1e-6)
    # Each of them alone can reject.
    for place in range(6):
        alone = torch.full((6, 4), 1e9) + torch.arange(4.0) * 1e9
        alone[place] = torch.arange(4.0) - 10
        flagged = Detected(inner, kind, Calibration(5.0), {"quantiles": alone})
        with torch.no_grad():
            assert bool((flagged(x).argmax(1) == 10).all())


def test_reformed_images_are_clipped_to_the_box() -> None:
    inner = load(MODEL)
    victim = Detected(inner, MagNet((Bright(),)), Calibration(9.0), {"quantiles": knots(4)})
    with torch.no_grad():
        x = TEST.images[:5]
        wanted = inner((x + 0.5).clamp(0, 1))
        assert torch.equal(victim(x)[:, :-1], wanted)
        assert not torch.equal(wanted, inner(x + 0.5))


def test_the_rate_is_that_of_all_signals_together(tmp_path: Path) -> None:
    """Each of four signals at 5 % would reject up to 20 % of clean images."""
    out = fit_detector("magnet(blur)", MODEL, "digits", tmp_path / "d.safetensors", fpr=0.1)
    victim = load(f"{MODEL}+detector('{out}')")
    held = TEST.take(torch.arange(397 - 198, 397)).images
    with victim.held(), torch.no_grad():
        share = float((victim(held).argmax(1) == 10).float().mean())
    assert 0.08 <= share <= 0.1
    again = calibrate(
        load(MODEL),
        MagNet((Blur(),)),
        {"quantiles": victim.numbers.quantiles},  # type: ignore[attr-defined]
        held,
        0.1,
    )
    assert again.threshold == victim.calibration.threshold  # type: ignore[attr-defined]
    assert conform_victim(victim.name, TEST.images[:11]) == tuple(VICTIM_LAWS)


def test_its_text_reads_back_and_its_parameters_are_checked() -> None:
    kind = MagNet((Blur(2.0), BitDepth(3)), powers=(1,), heats=(5.0,))
    assert LANGUAGE.read(str(kind)) == kind
    for text, problem in (
        ("magnet", "none is given"),
        ("magnet(3)", "'3' is none"),
        ("magnet(blur, powers=(0,))", "powers is"),
        ("magnet(blur, heats=5)", "heats is"),
        ("magnet(blur, powers=(), heats=())", "neither powers nor heats"),
    ):
        with pytest.raises(InputError, match=problem):
            LANGUAGE.read(text)
    with pytest.raises(InputError, match="without randomness"):
        MagNet((ResizePad(),))
    assert MagNet((Blur(),), heats=()).passes == 1
