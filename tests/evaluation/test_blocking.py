"""A model without gradients gets one error, which names the line where they stop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.errors import GradientError
from besiege.evaluation.blocking import must_have_gradient

SOURCE = """
import numpy as np
import torch
from torch import nn
import besiege


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = besiege.models.load("zoo:digits-natural").module


class NoGrad(Base):
    def forward(self, x):
        with torch.no_grad():
            y = 2 * x - x
            return self.net(y)  # first: the line above


class Decorated(Base):
    @torch.no_grad()
    def forward(self, x):
        return self.net(x)  # here


class Inference(Base):
    def forward(self, x):
        with torch.inference_mode():
            return self.net(x)  # here


class Detached(Base):
    def forward(self, x):
        if x.max() > 2:  # comparisons stop no gradient that matters
            x = x / 255
        mask = (x > 0.5).float()
        x = x * mask + x * (1 - mask)
        held = x.detach()  # here
        return self.net(held) + 0 * mask.mean()


class Logged(Base):
    def forward(self, x):
        held = x.detach()  # here
        self.brightness = x.mean().item()
        return self.net(held)


class Paths(Base):
    def forward(self, x):
        one = x.detach()  # here
        two = (2 * x).detach()
        return self.net(two - one)


class Inner(Base):
    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Identity(), Detached()

    def forward(self, x):
        return self.body(self.stem(x))


class Data(Base):
    def forward(self, x):
        return self.net(x.data)  # here


class Whole(Base):
    def forward(self, x):
        levels = (255 * x).to(torch.uint8)  # here
        return self.net(levels.float() / 255)


class ToNumpy(Base):
    def forward(self, x):
        return self.net(torch.from_numpy(x.numpy()))  # here


class ThroughNumpy(Base):
    def forward(self, x):
        pixels = x.detach().cpu().numpy()  # here
        pixels = np.clip(pixels, 0, 1)
        return self.net(torch.from_numpy(pixels))


class Listed(Base):
    def forward(self, x):
        return self.net(torch.tensor(x.tolist()))  # here


class Argmax(Base):
    def forward(self, x):
        best = self.net(x).argmax(1)  # here
        return 5.0 * nn.functional.one_hot(best, 10).float()
"""
KINDS = re.findall(r"class (\w+)\(Base\)", SOURCE)
ASK: dict[str, Any] = {"threat": "linf:0.1"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # In a folder that has the name of a package, as a clone of this repository has.
    path = tmp_path_factory.mktemp("torch") / "besiege" / "blocked.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


def line_of(kind: str) -> int:
    body = SOURCE.partition(f"class {'Detached' if kind == 'Inner' else kind}(Base)")
    before = body[0].count("\n") + 1
    lines = body[2].splitlines()
    here = next(k for k, line in enumerate(lines) if "# here" in line or "# first" in line)
    return before + here - ("# first" in lines[here])


@pytest.mark.parametrize("kind", KINDS)
def test_the_line_is_named_by_evaluate_and_by_attack(file: Path, kind: str, tmp_path: Path) -> None:
    model = f"{file}:{kind}"
    told = rf"the gradient stops at blocked\.py, line {line_of(kind)}\b"
    with pytest.raises(GradientError, match=told) as first:
        besiege.evaluate(model, "digits", count=20, out=tmp_path / "run", **ASK)
    assert not (tmp_path / "run").exists(), "found before any work starts"
    assert "threat='linf:8/255 score'" in str(first.value) and len(str(first.value)) < 700
    data = besiege.data.load("digits", count=20)
    with pytest.raises(GradientError, match=told):
        besiege.attack("pgd", model, data.images, data.labels, **ASK)


def test_without_gradients_they_are_attacked(file: Path) -> None:
    found = besiege.evaluate(
        f"{file}:Detached", "digits", count=20, threat="linf:0.2 score", queries=200,
        attacks="square", curve=False,
    )  # fmt: skip
    assert found.complete and found.robust is not None and found.robust.value < found.clean.value


def test_a_substitute_with_gradients_suffices_and_one_without_does_not(file: Path) -> None:
    asked: dict[str, Any] = {"count": 12, "attacks": "pgd(steps=3)", "curve": False, **ASK}
    found = besiege.evaluate(f"{file}:Detached", "digits", substitute="zoo:digits-pgd-at", **asked)
    assert found.complete
    with pytest.raises(GradientError, match=r"blocked\.py"):
        besiege.evaluate("zoo:digits-natural", "digits", substitute=f"{file}:Detached", **asked)


def test_a_hook_has_a_line() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    net[1].register_forward_hook(lambda module, given, answer: answer.detach())
    images = besiege.data.load("digits", count=10).images
    labels = net(images).argmax(1)  # an image that is misclassified needs no gradient
    with pytest.raises(GradientError, match=r"stops at test_blocking\.py, line \d+ \(net\[1\]"):
        besiege.attack("pgd", net, images, labels, **ASK)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = besiege.models.load("zoo:digits-natural").module, 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.net(x)


def test_a_model_with_gradients_is_asked_once() -> None:
    from besiege.core.samples import Samples

    net, data = Counted(), besiege.data.load("digits", count=8)
    must_have_gradient(besiege.Classifier(net), Samples.of(data.images, data.labels))
    assert net.calls == 1


def test_rounding_has_a_gradient_of_zero_which_is_a_warning() -> None:
    class Rounded(Counted):
        def forward(self, x: Tensor) -> Any:
            return self.net(torch.round(255 * x) / 255)

    found = besiege.evaluate(Rounded(), "digits", count=12, attacks="fgsm", curve=False, **ASK)
    assert any(one.id == "W11" for one in found.warnings)
