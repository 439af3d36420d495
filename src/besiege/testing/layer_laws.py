"""Laws every layer of a defense obeys, for layers written here and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.oracle import padded
from besiege.defenses.layers import LANGUAGE, LAYERS, Layer, Unclamped
from besiege.testing.conformance import demand, hold_to, untouched
from besiege.testing.victims import images_of

ROWS = 11
BOXES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))


@dataclass(frozen=True)
class LayerTrial:
    """A layer and the images it transforms, in the box (0, 1)."""

    layer: Layer
    images: Tensor

    def dice(self, seed: int = 0, rows: Tensor | None = None) -> Dice:
        """Dice of the images, or of some of them."""
        return Dice.throw(seed, torch.arange(len(self.images)) if rows is None else rows)

    def __call__(
        self, rows: Tensor | None = None, seed: int = 0, box: tuple[float, float] = BOXES[0]
    ) -> Tensor:
        """Some images transformed, in batches padded as the oracle pads them."""
        rows = torch.arange(len(self.images)) if rows is None else rows
        filled = torch.cat([rows, rows[-1:].expand(padded(len(rows)) - len(rows))])
        images = self.images[filled] * (box[1] - box[0]) + box[0]
        with torch.no_grad():
            return self.layer(images, box, self.dice(seed, filled))[: len(rows)]


def rows_are_independent(trial: LayerTrial) -> None:
    """What an image becomes does not depend on its batch: alone, permuted, split; bitwise."""
    whole, count = trial(), len(trial.images)
    shuffle = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    for how, rows in (
        ("alone", shuffle[:1]),
        ("permuted", shuffle),
        ("split in two", shuffle[: count // 2]),
    ):
        demand(
            torch.equal(trial(rows), whole[rows]), f"rows differ between the whole batch and {how}"
        )


def stays_in_the_box(trial: LayerTrial) -> None:
    """Float32 images, one for each, finite and inside the box; tried in several boxes.

    An `Unclamped` layer may leave the box, and must.
    """
    for low, high in BOXES:
        made = trial(box=(low, high))
        demand(
            made.dim() == 4 and len(made) == len(trial.images) and made.dtype == torch.float32,
            f"it made {made.dtype} {list(made.shape)} of images {list(trial.images.shape)}",
        )
        demand(bool(made.isfinite().all()), "it made pixel values that are not finite")
        slack = 1e-6 * max(abs(low), abs(high))
        least, most = float(made.min()), float(made.max())
        inside = low - slack <= least and most <= high + slack
        if isinstance(trial.layer, Unclamped):
            demand(not inside, "it is declared Unclamped, and made no pixel value outside the box")
            continue
        demand(
            inside,
            f"it made pixel values from {least:.6g} to {most:.6g}, and the box is {(low, high)}",
        )


def touches_nothing(trial: LayerTrial) -> None:
    """Global random states and modes and the caller's tensors stay as they were."""
    untouched(lambda x, dice: trial.layer(x, BOXES[0], dice), trial.images, trial.dice())


def dice_decide(trial: LayerTrial) -> None:
    """The same dice do the same; other dice something else exactly if it is stochastic."""
    once = trial()
    demand(torch.equal(once, trial()), "it does something else with the same dice")
    same = torch.equal(once, trial(seed=1))
    if trial.layer.stochastic:
        demand(not same, "it is stochastic, but other dice do the same")
    else:
        demand(same, "it is not stochastic, but depends on the dice")


def gradients_flow(trial: LayerTrial) -> None:
    """Its own backward pass gives finite gradients, and does not change the forward pass."""
    images = trial.images.clone().requires_grad_(True)
    with torch.enable_grad():
        made = trial.layer(images, BOXES[0], trial.dice())
        demand(made.requires_grad, "its output does not depend differentiably on the images")
        (slope,) = torch.autograd.grad(made.square().sum(), images)
    with torch.no_grad():
        real = trial.layer.transform(trial.images, BOXES[0], trial.dice())
    demand(torch.equal(made.detach(), real), "with gradients it gives other images than without")
    demand(bool(slope.isfinite().all()), "its gradient is not finite")
    demand(bool((slope != 0).any()), "its gradient is zero everywhere: give it a surrogate")


def text_reads_back(trial: LayerTrial) -> None:
    """The text of a registered layer reads back as an equal layer."""
    layer = trial.layer
    if not any(kind is type(layer) for _, kind in LAYERS.items()):
        return
    read = LANGUAGE.read(str(layer))
    demand(read == layer, f"'{layer}' reads back as {read!r}")


LAYER_LAWS: Mapping[str, Callable[[LayerTrial], None]] = MappingProxyType(
    {
        law.__name__: law
        for law in (
            *(touches_nothing, rows_are_independent, stays_in_the_box),
            *(dice_decide, gradients_flow, text_reads_back),
        )
    }
)
"""The laws of `conform_layer`, by name; each docstring says what it demands."""


def conform_layer(layer: Layer | str, images: Tensor | None = None) -> tuple[str, ...]:
    """Hold a layer to all laws; raises one `AssertionError` that lists every law it breaks.

    Parameters
    ----------
    layer : Layer or str
        A layer of your own, or a text such as ``"bits(depth=3)"``.
    images : Tensor, optional
        Images ``[rows, channels, height, width]`` with values from 0 to 1; random colour images of
        12 x 16 pixels by default.

    Returns
    -------
    tuple of str
        The names of the laws it obeys.

    Examples
    --------
    >>> from besiege.testing import conform_layer
    >>> conform_layer("resize_pad")[:2]
    ('touches_nothing', 'rows_are_independent')
    """
    layer = LANGUAGE.read(layer) if isinstance(layer, str) else layer
    images = images_of((3, 12, 16), ROWS) if images is None else images
    return hold_to(LAYER_LAWS, LayerTrial(layer, images), str(layer))
