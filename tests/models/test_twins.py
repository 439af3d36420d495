from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from besiege.models import Classifier, load, twin
from besiege.models.residual import resnet20
from besiege.models.small import digits_cnn
from besiege.models.twins import fold_batch_norm, keep_compiled, overwrite_in_relu

PROBE = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def lively(module: nn.Module) -> nn.Module:
    """Batch norms with statistics that matter: fresh ones fold into almost nothing."""
    draw = torch.Generator().manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.weight, part.bias, part.running_mean, part.running_var):
                assert tensor is not None
                with torch.no_grad():
                    tensor.copy_(torch.rand(tensor.shape, generator=draw) + 0.5)
    return module.eval()


def resnet() -> Classifier:
    torch.manual_seed(0)
    module = lively(resnet20())
    return Classifier(module, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25), classes=10, name="net")


def norms(module: nn.Module) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) for m in module.modules())


def answers(victim: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    x = images.clone().requires_grad_(True)
    logits = victim(x)
    (gradient,) = torch.autograd.grad(logits.logsumexp(1).sum(), x)
    return logits.detach(), gradient


def test_a_twin_answers_the_same_without_batch_norm() -> None:
    original = resnet()
    copy = twin(original, PROBE)
    assert copy is not None
    assert norms(copy.module) == 0 and norms(original.module) == 19
    x = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    logits, gradient = answers(original, x)
    others, other = answers(copy, x)
    assert (others - logits).norm() <= 1e-5 * logits.norm()
    assert (other - gradient).norm() <= 1e-3 * gradient.norm()
    assert (copy.mean, copy.std, copy.box, copy.classes) == (
        original.mean,
        original.std,
        original.box,
        original.classes,
    )


def test_the_original_is_not_touched() -> None:
    original = resnet()
    original.module.train()
    original.module.requires_grad_(True)
    digest, state = original.digest(), torch.get_rng_state()
    copy = twin(original, PROBE)
    assert copy is not None
    assert not copy.module.training
    assert not any(p.requires_grad for p in copy.module.parameters())
    assert original.digest() == digest
    assert all(m.training for m in original.module.modules())
    assert all(p.requires_grad and p.grad is None for p in original.module.parameters())
    assert all(p.is_contiguous() for p in original.module.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    shared = {p.data_ptr() for p in original.module.parameters()}
    assert not shared & {p.data_ptr() for p in copy.module.parameters()}


@pytest.mark.parametrize("which", ["original", "twin"])
def test_a_rows_answers_do_not_depend_on_the_batch(which: str) -> None:
    """At multiples of eight rows, which is what an oracle pads to."""
    victim: Classifier | None = resnet()
    assert victim is not None
    if which == "twin":
        victim = twin(victim, PROBE)
        assert victim is not None
    x = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    logits, gradient = answers(victim, x)
    for first, last in ((0, 8), (3, 11), (8, 32), (40, 64), (16, 56)):
        some, slope = answers(victim, x[first:last])
        assert torch.equal(some, logits[first:last])
        assert torch.equal(slope, gradient[first:last])


def test_a_network_without_batch_norm_has_no_twin() -> None:
    assert twin(Classifier(digits_cnn()), torch.rand(8, 1, 8, 8)) is None


class Branching(nn.Module):
    """Looks at its values, so that tracing cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.body = resnet20()

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.body(x if x.sum() > 0 else -x)
        return answer


def test_what_cannot_be_traced_is_laid_out_only() -> None:
    original = Classifier(lively(Branching()))
    copy = twin(original, PROBE)
    assert copy is not None
    assert norms(copy.module) == 19
    assert torch.allclose(copy(PROBE), original(PROBE), atol=1e-4)


class Noisy(Branching):
    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.body(x + torch.rand_like(x))
        return answer


class Straight(torch.autograd.Function):
    """Rounds forward and passes gradients on: tracing through it would lose them."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


class Rounding(Branching):
    def forward(self, x: Tensor) -> Tensor:
        rounded: Tensor = Straight.apply(x)  # type: ignore[no-untyped-call]  # torch has no types
        answer: Tensor = self.body(rounded)
        return answer


def test_a_random_network_has_no_twin_and_draws_nothing_from_the_caller() -> None:
    original = Classifier(lively(Noisy()))
    state = torch.get_rng_state()
    assert twin(original, PROBE) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_surrogate_gradient_survives() -> None:
    original = Classifier(lively(Rounding()))
    copy = twin(original, PROBE)
    assert copy is not None
    _, gradient = answers(original, PROBE)
    _, other = answers(copy, PROBE)
    assert (other - gradient).norm() <= 1e-2 * gradient.norm()


class Shared(nn.Module):
    """One convolution read by a batch norm and by a sum: it must keep its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = y + self.norm(y)
        y = self.second(self.again(torch.relu(self.first(self.again(y)))))
        flat = y.flatten(2)
        # The ReLU's input is a view that is read again: it must not be written over.
        answer: Tensor = torch.relu(flat).sum(2) + y.sum((2, 3))
        return answer


def test_shared_convolutions_and_views_are_left_alone() -> None:
    module = lively(Shared())
    traced = overwrite_in_relu(fold_batch_norm(module))
    assert norms(traced) == 3
    assert torch.allclose(traced(PROBE), module(PROBE), atol=1e-4)


class Changed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.copies = 0

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.norm(x).sum((2, 3)) + self.copies
        return answer

    def __deepcopy__(self, memo: object) -> Changed:
        other = Changed().eval()
        other.copies = self.copies + 1
        return other


def test_a_copy_that_answers_otherwise_is_no_twin() -> None:
    assert twin(Classifier(Changed().eval()), PROBE) is None


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("BESIEGE_DATA", ""), "weights")),
    reason="needs public weights: set BESIEGE_DATA",
)
def test_the_twin_of_a_trained_network() -> None:
    original = load("public:cifar10_resnet20")
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    copy = twin(original, x)
    assert copy is not None
    assert norms(copy.module) == 0
    assert (copy(x) - original(x)).norm() <= 1e-5 * original(x).norm()


def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(name, "elsewhere")
    keep_compiled()
    assert os.environ[name] == "elsewhere"
    monkeypatch.delenv(name)
    keep_compiled()
    assert Path(os.environ[name]).is_relative_to(tmp_path)
