"""The published forms: complete, readable, and pinned by traces."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.presets.traces import FURTHER, attack_of, further, recorded, trace

from besiege.attacks.attack import parse, spelled
from besiege.attacks.combine import Combined
from besiege.core import presets
from besiege.core.attack_registry import ATTACKS
from besiege.core.errors import AttackError, BesiegeError, ThreatError, UnknownNameError
from besiege.core.presets import PRESETS, presets_of
from besiege.core.threat import Access, Threat

CLOSE = 2e-5
FIRST = {presets_of(name)[0].name for name in ATTACKS.names() if presets_of(name)}
"""One preset of every attack; the others are like it in most respects."""
LONG = ("boundary@", "evolutionary@", "signopt@", "hopskipjump@", "geoda@", "rays@", "zoo@")
"""Attacks of a thousand steps, which the slow run tries in another box."""


@cache
def like_another() -> set[str]:
    """Presets that differ from an earlier one in numbers only: they take the same steps."""
    kinds, found = set(), set()
    for name, known in sorted(recorded().items()):
        form = re.sub(r"\d[\d.e+-]*", "0", json.dumps(known["attack"]))
        norms = {run.partition(":")[0] for run in known["runs"]}
        if (form, *sorted(norms)) in kinds:
            found.add(name)
        kinds.add((form, *sorted(norms)))
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n in like_another() else [])
        for n in PRESETS.names()
    ],
)
def test_a_preset_has_not_moved(name: str) -> None:
    compare(trace(PRESETS.get(name)), recorded()[name])


@pytest.mark.parametrize("name", PRESETS.names())
def test_the_parameters_of_a_preset_have_not_moved(name: str) -> None:
    assert spelled(attack_of(PRESETS.get(name))) == recorded()[name]["attack"]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("zoo@chen-imagenet", {"side": 40}),
        ("zoo@chen-imagenet", {"important": False}),
        ("zoo@chen-imagenet", {"reset": False}),
        ("zoo@chen-imagenet-targeted", {"grow": ()}),
        ("zoo@chen-mnist", {"abort": 0}),
        ("zoo@chen-mnist", {"repeat": False}),
        ("evolutionary@dong", {"side": 40}),
        ("geoda@rahmati", {"side": 60}),
        ("nattack@li", {"side": 24}),
        ("prgf@cheng-data", {"low": 40}),
        ("prgf@cheng-data", {"gamma": 2.0}),
        ("bandits@ilyas", {"tile": 40}),
        ("bandits@ilyas-l2", {"tile": 40}),
        ("nes@ilyas", {"floor": 0.1}),
        ("rgf@cheng", {"grow": False}),
        ("apgdt@croce", {"targets": 8}),
    ],
)
@pytest.mark.slow
def test_a_trace_shows_what_small_images_do_not(name: str, given: dict[str, Any]) -> None:
    changed: Any = replace(attack_of(PRESETS.get(name)), **given)  # type: ignore[type-var]
    kept = [
        replace(scene, given=tuple((n, v) for n, v in scene.given if n not in given))
        for scene in FURTHER[name]
    ]
    runs = recorded()[name]["runs"]
    assert any(
        further(PRESETS.get(name), changed, scene) != runs[scene.about] for scene in reversed(kept)
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in FIRST and not n.startswith(LONG) else pytest.mark.slow)
        for n in PRESETS.names()
    ],
)
def test_a_preset_does_the_same_in_any_box(name: str) -> None:
    """Published lengths are those of images in [0, 1]: they grow with the box."""
    compare(trace(PRESETS.get(name), 256.0), recorded()[name], 5e-5)


def compare(found: dict[str, Any], other: dict[str, Any], close: float = CLOSE) -> None:
    """Demand that two traces are equal, up to rounding."""
    assert found["attack"] == other["attack"]
    assert found["runs"].keys() == other["runs"].keys()
    for threat, run in found["runs"].items():
        before = other["runs"][threat]
        assert (run["success"], run["passes"]) == (before["success"], before["passes"]), threat
        assert run["size"] == pytest.approx(before["size"], abs=close), threat
        assert run["along"] == pytest.approx(before["along"], abs=close), threat


@pytest.mark.parametrize("name", PRESETS.names())
def test_a_preset_says_where_it_is_from_and_what_was_checked(name: str) -> None:
    preset = PRESETS.get(name)
    attack = attack_of(preset)
    assert preset.source and preset.threats, "source and threats"
    for text in preset.threats:
        threat = Threat.parse(text)
        assert threat.norm in attack.norms and threat.goal in attack.goals
    assert preset.checks or preset.differs, "it was compared, or it says why not"
    if attack.access is Access.GRADIENT and not isinstance(attack, Combined):
        assert preset.checks, "white-box presets are compared row by row"
    for check in preset.checks:
        assert 0 <= check.equal <= check.rows
        assert check.equal >= 0.9 * check.rows or preset.differs, "few rows are equal: say why"
    assert parse(str(attack)) == attack, "the text of the attack reads back"


FREE_OF_COST = {
    "bim@su": "the printed form is another preset",
    "square@croce-code": "every image has the same distribution",
}


@pytest.mark.parametrize("name", PRESETS.names())
def test_what_differs_says_what_it_costs(name: str) -> None:
    differs = PRESETS.get(name).differs
    assert not differs or name in FREE_OF_COST or any(letter.isdigit() for letter in differs)


PRINTED_NOWHERE = {
    "noise": "repeated noise and blends with other images are folklore",
    "beam": "no paper has it",
    "lspga": "traces need a model behind a layer; its docstring has the published parameters",
    "opgd": "traces need a model with a detector; its docstring says what differs",
}


@pytest.mark.parametrize("name", sorted({*ATTACKS.names()} - {*PRINTED_NOWHERE}))
def test_every_attack_has_the_form_of_its_paper(name: str) -> None:
    made = ATTACKS.get(name)
    if isinstance(made, type) and issubclass(made, Combined):
        return
    assert [one for one in presets_of(name) if one.default], "one says how the default differs"


@pytest.mark.parametrize("name", ["minimal"])
def test_combinators_that_a_paper_has_say_how_they_differ(name: str) -> None:
    assert [one for one in presets_of(name) if one.default]
    for one in presets_of(name):
        assert parse(one.text) == parse(f"{one.name}({one.of})"), "it reads as the text it shows"


@pytest.mark.parametrize(
    ("attack", "threat"),
    [
        ("bandits@ilyas", "l2:5"),
        ("bandits@ilyas-l2", "linf:0.05"),
        ("alma@rony-l1", "l2"),
        ("spsa@realsafe-code", "l2:1"),
        ("square@andriushchenko", "l2:5"),
        ("bim@realsafe-strength", "l2:1"),
        ("averaged(bim@realsafe-strength, 3)", "l2:1"),
        ("pgd@madry", "l1:5"),
        ("minimal@su(bim@su)", "l2"),
    ],
)
def test_a_preset_is_refused_in_a_norm_it_was_not_published_for(attack: str, threat: str) -> None:
    with pytest.raises(ThreatError, match=r"was published for .*, not for l"):
        presets.check_norms(attack, Threat.parse(threat))


def test_the_refusal_names_the_form_of_that_norm() -> None:
    with pytest.raises(ThreatError, match="use bandits@ilyas-l2, or write"):
        presets.check_norms("bandits@ilyas", Threat.parse("l2:5"))


@pytest.mark.parametrize("name", PRESETS.names())
def test_no_preset_is_refused_where_it_was_published_or_compared(name: str) -> None:
    one = PRESETS.get(name)
    attack = attack_of(one)
    for text in (*one.threats, *one.also):
        presets.check_norms(name, Threat.parse(text))
        assert text in one.also or presets.findings(name, Threat.parse(text)) == []
        assert Threat.parse(text).norm in attack.norms
    norms = {norm for norm in ("linf", "l2", "l1", "l0") for c in one.checks if norm in c.about}
    assert norms <= set(map(str, one.norms)), "it runs where it was compared"


@pytest.mark.parametrize(
    ("attack", "threat", "said"),
    [
        ("pgd@madry", "linf:0.3", "published for linf:8/255, and runs at linf:0.3"),
        ("pgd@madry", "l2:0.5", "published for linf:8/255, and runs at l2:0.5"),
        ("pgd@madry", "linf:8/255 targeted:random score", "runs at linf:8/255 targeted:random."),
        ("cw@deepsec", "l2", "published for l2 targeted:random, and runs at l2."),
        ("repeat(pgd@madry, 2)", "linf:0.3", "published for linf:8/255"),
        ("pgd@madry(steps=100)", "linf:0.3", "published for linf:8/255"),
    ],
)
def test_another_budget_or_goal_is_noted(attack: str, threat: str, said: str) -> None:
    (finding,) = presets.findings(attack, Threat.parse(threat))
    assert (finding.id, finding.level) == ("W44", "note") and said in finding.seen
    assert ("1/4 of the budget" in finding.advice) == ("madry" in attack)


@pytest.mark.parametrize(
    ("attack", "threat"),
    [
        ("pgd", "linf:0.3"),
        ("pgd@madry", "linf:8/255"),
        ("bim@realsafe", "linf:0.15"),
        ("cw@carlini", "l2:0.5"),
        ("cw@deepsec", "l2 targeted:given"),
        ("each_target(cw@deepsec, 3)", "l2"),
        ("minimal@su(bim@su)", "linf"),
        ("minimal(pgd@madry)", "linf"),
        ("nattack@li", "linf:0.031"),
    ],
)
def test_nothing_is_noted_where_it_was_published(attack: str, threat: str) -> None:
    assert presets.findings(attack, Threat.parse(threat)) == []


def test_a_preset_without_threats_runs_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = presets.Preset("pgd@mine", "steps=3", "ours, 2026")
    monkeypatch.setitem(PRESETS._known, mine.name, mine)
    presets.check_norms("pgd@mine", Threat.parse("l1:3"))
    assert presets.findings("pgd@mine", Threat.parse("l1:3")) == []
    assert presets.described("pgd@mine", Threat.parse("l1:3")) == "ours, 2026"


def test_budgets_are_those_of_images_from_zero_to_one() -> None:
    wide = (0.0, 255.0)
    assert presets.findings("pgd@madry", Threat.parse("linf:8"), wide) == []
    assert presets.findings("pgd@madry", Threat.parse("linf:8/255"), wide)
    assert presets.findings("pgd@madry", Threat.parse("linf:8/255"), (-1.0, 0.0)) == []


def test_free_arguments_are_taken() -> None:
    assert parse("uap@moosavi(steps=3)").steps == 3  # type: ignore[attr-defined]
    assert parse("pgd@madry(counts='last')") == parse("pgd@madry")
    assert parse("minimal@su(attack=bim@su)") == parse("minimal@su(bim@su)")
    assert parse("pgd@madry(steps=100)").steps == 100  # type: ignore[attr-defined]
    assert parse("averaged(pgd@madry, 3)").parts[0] == parse("pgd@madry")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("pgd@madri", UnknownNameError, "pgd has no preset 'madri': did you mean 'madry'"),
        ("pgd@carlini", UnknownNameError, "that is one of cw@carlini"),
        ("pdg@madry", UnknownNameError, "no attack or piece is called 'pdg': did you mean 'pgd'"),
        ("pgd@madry(schedule=cosine(1))", AttackError, "fixes schedule"),
        ("pgd@madry(counts='every')", AttackError, "fixes counts"),
        ("cw@carlini(kappa=5)", AttackError, "fixes kappa"),
        ("fgsm@goodfellow(steps=20)", AttackError, "fixes steps"),
        ("rfgsm@tramer(steps=2)", AttackError, "fixes steps"),
        ("llc@kurakin(steps=2)", AttackError, "fixes steps"),
        ("rllc@deepsec-mnist(steps=2)", AttackError, "fixes steps"),
        ("alma@rony-l2(steps=1000)", AttackError, "fixes steps"),
        ("minimal@realsafe", AttackError, "such as minimal@realsafe(bim@realsafe-code)"),
        ("minimal@realsafe(pgd, 0.3)", AttackError, "takes parameters by name only"),
        ("pgd@madry(5)", AttackError, "takes parameters by name only"),
        ("pgd@madry(stepz=3)", AttackError, "no parameter 'stepz': did you mean 'steps'"),
        ("pgd@", AttackError, "cannot be read"),
        ("fgsm #pgd@madry", AttackError, "cannot be read"),
        ("fgsm(counts='earlier')", AttackError, "searches of the smallest perturbation only"),
        ("pgd @ madry", AttackError, "not understood"),
        ("averaged@madry(pgd, 3)", UnknownNameError, "averaged has no preset 'madry'"),
    ],
)
def test_wrong_presets_are_explained(text: str, error: type[BesiegeError], said: str) -> None:
    with pytest.raises(error) as problem:
        parse(text)
    assert said in str(problem.value)
