"""Findings lead to commands that can be pasted: with the model, the data and the threat."""

from __future__ import annotations

import re
import shlex
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import besiege
from besiege.attacks.attack import parse, spelled, split
from besiege.attacks.suites import DEFAULT, SUITES
from besiege.bench.attack_lists import read_attacks
from besiege.bench.next_steps import _STEPS, _WEAK, next_steps
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.stronger import UNTARGETED
from besiege.core.errors import Finding
from besiege.core.rules import FAULTS, TITLES
from besiege.core.threat import Goal, Threat
from besiege.report import table, write_page

ASK: dict[str, Any] = {"threat": "linf:0.15", "count": 30, "curve": False}
MODEL = "zoo:digits-pgd-at"


def plan_of(folder: Path, **changes: Any) -> Plan:
    given = {"attacks": "fgsm", **ASK, **changes}
    given = {name: value for name, value in given.items() if value is not None}
    besiege.evaluate(MODEL, "digits", out=folder, examine="none", **given)
    return open_run(folder)[1].plans[-1]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plan_of(tmp_path_factory.mktemp("run"))


def command(plan: Plan, *ids: str) -> list[str]:
    return [one.command for one in next_steps(plan, [Finding(id, "", "") for id in ids])]


def usual(plan: Plan, **changes: Any) -> Plan:
    """The plan of a request that names no attacks."""
    asked = plan.request.model_copy(update={"attacks": DEFAULT, **changes})
    return plan.model_copy(update={"request": asked, "threat": asked.threat})


def test_weak_default_attacks_lead_to_a_stronger_suite_once(plan: Plan) -> None:
    found = [Finding(id, "", "") for id in ("W05", "W08", "W05", "W24")]
    (step,) = next_steps(usual(plan), found)
    assert step.rules == ("W05", "W08")
    assert (
        shlex.split(step.command)
        == (
            f"besiege evaluate {MODEL} --data digits --threat linf:0.15 --suite standard "
            "--curve none --count 30 --examine none"
        ).split()
    )


@pytest.mark.parametrize(
    ("ran", "next_one"),
    [("quick", "standard"), ("standard", "plus"), ("plus", None)],
)
def test_the_next_suite_is_stronger_than_the_one_that_ran(
    plan: Plan, ran: str, next_one: str | None
) -> None:
    other = plan.model_copy(update={"request": plan.request.model_copy(update={"suite": ran})})
    found = command(other, "W08")
    assert found == [] if next_one is None else f"--suite {next_one} " in found[0]


@pytest.mark.parametrize(
    ("threat", "suite"), [("linf", "minimum"), ("linf:0.15 score", "score"), ("l2:1", "standard")]
)
def test_the_suite_fits_the_threat(plan: Plan, threat: str, suite: str) -> None:
    assert f"--suite {suite} " in command(usual(plan, threat=threat), "W03")[0]


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_of_the_model_leads_to_another_model_and_the_same_command(
    plan: Plan, rule: str
) -> None:
    found = [Finding(rule, "", "", "stop"), Finding("W08", "", "", "stop"), Finding("W21", "", "")]
    (step,) = next_steps(plan, found)
    assert (step.rules, step.command) == ((rule,), plan.request.command)
    assert f"besiege show {rule}" in step.first


def test_gradients_that_vanish_for_some_images_only_are_no_fault_of_the_model(plan: Plan) -> None:
    assert "--suite standard" in command(usual(plan), "W11")[0]


def test_a_model_that_may_be_declared_wrongly_is_examined_again(plan: Plan) -> None:
    expected = f"besiege examine {MODEL} --data digits --threat linf:0.15"
    assert command(plan, "W15", "W13") == [expected]
    request = plan.request.model_copy(update={"seed": 3, "resize": "8x8", "textual": False})
    nameless = plan.model_copy(update={"request": request})
    assert command(nameless, "W15") == []
    named = plan.model_copy(update={"request": request.model_copy(update={"textual": True})})
    assert command(named, "W15") == [f"{expected} --seed 3 --resize 8x8"]


def test_default_attacks_are_not_written_out_because_listed_ones_have_no_guards(
    plan: Plan,
) -> None:
    request = plan.request.model_copy(update={"attacks": DEFAULT, "curve": "short"})
    usual = plan.model_copy(update={"request": request})
    (found,) = command(usual, "W21")
    assert "--curve full" in found and "--attacks" not in found
    assert "--attacks fgsm" in command(plan, "W21")[0], "others are kept"


def test_the_command_that_ran_is_not_suggested_again(plan: Plan) -> None:
    request = plan.request.model_copy(update={"curve": "full"})
    assert command(plan.model_copy(update={"request": request}), "W21") == []
    listed = plan.request.model_copy(update={"attacks": ("nattack", "square")})
    assert command(plan.model_copy(update={"request": listed}), "W42") == []
    assert "--attacks 'fgsm, nattack, square' " in command(plan, "W42")[0]


def test_a_note_that_may_be_chance_asks_for_no_stronger_attacks(plan: Plan) -> None:
    note = Finding("W04", "one image. On 40 images, that may be chance.", "", "note")
    assert next_steps(usual(plan), [note]) == ()
    (step,) = next_steps(usual(plan), [note, Finding("W05", "", "")])
    assert step.rules == ("W05",)


def test_nothing_is_said_about_the_curve_while_figures_must_not_be_quoted(plan: Plan) -> None:
    found = [Finding("W21", "", ""), Finding("W48", "", "", "stop")]
    assert [one.rules for one in next_steps(plan, found)] == [("W48",)]


def asked(plan: Plan, *texts: str, **changes: Any) -> Plan:
    """The plan of a request that names these attacks."""
    resolved = read_attacks(texts, None, Threat.parse("linf:0.15"))[0]
    specs = tuple(
        plan.attacks[0].model_copy(update={"text": str(one), "spelled": spelled(one)})
        for one in resolved.values()
    )
    request = plan.request.model_copy(update={"attacks": tuple(resolved), **changes})
    return plan.model_copy(update={"request": request, "attacks": specs, "threat": request.threat})


def listed(plan: Plan, *found: Finding) -> list[str]:
    """The attacks of the only command."""
    (step,) = next_steps(plan, found)
    words = shlex.split(step.command)
    return split(words[words.index("--attacks") + 1])


def weak(id: str, text: str, what: str = "steps") -> Finding:
    return Finding(id, f"the second half of '{text}' still gained.", f"give it more {what}.")


def test_an_attack_that_has_not_converged_gets_more_steps_and_the_others_stay(plan: Plan) -> None:
    three = asked(plan, "oblivious(pgd)", "pgd(loss=margin)", "opgd")
    assert listed(three, weak("W05", "pgd(loss=margin)")) == [
        "oblivious(pgd)",
        "pgd(steps=100, loss=margin)",
        "opgd",
    ]
    (long,) = listed(asked(plan, "pgd(steps=80)"), weak("W07", "pgd(steps=80)"))
    assert long == "pgd(steps=160)"
    again = listed(asked(plan, "pgd(restarts=3)"), weak("W06", "pgd(restarts=3)", "restarts"))
    assert again == ["pgd(restarts=6)"]


def test_what_the_advice_counts_is_raised(plan: Plan) -> None:
    plan = asked(plan, "oblivious(pgd)", "averaged(pgd(steps=10), 5)")
    weak = (
        "'averaged(pgd(steps=10), 5)' takes only 10 steps and averages only 5 draws: give it more."
    )
    both = listed(plan, Finding("W48", "it missed 9.", f"Too weak. {weak}", "stop"))
    assert both == ["oblivious(pgd)", "averaged(pgd(steps=100), 20)"]
    draws = weak.replace("takes only 10 steps and ", "")
    assert listed(plan, Finding("W08", "it missed 9.", draws))[1] == "averaged(pgd(steps=10), 20)"


def test_other_advice_adds_attacks_to_those_that_were_asked(plan: Plan) -> None:
    three = asked(plan, "oblivious(pgd)", "square()", "opgd")
    found = listed(three, Finding("W08", "", "Use other losses."))
    assert found == ["oblivious(pgd)", "square", "opgd", "apgd", "apgdt", "fabt"]
    found = listed(three, Finding("W08", "", "Use other losses."), weak("W05", "opgd"))
    assert "opgd(steps=" in "".join(found) and "fabt" in found, "one command follows both"


def test_an_attack_that_cannot_be_longer_is_joined_by_others(plan: Plan) -> None:
    presets = asked(plan, "apgd@croce", "fgsm")
    assert listed(presets, weak("W05", "apgd@croce"))[:3] == ["apgd@croce", "fgsm", "apgd"]
    assert "apgd" in listed(presets, weak("W05", "fgsm")), "one step is what it is"


def test_an_attack_is_not_listed_twice_when_it_grows_into_another(plan: Plan) -> None:
    both = asked(plan, "pgd(steps=100, loss=margin)", "pgd(loss=margin)")
    assert listed(both, weak("W05", "pgd(loss=margin)")) == ["pgd(steps=100, loss=margin)"]


def test_the_adaptive_suite_keeps_its_attacks(plan: Plan) -> None:
    texts = SUITES["adaptive"].attacks_for(Threat.parse("linf:0.15").norm)
    adaptive = asked(plan, *texts, suite="adaptive")
    (step,) = next_steps(adaptive, [weak("W05", "pgd(steps=100, loss=margin)")])
    words = shlex.split(step.command)
    assert "--attacks" not in words, "still one after the other"
    ran = split(words[words.index("--suite") + 1])
    assert ran == [text.replace("steps=100", "steps=200") for text in texts]


def test_w33_and_w49_keep_the_attacks_too(plan: Plan) -> None:
    (step,) = next_steps(asked(plan, "oblivious(pgd)"), [Finding("W33", "", "")])
    assert "--suite adaptive" in step.command, "it has that attack"
    ignoring = asked(plan, "oblivious(pgd)", "oblivious(mim)")
    found = listed(ignoring, Finding("W33", "", "use --suite adaptive."))
    assert found[0] == "oblivious(pgd)" and "apgd(loss=dlr)" in found
    moved = asked(plan, "dim", "mim", substitute=("zoo:digits-natural",))
    assert listed(moved, Finding("W49", "", "", "note")) == ["dim", "mim"]
    (step,) = next_steps(moved, [Finding("W49", "", "", "note")])
    assert "--substitute" not in step.command


def test_a_target_has_no_attacks_that_choose_their_class(plan: Plan) -> None:
    aimed = asked(plan, "mim", threat="linf:0.15 targeted:random")
    assert listed(aimed, Finding("W08", "", "")) == ["mim", "apgd", "fabt", "square"]
    for suite in SUITES.values():
        for text in {text for listed in suite.lists.values() for text in listed}:
            chooses = parse(text).goals == {Goal.UNTARGETED}
            assert chooses == any(word in text for word in UNTARGETED), text


def test_missing_records_lead_to_the_same_command(plan: Plan) -> None:
    assert command(plan, "UNFINISHED") == [plan.request.command]


def test_every_command_is_of_a_rule_that_exists() -> None:
    assert {*_STEPS, *_WEAK} <= set(TITLES) and not set(_STEPS) & set(_WEAK)


def test_images_lost_in_transfer_are_told_from_attacks_that_fail(tmp_path: Path) -> None:
    found = besiege.evaluate(
        MODEL, "digits", out=tmp_path, substitute="zoo:digits-natural", **{**ASK, "count": 60}
    )
    (note,) = (one for one in found.warnings if one.id == "W49")
    there, here = map(int, re.findall(r"on (?:only )?(\d+)", note.seen))
    assert note.level == "note" and 20 <= there <= 60 and here < 0.5 * there
    (step,) = (one for one in found.figures.next_steps if "W49" in one.rules)
    assert "--substitute" not in step.command
    itself = besiege.evaluate("zoo:digits-natural", "digits", substitute=MODEL, **ASK)
    assert "W49" not in {one.id for one in itself.warnings}, "too few fool the substitute"


def test_terminal_and_page_show_the_command(tmp_path: Path) -> None:
    found = besiege.evaluate(
        MODEL, "digits", out=tmp_path, substitute="zoo:digits-natural", **{**ASK, "count": 60}
    )
    (step,) = found.figures.next_steps
    console = Console(width=60, record=True, file=StringIO())
    console.print(table(found._run))
    _, _, shown = console.export_text().partition("To run next (W49):")
    pasted = shown.partition("\n\n")[0]
    assert shlex.split(pasted.replace("\\\n", "")) == shlex.split(step.command)
    html = write_page(tmp_path).read_text()
    plain = re.sub(r"<[^>]*>", "", html)
    assert re.search(r"To run next \(W49\)\s+" + re.escape(step.command), plain)
