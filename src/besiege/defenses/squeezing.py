"""`Squeezing`: an image is suspicious if squeezing it changes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from besiege.core.cells import are_aligned
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.victim import Victim
from besiege.defenses.bits import BitDepth
from besiege.defenses.detecting import Detector, Examined, Numbers, detector
from besiege.defenses.filters import Median
from besiege.defenses.layers import Layer, straight
from besiege.defenses.nlm import NonLocalMeans


@detector("squeezing")
@dataclass(frozen=True)
class Squeezing(Detector):
    """Feature squeezing: how far the probabilities of a squeezed image are from the image's own.

    The score is ``max_s || softmax(z(x)) - softmax(z(s(x))) ||_1`` over all squeezers s, from 0 to
    2. Squeezers are layers, whose surrogates an attack differentiates.

    Parameters
    ----------
    squeezers : tuple of Layer
        None are replaced by the paper's: ``bits(depth=1), median(2)`` for grey images, and
        ``bits(depth=5), median(2), nlm(13, 3, 2)`` for colour.

    References
    ----------
    Xu, Evans and Qi, Feature squeezing: detecting adversarial examples in deep neural networks,
    2018.
    """

    squeezers: tuple[Layer, ...] = field(default=(), metadata={"each": True})

    def __post_init__(self) -> None:
        given: tuple[object, ...] = self.squeezers
        wrong = [one for one in given if not isinstance(one, Layer)]
        if wrong:
            raise InputError(
                f"a squeezer is a {type(wrong[0]).__name__}: write layers, such as "
                "squeezing(bits(depth=5), median(2))"
            )
        drawing = [one for one in self.squeezers if one.stochastic]
        if drawing:
            raise InputError(
                f"the squeezer '{drawing[0]}' is stochastic, so that no threshold would hold: give "
                "layers without randomness"
            )

    def suited(self, shape: Sequence[int]) -> Squeezing:
        if self.squeezers:
            return self
        if shape[0] == 1:
            return replace(self, squeezers=(BitDepth(1), Median(2)))
        return replace(self, squeezers=(BitDepth(5), Median(2), NonLocalMeans(13, 3, 2.0)))

    def must_fit(self, victim: Victim) -> None:
        if not self.squeezers:
            raise InputError(
                "squeezing has no squeezers: give layers, or take those of the paper for images of "
                "a shape, Squeezing().suited((3, 32, 32))"
            )

    @property
    def layers(self) -> Sequence[Layer]:
        """The squeezers."""
        return self.squeezers

    @property
    def passes(self) -> int:
        """The image itself, and squeezed by each squeezer."""
        return 1 + len(self.squeezers)

    def examine(self, victim: Victim, x: Tensor, dice: Dice, numbers: Numbers) -> Examined:
        logits = victim(x, dice)
        seen = [
            victim(squeezer(x, victim.box, dice.of("squeezer", place)), dice)
            for place, squeezer in enumerate(self.squeezers)
        ]
        own = logits.softmax(1)
        score = torch.stack([(own - one.softmax(1)).abs().sum(1) for one in seen]).amax(0)
        if score.requires_grad and are_aligned():
            # With the share m that two distributions have in common, the distance is 2 (1 - m),
            # which is flat where m is near zero; -2 log(m) is not. All must agree: their sum.
            sure = logits.log_softmax(1)
            common = [torch.minimum(sure, one.log_softmax(1)).logsumexp(1) for one in seen]
            score = straight(-2 * torch.stack(common).sum(0), score.detach())
        return Examined(logits, score)
