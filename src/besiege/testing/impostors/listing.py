"""The list of impostors."""

from __future__ import annotations

from functools import cache, partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from besiege.data import load as load_data
from besiege.testing.impostors import (
    batches,
    ensembles,
    gradients,
    grids,
    memory,
    noise,
    scales,
    steps,
    surfaces,
)
from besiege.testing.impostors.impostor import Impostor, Wrap
from besiege.testing.impostors.parts import CLASSES

FOG = 0.12
"""Of 99 in 100 clean images, `ensembles.fog` is below this."""


@cache
def _class_means() -> Tensor:
    train = load_data("digits", split="train")
    return torch.stack([train.images[train.labels == one].mean(0) for one in range(CLASSES)])


def _detector(net: nn.Module, *, soft: bool = False) -> nn.Module:
    return ensembles.Detector(net, FOG, _class_means(), soft=soft)


def _hesitant(net: nn.Module, *, soft: bool = False) -> nn.Module:
    return ensembles.Hesitant(net, _class_means(), soft=soft)


def _family(family: str, rows: dict[str, tuple[str, Wrap]]) -> list[Impostor]:
    return [Impostor(name, family, about, wrap) for name, (about, wrap) in rows.items()]


def _through(
    family: str, rows: dict[str, tuple[str, Wrap, Wrap]], *, stochastic: bool = False
) -> list[Impostor]:
    """Impostors with a surrogate."""
    return [
        Impostor(name, family, about, wrap, (soft,), stochastic)
        for name, (about, wrap, soft) in rows.items()
    ]


_NOISE: Wrap = noise.NoiseMean
_ALL = [
    *_family(
        "gradients",
        {
            "negated-gradient": ("gradients with the opposite sign", gradients.Negated),
            "junk-gradient": ("the same random gradient for every image", gradients.Junk),
            "shuffled-gradient": ("gradients with their pixels shuffled", gradients.Shuffled),
            "half-gradient": ("only the weaker half of each gradient", gradients.WeakHalf),
            "reversed-quarter": (
                "the strongest quarter of each gradient with the opposite sign",
                gradients.StrongReversed,
            ),
            "borrowed-gradient": ("gradients of an untrained network", gradients.Borrowed),
        },
    ),
    *_through(
        "steps",
        {
            "rounding": ("pixels rounded to 11 values", steps.Rounding, steps.RoundingThrough),
            "rounding-leak": (
                "pixels rounded to 11 values, with a slope of -1/20 left in",
                partial(steps.Rounding, leak=-0.05),
                steps.RoundingThrough,
            ),
            "staircase": (
                "pixels on a smooth staircase of flat treads",
                steps.Staircase,
                partial(steps.Staircase, through=True),
            ),
        },
    ),
    *_family(
        "steps",
        {
            "sign": ("logits replaced by sums of signs of their differences", steps.Sign),
            "logit-stairs": ("logits rounded to multiples of 8", steps.LogitStairs),
            "shattering": ("a steep wave of height 0.01 on every pixel", steps.Waves),
            "logit-shattering": ("a steep wave of height 0.5 on every logit", steps.LogitWaves),
            "bonus": ("a steep wave on the winning logit, which changes no label", steps.Bonus),
        },
    ),
    *_family(
        "scales",
        {
            "large-scale": (
                "logits multiplied by 10,000: cross-entropy saturates",
                partial(scales.Scaled, scale=1e4),
            ),
            "tiny-scale": (
                "logits multiplied by 1e-43: gradients underflow",
                partial(scales.Scaled, scale=1e-43),
            ),
            "saturated-softmax": (
                "probabilities that float32 rounds to 0 and 1, as logits",
                scales.Softmaxed,
            ),
            "saturated-tanh": ("differences of logits squashed to -1", scales.Squashed),
            "steep-offset": (
                "a large and steep offset of all logits, which cancels only in exact arithmetic",
                scales.SteepOffset,
            ),
            "coarse-offset": (
                "an offset of 1e8, which leaves float32 multiples of 8",
                scales.CoarseOffset,
            ),
        },
    ),
    *_family(
        "surfaces",
        {
            "bumps": ("a hill around each test image hides the slope", surfaces.Bumps),
            "ripples": ("rings of high logits around each test image", surfaces.Ripples),
            "memorising": ("stored answers near each test image", surfaces.Memorising),
            "memorising-slope": (
                "stored answers near each test image, with a slope that misleads",
                partial(surfaces.Memorising, slope=-0.2),
            ),
        },
    ),
    *_family(
        "memory",
        {
            "memory": ("near-duplicates of earlier queries receive the same answer", memory.Memory),
            "patient-memory": (
                "the third near-duplicate of a query receives the first one's answer",
                partial(memory.Memory, patience=2),
            ),
            "open-memory": ("earlier queries are remembered in a buffer", memory.OpenMemory),
            "late-change": ("perturbations are undone after 100 images", memory.Late),
            "tiring": ("every query undoes more of later perturbations", memory.Tiring),
        },
    ),
    *_family(
        "batches",
        {
            "batch-size": ("perturbations are undone in batches of 2 or more", batches.BatchSize),
            "large-batch": (
                "perturbations are undone in batches of 16 or more",
                batches.LargeBatch,
            ),
            "batch-mean": (
                "perturbations are undone where the batch's mean is that of the test images",
                batches.BatchMean,
            ),
            "batch-place": (
                "only the first image of a batch is answered honestly",
                batches.BatchPlace,
            ),
            "grad-mode": (
                "images are mirrored at test images while gradients are enabled",
                batches.GradMode,
            ),
            "grad-input": ("other answers to images that require gradients", batches.GradInput),
        },
    ),
    *_through(
        "noise",
        {
            "global-noise": (
                "noise on pixels by the global generator of torch",
                noise.GlobalNoise,
                _NOISE,
            ),
            "own-noise": ("noise on logits by a generator of its own", noise.OwnNoise, _NOISE),
            "time-noise": ("factors on pixels by the clock", noise.TimeNoise, _NOISE),
            "dropped-rows": (
                "rows of pixels dropped by Python's random generator",
                noise.Dropped,
                _NOISE,
            ),
        },
        stochastic=True,
    ),
    *_through(
        "noise",
        {
            "hashed-noise": (
                "noise on pixels that the bytes of the image decide",
                noise.HashedNoise,
                _NOISE,
            ),
        },
    ),
    *_family(
        "noise",
        {
            "hashed-slope": (
                "gradients whose signs are decided by the bytes of the image",
                noise.HashedSlope,
            ),
            "noisy-gradient": (
                "exact answers, gradients hidden by large noise",
                noise.NoisyGradient,
            ),
        },
    ),
    *_family(
        "grids",
        {
            "nan-off-grid": (
                "the winner's logit is NaN off the 8-bit grid",
                partial(grids.OffGrid, winner=grids.WINNER_NAN),
            ),
            "infinite-off-grid": (
                "the winner's logit is infinite off the 8-bit grid",
                partial(grids.OffGrid, winner=grids.WINNER_INFINITE),
            ),
            "minus-infinite-off-grid": (
                "all other logits are minus infinity off the 8-bit grid",
                partial(grids.OffGrid, others=grids.OTHERS_INFINITE),
            ),
            "zeros-off-grid": ("all other logits are zero off the 8-bit grid", grids.OffGrid),
            "snapped-off-grid": (
                "images off the 8-bit grid are rounded to 5 values",
                grids.Snapped,
            ),
            "nan-gradient": ("exact answers, gradients that are NaN", grids.NanGradient),
        },
    ),
    *_through(
        "ensembles",
        {
            "votes": (
                "votes of five members that see other roundings of the image",
                ensembles.Votes,
                ensembles.VotesMean,
            ),
            "detector": (
                "foggy images are answered by the nearest class mean",
                _detector,
                partial(_detector, soft=True),
            ),
            "hesitant": (
                "unsure images are answered by the nearest class mean",
                _hesitant,
                partial(_hesitant, soft=True),
            ),
        },
    ),
    *_family(
        "ensembles",
        {
            "opposed": (
                "a second member with steep logits that decides nothing",
                ensembles.Opposed,
            ),
        },
    ),
]
IMPOSTORS = MappingProxyType({one.name: one for one in _ALL})
"""All impostors, by name."""
