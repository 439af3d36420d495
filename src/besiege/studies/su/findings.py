"""The claims S1 to S9, with what is declared for them: margins here, pairs and families in tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.metrics.paired import LEVEL
from besiege.studies.answers import Measured
from besiege.studies.study import Claim
from besiege.studies.su import answers as su
from besiege.studies.su.reading import (
    CW,
    EAD,
    FGSM,
    IFGSM,
    LINF,
    PAIR,
    RANDOM,
    STRIPES,
    UNTARGETED,
    Setting,
    crossed_of,
    depth_pairs,
    families,
    published_errors,
    setting,
    sizes_of,
    sizes_under,
    tagged,
)

POINT = 0.01
"""A point, from which on an order counts as reversed."""
CONFIDENT = 40.0
"""The confidence of S9."""
_OUTSIDE = "Images at eps 0.3 are far outside of what one would overlook."


def _s1(board: Board, *, level: float = LEVEL) -> Measured:
    return su.slope(sizes_of(board, LINF, RANDOM), level=level)


def _s1_published(board: Board, *, level: float = LEVEL) -> Measured:
    found = sizes_of(board, LINF, RANDOM)
    return su.slope(found, published_errors(board, found.models), level=level)


def _s2(board: Board, *, level: float = LEVEL) -> Measured:
    found = sizes_of(board, LINF, RANDOM)
    return su.families_apart(found, families(board, found.models), level=level)


def _s3(board: Board, *, level: float = LEVEL) -> Measured:
    found = sizes_of(board, LINF, RANDOM)
    return su.deeper(found, depth_pairs(board, found.models), level=level)


def _s4(board: Board, *, level: float = LEVEL) -> Measured:
    sources = [name for name, value in tagged(board, STRIPES).items() if value == "yes"]
    if not sources:
        raise UnknownNameError(f"no model has the tag '{STRIPES}'")
    every = [setting(board, attack, UNTARGETED) for attack in (FGSM, IFGSM, CW, EAD)]
    return su.stripes([crossed_of(board, one) for one in every], sources, level=level)


def _s5(board: Board, *, level: float = LEVEL) -> Measured:
    found = crossed_of(board, setting(board, IFGSM, UNTARGETED))
    return su.within_families(found, families(board, found.models), level=level)


def _ordered(
    wanted: Callable[[Board], Sequence[Setting]], called: Callable[[Setting], str]
) -> Callable[..., Measured]:
    """The measure that transfer falls, or stays, along settings."""

    def measure(board: Board, *, level: float = LEVEL) -> Measured:
        found = wanted(board)
        matrices = [crossed_of(board, one) for one in found]
        return su.in_order(matrices, [called(one) for one in found], level=level)

    return measure


def _s7(board: Board, *, level: float = LEVEL) -> Measured:
    both = [crossed_of(board, setting(board, IFGSM, goal)) for goal in (UNTARGETED, RANDOM)]
    return su.untargeted_above(*both, level=level)


def _s8(board: Board, *, level: float = LEVEL) -> Measured:
    ends = {value: name for name, value in tagged(board, PAIR).items()}
    if lacking := [end for end in ("from", "to") if end not in ends]:
        there = "".join(f"; '{name}' is '{end}'" for end, name in ends.items())
        wanted = "' or '".join(lacking)
        raise UnknownNameError(f"no model of this run has the tag {PAIR} = '{wanted}'{there}")
    found = crossed_of(board, setting(board, IFGSM, UNTARGETED))
    return su.asymmetry(found, ends["from"], ends["to"], level=level)


def _s9(board: Board, *, level: float = LEVEL) -> Measured:
    confident = sizes_under(board, setting(board, CW, RANDOM, kappa=CONFIDENT))
    plain = sizes_under(board, setting(board, CW, RANDOM))
    return su.no_measure(confident, plain, level=level)


_ORDERS = (
    Claim(
        "S6",
        "FGSM transfers at least as well as I-FGSM, that as EAD-L1, and that as C&W.",
        _ordered(
            lambda b: [setting(b, one, UNTARGETED) for one in (FGSM, IFGSM, EAD, CW)],
            lambda one: one.attack,
        ),
        smallest=0.0,
        denied=-POINT,
        paper="yes, at eps 0.3 and kappa 0",
        caveat=_OUTSIDE,
    ),
    Claim(
        "S6 eps",
        "I-FGSM transfers better at a larger eps.",
        _ordered(
            lambda b: [setting(b, IFGSM, UNTARGETED, eps=eps) for eps in (0.3, 0.2, 0.1)],
            lambda one: f"eps {one.eps:g}",
        ),
        paper="yes",
        caveat=_OUTSIDE,
    ),
    Claim(
        "S6 steps",
        "I-FGSM transfers at least as well with fewer steps.",
        _ordered(
            lambda b: [setting(b, IFGSM, UNTARGETED, steps=steps) for steps in (10, 30, 50)],
            lambda one: f"{one.steps} steps",
        ),
        smallest=0.0,
        denied=-POINT,
        paper="yes",
        caveat=_OUTSIDE,
    ),
    *(
        Claim(
            f"S6 {attack}",
            f"{attack} transfers at least as well at a larger kappa.",
            _ordered(
                lambda b, attack=attack: [  # type: ignore[misc]
                    setting(b, attack, UNTARGETED, kappa=kappa) for kappa in (40, 20, 0)
                ],
                lambda one: f"kappa {one.kappa:g}",
            ),
            smallest=0.0,
            denied=-POINT,
            paper="slightly better",
        )
        for attack in (CW, EAD)
    ),
)

CLAIMS = (
    Claim(
        "S1",
        "Robustness falls as accuracy rises: the median linf distortion of I-FGSM towards random "
        "targets rises with ln(error), by a share of the models' mean.",
        _s1,
        smallest=0.05,
        paper="2.9e-2 for each unit of ln(error), fitted to six models",
    ),
    Claim(
        "S1 published",
        "The same with the models' published accuracies.",
        _s1_published,
        smallest=0.05,
        paper="2.9e-2 for each unit of ln(error), fitted to six models",
        data=("imagenet-sample",),
    ),
    Claim(
        "S2",
        "Family matters more than size: more of the variance of distortions lies between families "
        "than chance puts there.",
        _s2,
        smallest=0.05,
        paper="yes, said without a test",
    ),
    Claim(
        "S3",
        "Within a family the deeper model needs the larger linf distortion on more images.",
        _s3,
        smallest=0.02,
        paper="slightly, for ResNet, Inception and DenseNet",
    ),
    Claim(
        "S4",
        "Images of the VGG networks transfer best, under every attack: the highest row means.",
        _s4,
        paper="yes, 'stripes' of VGG-16 and VGG-19",
    ),
    Claim(
        "S5",
        "Images of I-FGSM transfer better within families than between them.",
        _s5,
        smallest=0.05,
        paper="nearly 100 % within DenseNet, ResNet and VGG, much less across",
        caveat=_OUTSIDE,
    ),
    *_ORDERS,
    Claim(
        "S7",
        "Untargeted images of I-FGSM transfer far more often than targeted ones.",
        _s7,
        smallest=0.05,
        paper="yes",
        caveat=_OUTSIDE,
    ),
    Claim(
        "S8",
        "Transfer is no symmetric relation: the declared pair transfers better one way.",
        _s8,
        smallest=0.05,
        paper="VGG-16 to Inception-v2 high, the reverse low",
        caveat=_OUTSIDE,
    ),
    Claim(
        "S9",
        "Failures at kappa 40 are no measure of robustness: their rank correlation with the "
        "distortion is below 0.8.",
        _s9,
        smallest=0.05,
        paper="MobileNet-0.50 is hardly broken at kappa 40, and yet the weakest",
    ),
)
