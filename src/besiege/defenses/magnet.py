"""`MagNet`: an autoencoder reconstructs adversarial images badly, and changes their answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.victim import Victim
from besiege.defenses.detecting import Detector, Examined, Material, Numbers, detector
from besiege.defenses.layers import Layer

_ROWS = 128


@detector("magnet")
@dataclass(frozen=True)
class MagNet(Detector):
    """MagNet: images far from their reconstruction are rejected, the others are reformed.

    With the reconstruction r(x) of an autoencoder there are several signals: the reconstruction
    errors ``mean |x - r(x)|^p``, and the Jensen-Shannon divergences of ``softmax(z(x) / T)`` and
    ``softmax(z(r(x)) / T)``. Each is measured by how rare it is among clean images, as
    ``-log2(1 - quantile)``. The score is the largest: the image is rejected if any signal is rare.
    What is accepted is classified as reformed by the first autoencoder.

    Parameters
    ----------
    reformers : tuple of Layer
        Layers such as ``reform('autoencoder:weights.safetensors')``; the first one reforms, and all
        of them detect.
    powers : tuple of int
        Values of p.
    heats : tuple of float
        Values of T.

    References
    ----------
    Meng and Chen, MagNet: a two-pronged defense against adversarial examples, 2017.
    """

    reformers: tuple[Layer, ...] = field(default=(), metadata={"each": True})
    powers: tuple[int, ...] = (1, 2)
    heats: tuple[float, ...] = (10, 40)

    def __post_init__(self) -> None:
        given: tuple[object, ...] = self.reformers
        wrong = [one for one in given if not isinstance(one, Layer) or one.stochastic]
        if wrong or not self.reformers:
            what = f"'{wrong[0]}' is none" if wrong else "none is given"
            raise InputError(
                f"magnet needs layers without randomness that reconstruct images, and {what}: "
                "write magnet(reform('autoencoder:weights.safetensors')); "
                "`besiege train reformer` trains one"
            )
        if not (self.powers or self.heats):
            raise InputError("magnet has neither powers nor heats: give one of them at least")
        listed: dict[str, object] = {"powers": self.powers, "heats": self.heats}
        for name, values in listed.items():
            if not isinstance(values, tuple) or not all(_is_size(value) for value in values):
                raise InputError(
                    f"{name} is {values!r}, but numbers above 0 in parentheses are needed, such as "
                    "(1, 2)"
                )

    @property
    def layers(self) -> Sequence[Layer]:
        """The autoencoders."""
        return self.reformers

    @property
    def passes(self) -> int:
        """The image itself, where divergences need it, and its reconstruction."""
        return 2 if self.heats else 1

    def fit(self, victim: Victim, material: Material) -> dict[str, Tensor]:
        """The quantiles of every signal on clean images."""
        clean = material.clean.to(victim.device)
        dice = Dice(torch.zeros(_ROWS, dtype=torch.int64, device=victim.device))
        with victim.held(), torch.no_grad():
            rows = [
                self._signals(victim, part, Dice(dice.key[: len(part)]))[1]
                for part in torch.split(clean, _ROWS)
            ]
        return {"quantiles": quantiles(torch.cat(rows)).cpu()}

    def examine(self, victim: Victim, x: Tensor, dice: Dice, numbers: Numbers) -> Examined:
        logits, signals = self._signals(victim, x, dice)
        known = dict(numbers.named_buffers())["quantiles"]
        rare = [rarity(signals[:, place], row) for place, row in enumerate(known)]
        return Examined(logits, torch.stack(rare).amax(0))

    def _signals(self, victim: Victim, x: Tensor, dice: Dice) -> tuple[Tensor, Tensor]:
        """The logits of the reformed image, and all signals ``[rows, signals]``."""
        low, high = victim.box
        made = [
            layer(x, victim.box, dice.of("reformer", place)).clamp(low, high)
            for place, layer in enumerate(self.reformers)
        ]
        signals = [error(x - one, power) for one in made for power in self.powers]
        logits = victim(made[0], dice)
        if self.heats:
            own = victim(x, dice)
            signals += [divergence(own, logits, heat) for heat in self.heats]
        return logits, torch.stack(signals, 1)


def error(change: Tensor, power: float) -> Tensor:
    """The mean of ``|change|^power`` over all pixel values, ``[rows]``.

    Examples
    --------
    >>> import torch
    >>> error(torch.tensor([[1.0, -3.0]]), 2)
    tensor([5.])
    """
    size = change.flatten(1).abs()
    return (size if power == 1 else size.square() if power == 2 else size.pow(power)).mean(1)


def divergence(first: Tensor, second: Tensor, heat: float) -> Tensor:
    """Jensen-Shannon divergence of ``softmax(z / heat)``, from 0 to ln 2, ``[rows]``.

    Examples
    --------
    >>> import torch
    >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 80.0]]), 40.0)
    tensor([0.0895])
    """
    # In float64: at high temperatures it is as small as float32's rounding.
    p, q = ((logits.double() / heat).log_softmax(1) for logits in (first, second))
    middle = torch.logaddexp(p, q) - math.log(2)
    apart = (p.exp() * (p - middle) + q.exp() * (q - middle)).sum(1) / 2
    return apart.to(first.dtype)


def quantiles(signals: Tensor) -> Tensor:
    """Clean signals at the quantiles 0, 1/2, 3/4, 7/8 and so on, ``[signals, quantiles]``.

    Parameters
    ----------
    signals : Tensor
        Signals ``[rows, signals]`` of clean images.
    """
    count = len(signals)
    if count < 4:
        raise InputError(f"magnet is fitted on {count} images, but 4 or more are needed")
    places = [
        max(math.ceil(count * (1 - 2.0**-step)) - 1, 0) for step in range(int(math.log2(count)) + 1)
    ]
    knots = signals.sort(0).values[places].T.double()
    # Equal knots are moved apart: every piece needs a slope.
    least = (1e-6 * knots.abs().amax(1, keepdim=True)).clamp_min(1e-12)
    steps = knots.diff(dim=1).maximum(least)
    return torch.cat([knots[:, :1], knots[:, :1] + steps.cumsum(1)], 1).to(signals.dtype)


def rarity(signal: Tensor, knots: Tensor) -> Tensor:
    """How rare a signal is among clean images: ``-log2(1 - quantile)``, linear between quantiles.

    Beyond the ends, the slope of the last piece goes on, so that the gradient never vanishes.

    Examples
    --------
    >>> import torch
    >>> rarity(torch.tensor([1.5, 3.0, 5.0]), torch.tensor([1.0, 2.0, 4.0]))
    tensor([0.5000, 1.5000, 2.5000])
    """
    piece = (torch.searchsorted(knots, signal.detach().contiguous()) - 1).clamp(0, len(knots) - 2)
    low, high = knots[piece], knots[piece + 1]
    return piece + (signal - low) / (high - low)


def _is_size(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
