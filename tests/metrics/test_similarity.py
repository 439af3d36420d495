"""Similarity of images against plain loops, which an independent reader can check by eye."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from besiege.core.errors import InputError
from besiege.metrics import similarity
from besiege.metrics.similarity import distance, psd, ssim

Array = NDArray[np.float64]
SHAPES = [(4, 3, 12, 9), (3, 1, 8, 8), (2, 3, 32, 32)]


def pairs(shape: tuple[int, ...], seed: int = 0) -> tuple[Array, Array]:
    """Smooth clean images with a flat corner, and noisy ones with unchanged pixels."""
    generator = np.random.default_rng(seed)
    clean = generator.random(shape).cumsum(2).cumsum(3)
    clean /= clean.max()
    clean[:, :, :3, :3] = 0.25
    noise = generator.normal(0, 0.05, shape) * (generator.random(shape) < 0.7)
    return clean, np.clip(clean + noise, 0, 1)


def ssim_by_loops(x: Array, y: Array, data_range: float, side: int = 7) -> float:
    """SSIM of one pair, window by window with numpy's own variances and covariances."""
    values = []
    for channel in range(x.shape[0]):
        for i in range(x.shape[1] - side + 1):
            for j in range(x.shape[2] - side + 1):
                a = 255 * x[channel, i : i + side, j : j + side].ravel()
                b = 255 * y[channel, i : i + side, j : j + side].ravel()
                c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
                both = np.cov(a, b, ddof=1)
                upper = (2 * a.mean() * b.mean() + c1) * (2 * both[0, 1] + c2)
                lower = (a.mean() ** 2 + b.mean() ** 2 + c1) * (both[0, 0] + both[1, 1] + c2)
                values.append(upper / lower)
    return float(np.mean(values))


def psd_by_loops(x: Array, y: Array, form: str) -> float:
    """PSD of one pair, value by value."""
    total = 0.0
    for channel in range(x.shape[0]):
        wide = np.pad(x[channel], 1, mode="reflect")
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                spread = float(np.std(wide[i : i + 3, j : j + 3]))
                weight = 1 - spread if form == "code" else 1 / max(spread, 1 / 255)
                total += weight * abs(y[channel, i, j] - x[channel, i, j])
    return total


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("data_range", [255.0, 2.0])
def test_ssim_is_that_of_loops_over_windows(shape: tuple[int, ...], data_range: float) -> None:
    clean, adversarial = pairs(shape)
    found = ssim(clean, adversarial, data_range)
    wanted = [ssim_by_loops(x, y, data_range) for x, y in zip(clean, adversarial, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-6)
    other = ssim(clean, adversarial, 257 - data_range)
    assert np.abs(found - other).min() > 1e-4, "the range matters"


def test_ssim_in_other_windows() -> None:
    clean, adversarial = pairs(SHAPES[0])
    for side in (3, 5, 9):
        wanted = [ssim_by_loops(x, y, 255, side) for x, y in zip(clean, adversarial, strict=True)]
        assert ssim(clean, adversarial, window=side) == pytest.approx(wanted, abs=1e-6)


def test_ssim_is_that_of_scikit_image() -> None:
    """Values of `skimage.metrics.structural_similarity` 0.26.0 on the pairs of 32x32 pixels."""
    clean, adversarial = pairs(SHAPES[2])
    assert ssim(clean, adversarial) == pytest.approx(SCIKIT[255], abs=1e-6)
    assert ssim(clean, adversarial, 2.0) == pytest.approx(SCIKIT[2], abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("form", ["code", "paper"])
def test_psd_is_that_of_a_double_loop(shape: tuple[int, ...], form: Any) -> None:
    clean, adversarial = pairs(shape)
    wanted = [psd_by_loops(x, y, form) for x, y in zip(clean, adversarial, strict=True)]
    assert psd(clean, adversarial, form) == pytest.approx(wanted, rel=1e-6)


def test_the_two_forms_of_psd_differ_most_where_images_are_flat() -> None:
    clean = np.full((1, 1, 5, 5), 0.5)
    moved = clean + 0.1
    assert psd(clean, moved)[0] == pytest.approx(2.5)
    assert psd(clean, moved, "paper")[0] == pytest.approx(2.5 * 255)


@pytest.mark.parametrize("norm", similarity.NORMS)
def test_both_forms_of_the_distance(norm: str) -> None:
    clean, adversarial = pairs(SHAPES[0])
    orders = {"l0": 0, "l2": 2, "linf": np.inf}
    sizes, whole = (
        np.array([np.linalg.norm(one.ravel(), orders[norm]) for one in each])
        for each in (adversarial - clean, clean)
    )
    assert distance(clean, adversarial, norm, "relative") == pytest.approx(sizes / whole)
    if norm == "l0":
        sizes = np.array(
            [
                (np.round(255 * x) != np.round(255 * y)).mean()
                for x, y in zip(clean, adversarial, strict=True)
            ]
        )
    assert distance(clean, adversarial, norm) == pytest.approx(sizes, rel=1e-6)


def test_values_that_round_to_the_same_level_did_not_change() -> None:
    clean = np.full((1, 1, 2, 2), 100 / 255)
    moved = clean + np.array([[[[0.4, 0.6], [-0.4, 0.0]]]]) / 255
    assert distance(clean, moved, "l0")[0] == 0.25
    assert distance(clean, moved, "l0", "relative")[0] == 0.75


def test_a_black_image_has_no_relative_distance() -> None:
    black = np.zeros((2, 1, 4, 4))
    black[1] = 0.5
    found = distance(black, black + 0.1, "l2", "relative")
    assert np.isnan(found[0]) and found[1] == pytest.approx(0.2)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clean, adversarial = pairs((7, 3, 10, 10))
    ways: list[Callable[..., Array]] = [ssim, psd, partial(distance, norm="l2")]
    whole = [way(clean, adversarial) for way in ways]
    monkeypatch.setattr(similarity, "_BLOCK", 2 * 300)
    for way, found in zip(ways, whole, strict=True):
        assert np.array_equal(way(clean, adversarial), found)
        alone = [way(clean[i : i + 1], adversarial[i : i + 1])[0] for i in range(7)]
        assert np.array_equal(np.array(alone), found)
        assert len(way(clean[:0], adversarial[:0])) == 0


def wrong(way: Callable[..., Array], *values: Any) -> Array:
    """Calls a function with the images, which come last here, and wrong words."""
    *words, images = values
    return way(images, images, *words)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda x: ssim(x[:, :, :6], x[:, :, :6]), "window=5 would do"),
        (lambda x: ssim(x[:, :, :2], x[:, :, :2]), "use the distances"),
        (lambda x: ssim(x, x, window=4), "odd window"),
        (lambda x: ssim(x, x, 0.0), "range above 0"),
        (lambda x: psd(x[:, :, :1], x[:, :, :1]), "two pixels"),
        (partial(wrong, psd, "both"), "choose 'code' or 'paper'"),
        (lambda x: distance(x, x[:1], "l2"), "no pairs"),
        (lambda x: distance(x, x, "l3"), "choose one of l0, l2, linf"),
        (partial(wrong, distance, "l2", "root"), "choose 'plain' or 'relative'"),
    ],
)
def test_bad_input_is_refused_with_what_would_do(ask: Any, words: str) -> None:
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        ask(np.zeros((3, 1, 8, 8)))


SCIKIT = {
    255: [0.7431850438874266, 0.7447461897050135],
    2: [0.6930593673522881, 0.6944234971267685],
}
