"""Layers that transform images at random: resizing and padding, noise in a cube, mixed colours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.fields import check_fields, number, whole_number, yes_or_no
from besiege.core.resizing import random_resize_pad
from besiege.defenses.layers import Layer, layer

PIXELS = 100
"""Random pixels among which RandMix chooses its centres."""
SHARP = 10.0
"""How much RandMix prefers distant centres, and how sharply it assigns pixels to them."""
_MOST = 200.0
"""Largest exponent of these preferences, as in RealSafe's code."""


@layer("resize_pad")
@dataclass(frozen=True)
class ResizePad(Layer):
    """Random resizing and padding, drawn for every image (Xie et al. 2018).

    The height is uniform over the whole numbers from `least` of it up to that of the result, the
    place uniform over those that fit, so that "nothing happens" is one of the outcomes. RealSafe
    shrinks to 0.875 and more, and pads to the size of the image; Xie et al. enlarge 299 pixels and
    pad to 331, ``resize_pad(least=1, to=331)``; DEEPSEC 32 to 36, ``resize_pad(least=1, to=36,
    fill=0.5)``.

    Parameters
    ----------
    least : float
        The smallest height, as a share of the image's.
    to : int, optional
        Height and width of the result; those of the image by default.
    fill : float
        Pixel value of the padding, as a share of the box.
    """

    least: float = number(0.875, above=0, most=1)
    to: int | None = whole_number(None)
    fill: float = number(0.0, most=1)
    stochastic = True

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        height, width = x.shape[2:]
        if self.to is not None and self.to < max(height, width):
            raise InputError(
                f"images of {height}x{width} do not fit into {self.to}x{self.to}: write to="
                f"{max(height, width)} or more"
            )
        border = box[0] + self.fill * (box[1] - box[0])
        moved = x - border if border else x
        made = random_resize_pad(moved, dice, self.least, to=self.to)
        return made + border if border else made


@layer("jitter")
@dataclass(frozen=True)
class Jitter(Layer):
    """A uniform point of the cube around each image, clamped to the box (Cao and Gong 2017).

    Region-based classification votes over such points: ``jitter(0.02)+pooled(1000, of='votes')``.

    Parameters
    ----------
    radius : float
        Half the width of the cube, as a share of the box: 0.3 for MNIST and 0.02 for CIFAR-10.
    """

    radius: float = number(0.02, above=0)
    stochastic = True

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        drawn = dice.of("jitter").uniform(tuple(x.shape[1:])).mul_(2.0).sub_(1.0).to(x)
        return (x + drawn * (self.radius * (box[1] - box[0]))).clamp(*box)

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        # Clamping has no gradient beyond the box, where other draws would have one.
        return x


@layer("randmix")
@dataclass(frozen=True)
class RandMix(Layer):
    """Colours replaced by mixtures of a few random ones (Zhang and Liang 2019).

    Every draw makes two noisy copies of an image. Some pixels of the first become centres, the
    first uniformly, each further one preferably far from those before. A pixel of the second copy
    becomes the mean of the centres, weighted by ``softmax(-10 squared distance)`` on the scale
    from -1 to 1; with `hard` (RandDisc) the nearest centre. RealSafe averages the logits of ten
    draws: ``randmix+pooled(10)``.

    Parameters
    ----------
    centres : int
        Colours of the result.
    sigma : float
        Standard deviation of the noise, as a share of the box. The two copies have noise of their
        own, on which the certificate rests.
    hard : bool
        Whether each pixel takes the nearest centre. Attacks then follow the soft mixture.
    apart : bool
        Whether centres are preferably far from each other; False draws all uniformly, as
        RealSafe's code does.
    """

    centres: int = whole_number(5)
    sigma: float = number(16 / 255)
    hard: bool = yes_or_no(False)
    apart: bool = yes_or_no(True)
    stochastic = True

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def has_surrogate(self) -> bool:
        return self.hard

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return self._mixed(x, box, dice, self.hard)

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        return self._mixed(x, box, dice, hard=False) if self.hard else None

    def _mixed(self, x: Tensor, box: tuple[float, float], dice: Dice, hard: bool) -> Tensor:
        low, width = box[0], box[1] - box[0]
        scaled = (x - low) * (2 / width) - 1
        shape = tuple(x.shape[1:])
        first, second = (
            scaled + 2 * self.sigma * dice.of("copy", copy).normal(shape).to(x) for copy in (1, 2)
        )
        chosen = self._chosen(first.flatten(2), dice)
        pixels = second.flatten(2).transpose(1, 2)
        # Squares of differences: a product form would cancel, and round by the batch.
        far = (pixels[:, :, None] - chosen[:, None]).square().sum(3)
        if hard:
            nearest = far.argmin(2)[:, :, None].expand(-1, -1, chosen.shape[2])
            mixed = chosen.gather(1, nearest)
        else:
            shares = (-SHARP * far).clamp(-_MOST, _MOST).softmax(2)
            mixed = (shares[:, :, :, None] * chosen[:, None]).sum(2)
        made = (mixed.transpose(1, 2).reshape(x.shape) + 1) * (width / 2) + low
        return made.clamp(*box)

    def _chosen(self, pixels: Tensor, dice: Dice) -> Tensor:
        """The centres ``[rows, centres, channels]``, of pixels ``[rows, channels, places]``."""
        places = dice.of("places").integers(pixels.shape[2], (PIXELS,))
        some = pixels.gather(2, places[:, None].expand(-1, pixels.shape[1], -1)).transpose(1, 2)
        # The largest of log weights plus Gumbel noise is a draw by these weights.
        drawn = dice.of("centres").uniform((self.centres, PIXELS)).clamp_min(2.0**-25)
        noise = -torch.log(-torch.log(drawn))
        weights = torch.zeros_like(noise[:, 0])
        made: list[Tensor] = []
        for number_ in range(self.centres):
            pick = (weights + noise[:, number_]).argmax(1)
            made.append(some.gather(1, pick[:, None, None].expand(-1, 1, some.shape[2])))
            if self.apart:
                near = torch.stack([(some - one).square().sum(2) for one in made]).amin(0)
                weights = (SHARP * near.detach()).clamp_max(_MOST).to(noise)
        return torch.cat(made, 1)
