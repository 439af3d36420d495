from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from besiege.core.errors import InputError, VictimError
from besiege.core.threat import Access
from besiege.models import Classifier
from besiege.models.small import digits_cnn


def linear(seed: int = 0) -> nn.Sequential:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.rand(p.shape, generator=draw) - 0.5)
    return module


def images(rows: int = 5) -> Tensor:
    return torch.rand(rows, 3, 2, 2, generator=torch.Generator().manual_seed(1))


class Scaled(nn.Module):
    def __init__(self, scale: float, act: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.scale = scale
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x.flatten(1)) * self.scale


class Answers(nn.Module):
    """Answers whatever it was made with."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer


def test_normalisation_happens_inside_per_channel() -> None:
    module, x = linear(), images()
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    by_hand = x.clone()
    for c in range(3):
        by_hand[:, c] = (by_hand[:, c] - mean[c]) / std[c]
    victim = Classifier(module, mean=mean, std=std)
    assert torch.allclose(victim(x), module(by_hand), atol=1e-6)
    assert not torch.allclose(victim(x), module(x), atol=1e-2)
    assert torch.equal(Classifier(module)(x), module(x))
    assert Classifier(module, mean=0.5, std=0.5).mean == (0.5,)


def test_normalisation_first_used_in_inference_mode_still_carries_gradients() -> None:
    victim = Classifier(linear(), mean=0.5, std=0.5)
    with torch.inference_mode():
        victim(images())
    x = images().requires_grad_(True)
    (gradient,) = torch.autograd.grad(victim(x).sum(), x)
    assert gradient.abs().sum() > 0


def test_probabilities_are_taken_through_the_logarithm() -> None:
    module, x = linear(), images()
    victim = Classifier(nn.Sequential(module, nn.Softmax(1)), outputs="probabilities")
    assert torch.allclose(victim(x), module(x).log_softmax(1), atol=1e-6)
    sure = Classifier(Answers(torch.tensor([[1.0, 0.0]])), outputs="probabilities")
    assert torch.isfinite(sure(images(1))).all()


def test_logits_are_float32_whatever_the_module_computes_in() -> None:
    module = linear()
    victim = Classifier(linear().double())
    assert victim(images()).dtype == torch.float32
    assert torch.allclose(victim(images()), module(images()), atol=1e-6)


@pytest.mark.parametrize(
    "answer",
    [
        (torch.zeros(5, 3),),
        torch.zeros(4),
        torch.zeros(5, 3, 1),
        torch.zeros(4, 3),
        "cat",
        {"scores": torch.zeros(5, 3)},
    ],
)
def test_answers_that_are_no_logits_are_refused(answer: object) -> None:
    with pytest.raises(VictimError, match=r"\[rows, classes\]"):
        Classifier(Answers(answer))(images())


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"mean": 0.5}, "both or neither"),
        ({"std": (1, 1, 1)}, "both or neither"),
        ({"mean": (0.5, 0.5), "std": (0.5,)}, "2 values"),
        ({"mean": (), "std": ()}, "0 values"),
        ({"mean": 0.5, "std": 0}, "above zero"),
        ({"mean": float("nan"), "std": 1}, "finite"),
        ({"mean": "abc", "std": 1}, "give numbers"),
        ({"box": (1, 0)}, "lowest and the highest"),
        ({"box": (0, float("inf"))}, "lowest and the highest"),
        ({"box": 1}, "lowest and the highest"),
        ({"outputs": "softmax"}, "logits, logit, probabilities"),
        ({"grid": 0}, "1/255"),
        ({"classes": 1}, "2 classes or more"),
        ({"classes": {}}, "2 classes or more"),
        ({"classes": 10**5000}, "far too large"),
        ({"grid": []}, "positive step"),
        ({"grid": 10**5000}, "far too large"),
    ],
)
def test_impossible_descriptions_are_refused(about: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Classifier(linear(), **about)


def test_images_of_other_channels_than_the_normalisation_are_refused() -> None:
    victim = Classifier(linear(), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    with pytest.raises(InputError, match="3 channels"):
        victim(torch.rand(2, 4, 2, 2))
    with pytest.raises(InputError, match=r"\[rows, channels, height, width\]"):
        victim(torch.rand(3, 2, 2))


def test_grey_images_where_colour_is_meant_name_the_layer() -> None:
    victim = Classifier(linear(), mean=(0.5,) * 3, std=(0.5,) * 3, name="net")
    says = r"are grey.*takes colour: write 'net\+adapt\(size=\(4, 6\), channels=3\)'"
    with pytest.raises(InputError, match=says):
        victim(torch.rand(2, 1, 4, 6))


def mixed() -> nn.Sequential:
    """A module in a state nobody would put it in: modes and flags that differ per part."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.Dropout(), nn.Linear(12, 4))
    module.train()
    module[2].eval()
    module[1].weight.requires_grad_(False)
    return module


def state(module: nn.Module) -> list[bool]:
    return [m.training for m in module.modules()] + [p.requires_grad for p in module.parameters()]


def test_held_freezes_and_restores_exactly_also_after_an_exception() -> None:
    module = mixed()
    victim, before = Classifier(module), state(module)
    with victim.held():
        assert not any(state(module))
        with victim.held():
            assert not any(state(module))
        assert not any(state(module))
    assert state(module) == before
    with pytest.raises(KeyError), victim.held():
        raise KeyError
    assert state(module) == before


def test_the_digest_names_what_decides_the_answers() -> None:
    same = [Classifier(linear()).digest() for _ in range(2)]
    assert same[0] == same[1]
    assert len(same[0]) == 64
    module = linear()
    with torch.no_grad():
        next(module.parameters())[0, 0] += 1e-6
    others = [
        Classifier(module),
        Classifier(linear(1)),
        Classifier(linear(), mean=0.5, std=0.5),
        Classifier(linear(), mean=0.5, std=0.25),
        Classifier(linear(), box=(0, 2)),
        Classifier(linear(), outputs="probabilities"),
        Classifier(linear(), grid=1 / 255),
        Classifier(nn.Sequential(*linear(), nn.Tanh())),
        Classifier(nn.Sequential(*linear(), nn.ReLU())),
        Classifier(Scaled(1.0)),
        Classifier(Scaled(2.0)),
        Classifier(Scaled(1.0, torch.tanh)),
        Classifier(Scaled(1.0, partial(torch.clamp, min=0.1))),
        Classifier(Scaled(1.0, partial(torch.clamp, min=0.2))),
        Classifier(Answers(torch.zeros(2, 3))),
        Classifier(Answers(torch.ones(2, 3))),
        Classifier(Answers(iter([1]))),  # nothing can be read of these two
        Classifier(Answers(iter([1]))),
    ]
    digests = {same[0], *(victim.digest() for victim in others)}
    assert len(digests) == 1 + len(others)


def test_the_digest_ignores_name_mode_and_frozen_parameters() -> None:
    victim = Classifier(linear(), name="a")
    before = victim.digest()
    victim.module.eval().requires_grad_(False)
    assert Classifier(victim.module, name="b").digest() == before


def test_unreadable_source_does_not_share_a_digest_between_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space: dict[str, Any] = {"nn": nn, "__name__": "console"}
    exec("class Typed(nn.Flatten): pass", space)
    victim = Classifier(space["Typed"]())
    before = victim.digest()
    assert victim.digest() == before
    monkeypatch.setattr("besiege.core.sourcing._THIS_PROCESS", "another")
    assert victim.digest() != before
    # Readable source is the same in every process.
    monkeypatch.undo()
    readable = Classifier(Scaled(1.0)).digest()
    monkeypatch.setattr("besiege.core.sourcing._THIS_PROCESS", "another")
    assert Classifier(Scaled(1.0)).digest() == readable


def test_of_takes_modules_victims_and_text() -> None:
    module = linear()
    victim = Classifier.of(module)
    assert victim.module is module
    assert Classifier.of(victim) is victim
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        Classifier.of(3)  # type: ignore[call-overload]  # what a user might do


def test_a_classifier_moves_its_module() -> None:
    victim = Classifier(linear())
    assert victim.to("cpu") is victim
    assert victim.to(torch.device("meta")).device == torch.device("meta")
    for wrong, says in (("gpu", "'cuda' for|'cuda' or"), ("cud", "did you mean 'cuda'")):
        with pytest.raises(InputError, match=says):
            Classifier(linear()).to(wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_missing_device_is_a_mistake_that_is_explained() -> None:
    with pytest.raises(InputError, match="'cuda' cannot be used"):
        Classifier(linear()).to("cuda")


def test_what_a_siege_reads() -> None:
    victim = Classifier(digits_cnn())
    assert victim.access is Access.GRADIENT
    assert not victim.stochastic and not victim.metered
    assert victim.device == torch.device("cpu")
    assert Classifier(nn.Flatten()).device == torch.device("cpu")
    assert victim.box == (0.0, 1.0) and victim.classes is None and victim.grid is None


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"mine": nn.Identity()}, "several models are a list"),
        (len, "function_model"),
        (3, "derive"),
    ],
)
def test_what_is_no_model_is_told_what_may_be_meant(given: Any, advice: str) -> None:
    with pytest.raises(InputError, match=advice):
        Classifier.of(given)
