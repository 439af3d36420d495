"""`PixelCNN`: the distribution of every pixel value, given those before it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

_FEWEST, _MULTIPLE = 16, 8
"""Images that `visit` computes at least, and the multiple it pads to: the CPU kernels of
convolutions round differently for fewer, and an image must not depend on its batch."""
Choose = Callable[[Tensor, int, int, int], Tensor]
"""From logits ``[rows, levels]``, channel, row and column to pixel values ``[rows]`` in [0, 1]."""


class Block(nn.Module):
    """One layer of both stacks: the rows above a pixel, and the pixels left of it.

    Both convolutions take inputs that are padded already, so that one pixel at a time is computed
    by the same code as a whole image.

    Parameters
    ----------
    before, width : int
        Channels of its input and of each stack.
    first : bool
        Whether the input is the image: then the pixel itself is left out (mask A of the paper).
    """

    def __init__(self, before: int, width: int, first: bool) -> None:
        super().__init__()
        self.first = first
        self.above = nn.Conv2d(before, 2 * width, (2, 3))
        self.left = nn.Conv2d(before, 2 * width, (1, 3 if first else 2))
        self.link = nn.Conv2d(2 * width, 2 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def vertical(self, around: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
        """The vertical stack from its padded input and the features below, and its link."""
        made = self.above(around)
        features = gated(made)
        return features if v is None else v + features, self.link(made)

    def horizontal(self, near: Tensor, linked: Tensor, h: Tensor | None) -> Tensor:
        """The horizontal stack from its padded input, the link and the features below."""
        features: Tensor = self.out(gated(self.left(near) + linked))
        return features if h is None else h + features


class Head(nn.Module):
    """Logits of one channel's levels, from the features of a pixel and its earlier channels."""

    def __init__(self, channel: int, width: int, levels: int) -> None:
        super().__init__()
        self.place = nn.Conv2d(width, width, 1)
        # Hinges of the earlier channels: a level depends on them far from linearly.
        self.hinges = nn.Conv2d(channel, width, 1) if channel else None
        self.colour = nn.Conv2d(width, width, 1, bias=False) if channel else None
        self.levels = nn.Conv2d(width, levels, 1)

    def forward(self, h: Tensor, earlier: Tensor) -> Tensor:
        """Features ``[rows, width, ...]`` and channels to logits ``[rows, levels, ...]``."""
        features = self.place(torch.relu(h))
        if self.hinges is not None and self.colour is not None:
            features = features + self.colour(torch.relu(self.hinges(earlier)))
        logits: Tensor = self.levels(torch.relu(features))
        return logits


class PixelCNN(nn.Module):
    """A gated PixelCNN (van den Oord et al. 2016) over the levels of pixel values.

    Pixels are in raster order, and the channels of a pixel in theirs. A vertical stack sees all
    rows above a pixel, a horizontal one the pixels left of it; a head for each channel also sees
    the earlier channels of the pixel. So no value depends on itself or on a later one, and the
    stacks are computed once for all channels of a pixel.

    Parameters
    ----------
    levels, width, blocks, in_channels : int
        As for `pixelcnn`.
    """

    def __init__(self, levels: int, width: int, blocks: int, in_channels: int) -> None:
        super().__init__()
        self.levels, self.width, self.in_channels = levels, width, in_channels
        self.blocks = nn.ModuleList(
            Block(in_channels if number == 0 else width, width, number == 0)
            for number in range(blocks)
        )
        self.heads = nn.ModuleList(Head(c, width, levels) for c in range(in_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[rows, channels, height, width]`` with values from 0 to 1 to logits.

        Logits are ``[rows, channels, levels, height, width]``; those of a value depend only on
        values before it. Values are rounded to levels first, with the gradient of the identity.
        """
        image = self._shown(x)
        v, h = None, None
        for block in self._all():
            if block.first:
                around = functional.pad(image, (1, 1, 2, 0))[:, :, :-1]
                near = functional.pad(image, (3, 0))[..., :-1]
            else:
                assert v is not None and h is not None
                around, near = functional.pad(v, (1, 1, 1, 0)), functional.pad(h, (1, 0))
            v, linked = block.vertical(around, v)
            h = block.horizontal(near, linked, h)
        heads = [head(h, image[:, :channel]) for channel, head in enumerate(self.heads)]
        return torch.stack(heads, 1)

    @torch.no_grad()
    def visit(self, rows: int, height: int, width: int, choose: Choose) -> None:
        """Choose the values of images one after the other, each by its logits given the others.

        Features that no later value changes are kept: the vertical stack is computed once for each
        row of pixels, the horizontal one once for each pixel. All of it costs little more
        arithmetic than one forward pass, where a pass for every value would cost thousands.

        Parameters
        ----------
        rows, height, width : int
            How many images, and their size.
        choose : callable
            Called for every value in order, with logits ``[rows, levels]``, channel, row and
            column; returns the values ``[rows]`` from 0 to 1.
        """
        blocks, asked = self._all(), rows
        weight = blocks[0].above.weight
        rows = max(_FEWEST, rows + -rows % _MULTIPLE)
        # The border is zero, as in a forward pass: two rows above, three columns left, one right.
        canvas = weight.new_zeros(rows, self.in_channels, height + 2, width + 4)
        rows_above = [weight.new_zeros(rows, self.width, 1, width + 2) for _ in blocks]
        for i in range(height):
            v: Tensor | None = None
            links = []
            for number, block in enumerate(blocks):
                if v is None:
                    around = canvas[:, :, i : i + 2, 2:]
                else:
                    row = functional.pad(v, (1, 1))
                    around = torch.cat([rows_above[number], row], 2)
                    rows_above[number] = row
                v, linked = block.vertical(around, v)
                links.append(linked)
            lines = [weight.new_zeros(rows, self.width, 1, width + 1) for _ in blocks]
            for j in range(width):
                h: Tensor | None = None
                for number, block in enumerate(blocks):
                    if h is None:
                        near = canvas[:, :, i + 2 : i + 3, j : j + 3]
                    else:
                        lines[number][..., j + 1 : j + 2] = h
                        near = lines[number][..., j : j + 2]
                    h = block.horizontal(near, links[number][..., j : j + 1], h)
                pixel = canvas[:, :, i + 2 : i + 3, j + 3 : j + 4]
                for channel, head in enumerate(self.heads):
                    logits = head(h, pixel[:, :channel])[:asked, :, 0, 0]
                    chosen = choose(logits, channel, i, j)
                    pixel[:asked, channel, 0, 0] = self._shown(chosen)

    def _shown(self, x: Tensor) -> Tensor:
        """Values of images as the convolutions see them: levels from -1 to 1."""
        top = self.levels - 1
        nearest = (x.detach() * top).round() / top
        return 2 * (x + (nearest - x.detach())) - 1

    def _all(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


def gated(x: Tensor) -> Tensor:
    """``tanh(a) sigmoid(b)`` of the two halves of the channels."""
    a, b = x.chunk(2, 1)
    return torch.tanh(a) * torch.sigmoid(b)


def pixelcnn(levels: int = 256, width: int = 64, blocks: int = 7, in_channels: int = 3) -> PixelCNN:
    """A gated PixelCNN: the probability of every level of every pixel value, given those before it.

    It is no classifier: it takes images of any size with values from 0 to 1, and answers logits
    ``[rows, channels, levels, height, width]``. The layer `pixeldefend` purifies images with it.

    Parameters
    ----------
    levels : int
        Levels of a pixel value, from 0 to 1 in equal steps: 256 for 8-bit images.
    width : int
        Channels of both stacks.
    blocks : int
        Blocks; a value sees ``blocks + 1`` rows above it, and ``blocks + 2`` pixels to its left.
    in_channels : int
        Channels of the images.

    Examples
    --------
    >>> pixelcnn(levels=16, width=8, blocks=2)(torch.zeros(5, 3, 6, 7)).shape
    torch.Size([5, 3, 16, 6, 7])
    """
    for name, value, least in (
        ("levels", levels, 2),
        ("width", width, 1),
        ("blocks", blocks, 1),
        ("in_channels", in_channels, 1),
    ):
        if type(value) is not int or value < least:
            raise ValueError(f"{name} is {value!r}, but a PixelCNN has {least} or more")
    return PixelCNN(levels, width, blocks, in_channels)
