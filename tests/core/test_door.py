"""The door to a model: what it raises or answers wrongly is one sentence, and float64 decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.door import rounded, tops
from besiege.core.errors import InputError, VictimError
from besiege.core.oracle import Oracle
from besiege.models import Classifier

IMAGES = torch.linspace(0, 1, 16).view(4, 1, 2, 2)
LABELS = torch.tensor([0, 1, 2, 0])


class Net(nn.Module):
    """A linear network whose images and logits a function may change."""

    def __init__(self, change: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(x, self.linear(x.flatten(1)))


def attacked(model: object, attack: str = "pgd") -> Any:
    return besiege.attack(attack, model, IMAGES, LABELS, threat="linf:0.1")  # type: ignore[arg-type]


# What a model raises.


def raising(problem: BaseException) -> Callable[[Tensor, Tensor], Any]:
    def change(x: Tensor, y: Tensor) -> Tensor:
        raise problem

    return change


def endless(x: Tensor, y: Tensor) -> Any:
    return endless(x, y)


@pytest.mark.parametrize(
    "problem",
    [
        ValueError("no such thing"),
        KeyError("thing"),
        IndexError("thing"),
        TypeError("thing"),
        AssertionError("thing"),
        AttributeError("thing"),
        ZeroDivisionError("thing"),
        NotImplementedError("thing"),
        SystemExit(0),
        StopIteration(),
    ],
)
def test_what_a_model_raises_is_its_own(problem: BaseException) -> None:
    with pytest.raises(VictimError, match=f"the model raised {type(problem).__name__}") as said:
        attacked(Net(raising(problem)))
    assert said.value.__cause__ is problem
    assert "(test_door.py, line " in str(said.value)
    assert len(str(said.value)) < 200


def test_what_it_raises_may_be_hostile() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise ValueError

    with pytest.raises(VictimError, match="raised Hostile"):
        attacked(Net(raising(Hostile())))
    with pytest.raises(VictimError, match="raised RecursionError"):
        attacked(Net(endless))
    with pytest.raises(VictimError) as said:
        attacked(Net(raising(ValueError("\x1b[31m" + "long " * 1000))))
    assert len(str(said.value)) < 450 and "\x1b" not in str(said.value)


def test_an_interruption_is_not_the_models() -> None:
    with pytest.raises(KeyboardInterrupt):
        attacked(Net(raising(KeyboardInterrupt())))


def test_a_backward_pass_that_raises_is_named() -> None:
    class Stuck(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            return y.clone()

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> Tensor:
            raise IndexError("backwards")

    net = Net(lambda x, y: Stuck.apply(y))  # type: ignore[no-untyped-call]
    with pytest.raises(VictimError, match=r"IndexError: backwards.*in its backward pass"):
        attacked(net)
    with pytest.raises(VictimError, match="in its backward pass"):
        attacked(net, "deepfool")


# What a model answers.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: y.to(torch.complex64), "complex64 logits"),
        (lambda x, y: y.long(), "int64 logits"),
        (
            lambda x, y: y.argmax(1),
            r"int64 logits.*function_model\(function, classes=N, access='dec",
        ),
        (lambda x, y: y > 0, "bool logits"),
        (lambda x, y: y.to_sparse(), "sparse_coo logits"),
        (lambda x, y: y.to("meta"), "meta tensor"),
        (lambda x, y: torch.full_like(y, -torch.inf), "-inf for every class"),
        (lambda x, y: torch.where(torch.arange(len(y))[:, None] == 1, -torch.inf, y), "-inf for"),
        (lambda x, y: y / 0 * 0, "NaN or infinite"),
        (lambda x, y: y.abs() / 0, "NaN or infinite"),
        (lambda x, y: (y,), "answered tuple"),
        (lambda x, y: y[0], "a classifier answers"),
    ],
)
def test_what_names_no_class_is_refused(change: Any, said: str) -> None:
    with pytest.raises(VictimError, match=said):
        attacked(Net(change))


def test_a_class_that_is_ruled_out_is_no_trouble() -> None:
    ruled_out = torch.tensor([0.0, 0.0, -torch.inf])
    assert len(attacked(Net(lambda x, y: y + ruled_out), "fgsm")) == 4
    logits = torch.tensor([[1.0, -torch.inf], [3e38, 3e38]])
    assert bool(torch.isfinite(tops(logits)))


def test_weights_and_images_without_values_are_refused() -> None:
    hollow = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, device="meta"))
    with pytest.raises(VictimError, match="load them first"):
        attacked(hollow)
    net = Net(lambda x, y: y)
    for images, said in ((IMAGES.to("meta"), "no values"), (IMAGES.to_sparse(), "to_dense")):
        with pytest.raises(InputError, match=said):
            besiege.attack("pgd", net, images, LABELS, threat="linf:0.1")


def test_sparse_weights_are_weights() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3, 4).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = torch.sparse.mm(self.weight, x.flatten(1).T).T
            return y

    assert len(attacked(Sparse())) == 4
    assert Classifier(Sparse()).digest() == Classifier(Sparse()).digest()


# Images stay what they are.


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: y + x.zero_().sum() * 0,
        lambda x, y: y + x.data.zero_().sum() * 0,
        lambda x, y: y + torch.from_numpy(x.detach().numpy().__imul__(0)).sum() * 0,
    ],
)
def test_no_model_changes_our_images(change: Any) -> None:
    images = IMAGES.clone()
    besiege.attack("square", Net(change), images, LABELS, threat="linf:0.1 score", queries=5)
    assert torch.equal(images, IMAGES)


def test_images_changed_in_place_are_one_sentence() -> None:
    def change(x: Tensor, y: Tensor) -> Tensor:
        z = y + (x**2).sum()
        x.mul_(2)
        return z

    with pytest.raises(VictimError, match=r"in place.*x\.clone\(\)"):
        attacked(Net(change))


# Float64.


def tied(gap: float) -> Tensor:
    """Two logits that differ by less than float32 can tell, the last the larger by the gap."""
    return torch.tensor([[1.0, -3.0, 1.0 + gap]], dtype=torch.float64)


@pytest.mark.parametrize("gap", [1e-12, -1e-12, 0.0, 1e-3])
def test_float64_decides_in_float64(gap: float) -> None:
    logits = tied(gap)
    assert gap == 1e-3 or logits.float()[0, 0] == logits.float()[0, 2]
    short = rounded(logits)
    assert short.dtype == torch.float32
    assert short.argmax(1) == logits.argmax(1)
    assert torch.sign(short[0, 2] - short[0, 0]) == (gap > 0) - (gap < 0)
    assert torch.allclose(short, logits.float())


def test_float64_victims_are_judged_by_what_they_say() -> None:
    class Near(nn.Module):
        """Ties the true class with one before it in float32, and prefers the true one."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            base = x.flatten(1).sum(1, keepdim=True) * 0 + self.scale
            return torch.cat([base, base + 1e-12, base - 5], 1)

    labels = torch.ones(4, dtype=torch.int64)
    assert (Near()(IMAGES.double()).float().argmax(1) == 0).all(), "rounding would mislead"
    assert (Oracle(Classifier(Near())).logits(IMAGES).argmax(1) == 1).all()
    for attack in ("fgsm", "pgd", "square"):
        result = besiege.attack(attack, Near(), IMAGES, labels, threat="linf:0.1", queries=9)
        assert not result.success.any()
        assert result.verdicts.correct.all()
    probable = Classifier(nn.Sequential(Near(), nn.Softmax(1)), outputs="probabilities")
    assert (Oracle(probable).logits(IMAGES).argmax(1) == 1).all()
    function = besiege.function_model(lambda x: Near()(torch.tensor(x).double()).detach().numpy())
    assert (Oracle(function).logits(IMAGES).argmax(1) == 1).all()


def test_float64_gradients_pass_through() -> None:
    logits = tied(1e-12).requires_grad_(True)
    (slope,) = torch.autograd.grad((rounded(logits) * torch.tensor([1.0, 2.0, 3.0])).sum(), logits)
    assert slope.tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types_keep_every_bit(kind: torch.dtype) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).to(kind)
    expected = net(IMAGES.to(kind)).float()
    assert torch.equal(Classifier(net)(IMAGES), expected)
