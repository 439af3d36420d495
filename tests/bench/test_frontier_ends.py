"""A plan ends whatever fails, and the others of a call with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import besiege
from besiege.bench.kinds import KINDS
from besiege.bench.opening import open as open_results
from besiege.bench.overview import open_run
from besiege.bench.task import Task
from besiege.core.errors import VictimError
from besiege.models import load

ASK: dict[str, Any] = {"threat": "linf:0.15", "curve": False, "suite": "quick", "count": 18}


class Rounded(nn.Module):
    """Without gradients, so that its guards break images and go on to all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.net = load("zoo:digits-natural").module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net((3 * x).round() / 3)
        return logits


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> besiege.Classifier:
    monkeypatch.setattr("besiege.bench.planning.must_have_gradient", lambda *given: None)
    return besiege.Classifier(Rounded(), name="rounded")


@pytest.mark.usefixtures("examined")
def test_guards_of_an_attack_that_failed_do_not_wait_for_it(
    rounded: besiege.Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    craft = KINDS.get("craft")
    together = craft.run_together

    def failing(tasks: list[Task], context: Any) -> Any:
        if tasks[0].shard == 0 and tasks[0].identity["attack"]["name"] == "apgd":
            raise RuntimeError("no memory")
        return together(tasks, context)

    monkeypatch.setattr(craft, "run_together", failing, raising=False)
    found = besiege.evaluate(rounded, "digits", out=tmp_path / "run", shard=6, **ASK)
    assert not found.complete and found._plan.guarded == "all"


@pytest.mark.usefixtures("examined")
def test_a_repeated_run_that_is_stopped_keeps_what_guards_found(
    rounded: besiege.Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = besiege.evaluate(rounded, "digits", out=tmp_path / "run", **ASK)
    assert open_run(tmp_path / "run")[1].plans[0].guarded == "all"

    def stopped(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("besiege.bench.sharing.run_all", stopped)
    with pytest.raises(KeyboardInterrupt):
        besiege.evaluate(rounded, "digits", out=tmp_path / "run", **ASK)
    again = open_results(tmp_path / "run")
    assert isinstance(again, besiege.Evaluation)
    assert again.complete and again.robust == first.robust


def test_a_model_that_cannot_answer_does_not_stop_the_others(tmp_path: Path) -> None:
    class Bad(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 12:
                raise RuntimeError("too many")
            return torch.zeros(len(x), 10) + 0 * x.sum()

    words: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "curve": False, "count": 20}
    models = [besiege.Classifier(Bad(), name="bad"), load("zoo:digits-natural")]
    with pytest.raises(VictimError, match="too many"):
        besiege.evaluate(models, "digits", out=tmp_path / "run", examine="none", **words)
    store, run = open_run(tmp_path / "run")
    other = next(plan for plan in run.plans if plan.model.name != "bad")
    assert all(store.sound(task.key) for task in other.tasks())


def test_progress_of_a_curve_with_other_shards(tmp_path: Path) -> None:
    """It was read by the shards of the attacks, of which there may be fewer."""
    events: list[Any] = []
    besiege.evaluate(
        *("zoo:digits-natural", "digits"),
        threat="linf:0.1",
        attacks="pgd(steps=3)",
        count=120,
        shard=120,
        examine="none",
        watch=events.append,
    )
    assert any("minimal" in event.text for event in events)
