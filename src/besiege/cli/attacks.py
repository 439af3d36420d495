"""``besiege attacks``: lists the attacks and suites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing
from besiege.core.threat import ALL_GOALS, Goal, Norm

if TYPE_CHECKING:
    from besiege.attacks.attack import Attack
    from besiege.attacks.suites import Suite

command = App(
    name="attacks",
    help_epilogue=examples("besiege attacks", "besiege attacks --json", "besiege show pgd"),
)


@command.default
@flowing
def attacks(*, as_json: AsJson = False) -> None:
    """List the attacks: norms, goals and the access to the model that they need."""
    from besiege.attacks.suites import SUITES
    from besiege.core.attack_registry import ATTACKS

    found = [described(name, thing) for name, thing in ATTACKS.items()]
    suites = {name: _suite(s) for name, s in SUITES.items()}
    if as_json:
        screen.print_json({"attacks": found, "suites": suites})
        return
    console = screen.out()
    rows = screen.columns("attack", "norms", "access", "goals")
    plain = [line for line in found if not line["made_of_attacks"]]
    for line in plain:
        norms, goals = " ".join(line["norms"]), _goals(line["goals"])
        rows.add_row(Text(line["name"], "bold"), norms, line["access"], goals)
    console.print(rows)
    console.print()
    rows = screen.columns("attack", "published in")
    for line in plain:
        rows.add_row(Text(line["name"], "bold"), line["about"])
    console.print(rows)
    console.print()
    rows = screen.columns("made of attacks", "")
    for line in found:
        if line["made_of_attacks"]:
            rows.add_row(Text(line["name"], "bold"), line["about"])
    console.print(rows)
    console.print()
    rows = screen.columns("suite", "")
    for name, suite in SUITES.items():
        lists = [", ".join(suite.attacks)]
        lists += [f"in {norm}: {', '.join(others)}" for norm, others in suite.others.items()]
        rows.add_row(Text(name, "bold"), f"{suite.told}: {'; '.join(lists)}")
    console.print(rows)
    console.print()
    console.print("`besiege show NAME` explains one of them.")


def described(name: str, thing: Any) -> dict[str, Any]:
    """A registered attack as plain values."""
    from besiege.attacks.attack import told
    from besiege.attacks.combine import Combined

    if isinstance(thing, type) and issubclass(thing, Combined):
        return {"name": name, "made_of_attacks": True, "about": first_line(thing)}
    attack: Attack = thing() if isinstance(thing, type) else thing
    return {
        "name": name,
        "made_of_attacks": False,
        "norms": [str(norm) for norm in Norm if norm in attack.norms],
        "goals": [str(goal) for goal in Goal if goal in attack.goals],
        "access": str(attack.access),
        "minimal": bool(attack.minimal),
        "about": told(attack),
    }


def _suite(suite: Suite) -> dict[str, Any]:
    """A suite as plain values; ``others`` has the attacks of norms with a list of their own."""
    others = {str(norm): attacks for norm, attacks in suite.others.items()}
    return {"attacks": suite.attacks, "others": others, "about": suite.told}


def first_line(kind: type) -> str:
    """The first sentence of a class's docstring."""
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


def _goals(goals: list[str]) -> str:
    if len(goals) == len(ALL_GOALS):
        return "all"
    return ", ".join(goal.removeprefix("targeted:") for goal in goals)
