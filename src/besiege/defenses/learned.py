"""Layers with a trained network inside: `Reform` (autoencoders) and `PixelDefend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.errors import DataError, InputError
from besiege.core.fields import check_fields, number
from besiege.defenses.layers import Layer, layer
from besiege.defenses.shapes import must_be_images
from besiege.models.catalogue import CATALOGUE, architecture_of
from besiege.models.classifier import Classifier
from besiege.models.pixelcnn import PixelCNN
from besiege.models.sources import load_network

_ROUNDING = 1e-3
"""Part of a level by which a bound is widened: 16/255 must reach 16 of 255 levels in float32."""


@layer("reform")
@dataclass(frozen=True)
class Reform(Layer):
    """Every image as a network reconstructs it, clipped to the box.

    The network is MagNet's reformer (Meng and Chen 2017), a denoising autoencoder, or HGD's
    denoiser (Liao et al. 2018). The layer is differentiable: attacks follow the gradient of the
    network itself. ``besiege train reformer`` trains one.

    Parameters
    ----------
    net : str
        A network from images to images of the same shape: ``zoo:NAME``, ``ARCH:FILE`` or
        ``path/to/file.py:factory``.
    """

    net: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_network", _network("reform", self.net, "images"))

    @property
    def parts(self) -> Sequence[Classifier]:
        """The network."""
        return (_held(self),)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        must_be_images(x, "reform")
        network = _held(self)
        (low, high), (least, most) = box, network.box
        scale = (most - least) / (high - low)
        shown = (x - low) * scale + least
        _must_take(network, x, "reform")
        made = network.answer(shown)
        if made.shape != x.shape:
            raise InputError(
                f"the network '{self.net}' of reform makes {list(made.shape[1:])} of images "
                f"{list(x.shape[1:])}: choose one that returns images of the same shape, such as "
                "an autoencoder"
            )
        return ((made.float() - least) / scale + low).clamp(low, high)


@layer("pixeldefend")
@dataclass(frozen=True)
class PixelDefend(Layer):
    """Every pixel value as the most probable one nearby, value after value (Song et al. 2018).

    In raster order, and channel by channel within a pixel, a value becomes the most probable of
    the network's levels within `eps` of the *original* value, given the values purified before it.
    A value without a level that near stays. The surrogate is the identity (BPDA).

    Parameters
    ----------
    net : str
        A PixelCNN: ``zoo:NAME``, or ``pixelcnn(...):FILE`` with the arguments of its training.
        ``besiege train pixelcnn`` trains one.
    eps : float
        Largest change of a value, as a share of the box: 16/255 for CIFAR-10 in the paper, 0.3 for
        MNIST.
    """

    net: str
    eps: float = number(16 / 255, most=1)

    def __post_init__(self) -> None:
        check_fields(self)
        network = _network("pixeldefend", self.net, "levels")
        if not isinstance(network.module, PixelCNN):
            raise InputError(
                f"the network '{self.net}' of pixeldefend is a {type(network.module).__name__}: "
                "give a PixelCNN, such as 'pixelcnn:weights.safetensors'"
            )
        if network.mean is not None:
            raise InputError(
                f"the PixelCNN '{self.net}' has a normalisation, but its levels are those of the "
                "images themselves: leave out mean and std"
            )
        object.__setattr__(self, "_network", network)

    @property
    def parts(self) -> Sequence[Classifier]:
        """The network."""
        return (_held(self),)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        must_be_images(x, "pixeldefend")
        network = _held(self)
        _must_take(network, x, "pixeldefend")
        module = network.module
        assert isinstance(module, PixelCNN)
        low, width = box[0], box[1] - box[0]
        share = (x.detach() - low) / width
        levels = purified(module, share, self.eps)
        made = torch.where(levels < 0, x.detach(), low + levels / (module.levels - 1) * width)
        return made.clamp(*box)

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        return x


def purified(network: PixelCNN, x: Tensor, eps: float) -> Tensor:
    """The levels that greedy purification chooses; -1 where none is near enough.

    Parameters
    ----------
    network : PixelCNN
        Predicts the levels.
    x : Tensor
        Images ``[rows, channels, height, width]`` from 0 to 1.
    eps : float
        Largest change of a value.
    """
    top = network.levels - 1
    own = x * top
    reach = eps * top + _ROUNDING
    least, most = (own - reach).ceil(), (own + reach).floor()
    numbers = torch.arange(network.levels, device=x.device)
    made = torch.full_like(x, -1.0)

    def choose(logits: Tensor, channel: int, i: int, j: int) -> Tensor:
        first, last = (bound[:, channel, i, j, None] for bound in (least, most))
        far = (numbers < first) | (numbers > last)
        best = logits.masked_fill(far, -torch.inf).argmax(1).to(x)
        stays = far.all(1)
        made[:, channel, i, j] = best.masked_fill(stays, -1.0)
        return torch.where(stays, x[:, channel, i, j], best / top)

    height, width = x.shape[2:]
    network.visit(len(x), height, width, choose)
    return made


def _network(name: str, text: str, makes: str) -> Classifier:
    """The network of a layer, checked as far as that needs no image."""
    if not isinstance(text, str):
        raise InputError(
            f"the network of {name} is a {type(text).__name__}, but it is a text, such as "
            f"{name}('ARCH:weights.safetensors'): write weights to a file first"
        )
    fitting = [arch for arch, known in CATALOGUE.items() if known.makes == makes]
    known = CATALOGUE.get(architecture_of(text) or "")
    if known is not None and known.makes != makes:
        raise InputError(
            f"the network '{text}' of {name} makes {known.makes}, and {name} needs {makes}: give "
            f"one of the architecture {' or '.join(fitting)}"
        )
    try:
        network = load_network(text)
    except DataError as problem:
        raise DataError(
            f"the network '{text}' of {name} cannot be loaded: {problem}; the card beside the "
            "weights has the text of its source, with all arguments of the architecture"
        ) from problem
    network.module.requires_grad_(False)
    return network


def _held(layer: Reform | PixelDefend) -> Classifier:
    network = vars(layer)["_network"]
    assert isinstance(network, Classifier)
    return network


def _must_take(network: Classifier, x: Tensor, name: str) -> None:
    """Refuse images of other channels than the network takes."""
    parts = network.module.modules()
    first = next((part for part in parts if isinstance(part, torch.nn.Conv2d)), None)
    takes = x.shape[1] if first is None else first.in_channels
    if takes != x.shape[1]:
        raise InputError(
            f"the network '{network.name}' of {name} takes images of {takes} channels, and these "
            f"have {x.shape[1]}: train one for them, such as in_channels={x.shape[1]}"
        )
