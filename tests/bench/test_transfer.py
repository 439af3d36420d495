"""Crafted on a substitute, judged on the victim."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import besiege
from besiege.bench.knowledge import beginnings
from besiege.bench.opening import read_evaluations
from besiege.bench.store import Store
from besiege.core.errors import InputError
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation import craft, judge
from besiege.report import table

VICTIM, SUBSTITUTE = "zoo:digits-pgd-at", "zoo:digits-natural"
ANOTHER = "zoo:digits-natural+bits(depth=3)"
THREAT = "linf:0.2"


def samples(count: int) -> Samples:
    data = besiege.data.load("digits", count=count)
    return Samples.of(data.images, data.labels, ids=data.ids)


def crafted_in(folder: Path) -> set[str]:
    """The keys of what was crafted."""
    store = Store(folder)
    keys = [path.name for path in (folder / "records").iterdir()]
    records = {key: store.read(key) for key in keys}
    return {k for k, r in records.items() if r is not None and r.identity["kind"] == "craft"}


def test_what_a_substitute_gives_is_judged_on_the_victim(tmp_path: Path) -> None:
    found = besiege.evaluate(
        VICTIM,
        "digits",
        threat=THREAT,
        attacks="mim",
        substitute=SUBSTITUTE,
        count=60,
        out=tmp_path,
    )
    own, other = besiege.models.load(VICTIM), besiege.models.load(SUBSTITUTE)
    some, threat = samples(60), Threat.parse(THREAT)
    mim = besiege.attacks.parse("mim")
    crafted = craft(other, mim, some, threat, keep="last", leave="end", twin=True)
    verdicts = judge(own, crafted, some, threat)
    expected = float((verdicts.correct & ~verdicts.success).double().mean())
    assert found.robust is not None
    assert found.robust.value == pytest.approx(expected)
    # The victim was shown each image once; what the substitute computed stands apart.
    rows = found.rows
    assert (rows["queries"] == 1).all() and (rows["backwards"] == 0).all()
    assert (rows["aside"] > 20).all()
    # Every step was taken: nobody stopped where the substitute was fooled.
    full = other(crafted.images.clamp(0, 1)).argmax(1) != some.labels
    assert full.double().mean() > 0.9
    assert found.figures.threat.substitute == (SUBSTITUTE,)
    # Nobody can take it for an attack on the model itself.
    assert "crafted on a substitute (zoo:digits-natural)" in found.figures.threat.words
    assert "crafted on zoo:digits-natural, judged on the model" in found.page().read_text("utf-8")
    assert not [w for w in found.warnings if w.id in ("W16", "W17")]
    assert "--substitute zoo:digits-natural" in found._plan.request.command


@pytest.mark.usefixtures("examined")
def test_a_transfer_is_not_called_strong_enough(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"threat": THREAT, "count": 20, "substitute": SUBSTITUTE}
    found = besiege.evaluate(VICTIM, "digits", attacks="pgd", out=tmp_path, **asked)
    assert found.examination is not None and found.examination.enough == "not asked"
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(table(found._run))
    assert re.search(r"strong enough +not asked +transfer attacks only; ", console.export_text())
    assert "was not asked: transfer attacks only" in found.page().read_text()
    (again,) = read_evaluations(tmp_path)
    assert again.examination == found.examination
    both = besiege.evaluate(VICTIM, "digits", attacks="pgd, square(steps=5)", **asked)
    assert both.examination is not None
    assert both.examination.not_asked == "no attack used the gradients of this model"
    white = besiege.evaluate(VICTIM, "digits", attacks="pgd", threat=THREAT, count=20)
    assert white.examination is not None and not white.examination.not_asked


def test_what_is_crafted_on_a_substitute_when_nobody_says() -> None:
    how: dict[str, Any] = {"substitute": SUBSTITUTE, "count": 40, "curve": False}
    found = besiege.evaluate(VICTIM, "digits", threat=THREAT, **how)
    assert list(found.by_attack) == ["pgd", "dim", "sinifgsm"]
    broken = {name: 1 - rate.value for name, rate in found.by_attack.items()}
    assert min(broken.values()) > 0.5 * max(broken.values()), "each is strong alone"
    labels = besiege.evaluate(VICTIM, "digits", threat="l1:3", access="decision", **how)
    assert list(labels.by_attack) == ["pgd", "dim"]  # sinifgsm does not work in l1


def test_transfer_to_itself_is_white_box(tmp_path: Path) -> None:
    how: dict[str, Any] = {"threat": THREAT, "attacks": "bim", "count": 60, "curve": False}
    white = besiege.evaluate(SUBSTITUTE, "digits", **how)
    black = besiege.evaluate(SUBSTITUTE, "digits", substitute=SUBSTITUTE, **how)
    assert white.robust is not None and black.robust is not None
    assert abs(white.robust.value - black.robust.value) <= 1 / 60


def test_crafted_records_serve_every_victim(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "threat": THREAT,
        "attacks": "fgsm",
        "count": 20,
        "curve": False,
        "out": tmp_path,
    }
    besiege.evaluate(VICTIM, "digits", substitute=SUBSTITUTE, **how)
    before = crafted_in(tmp_path)
    besiege.evaluate(ANOTHER, "digits", substitute=SUBSTITUTE, **how)
    after = crafted_in(tmp_path)
    assert before == after and before


def test_attacks_that_need_no_gradient_ask_the_victim(tmp_path: Path) -> None:
    found = besiege.evaluate(
        VICTIM,
        "digits",
        threat=THREAT,
        access="score",
        attacks="fgsm, square(steps=20)",
        substitute=SUBSTITUTE,
        count=10,
        curve=False,
    )
    rows = found.rows
    assert (rows["queries"][rows["attack"] == "fgsm"] == 1).all()
    assert rows["queries"][rows["attack"] == "square(steps=20)"].max() == 22


def test_several_substitutes_are_an_ensemble() -> None:
    how: dict[str, Any] = {"threat": THREAT, "attacks": "mim", "count": 40, "curve": False}
    several = [SUBSTITUTE, VICTIM]
    found = besiege.evaluate(ANOTHER, "digits", substitute=several, **how)
    other = besiege.evaluate(ANOTHER, "digits", substitute=several, fuse="losses", **how)
    assert found.figures.threat.substitute == tuple(several)
    assert (
        not torch.equal(torch.tensor(found.rows["linf"]), torch.tensor(other.rows["linf"]))
        or found._plan.attacks[0].source != other._plan.attacks[0].source
    )


def test_a_substitute_that_cannot_serve_is_refused() -> None:
    how: dict[str, Any] = {"threat": THREAT, "attacks": "mim", "count": 5, "curve": False}
    with pytest.raises(InputError, match="is stochastic"):
        besiege.evaluate(VICTIM, "digits", substitute=f"{SUBSTITUTE}+resize_pad", **how)
    with pytest.raises(InputError, match=r"fuse is 'logit'.*did you mean"):
        besiege.evaluate(VICTIM, "digits", substitute=SUBSTITUTE, fuse="logit", **how)
    boxed = besiege.Classifier(besiege.models.load(SUBSTITUTE).module, box=(-1.0, 1.0))
    with pytest.raises(InputError, match="takes pixels in"):
        besiege.evaluate(VICTIM, "digits", substitute=boxed, **how)


def test_beginnings_are_a_few_of_every_class() -> None:
    data = besiege.data.load("digits")
    few = beginnings(data)
    labels, counts = torch.unique(few.labels, return_counts=True)
    assert labels.tolist() == list(range(10)) and counts.tolist() == [10] * 10
    for label in range(10):  # the first of the data that have it
        mine = few.ids[few.labels == label]
        assert mine.tolist() == data.ids[data.labels == label][:10].tolist()


def test_what_was_crafted_for_a_transfer_serves_an_attack_on_the_substitute(tmp_path: Path) -> None:
    """Without a budget both craft the same images, under one key: each is read on its own terms."""
    ask: dict[str, Any] = {"threat": "l2", "attacks": "ddn(steps=10)", "count": 8, "curve": False}
    together, alone = tmp_path / "together", tmp_path / "alone"
    besiege.evaluate(VICTIM, "digits", out=together, substitute=SUBSTITUTE, **ask)
    second = besiege.evaluate(SUBSTITUTE, "digits", out=together, **ask)
    fresh = besiege.evaluate(SUBSTITUTE, "digits", out=alone, **ask)
    assert Store(alone).present() < Store(together).present()
    for name in ("success", "first_step", "first_query", "forwards", "backwards", "queries"):
        assert second.rows[name].tolist() == fresh.rows[name].tolist(), name
    assert int(fresh.rows["forwards"].sum()) > 0
    shown = besiege.evaluate(VICTIM, "digits", out=together, substitute=SUBSTITUTE, **ask)
    assert not shown.rows["forwards"].any() and (shown.rows["queries"] == 1).all()
