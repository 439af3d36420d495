"""``besiege attacks``: lists the attacks and suites."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, Flag, examples, flowing
from besiege.core.threat import ALL_GOALS, Goal, Norm

if TYPE_CHECKING:
    from besiege.attacks.attack import Attack
    from besiege.attacks.suites import Suite

command = App(
    name="attacks",
    help_epilogue=examples("besiege attacks", "besiege attacks --presets", "besiege show pgd"),
)


@command.default
@flowing
def attacks(*, presets: Flag = False, as_json: AsJson = False) -> None:
    """List the attacks: norms, goals and the access to the model that they need.

    Parameters
    ----------
    presets
        List the attacks as papers ran them, such as pgd@madry, instead.
    """
    from besiege.attacks.suites import SUITES
    from besiege.core.attack_registry import ATTACKS

    if presets:
        _print_presets(as_json)
        return
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
        listed = {where: ", ".join(texts) for where, texts in suite.lists.items()}
        lists = [f"{where}: {texts}" if where else texts for where, texts in listed.items()]
        rows.add_row(Text(name, "bold"), f"{suite.told}: {'; '.join(lists)}")
    console.print(rows)
    console.print()
    console.print(
        "`besiege show NAME` explains one of them. `besiege attacks --presets` lists the attacks "
        "as papers ran them."
    )


def _print_presets(as_json: bool) -> None:
    """The published forms: where each is from, and whether it is exact."""
    from besiege.core.presets import PRESETS

    listed = [preset for _, preset in PRESETS.items()]
    if as_json:
        values = [{**asdict(preset), "text": preset.text} for preset in listed]
        screen.print_json({"presets": values})
        return
    console = screen.out()
    rows = screen.columns("preset", "as run by", "equal rows", right=("equal rows",))
    for preset in listed:
        worst = min(preset.checks, key=lambda one: one.equal / one.rows, default=None)
        equal = "none" if worst is None else f"{worst.equal} of {worst.rows}"
        rows.add_row(Text(preset.name, "bold"), preset.source, equal + " *" * bool(preset.differs))
    console.print(screen.whole_names(rows, console.width))
    console.print()
    console.print(
        "equal rows: in comparisons with other implementations, the worst of each. * something "
        "differs from the source: `besiege show NAME` says what. A preset is an attack wherever "
        'one is written: --attacks "pgd@madry, cw@carlini".'
    )


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
    drawn = {"stochastic": suite.stochastic} if suite.stochastic else {}
    return {"attacks": suite.attacks, "others": others, **drawn, "about": suite.told}


def first_line(kind: type) -> str:
    """The first sentence of a class's docstring."""
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


def _goals(goals: list[str]) -> str:
    if len(goals) == len(ALL_GOALS):
        return "all"
    return ", ".join(goal.removeprefix("targeted:") for goal in goals)
