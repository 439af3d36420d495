"""Looking at answers one request late, as on a GPU, must change nothing but what was computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tests.victims import uniform
from torch import Tensor, nn

from besiege.attacks import Attack, parse
from besiege.attacks.losses import margin
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import VictimError
from besiege.core.oracle import Oracle
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import Linf, Threat
from besiege.evaluation import crafting
from besiege.evaluation.crafting import Crafted, craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import untrained

ATTACKS = {
    "pgd(steps=15)": "linf:0.03",
    "pgd(steps=10, restarts=3)": "l2:0.2",
    "apgd(steps=20)": "linf:0.02",
    "apgd(steps=20, restarts=2)": "l1:1",
    "apgdt(steps=10, targets=4)": "linf:0.02",
    "fabt(steps=10, targets=3)": "linf:0.02",
    "fabt(steps=10)": "l2",
    "square(steps=60)": "linf:0.03",
    "square(steps=60)+": "l2:0.5",
    "cascade(fgsm, pgd(steps=10), square(steps=30))": "linf:0.02",
    "repeat(pgd(steps=5), 3)": "linf:0.02",
    "minimal(pgd(steps=5))": "linf",
    # Short ones, whose last step still breaks rows.
    "fabt(steps=1, targets=3)": "linf:0.02",
    "fabt(steps=2, targets=4, together=2)": "l2:0.2",
    "fab(steps=2, restarts=2)": "linf:0.03",
    "apgd(steps=3, restarts=2)": "l1:2",
    "apgdt(steps=2, targets=4)": "linf:0.03",
    "apgdt(steps=3, targets=4, order='distance')": "l2:0.2",
    "square(steps=2, restarts=4)": "linf:0.05",
    "best_of(pgd(steps=2), apgd(steps=2))": "linf:0.03",
}
Same = tuple[str, ...]
SAME: Same = ("images", "success", "distance", "first_step", "first_query", "queries", "backwards")


class Patient(Oracle):
    """Looks late, as it would behind CUDA graphs."""

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self.deferred = True


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(crafting, "Oracle", Patient)


def run(attack: str, threat: str, leave: str | None = None) -> Crafted:
    victim = untrained((3, 8, 8), 5)
    x = uniform(40, 3, 8, 8)
    with torch.no_grad():
        labels = victim(x).argmax(1)
    labels[:3] = (labels[:3] + 1) % 5  # some are wrong before
    samples = Samples.of(x, labels, classes=5)
    given = {} if leave is None else {"leave": leave}
    return craft(victim, parse(attack.rstrip("+")), samples, Threat.parse(threat), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ATTACKS)
def test_looking_late_changes_no_verdict_and_no_query(
    attack: str, late: Callable[[], None]
) -> None:
    threat = ATTACKS[attack]
    soon = run(attack, threat)
    late()
    after = run(attack, threat)
    assert int(soon.success.sum()) > 3
    assert ":" not in threat or not bool(soon.success.all())
    for name in SAME[:-1]:
        assert torch.equal(getattr(soon, name), getattr(after, name)), name
    # A row that was broken may have been computed once more for every view it was in.
    extra = after.forwards - soon.forwards
    assert int(extra.min()) >= 0
    if threat not in ("linf", "l2"):
        assert int(extra[~soon.success].sum()) == 0


def test_rows_that_stay_after_success_are_asked_as_often(late: Callable[[], None]) -> None:
    soon = run("pgd(steps=10)", "linf:0.03", "end")
    late()
    after = run("pgd(steps=10)", "linf:0.03", "end")
    for name in (*SAME, "forwards"):
        assert torch.equal(getattr(soon, name), getattr(after, name)), name


def test_what_is_no_number_is_found_late_too(late: Callable[[], None]) -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(
                torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
            )

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = x.flatten(1) @ self.weight
            return torch.where(x.flatten(1).amax(1, keepdim=True) > 0.6, torch.nan, logits)

    victim = Classifier(Breaks())
    x = 0.55 * uniform(8, 3, 2, 2)
    samples = Samples.of(x, victim(x).argmax(1).detach(), classes=3)
    late()
    for attack, queries in (("pgd(steps=10)", None), ("pgd(steps=10)", 50), ("dim(steps=9)", None)):
        with pytest.raises(VictimError, match="NaN"):
            craft(victim, parse(attack), samples, Threat.parse("linf:0.3"), queries=queries)


@dataclass(frozen=True)
class Mixed(Attack):
    """Asks about several candidates at once, and never settles."""

    steps: int = 4

    def run(self, siege: Siege) -> None:
        x = siege.ball.center
        for _ in range(self.steps):
            answer = siege.gradient(x, margin)
            x = siege.ball.project(x + siege.ball.steepest(answer.gradient, x, siege.ball.radius))
            # Weaker points than the next one, so that it is the plain request that breaks rows.
            siege.logits(torch.stack([x.lerp(siege.ball.center, 0.9)] * 2, 1))


def test_attacks_that_ask_otherwise_pay_the_same(late: Callable[[], None]) -> None:
    victim, x = untrained((3, 8, 8), 5), uniform(40, 3, 8, 8)
    samples = Samples.of(x, victim(x).argmax(1).detach(), classes=5)
    threat = Threat.parse("linf:0.02")
    soon = craft(victim, Mixed(), samples, threat)
    late()
    after = craft(victim, Mixed(), samples, threat)
    for name in SAME:
        assert torch.equal(getattr(soon, name), getattr(after, name)), name


def test_a_scan_does_not_ask_for_what_is_broken(
    late: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Oracle, "ahead", lambda *_: 4)
    soon = run("square(steps=20)", "l2:1")
    late()
    after = run("square(steps=20)", "l2:1")
    for name in SAME:
        assert torch.equal(getattr(soon, name), getattr(after, name)), name


def test_nothing_is_left_to_attack_where_all_are_wrong(late: Callable[[], None]) -> None:
    victim, x = untrained((3, 8, 8), 5), uniform(4, 3, 8, 8)
    samples = Samples.of(x, (victim(x).argmax(1).detach() + 1) % 5, classes=5)
    late()
    made = craft(victim, parse("apgdt(order='distance')"), samples, Threat.parse("linf:0.1"))
    assert bool(made.success.all()) and int(made.backwards.sum()) == 0


def test_a_hit_is_that_of_the_point_asked_about(late: Callable[[], None]) -> None:
    """Whatever the attack writes over it before it looks."""
    victim, x = untrained((3, 8, 8), 5), uniform(12, 3, 8, 8)
    wrong = (victim(x).argmax(1).detach() + 1) % 5
    late()
    around = ball(Linf, x, 0.1, (0.0, 1.0))
    siege = Siege.start(Patient(victim), around, wrong, Dice.throw(0, torch.arange(12)))
    points = x.clone()
    answer = siege.logits(points)
    points.add_(9.0)
    assert bool(answer.hit.all())
