"""Looking at answers one request late, as on a GPU, must change nothing but what was computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.victims import uniform
from torch import Tensor, nn

from besiege.attacks import parse
from besiege.core.errors import VictimError
from besiege.core.oracle import Oracle
from besiege.core.samples import Samples
from besiege.core.threat import Threat
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
        self.patient = True


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
    with pytest.raises(VictimError, match="NaN"):
        craft(victim, parse("pgd(steps=10)"), samples, Threat.parse("linf:0.3"))
