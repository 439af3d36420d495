"""Ways in which a robustness was only a bug, each with the case that showed it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, InputError, StochasticError, VictimError
from besiege.core.siege import Siege
from besiege.defenses import BitDepth, Defended, ResizePad
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, images_of

SHAPE = (1, 6, 6)


def bytes_of(rows: int) -> Tensor:
    return torch.round(images_of(SHAPE, rows) * 255) / 255


@pytest.mark.parametrize("attack", ["bim", "mim", "pgd", "sinifgsm"])
def test_steps_smaller_than_the_grid_still_add_up(attack: str) -> None:
    module = Linear(SHAPE, 3).module
    x = bytes_of(40)
    y = module(x).argmax(1)
    smooth = besiege.attack(attack, Classifier(module), x, y, threat="linf:3/255")
    gridded = besiege.attack(attack, Classifier(module, grid=1 / 255), x, y, threat="linf:3/255")
    assert int(gridded.success.sum()) >= int(smooth.success.sum()) - 1 > 0
    steps = gridded.images * 255
    assert torch.allclose(steps, steps.round(), atol=1e-3)
    assert float(gridded.distance[gridded.success].max()) <= 3 / 255 * (1 + 1e-6)


def test_a_victim_with_a_grid_is_asked_about_its_grid_alone() -> None:
    asked = []

    class Spy(nn.Module):
        inner = Linear(SHAPE, 3).module

        def forward(self, x: Tensor) -> Tensor:
            asked.append(x.detach() * 255)
            logits: Tensor = self.inner(x)
            return logits

    x = bytes_of(8)
    y = Spy.inner(x).argmax(1)
    besiege.attack("pgd", Classifier(Spy(), grid=1 / 255), x, y, threat="linf:3/255", steps=5)
    steps = torch.cat(asked)
    assert torch.allclose(steps, steps.round(), atol=1e-3)


def test_images_between_the_grid_are_refused() -> None:
    net = Classifier(Linear(SHAPE, 3).module, grid=1 / 255)
    with pytest.raises(InputError, match="round the images"):
        besiege.attack("fgsm", net, images_of(SHAPE, 4), torch.zeros(4).long(), threat="linf:0.1")
    for grid in (255.0, 0.3):
        with pytest.raises(InputError, match="whole number of its steps"):
            Classifier(net.module, grid=grid)


def test_the_smallest_change_of_a_victim_with_chances_is_refused() -> None:
    data = besiege.data.load("digits", count=8)
    victim = Defended("zoo:digits-natural", ResizePad(0.75))
    for threat in ("linf", "linf:0.2"):
        with pytest.raises(StochasticError, match="luck"):
            besiege.attack(
                "minimal(averaged(pgd, 2))", victim, data.images, data.labels, threat=threat
            )


def test_minimal_tries_all_that_the_threat_allows() -> None:
    data = besiege.data.load("digits", count=24)
    run = besiege.attack(
        "minimal(pgd(steps=10), first=0.001)",
        "zoo:digits-natural",
        data.images,
        data.labels,
        threat="linf:0.25",
    )
    plain = besiege.attack(
        "pgd(steps=10)", "zoo:digits-natural", data.images, data.labels, threat="linf:0.25"
    )
    assert int(run.success.sum()) >= int(plain.success.sum()) - 1


class Branching(nn.Module):
    """Rounds, unless it is being traced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        self.last = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_tensor(x):
            x = x + ((x * 16).round() / 16 - x).detach()
        logits: Tensor = self.last(self.inner(x))
        return logits


def test_a_twin_must_agree_away_from_the_clean_images() -> None:
    from besiege.models.twins import probe, twin

    torch.manual_seed(0)
    net = Branching().eval()
    x = torch.round(images_of(SHAPE, 16) * 16) / 16
    y = net(x).argmax(1)
    victim = Classifier(net)
    samples = besiege.core.samples.Samples.of(x, y)
    threat = besiege.Threat.parse("linf:0.03")
    assert twin(victim, x[:8]) is not None  # on the clean images alone it agrees
    fast = twin(victim, probe(samples, threat, victim.box, 0))
    assert fast is None or type(fast.module).__name__ == "ChannelsLast"
    again = besiege.attack("pgd", net, x, y, threat=threat, twin=True)
    plain = besiege.attack("pgd", net, x, y, threat=threat)
    assert torch.equal(again.success, plain.success)


class Root(nn.Module):
    """A gradient that is NaN where it is masked."""

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)
        score = torch.where(z > 0.5, torch.sqrt(z - 0.5), torch.zeros_like(z)).sum(1)
        return torch.stack([5 - score, score], 1)


def test_gradients_that_are_not_finite_are_noticed() -> None:
    x = torch.full((4, 1, 6, 6), 0.49)
    x[:, :, 0] = 0.55  # here the gradient is sound, so that the row does not vanish as a whole
    result = besiege.attack("pgd", Root(), x, torch.zeros(4).long(), threat="linf:0.005", steps=3)
    assert "W11" in {warning.id for warning in result.warnings}


def test_infinite_logits_are_refused_and_classes_ruled_out_are_not_targets() -> None:
    data = besiege.data.load("digits", count=16)
    net = besiege.models.load("zoo:digits-natural")

    class Masked(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, x: Tensor) -> Tensor:
            logits = net(x).clone()
            logits[:, 9] = self.value
            return logits

    with pytest.raises(VictimError, match="infinite"):
        besiege.attack("fgsm", Masked(torch.inf), data.images, data.labels, threat="linf:0.1")
    known = data.labels != 9
    result = besiege.attack(
        "fgsm",
        Masked(-torch.inf),
        data.images[known],
        data.labels[known],
        threat="linf:0.01 targeted:least-likely",
    )
    assert not result.success.any()


def test_declared_probabilities_must_be_some_and_half_precision_ones_are_seen() -> None:
    x = images_of(SHAPE, 8)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(36, 5))
    y = linear(x).argmax(1)
    with pytest.raises(VictimError, match="do not sum to 1"):
        besiege.attack("fgsm", Classifier(linear, outputs="probabilities"), x, y, threat="linf:0.1")
    soft = nn.Sequential(linear, nn.Softmax(1)).to(torch.bfloat16)
    with pytest.raises(VictimError, match="returns probabilities"):
        besiege.attack("fgsm", soft, x, y, threat="linf:0.1")


@pytest.mark.parametrize(
    "text", ["bim(aim='untargeted')", "each_target(illc)", "pgd(schedule=constant(-1))"]
)
def test_attacks_that_would_steer_wrong_are_refused(text: str) -> None:
    with pytest.raises(AttackError):
        besiege.attacks.parse(text)


def test_a_failure_returns_the_clean_image_whatever_was_kept() -> None:
    data = besiege.data.load("digits", count=30)
    result = besiege.attack(
        "bim(steps=4)",
        "zoo:digits-pgd-at",
        data.images,
        data.labels,
        threat="linf:0.03",
        keep="last",
        leave="success",
    )
    lost = ~result.success
    assert lost.any() and torch.equal(result.images[lost], data.images[lost])


def test_what_lies_outside_is_never_kept() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Outside(besiege.Attack):
        """Offers what is not allowed."""

        def run(self, siege: Siege) -> None:
            siege.offer(siege.ball.center + 5)

    net = Linear(SHAPE, 3)
    x = images_of(SHAPE, 6)
    for keep in ("last", "highest"):
        result = besiege.attack(
            Outside(),
            net,
            x,
            net(x).argmax(1),
            threat="linf:0.1",
            keep=keep,
            leave="end",
        )
        assert torch.equal(result.images, x)


def test_layers_inside_layers_draw_their_own_chances() -> None:
    seen = []

    class Spy(BitDepth):
        stochastic = True

        def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
            seen.append(dice.uniform((1,)))
            return x

    inner = Defended(Linear(SHAPE, 3), Spy())
    outer = Defended(inner, Spy())
    outer(images_of(SHAPE, 4), Dice.throw(0, torch.arange(4)))
    assert len(seen) == 2 and not torch.equal(seen[0], seen[1])
