"""Every registered layer obeys the laws of layers, and each law turns red when one breaks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.defenses import BitDepth
from besiege.defenses.layers import LAYERS, Layer, Unclamped
from besiege.testing import LAYER_LAWS, conform_layer
from besiege.testing.victims import images_of

Box = tuple[float, float]
TEXTS = [
    "bits",
    "bits(depth=1)",
    "bits(levels=5, how='floor')",
    "jpeg",
    "jpeg(quality=30, subsampling='4:4:4', backward='identity')",
    "median",
    "median(size=3)",
    "blur",
    "pil_blur",
    "crop_rescale(size=9)",
    "crop_rescale(size=(7, 8), how='nearest')",
    "tvm",
    "tvm(backward='implicit')",
    "nlm",
    "nlm(search=5, patch=1, strength=9.0)",
    "resize_pad",
    "resize_pad(least=0.5)",
    "resize_pad(least=1, to=20, fill=0.5)",
    "jitter",
    "jitter(radius=0.4)",
    "randmix",
    "randmix(centres=3, hard=True, apart=False)",
    "adapt(size=8)",
    "adapt(size=(20, 9), how='white')",
    "adapt(size=10, how='grey', channels=1)",
    "adapt(size=10, how='crop')",
    "gaussian_noise",
    "gaussian_noise(sigma=0.1)",
    "thermometer",
    "thermometer(levels=3)",
]


# With networks for grey images.
LEARNED: list[Any] = [
    "reform('zoo:digits-autoencoder')",
    "pixeldefend('zoo:digits-pixelcnn')",
    pytest.param("pixeldefend('zoo:digits-pixelcnn', eps=0.3)", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("text", LEARNED)
def test_every_layer_with_a_network_conforms(text: str) -> None:
    assert conform_layer(text, images_of((1, 8, 10), 11)) == tuple(LAYER_LAWS)


@pytest.mark.parametrize("text", TEXTS)
def test_every_layer_conforms(text: str) -> None:
    assert conform_layer(text) == tuple(LAYER_LAWS)
    if "channels" not in text:
        conform_layer(text, images_of((1, 10, 10), 3))


def test_every_registered_layer_is_tried() -> None:
    assert {text.partition("(")[0] for text in (*TEXTS, *LEARNED[:2])} == set(LAYERS.names())


@dataclass(frozen=True)
class Own(Layer):
    """An honest layer, which the others spoil."""

    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return 0.5 * x + 0.25 * (box[0] + box[1])


class OverTheBatch(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return (0.5 * x + 0.5 * x.mean(0)).clamp(*box)


class OutOfTheBox(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return 1.01 * x


class ClampedAfterAll(Own, Unclamped):
    pass


class NotANumber(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return x / 0.0


class DoublePrecision(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return x.double()


class DrawingGlobally(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        torch.rand(1)
        return x.clone()


class InPlace(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        x.data.mul_(0.5)
        return x


class LoadedDice(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        dice.key.add_(1)
        return x.clone()


class IgnoringDice(Own):
    stochastic = True


class SecretlyStochastic(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return (x + 0.1 * dice.normal(tuple(x.shape[1:]))).clamp(*box)


class Moody(Own):
    stochastic = True

    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        draw = torch.Generator()
        draw.seed()
        return (x + 0.1 * torch.rand(x.shape, generator=draw)).clamp(*box)


class WithoutSurrogate(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return x.round()


class Detached(Own):
    def transform(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return x.detach()


class BentSurrogate(Own):
    def surrogate(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return x.sqrt()  # its slope at zero is infinite


class OtherForward(Own):
    def __call__(self, x: Tensor, box: Box, dice: Dice) -> Tensor:
        return x.clone() if x.requires_grad else self.transform(x, box, dice)


SPOILED: list[tuple[str, type[Own]]] = [
    ("rows_are_independent", OverTheBatch),
    ("stays_in_the_box", OutOfTheBox),
    ("stays_in_the_box", ClampedAfterAll),
    ("stays_in_the_box", NotANumber),
    ("stays_in_the_box", DoublePrecision),
    ("touches_nothing", DrawingGlobally),
    ("touches_nothing", InPlace),
    ("touches_nothing", LoadedDice),
    ("dice_decide", IgnoringDice),
    ("dice_decide", SecretlyStochastic),
    ("dice_decide", Moody),
    ("gradients_flow", WithoutSurrogate),
    ("gradients_flow", Detached),
    ("gradients_flow", BentSurrogate),
    ("gradients_flow", OtherForward),
]


def test_an_honest_layer_conforms() -> None:
    conform_layer(Own())


@pytest.mark.parametrize(("law", "spoiled"), SPOILED, ids=lambda v: getattr(v, "__name__", v))
def test_a_spoiled_layer_turns_its_law_red(law: str, spoiled: type[Own]) -> None:
    with torch.random.fork_rng(), pytest.raises(AssertionError, match=rf"(?m)^{law}: "):
        conform_layer(spoiled())


def test_a_text_that_does_not_read_back_turns_its_law_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BitDepth, "__str__", lambda self: "bits(depth=9)")
    with pytest.raises(AssertionError, match=r"(?m)^text_reads_back: "):
        conform_layer(BitDepth(3))


def test_there_is_a_spoiled_layer_for_every_law() -> None:
    assert {law for law, _ in SPOILED} | {"text_reads_back"} == set(LAYER_LAWS)
