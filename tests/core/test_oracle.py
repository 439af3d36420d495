from __future__ import annotations

import pytest
import torch
from tests.victims import Noisy, Spy, affine, normal, siege, uniform
from torch import Tensor, nn
from torch.nn import functional

from besiege.core.answer import Aim
from besiege.core.cuda_graphs import Captures
from besiege.core.dice import Dice
from besiege.core.errors import AccessError, VictimError
from besiege.core.meter import Meter
from besiege.core.oracle import LEAST, Oracle
from besiege.core.threat import Access
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, module_of, untrained

SHAPE = (1, 4, 4)


def net(seed: int = 0) -> Classifier:
    return untrained((3, 8, 8), 5, seed)


def summed(x: Tensor, labels: Tensor, victim: Classifier) -> tuple[Tensor, Tensor, Tensor]:
    """What one plain backward pass says."""
    image = x.clone().requires_grad_(True)
    logits = victim(image)
    value = functional.cross_entropy(logits, labels, reduction="none")
    (gradient,) = torch.autograd.grad(value.sum(), image)
    return gradient, value.detach(), logits.detach()


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 63, 64, 65, 200])
@pytest.mark.parametrize("pad", [True, False])
def test_answers_do_not_depend_on_how_they_are_batched(rows: int, pad: bool) -> None:
    x, labels = uniform(rows, 3, 8, 8), torch.arange(rows) % 5
    gradient, value, logits = summed(x, labels, net())
    for batch in (None, 1, 16, 100, 1000):
        oracle = Oracle(net(), batch=batch, pad=pad)
        assert torch.allclose(oracle.logits(x), logits, atol=1e-5)

        def loss(z: Tensor, aim: Aim) -> Tensor:
            return functional.cross_entropy(z, aim.labels, reduction="none")

        got = oracle.gradient(x, loss, Aim(labels))
        for mine, plain in zip(got, (gradient, value, logits), strict=True):
            assert torch.allclose(mine, plain, atol=1e-5)


def test_padded_rows_are_the_same_bitwise_whatever_the_batch() -> None:
    x = uniform(67, 3, 8, 8)
    whole = Oracle(net()).logits(x)
    for rows in ([3], [3, 4, 5], [*range(66, -1, -1)]):
        for batch in (8, 24, 64):
            assert torch.equal(Oracle(net(), batch=batch).logits(x[rows]), whole[rows])


def test_batches_and_padding_are_what_they_should_be() -> None:
    spy = Spy(net())
    oracle = Oracle(spy)
    oracle.logits(uniform(514, 3, 8, 8))
    assert spy.calls == [256, 256, 16]
    assert oracle.padded == 14
    # Larger images come in smaller batches, but never one by one.
    for side, rows in ((32, 64), (64, 16), (224, 16)):
        oracle = Oracle(spy)
        assert oracle._size(torch.empty(1, 3, side, side)) == rows
    spy.calls.clear()
    Oracle(spy, batch=30).logits(uniform(50, 3, 8, 8))
    assert spy.calls == [24, 24, 16]  # whole blocks of rows, and no small one
    spy.calls.clear()
    bare = Oracle(spy, batch=30, pad=False)
    bare.logits(uniform(50, 3, 8, 8))
    assert spy.calls == [30, 20] and bare.padded == 0
    assert Oracle(spy, batch=3).batch == LEAST


def test_a_metered_victim_is_never_sent_padding() -> None:
    spy = Spy(net())
    spy.metered = True
    oracle = Oracle(spy, pad=True)
    oracle.logits(uniform(3, 3, 8, 8))
    assert spy.calls == [3] and oracle.padded == 0


def test_a_victim_may_say_how_many_images_it_takes_together() -> None:
    spy = Spy(net(), Access.DECISION)
    spy.metered, spy.together = True, 600
    x = uniform(700, 3, 8, 8)
    Oracle(spy).logits(x)
    assert spy.calls == [600, 100]
    laid = siege(spy, x, torch.zeros(700).long(), 0.1, access=Access.DECISION)
    assert [len(rows) for rows in laid.blocks(100)][:2] == [6, 6]
    assert Oracle(spy, batch=30).batch == 30


def test_padding_gets_no_gradient_and_its_own_chances() -> None:
    noisy = Noisy(net())
    dice = Dice.throw(0, torch.arange(3))
    x = uniform(3, 3, 8, 8)
    padded, bare = Oracle(noisy), Oracle(noisy, pad=False)
    assert torch.allclose(padded.logits(x, dice), bare.logits(x, dice), atol=1e-6)
    gradient, value, _ = padded.gradient(x, lambda z, _: z[:, 0], dice=dice)
    assert gradient.shape == x.shape and value.shape == (3,)
    assert torch.allclose(gradient, bare.gradient(x, lambda z, _: z[:, 0], dice=dice)[0], atol=1e-6)
    # In slices too, every row has its own.
    many = Dice.throw(0, torch.arange(50))
    y = uniform(50, 3, 8, 8)
    one = Oracle(noisy, batch=64).logits(y, many)
    assert torch.equal(Oracle(noisy, batch=16).logits(y, many), one)


class Full(nn.Module):
    """Runs out of memory above some number of rows."""

    def __init__(self, most: int, message: str | None = None) -> None:
        super().__init__()
        self.inner = module_of((3, 8, 8), 5)
        self.most = most
        self.message = message
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        if len(x) > self.most:
            if self.message is not None:
                raise RuntimeError(self.message)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        answer: Tensor = self.inner(x)
        return answer


LINUX = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes. Error code 12"
WINDOWS = "DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."


@pytest.mark.parametrize("message", [None, LINUX, WINDOWS])
def test_batches_halve_when_memory_runs_out(message: str | None) -> None:
    module = Full(20, message)
    oracle = Oracle(Classifier(module, classes=5), batch=64)
    x = uniform(70, 3, 8, 8)
    assert torch.equal(oracle.logits(x), Oracle(net(), batch=64).logits(x))
    assert module.calls[:3] == [64, 32, 16] and max(module.calls[2:]) <= 16
    assert oracle.batch == 16
    module.calls.clear()
    gradient, _, _ = oracle.gradient(x, lambda z, _: z[:, 0])
    assert max(module.calls) == 16  # it remembers
    assert torch.equal(gradient, Oracle(net(), batch=64).gradient(x, lambda z, _: z[:, 0])[0])


def test_one_block_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        Oracle(Classifier(Full(4), classes=5), batch=64).logits(uniform(9, 3, 8, 8))
    with pytest.raises(VictimError, match=r"could not take images.*something else"):
        Oracle(Classifier(Full(0, "something else"), classes=5)).logits(uniform(9, 3, 8, 8))


def test_gradients_of_classes_are_those_of_autograd() -> None:
    x = uniform(11, 3, 8, 8)
    classes = torch.stack([torch.arange(11) % 5, (torch.arange(11) + 2) % 5], 1)
    spy = Spy(net())
    got, logits = Oracle(spy, batch=8).gradients(x, classes)
    assert sum(spy.calls) == 16  # one forward per image, and padding
    assert torch.allclose(logits, net()(x).detach(), atol=1e-5)
    for c in range(2):
        image = x.clone().requires_grad_(True)
        chosen = net()(image).gather(1, classes[:, c : c + 1]).sum()
        (plain,) = torch.autograd.grad(chosen, image)
        assert torch.allclose(got[:, c], plain, atol=1e-6)


def test_maps_in_front_are_differentiated_through() -> None:
    x = uniform(10, 3, 8, 8)
    half = torch.linspace(0.1, 1.0, 10).view(-1, 1, 1, 1)
    got, _, logits = Oracle(net(), batch=8).gradient(
        x, lambda z, _: z[:, 1], through=lambda image, rows: image * half[rows]
    )
    image = x.clone().requires_grad_(True)
    plain = net()(image * half)
    assert torch.allclose(got, torch.autograd.grad(plain[:, 1].sum(), image)[0], atol=1e-6)
    assert torch.allclose(logits, plain.detach(), atol=1e-5)


class Scribbling(nn.Module):
    """Writes over its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = module_of((3, 8, 8), 5)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.inner(x.mul_(2.0).sub_(1.0))
        return answer


@pytest.mark.parametrize("rows", [3, 8])
def test_a_victim_may_write_over_what_it_is_given(rows: int) -> None:
    x = uniform(rows, 3, 8, 8)
    before = x.clone()
    oracle = Oracle(Classifier(Scribbling(), classes=5))
    logits = oracle.logits(x)
    assert torch.equal(x, before)
    assert torch.allclose(logits, net()(2 * x - 1), atol=1e-5)
    gradient, _, again = oracle.gradient(x, lambda z, _: z[:, 0])
    assert torch.equal(x, before) and torch.allclose(again, logits, atol=1e-6)
    image = x.clone().requires_grad_(True)
    (plain,) = torch.autograd.grad(net()(2 * image - 1)[:, 0].sum(), image)
    assert torch.allclose(gradient, plain, atol=1e-6)


def test_nobody_is_asked_about_nothing() -> None:
    spy = Spy(net())
    oracle = Oracle(spy)
    x = uniform(0, 3, 8, 8)
    assert oracle.logits(x).shape == (0, 5)
    gradient, value, logits = oracle.gradient(x, lambda z, _: z[:, 0])
    assert gradient.shape == x.shape and value.shape == (0,) and logits.shape == (0, 5)
    many, _ = oracle.gradients(x, torch.zeros(0, 3).long())
    assert many.shape == (0, 3, 3, 8, 8)
    assert spy.calls == []


class Says(nn.Module):
    """Answers whatever a function makes of the images."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.answer(x)  # type: ignore[operator]  # a function of images
        return said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: x.flatten(1).sum(1)[:4], r"\[rows, classes\]"),
        (lambda x: x.flatten(1).sum(1).mean(), r"\[rows, classes\]"),
        (lambda x: x.flatten(1)[:1], r"\[rows, classes\]"),
        (lambda x: x.flatten(1)[:, :0], "two classes at least"),
        (lambda x: x.flatten(1)[:, :3] * torch.nan, "NaN or infinite"),
        (lambda x: (x.flatten(1), x), r"\[rows, classes\]"),
    ],
)
def test_answers_that_are_no_logits_are_refused(answer: object, said: str) -> None:
    with pytest.raises(VictimError, match=said):
        Oracle(Classifier(Says(answer))).logits(uniform(9, *SHAPE))


def test_the_number_of_classes_is_found_out_and_then_holds() -> None:
    sizes = iter([3, 3, 4])
    oracle = Oracle(Classifier(Says(lambda x: x.flatten(1)[:, : next(sizes)])))
    found = [oracle.classes]
    oracle.logits(uniform(8, *SHAPE))
    found.append(oracle.classes)
    assert found == [None, 3]
    oracle.logits(uniform(8, *SHAPE))
    with pytest.raises(VictimError, match=r"4 classes, but 3 are expected.*classes=4"):
        oracle.logits(uniform(8, *SHAPE))
    with pytest.raises(VictimError, match=r"3 classes, but 7 are expected"):
        Oracle(Classifier(Says(lambda x: x.flatten(1)[:, :3]), classes=7)).logits(
            uniform(8, *SHAPE)
        )


def test_one_nan_among_many_rows_is_found() -> None:
    def answer(x: Tensor) -> Tensor:
        logits = x.flatten(1)[:, :3].clone()
        logits[-1, 1] = torch.nan
        return logits

    with pytest.raises(VictimError, match="NaN"):
        Oracle(Classifier(Says(answer)), pad=False).logits(uniform(40, *SHAPE))


def test_probabilities_are_taken_through_the_logarithm() -> None:
    inner = Linear(SHAPE, 4)
    soft = Classifier(
        nn.Sequential(inner.module, nn.Softmax(1)), outputs="probabilities", classes=4
    )
    x = uniform(8, *SHAPE)
    logits = Oracle(soft).logits(x)
    assert torch.allclose(logits, inner(x).log_softmax(1), atol=1e-5)
    gradient = Oracle(soft).gradient(x, lambda z, _: z[:, 1] - z[:, 0])[0]
    weight = torch.tensor(inner.weight[1] - inner.weight[0]).float().view(1, *SHAPE)
    assert torch.allclose(gradient, weight.expand_as(gradient), atol=1e-4)
    certain = affine(200 * normal(3, 16), torch.zeros(3))
    sure = Classifier(nn.Sequential(certain.module, nn.Softmax(1)), outputs="probabilities")
    assert torch.isfinite(Oracle(sure).logits(x)).all()


def test_access_is_the_least_of_threat_and_victim() -> None:
    spy = Spy(net(), Access.SCORE)
    assert Oracle(spy).access is Access.SCORE
    assert Oracle(spy, Access.DECISION).access is Access.DECISION
    oracle = Oracle(spy)
    oracle.allow(Access.SCORE, lambda _: [])
    with pytest.raises(AccessError, match=r"gradient access.*score access only.*fit: a, b"):
        oracle.allow(Access.GRADIENT, lambda access: ["a", "b"] if access == Access.SCORE else [])
    with pytest.raises(AccessError, match="none is registered"):
        oracle.allow(Access.GRADIENT, lambda _: [])


def test_callers_modes_do_not_matter() -> None:
    x = uniform(9, 3, 8, 8)
    plain = Oracle(net()).gradient(x, lambda z, _: z[:, 0])
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            got = Oracle(net()).gradient(x, lambda z, _: z[:, 0])
            logits = Oracle(net()).logits(x)
        assert torch.equal(got[0], plain[0])
        assert not logits.requires_grad and not logits.is_inference()
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_the_meter_counts_down() -> None:
    meter = Meter(3, torch.device("cpu"), budget=5)
    meter.queries += torch.tensor([0, 2, 5])
    assert meter.left(torch.tensor([2, 1, 0])).tolist() == [0, 3, 5]
    endless = Meter(3, torch.device("cpu"))
    assert (endless.left(torch.tensor([0, 1])) > 10**18).all()


def test_gradients_of_a_twin_on_a_gpu_come_one_by_one_and_are_the_same() -> None:
    """As behind graphs and compiled passes; without a GPU no graph is ever there."""
    x, classes = uniform(20, 3, 8, 8), torch.arange(60).view(20, 3) % 5
    plain, logits = Oracle(net()).gradients(x, classes)
    twin = net()
    twin.captures = Never()
    oracle = Oracle(twin)
    apart, others = oracle.gradients(x, classes)
    assert torch.allclose(apart, plain, atol=1e-6) and torch.allclose(others, logits, atol=1e-5)
    assert oracle.padded == 3 * 4 + 2 * 20  # rows up to a graph's size, and forwards again


class Never(Captures):
    """Has no graph."""

    def __call__(self, *_: object) -> None:
        return None
