"""Evaluations with presets: plans keep both texts, and records are those of the attack itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import besiege
from besiege.attacks.attack import parse, spelled
from besiege.bench.planning import plan_of
from besiege.bench.request import requested, resolve
from besiege.bench.run import read_run
from besiege.bench.store import Store
from besiege.core.errors import AttackError, ThreatError

NATURAL = "zoo:digits-natural"
WRITTEN = "pgd@madry(steps=5), averaged(bim@realsafe(steps=3), 2)"


def evaluate(out: Path, attacks: str) -> besiege.Evaluation:
    return besiege.evaluate(
        NATURAL, "digits", threat="linf:0.1", attacks=attacks, count=12, curve=False, out=out
    )


def test_a_plan_keeps_the_preset_and_the_attack(tmp_path: Path) -> None:
    found = evaluate(tmp_path, WRITTEN)
    run = read_run(Store(tmp_path))
    assert run is not None
    first, second = run.plans[0].attacks
    assert first.written == "pgd@madry(steps=5)"
    assert parse(first.text) == parse("pgd@madry(steps=5)") and "@" not in first.text
    assert first.spelled["schedule"] == {"name": "constant", "step": 0.25}
    assert second.title == "averaged(bim@realsafe(steps=3), 2)"
    assert run.plans[0].request.attacks == (first.title, second.title)
    assert [one.text for one in found.figures.attacks] == [first.title, second.title]


def test_only_the_last_iterate_of_papers_counts_and_rules_know_it(tmp_path: Path) -> None:
    ours, papers = (
        besiege.evaluate(NATURAL, "digits", threat="linf:0.1", attacks=text, count=100, curve=False)
        for text in (str(parse("bim@realsafe")).replace("'last'", "'every'"), "bim@realsafe")
    )
    assert papers.robust is not None and ours.robust is not None
    assert ours.robust.value <= papers.robust.value
    rows = papers.rows.where(papers.rows["success"])
    assert set(rows["first_step"]) <= {0, 20}  # 0 where the clean image is misclassified
    assert set(ours.rows.where(ours.rows["success"])["first_step"]) - {0, 20}
    assert not {"W05", "W07"} & {one.id for one in papers.warnings}


def test_the_attack_written_out_finds_the_same_records(tmp_path: Path) -> None:
    found = evaluate(tmp_path, WRITTEN)
    before = Store(tmp_path).present()
    spelled = [
        str(parse(text)) for text in ("pgd@madry(steps=5)", "averaged(bim@realsafe(steps=3), 2)")
    ]
    again = evaluate(tmp_path, ", ".join(spelled))
    assert Store(tmp_path).present() == before
    assert [one.text for one in again.figures.attacks] == spelled
    assert [one.accuracy for one in again.figures.attacks] == [
        one.accuracy for one in found.figures.attacks
    ]


def test_a_preset_and_the_same_attack_written_out_are_one_attack(tmp_path: Path) -> None:
    with pytest.raises(AttackError, match="listed twice"):
        evaluate(tmp_path, f"pgd@madry, {parse('pgd@madry')}")


def test_arguments_of_calls_cannot_change_what_a_preset_fixes() -> None:
    data = besiege.data.load("digits", count=4)
    besiege.attack("pgd@madry", NATURAL, data.images, data.labels, steps=2, threat="linf:0.1")
    with pytest.raises(AttackError, match="fixes schedule"):
        besiege.attack(
            "pgd@madry", NATURAL, data.images, data.labels, schedule="cosine(1)", threat="linf:0.1"
        )


@pytest.mark.parametrize(
    "norm", ["linf:0.15", pytest.param("l2:0.5", marks=pytest.mark.slow), "l1:3"]
)
def test_the_reference_suite_runs_in_every_norm(tmp_path: Path, norm: str) -> None:
    found = besiege.evaluate(
        NATURAL,
        "digits",
        threat=norm,
        suite="standard@reference",
        count=4,
        curve=False,
        out=tmp_path,
    )
    assert [one.text.partition("@")[0] for one in found.figures.attacks] == [
        "apgd",
        "apgdt",
        "fabt",
        "square",
    ]
    assert found.complete


@pytest.mark.parametrize(
    "attack",
    ["bim@realsafe", "pgd@madry(restarts=2)", "dim", "sinifgsm", "each_target(pgd@madry, 3)"],
)
@pytest.mark.parametrize(
    "queries",
    [2, pytest.param(15, marks=pytest.mark.slow), 21, pytest.param(22, marks=pytest.mark.slow)],
)
def test_the_last_query_examines_an_iterate(attack: str, queries: int) -> None:
    found = besiege.evaluate(
        NATURAL,
        "digits",
        threat="linf:0.15",
        attacks=attack,
        count=40,
        curve=False,
        queries=queries,
    )
    assert found.robust is not None
    assert found.robust.hits < found.clean.hits or queries == 2
    assert found.rows["queries"].max() <= queries


def test_records_of_ascents_that_examined_nothing_are_not_found() -> None:
    """Within a query limit earlier releases examined no image of these; others are unchanged."""
    ask: dict[str, Any] = {"threat": "linf:0.15", "count": 4, "curve": "none"}

    def spelled_of(attack: str, queries: int | None) -> dict[str, Any]:
        request, objects = requested(NATURAL, "digits", attacks=attack, queries=queries, **ask)
        return plan_of(resolve(request, objects)).attacks[0].spelled

    for attack in ("dim", "sinifgsm", "repeat(dim, 2)"):
        assert spelled_of(attack, None) == spelled(parse(attack))
        assert spelled_of(attack, 20) == spelled(parse(attack)) | {"revision_within_queries": 2}
    for attack in ("pgd", "pgd@madry", "repeat(mim, 2)"):
        assert spelled_of(attack, 20) == spelled(parse(attack))


def test_no_curve_against_steps_where_only_the_last_iterate_counts() -> None:
    found = besiege.evaluate(
        NATURAL,
        "digits",
        threat="linf:0.1",
        attacks="bim, bim@realsafe, dim",
        count=60,
        curve=False,
    )
    assert [one.attack for one in found.figures.steps_curve] == ["bim"]


def test_the_page_describes_the_preset_and_not_the_default() -> None:
    found = besiege.evaluate(
        NATURAL, "digits", threat="linf:0.1", attacks="pgd@madry(steps=2)", count=8, curve=False
    )
    assert found.figures.attacks[0].told == (
        "Madry et al. 2018, CIFAR-10: 20 steps of 2/255 from a uniform start "
        "(here at linf:0.1, steps=2)"
    )


def test_an_evaluation_notes_that_a_preset_runs_elsewhere(tmp_path: Path) -> None:
    found = evaluate(tmp_path, "pgd@madry(steps=2), pgd(steps=2)")
    (note,) = [one for one in found.warnings if one.id == "W44"]
    assert note.level == "note" and "'pgd@madry' was published for linf:8/255" in note.seen
    # The records are those of the attack written out, which nobody published.
    plain = evaluate(tmp_path, f"{parse('pgd@madry(steps=2)')}, pgd(steps=2)")
    assert "W44" not in {one.id for one in plain.warnings}


def test_an_attack_notes_that_a_preset_runs_elsewhere() -> None:
    data = besiege.data.load("digits", count=2)
    given = (NATURAL, data.images, data.labels)
    there = besiege.attack("pgd@madry", *given, steps=2, threat="linf:8/255")
    found = besiege.attack("pgd@madry", *given, steps=2, threat="l2:0.5")
    assert "W44" not in repr(there) and "W44" in repr(found)
    assert "W44" not in repr(besiege.attack(parse("pgd@madry"), *given, threat="l2:0.5"))


def test_a_preset_is_refused_in_another_norm_before_any_work() -> None:
    data = besiege.data.load("digits", count=2)
    with pytest.raises(ThreatError, match="use bandits@ilyas-l2"):
        besiege.attack("bandits@ilyas", NATURAL, data.images, data.labels, threat="l2:1")
    with pytest.raises(ThreatError, match="use bandits@ilyas-l2"):
        besiege.evaluate("no such model", "digits", threat="l2:1", attacks="bandits@ilyas")


def widened(own: besiege.Classifier) -> besiege.Classifier:
    """The same model, for images between 0 and 256."""

    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = own.module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return own(x / 256)

    return besiege.Classifier(Wide().eval(), box=(0.0, 256.0), classes=10)


def test_published_radii_grow_with_the_box() -> None:
    data = besiege.data.load("digits", count=12)
    own = besiege.models.load(NATURAL)
    wide = widened(own)
    for attack in ("minimal@realsafe(bim@realsafe-code)", "minimal@su(bim@su(steps=10))"):
        one = besiege.attack(attack, own, data.images, data.labels, threat="linf")
        two = besiege.attack(attack, wide, 256 * data.images, data.labels, threat="linf")
        assert torch.allclose(256 * one.distance, two.distance, rtol=1e-3), attack


def test_the_usual_budget_grows_with_the_box() -> None:
    wide = widened(besiege.models.load(NATURAL))
    found = besiege.evaluate(
        wide, "digits", threat="linf:25.6", attacks="fgsm", count=12, curve=False
    )
    assert "W28" not in {one.id for one in found.warnings}
