"""Feature squeezing: the score by its definition, the paper's squeezers, and attacks through it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.victim import Victim
from besiege.defenses import (
    BitDepth,
    Calibration,
    Detected,
    Median,
    NonLocalMeans,
    ResizePad,
    Squeezing,
    load,
)
from besiege.defenses.calibrating import threshold_at
from besiege.defenses.detecting import LANGUAGE
from besiege.models import Classifier

MODEL = "zoo:digits-natural"
TEST = besiege.data.load("digits", "test")


def by_hand(victim: Victim, squeezing: Squeezing, x: Tensor) -> Tensor:
    """The l1 distance of probabilities for every squeezer, ``[squeezers, rows]``."""
    dice = Dice.throw(0, torch.arange(len(x)))
    own = victim(x).softmax(1)
    shown = [one.transform(x, (0.0, 1.0), dice) for one in squeezing.squeezers]
    return torch.stack([(own - victim(image).softmax(1)).abs().sum(1) for image in shown])


def test_the_score_is_the_largest_l1_distance_of_probabilities() -> None:
    inner, kind = load(MODEL), Squeezing((BitDepth(1), Median(2), BitDepth(2)))
    with inner.held(), torch.no_grad():
        x = TEST.images[:60]
        score = Detected(inner, kind, Calibration(0.5)).score(x)
        each = by_hand(inner, kind, x)
    assert torch.allclose(score, each.amax(0), atol=1e-6)
    # Neither the mean over squeezers, nor distances of logits, nor another norm.
    assert not torch.allclose(score, each.mean(0), atol=1e-2)
    assert bool((score <= 2 + 1e-5).all()) and bool((score > 1.5).any())


def test_the_paper_has_other_squeezers_for_grey_and_colour() -> None:
    assert Squeezing().suited((1, 28, 28)).squeezers == (BitDepth(1), Median(2))
    colour = Squeezing().suited((3, 32, 32)).squeezers
    assert colour == (BitDepth(5), Median(2), NonLocalMeans(13, 3, 2.0))
    own = Squeezing((BitDepth(3),))
    assert own.suited((3, 32, 32)) is own


def test_its_text_reads_back() -> None:
    kind = Squeezing((BitDepth(5), Median(3), NonLocalMeans(11, 3, 4.0)))
    assert LANGUAGE.read(str(kind)) == kind
    assert LANGUAGE.read("squeezing(bits(depth=5), median(3), nlm(11, 3, 4))") == kind
    assert LANGUAGE.read("squeezing") == Squeezing()


def test_what_is_no_squeezer_is_refused() -> None:
    with pytest.raises(InputError, match="a squeezer is a int"):
        LANGUAGE.read("squeezing(3)")
    with pytest.raises(InputError, match="stochastic"):
        Squeezing((ResizePad(),))


def test_attacks_see_through_squeezers_by_their_surrogates() -> None:
    """An accepted error is found where an attack that ignores the detector is rejected."""
    inner, kind = load(MODEL), Squeezing((BitDepth(2), Median(2)))
    with torch.no_grad():
        clean = Detected(inner, kind, Calibration(0.5)).score(TEST.images[200:])
    victim = Detected(inner, kind, Calibration(threshold_at(clean, 0.1), 0.3, 10.0))
    x, y = TEST.images[:40], TEST.labels[:40]

    def accepted_errors(images: Tensor) -> int:
        with victim.held(), torch.no_grad():
            answer = victim(images).argmax(1)
        return int(((answer != y) & (answer < 10)).sum())

    oblivious = besiege.attack("pgd", inner, x, y, threat="linf:0.1", keep="last")
    adaptive = besiege.attack("pgd(loss=margin, steps=60)", victim, x, y, threat="linf:0.1")
    assert accepted_errors(adaptive.images) > accepted_errors(oblivious.images)


def test_confident_errors_have_small_scores() -> None:
    """DEEPSEC's AUC below one half: probabilities saturate before and after squeezing."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[100.0] * 4, [-100.0] * 4]))  # type: ignore[operator]
    victim = Detected(Classifier(net, box=(-1, 1)), Squeezing((BitDepth(4),)), Calibration(0.5))
    sure, unsure = torch.full((1, 1, 2, 2), 0.9), torch.full((1, 1, 2, 2), 0.002)
    with torch.no_grad():
        assert float(victim.score(sure)) < 1e-6 < float(victim.score(unsure))
