"""Every victim type obeys the laws of victims, and each law turns red for one that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.onnx_bytes import linear as onnx_linear
from tests.models.serving import serving
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.defenses import (
    BitDepth,
    Calibration,
    Defended,
    Detected,
    Median,
    ResizePad,
    Smoothed,
    Squeezing,
)
from besiege.evaluation.transfer import OnGrid
from besiege.models import Classifier, Endpoint, Ensemble, OnnxModel, function_model
from besiege.testing import VICTIM_LAWS, conform_victim
from besiege.testing.victims import Boxed, Counting, Likeness, linear, module_of, scaled

SHAPE = (1, 8, 8)
IMAGES = besiege.data.load("digits", count=11).images


def net(seed: int = 0, **about: object) -> Classifier:
    return Classifier(module_of(SHAPE, 10, seed), classes=10, **about)  # type: ignore[arg-type]


def by_numpy(x: np.ndarray) -> np.ndarray:
    return np.stack([x.mean((1, 2, 3)), x.max((1, 2, 3))], 1)


MADE: dict[str, Callable[[], Victim | str]] = {
    "text": lambda: "zoo:digits-natural",
    "text with layers": lambda: "zoo:digits-natural+bits(depth=3)+resize_pad",
    "module": lambda: net(),
    "normalised": lambda: net(mean=0.5, std=0.25, outputs="logits", grid=1 / 255),
    "defended": lambda: Defended(net(), BitDepth(3)),
    "stochastic": lambda: Defended(Defended(net(), BitDepth(3)), ResizePad()),
    "ensemble of logits": lambda: Ensemble([net(), net(1)], equalise=True),
    "ensemble of probabilities": lambda: Ensemble([net(), net(1)], "probabilities", [1, 2]),
    "ensemble of losses": lambda: Ensemble([net(), Defended(net(1), ResizePad())], "losses"),
    "defended ensemble": lambda: Defended(Ensemble([net(), net(1)], "losses"), BitDepth(3)),
    "detected": lambda: Detected(net(), Squeezing((BitDepth(3), Median(2))), Calibration(0.5)),
    "smoothed": lambda: Smoothed(net(), 0.5, 24),
    "text smoothed": lambda: "zoo:digits-natural+bits(depth=3)+smoothed(sigma=0.3, draws=14)",
    "on a grid": lambda: OnGrid(Ensemble([net(), net(1)], "losses"), 1 / 255),
    "function": lambda: function_model(by_numpy, 2),
    "labels": lambda: function_model(lambda x: by_numpy(x).argmax(1), 2, "decision"),
    "defended function": lambda: Defended(function_model(by_numpy, 2), BitDepth(3)),
    "linear": lambda: linear(SHAPE),
    "counting": lambda: Counting(net()),
    "altered": lambda: scaled(net(), 2.0),
    "boxed": lambda: Boxed(net(), 0.0, 2.0),
    "likeness": lambda: Likeness(Counting(net()), SHAPE),
}


@pytest.mark.parametrize("name", MADE)
def test_every_victim_type_conforms(name: str) -> None:
    assert conform_victim(MADE[name](), IMAGES) == tuple(VICTIM_LAWS)


def test_an_endpoint_conforms() -> None:
    with serving() as server:
        conform_victim(Endpoint(server.url, classes=10), IMAGES)
        conform_victim(f"{server.url}(classes=10)", IMAGES)


def test_an_onnx_file_conforms(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    weight = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_linear(weight, ("n", *SHAPE)))
    conform_victim(OnnxModel(path), IMAGES)


class Own(Victim):
    """An honest victim type, which the others spoil."""

    classes = 10

    def __init__(self) -> None:
        self.net = module_of(SHAPE, 10)
        self.asked = 0

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        return (self.net,)

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


class TooFewColumns(Own):
    rejects = True


class DoublePrecision(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return super().__call__(x).double()


class NotANumber(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return super().__call__(x) * torch.nan


class Centred(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return super().__call__(x - x.mean(0))


class DrawingGlobally(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        torch.rand(1)
        return super().__call__(x)


class SettingModes(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        torch.use_deterministic_algorithms(True)
        return super().__call__(x)


class Learning(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        self.net[1].running_mean.add_(1e-3)  # type: ignore[index]  # a Sequential
        return super().__call__(x)


class Unheld(Own):
    @contextmanager
    def held(self) -> Iterator[None]:
        yield


class NotRestoring(Own):
    @contextmanager
    def held(self) -> Iterator[None]:
        self.net.eval().requires_grad_(False)
        yield


class Hiding(Own):
    def __init__(self) -> None:
        super().__init__()
        self.others = [module_of(SHAPE, 10, 1)]

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits: Tensor = super().__call__(x) + self.others[0](x)
        return logits


class Staying(Own):
    def to(self, device: str | torch.device) -> Staying:
        return self


class Anonymous(Own):
    def digest(self) -> str:
        return "the same"


class WithoutBuffers(Own):
    def digest(self) -> str:
        return str([float(weight.double().sum()) for weight in self.net.parameters()])


class CountingInItself(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        self.asked += 1
        return super().__call__(x)


class Vain(Own):
    def digest(self) -> str:
        return super().digest() + self.name


class Moody(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        draw = torch.Generator()
        draw.seed()
        return super().__call__(x + torch.rand(x.shape, generator=draw))


class IgnoringDice(Own):
    stochastic = True


class Detached(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return super().__call__(x.detach())


class Flat(Own):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return super().__call__(x.round())


SPOILED: list[tuple[str, type[Own]]] = [
    ("answers_as_declared", TooFewColumns),
    ("answers_as_declared", DoublePrecision),
    ("answers_as_declared", NotANumber),
    ("rows_are_independent", Centred),
    ("touches_nothing", DrawingGlobally),
    ("touches_nothing", SettingModes),
    ("touches_nothing", Learning),
    ("held_reaches_every_network", Unheld),
    ("held_reaches_every_network", NotRestoring),
    ("held_reaches_every_network", Hiding),
    ("to_reaches_every_network", Hiding),
    ("to_reaches_every_network", Staying),
    ("digest_identifies", Anonymous),
    ("digest_identifies", WithoutBuffers),
    ("digest_identifies", CountingInItself),
    ("digest_identifies", Vain),
    ("dice_decide", Moody),
    ("dice_decide", IgnoringDice),
    ("gradients_flow", Detached),
    ("gradients_flow", Flat),
]


def test_an_honest_victim_type_conforms() -> None:
    conform_victim(Own(), IMAGES)


@pytest.mark.parametrize(("law", "spoiled"), SPOILED, ids=lambda v: getattr(v, "__name__", v))
def test_a_spoiled_victim_turns_its_law_red(law: str, spoiled: type[Own]) -> None:
    before = torch.get_rng_state()
    try:
        with pytest.raises(AssertionError, match=rf"(?m)^{law}: "):
            conform_victim(spoiled(), IMAGES)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_rng_state(before)


def test_a_text_that_names_another_victim_each_time_turns_its_law_red(tmp_path: Path) -> None:
    path = tmp_path / "nets.py"
    path.write_text(
        "from torch import nn\n\ndef make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    with pytest.raises(AssertionError, match=r"(?m)^text_reads_back: "):
        conform_victim(f"{path}:make", IMAGES)


def test_there_is_a_spoiled_victim_for_every_law() -> None:
    assert {law for law, _ in SPOILED} | {"text_reads_back"} == set(VICTIM_LAWS)


def test_a_victim_without_gradients_is_not_asked_for_them() -> None:
    class Closed(Detached):
        access = Access.SCORE

    conform_victim(Closed(), IMAGES)


def test_an_object_that_is_no_victim_is_refused() -> None:
    with pytest.raises(besiege.BesiegeError, match=r"derive from besiege\.core\.victim\.Victim"):
        conform_victim(object(), IMAGES)  # type: ignore[arg-type]  # that is the point
