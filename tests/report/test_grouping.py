"""The order, the names and the groups of several evaluations."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample import (
    DATA,
    MODEL,
    attack,
    broken_run,
    eight,
    evaluation,
    four,
    rate,
    threat,
)

from besiege.metrics import EvaluationFigures
from besiege.report.grouping import grouped, names_of, ranked


def one(name: str, left: int, **changes: object) -> EvaluationFigures:
    return evaluation(model=replace(MODEL, name=name), robust=rate(left), **changes)


def names(evaluations: list[EvaluationFigures]) -> list[str]:
    return [found.model.name for found in evaluations]


def test_the_most_robust_comes_first_under_each_threat_in_the_order_of_the_run() -> None:
    found = [(e.threat.text, e.model.name) for e in ranked(eight().evaluations)]
    assert [text for text, _ in found] == ["linf:0.15"] * 4 + ["l2:1"] * 4
    names = [name.rpartition("/")[2][:18] for _, name in found]
    bits, long = "zoo:digits-natural", "of_models.py:make_"
    assert names[:4] == ["zoo:digits-pgd-at", bits, "zoo:digits-natural", long]
    assert names[4:] == ["zoo:digits-pgd-at", long, bits, "zoo:digits-natural"]
    assert found[1][1] == found[6][1] == "zoo:digits-natural+bits(depth=2)"


def test_what_must_not_be_quoted_comes_after_and_what_has_no_figure_last() -> None:
    wrong = one("wrong", 390, warnings=broken_run().evaluations[0].warnings)
    lost = attack("pgd", 51, accuracy=None, complete=False)
    unknown = one("unknown", 390, attacks=[lost])
    order = ranked([unknown, wrong, one("weak", 3), one("strong", 300)])
    assert names(order) == ["strong", "weak", "wrong", "unknown"]


def test_without_a_budget_the_larger_median_comes_first() -> None:
    made = []
    for name, median in (("near", 0.1), ("far", 0.4), ("never", None)):
        found = one(name, 0, threat=threat("l2", None), attacks=[attack("cw", 0)])
        assert found.eps_curve is not None
        made.append(replace(found, eps_curve=replace(found.eps_curve, median=median)))
    assert names(ranked(made)) == ["far", "near", "never"]


def test_groups_are_threats_and_data_sets_and_a_model_keeps_its_style() -> None:
    groups = grouped(four().evaluations)
    assert [group.title for group in groups] == ["linf:8/255", "l2:0.5"]
    styles = [{m.name: m.style for m in group.members} for group in groups]
    assert styles[0] == styles[1] == {"zoo:digits-pgd-at": 0, "zoo:digits-natural": 1}
    other = one("a", 40, data=replace(DATA, name="mnist"))
    titles = [group.title for group in grouped([one("a", 50), other])]
    assert titles == ["linf:0.15 on digits", "linf:0.15 on mnist"]


def test_evaluations_of_one_model_are_told_apart_by_attacks_then_by_number() -> None:
    suite = one("a", 10, suite="standard", mode="suite")
    listed = one("a", 20, attacks=[attack("fgsm", 20)])
    assert names_of([suite, listed, one("b", 5)]) == ["a (standard)", "a (fgsm)", "b"]
    assert names_of([suite, suite]) == ["a (standard), number 1", "a (standard), number 2"]
    long = one("a", 5, attacks=[attack("pgd(steps=100, restarts=5, loss=margin)", 5)] * 2)
    cut, _ = names_of([long, suite])
    assert cut == "a (pgd(steps=100, restarts=5, loss=margin)…)"
    styles = [m.style for group in grouped([suite, listed]) for m in group.members]
    assert len(set(styles)) == 2, "two curves in one chart look different"
    elsewhere = replace(listed, threat=threat("l2:1", 1.0, "1"))
    assert names_of([suite, elsewhere]) == ["a", "a"]
