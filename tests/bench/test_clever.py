"""CLEVER scores as tasks of an evaluation: records, figures, counter-examples."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bench.records import content
from tests.bench.small import SMALL
from tests.children import forked
from torch import Tensor, nn

import besiege
from besiege.bench.benchmark_files import read_benchmark
from besiege.bench.expanding import declared
from besiege.bench.overview import open_run
from besiege.bench.reading import gather
from besiege.bench.summaries import outcomes_of, summary_of
from besiege.bench.work_estimate import Event
from besiege.core.errors import BesiegeError, InputError, ThreatError
from besiege.metrics.clever import CleverFigures
from besiege.metrics.outcomes import Outcomes
from besiege.metrics.registry import registered
from besiege.metrics.rows import Rows
from besiege.models import Classifier
from besiege.testing.victims import natural

HOW = "clever(batches=40, samples=8, radius=1)"


def siege(
    folder: Path | None = None,
    watch: Callable[[Event], None] | None = None,
    model: Any = "zoo:digits-natural",
    **given: Any,
) -> besiege.Evaluation:
    """A search, and estimates beside it."""
    asked = {"attacks": "fmn(steps=30)", "clever": HOW, "count": 9, "shard": 3, **given}
    found: besiege.Evaluation = besiege.evaluate(
        model, "digits", threat="l2", examine="none", out=folder, watch=watch, **asked
    )
    return found


def rows_of(folder: Path) -> Rows:
    store, run = open_run(folder)
    return gather(store, run.plans[0]).evidence.others["clever"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, besiege.Evaluation]:
    folder = tmp_path_factory.mktemp("clever")
    return folder, siege(folder)


def figure(found: besiege.Evaluation) -> CleverFigures:
    value: CleverFigures = found.figures.figure("clever")
    return value


def test_every_image_has_a_row(whole: tuple[Path, besiege.Evaluation]) -> None:
    folder, found = whole
    rows, value = rows_of(folder), figure(found)
    assert rows.count == 9 and value.count + value.without == 9
    assert np.isfinite(rows["score"][~rows["endless"].astype(bool)]).all()
    wrong = ~rows["correct"].astype(bool)
    assert wrong.sum() == value.misclassified and not rows["score"][wrong].any()
    assert not rows["gradients"][wrong].any()
    # Ten logits for each of 40 x 8 points.
    assert (rows["gradients"][~wrong] == 3200).all() and value.gradients == 3200 * (~wrong).sum()
    assert np.nanmax(rows["score"]) <= 1 and value.attacked > 0
    # After 10 and 25 of the 40 batches; the same maxima begin the longer runs.
    assert {name for name in rows if name.startswith("score_")} == {"score_10", "score_25"}
    assert not rows["score_10"][wrong].any()
    siege(folder.parent / "few", clever=HOW.replace("40", "25"))
    shorter = rows_of(folder.parent / "few")
    assert np.array_equal(shorter["score"], rows["score_25"], equal_nan=True)
    assert found.figures.plain()["clever"]["median"] == value.median


def _same(one: Any, other: Any) -> bool:
    exact = one.dtype.kind != "f"
    return bool(np.array_equal(one, other) if exact else np.array_equal(one, other, equal_nan=True))


def test_kept_outcomes_are_those_that_were_computed(
    whole: tuple[Path, besiege.Evaluation],
) -> None:
    store, run = open_run(whole[0])
    computed = Outcomes.of(gather(store, run.plans[0]).evidence)
    summary_of(store, run.plans[0])  # writes them
    kept = outcomes_of(store, run.plans[0])
    for one in fields(Outcomes):
        mine, theirs = getattr(computed, one.name), getattr(kept, one.name)
        assert mine == theirs if one.name == "attacks" else _same(mine, theirs)
    assert np.isfinite(kept.estimate).any() and np.isfinite(kept.estimates[:, 0]).any()


def test_killed_and_resumed_the_same_records(
    whole: tuple[Path, besiege.Evaluation], tmp_path: Path
) -> None:
    folder, done = tmp_path / "run", 0

    def kill(event: Event) -> None:
        if len(list((folder / "records").glob("[!.]*"))) > done:
            os.kill(os.getpid(), signal.SIGKILL)

    deaths = 0
    while True:
        done = len(list((folder / "records").glob("[!.]*"))) if folder.exists() else 0
        _, ended = os.waitpid(forked(lambda: siege(folder, kill)), 0)
        if os.WIFEXITED(ended):
            break
        deaths += 1
    assert deaths >= 5 and content(folder) == content(whole[0])
    assert figure(siege(folder)) == figure(whole[1])


def test_estimates_added_to_an_evaluation_leave_its_records(tmp_path: Path) -> None:
    before = siege(tmp_path / "run", clever=False)
    assert before.figures.figure("clever") is None
    plain = content(tmp_path / "run")
    after = siege(tmp_path / "run")
    both = content(tmp_path / "run")
    assert {key: both[key] for key in plain} == plain and len(both) == len(plain) + 3
    assert figure(after).count and len(open_run(tmp_path / "run")[1].current) == 1


class Masked(nn.Module):
    """A saturating layer: nearly no gradient is left, and no label changes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = natural().module

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 10 * torch.softmax(1000 * self.net(x), 1)
        return logits


def test_masked_gradients_inflate_the_score_and_attacks_refute_it(
    whole: tuple[Path, besiege.Evaluation],
) -> None:
    victim = Classifier(Masked(), classes=10, name="masked")
    found = siege(model=victim, attacks="hopskipjump(steps=4)")
    masked, honest = figure(found), figure(whole[1])
    assert masked.mean is not None and honest.mean is not None
    assert masked.mean > 1.5 * honest.mean and masked.capped >= 5
    assert masked.refuted and not honest.refuted
    for one in masked.refuted:
        assert one.score > one.distance > 0
    gaps = [one.score - one.distance for one in masked.refuted]
    assert gaps == sorted(gaps, reverse=True), "the worst first"


def test_the_usual_radius_is_a_share_of_the_box(tmp_path: Path) -> None:
    """The same network on pixels from 0 to 255 has 255 times the scores."""
    net, found = natural().module, []
    for width in (1.0, 255.0):
        victim = Classifier(net, mean=0.0, std=width, box=(0.0, width))
        asked: dict[str, Any] = {"attacks": "pgd(steps=2)", "count": 4, "curve": "none"}
        result = besiege.evaluate(
            victim, "digits", threat=f"l2:{width}", examine="none", out=tmp_path / f"{width:g}",
            clever="clever(batches=10, samples=8)", **asked,
        )  # fmt: skip
        assert figure(result).capped == 0
        found.append(rows_of(tmp_path / f"{width:g}")["score"] / width)
    assert found[0].max() > 0
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3)


def test_shown_as_an_estimate(whole: tuple[Path, besiege.Evaluation]) -> None:
    assert "An estimate is never a bound" in whole[1]._repr_html_()
    row = next(one.row for one in registered() if one.name == "clever")
    assert row is not None
    shown = row(whole[1].figures)
    assert shown is not None and "estimate by CLEVER, no bound" in shown.words


def test_a_cell_of_a_benchmark_may_have_it(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SMALL + 'clever = "clever(batches=20)"\n')
    found = declared(read_benchmark(spec), tmp_path)
    assert {one.request.clever for one in found.entries} == {"clever(batches=20)"}
    spec.write_text(SMALL + 'clever = "clever(batches=2)"\n')
    with pytest.raises(InputError, match=r"white.*\.clever: .*batches is 2"):
        read_benchmark(spec)


def test_bad_requests_are_refused_before_any_work(tmp_path: Path) -> None:
    for how, error in (
        ("clever(batches=3)", "batches is 3"),
        ("clever(radius=0)", "radius is 0"),
        ("clever(radius=9)", "farthest images of this size are 8 apart"),
        ("clver", "did you mean"),
        ("clever@wang", "clever@weng"),
    ):
        with pytest.raises(BesiegeError, match=error):
            siege(tmp_path / "run", clever=how)
    assert not (tmp_path / "run" / "records").exists()
    with pytest.raises(ThreatError, match="norm"):
        besiege.evaluate(
            "zoo:digits-natural", "digits", threat="l0", attacks="fmn", clever=HOW, count=2
        )
