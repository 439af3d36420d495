"""Networks with one logit are two classes, and outputs with names have logits."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.core.errors import VictimError
from besiege.models import Classifier


def digits() -> Any:
    """Zeros and ones of the digits, as labels 0 and 1."""
    data = besiege.data.load("digits")
    return data.take(data.labels < 2)


class One(nn.Module):
    """A linear network with one logit per image, of any shape and type."""

    def __init__(self, shape: str = "column", after: nn.Module | None = None) -> None:
        super().__init__()
        data = digits()
        means = [data.images[data.labels == label].mean(0).flatten() for label in (0, 1)]
        self.linear = nn.Linear(64, 1)
        with torch.no_grad():
            self.linear.weight.copy_(means[1] - means[0])
            self.linear.bias.copy_(-0.5 * (means[1] - means[0]) @ (means[1] + means[0]))
        self.shape, self.after = shape, after or nn.Identity()

    def forward(self, x: Tensor) -> Any:
        z = self.after(self.linear(x.flatten(1).to(self.linear.weight.dtype)))
        return z if self.shape == "column" else z.squeeze(1)


@pytest.mark.parametrize("shape", ["column", "flat"])
@pytest.mark.parametrize("outputs", ["logits", "logit"])
def test_one_logit_is_two_classes_with_the_right_loss(shape: str, outputs: str) -> None:
    net, data = One(shape), digits()
    victim = Classifier(net, outputs=outputs)
    with torch.no_grad():
        z = net.linear(data.images.flatten(1))[:, 0]
        logits = victim(data.images)
    assert torch.equal(logits[:, 1] - logits[:, 0], z)
    assert torch.equal(logits.argmax(1), (z > 0).long())
    binary = functional.binary_cross_entropy_with_logits(z, data.labels.float(), reduction="none")
    both = functional.cross_entropy(logits, data.labels, reduction="none")
    assert torch.allclose(both, binary, atol=1e-6)


def test_both_columns_have_a_gradient() -> None:
    x = digits().images[:4].requires_grad_(True)
    logits = Classifier(One())(x)
    for column in (0, 1):
        (gradient,) = torch.autograd.grad(logits[:, column].sum(), x, retain_graph=True)
        assert bool((gradient != 0).any())


@pytest.mark.parametrize("attack", ["fgsm", "pgd", "deepfool", "apgd", "square", "fab", "cw"])
def test_attacks_reach_the_closed_form_distance(attack: str) -> None:
    net, data = One(), digits().take(range(12))
    z = net.linear(data.images.flatten(1))[:, 0].detach()
    # Of a linear network the distance is |z| over the dual norm of its weights, box apart.
    least = z.abs() / net.linear.weight.abs().sum()
    threat = "linf:0.5" if attack != "cw" else "l2:6"
    made = besiege.attack(attack, net, data.images, data.labels, threat=threat)
    assert bool(made.success.all())
    if attack == "deepfool":
        assert bool((made.distance >= least - 1e-5).all())


def test_they_are_evaluated() -> None:
    data = digits()
    found = besiege.evaluate(
        One(),
        (data.images, data.labels),
        threat="linf:0.05",
        suite="standard",
        count=16,
        curve=False,
    )
    assert found.figures.model.classes == 2
    assert found.clean.value > 0.95 and found.robust is not None


def test_float64_decides() -> None:
    net = One().double()
    net.after = nn.Hardtanh(-1e-60, 1e-60)  # rounds to 0 in float32
    x = digits().images
    with torch.no_grad():
        z = net(x)[:, 0]
        assert torch.equal(Classifier(net, outputs="logit")(x).argmax(1), (z > 0).long())


def test_a_sigmoid_is_noticed_or_declared() -> None:
    net, data = One(after=nn.Sigmoid()), digits()
    with pytest.raises(VictimError, match=r"as a sigmoid does.*outputs='probabilities'"):
        besiege.evaluate(net, (data.images, data.labels), threat="linf:0.05", attacks="fgsm")
    victim = Classifier(net, outputs="probabilities")
    with torch.no_grad():
        p = net(data.images)[:, 0]
        assert torch.allclose(victim(data.images).softmax(1)[:, 1], p, atol=1e-6)
    # Logits between 0 and 1 are possible, and can be declared.
    besiege.attack(
        "fgsm", Classifier(net, outputs="logit"), data.images, data.labels, threat="linf:0.05"
    )


def test_declared_as_one_and_answered_as_two_is_refused() -> None:
    two = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(VictimError, match="declared to return one logit"):
        Classifier(two, outputs="logit")(digits().images[:3])


class Named(nn.Module):
    """Returns what it is told around its logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Any:
        logits = self.linear(x.flatten(1))
        held = OrderedDict(loss=None, logits=logits, hidden_states=(x,))
        return SimpleNamespace(**held) if self.kind == "attributes" else held


@pytest.mark.parametrize("kind", ["attributes", "dictionary"])
def test_logits_are_taken_from_an_output_with_names(kind: str) -> None:
    net, x = Named(kind), digits().images[:4]
    with torch.no_grad():
        assert torch.equal(Classifier(net)(x), net.linear(x.flatten(1)))
    made = besiege.attack("pgd", net, x, torch.zeros(4).long(), threat="linf:0.3")
    assert made.images.shape == x.shape


def test_black_boxes_declare_one_score() -> None:
    net, data = One(), digits().take(range(6))

    def scores(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(net(torch.from_numpy(x))[:, 0])

    z = torch.from_numpy(scores(data.images.numpy()))
    declared = besiege.function_model(scores, outputs="logit")
    assert torch.equal(declared(data.images)[:, 1], 0.5 * z)
    likely = besiege.function_model(lambda x: 1 / (1 + np.exp(-scores(x))), outputs="probabilities")
    assert torch.allclose(likely(data.images).softmax(1)[:, 1], z.sigmoid(), atol=1e-6)
    with pytest.raises(VictimError, match="outputs='logit' if each is the logit of class 1"):
        besiege.function_model(scores)(data.images)
