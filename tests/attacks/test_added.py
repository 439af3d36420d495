"""Parameters that attacks got after records of them were kept: older keys must not change."""

from __future__ import annotations

from typing import Any

from besiege.attacks.attack import PIECES, parse, spelled
from besiege.core.attack_registry import ATTACKS
from besiege.core.vocabulary import parameters

ADDED: dict[str, Any] = {
    "ALMA.compat": False,
    "Ascent.counts": "every",
    "Bandits.exact": True,
    "Bandits.relative": True,
    "Bracketing.compat": False,
    "CW.edge": 0.999999,
    "CW.repeat": False,
    "CW.resume": False,
    "DeepFool.compat": False,
    "EAD.decay": True,
    "EAD.repeat": False,
    "Evolutionary.side": None,
    "Evolutionary.stratified": True,
    "FAB.compat": False,
    "FABT.compat": False,
    "GeoDA.compat": False,
    "HopSkipJump.compat": False,
    "JSMA.round_up": False,
    "Minimal.attempts": None,
    "Minimal.compat": False,
    "NES.exact": True,
    "NES.watch": "iterate",
    "NESLabels.waits": False,
    "NESPartial.waits": False,
    "Nesterov.boxed": True,
    "Opt.compat": False,
    "OptMargin.edge": 0.999999,
    "OptMargin.measure": "rms",
    "OptMargin.repeat": False,
    "OptMargin.resume": False,
    "PRGF.exact": True,
    "RGF.exact": True,
    "RGF.grow": False,
    "Rays.compat": False,
    "SPSA.exact": True,
    "SPSA.floor": 0.1,
    "SigmaZero.compat": False,
    "SignOpt.compat": False,
    "Square.compat": False,
    "Square.edge": True,
    "Square.redraw": True,
    "SuperDeepFool.compat": False,
    "UAP.box": "joint",
    "ZOO.repeat": False,
}
"""What records from before mean. A changed default would take them for records of another method:
then the old value must be written into their identity first."""


def test_defaults_of_added_parameters_never_change() -> None:
    found: dict[str, Any] = {}
    for registry in (ATTACKS, PIECES):
        for _, thing in registry.items():
            kind = thing if isinstance(thing, type) else type(thing)
            added = [f for f in parameters(kind) if f.metadata.get("added")]
            found |= {f"{kind.__name__}.{f.name}": f.default for f in added}
    assert found == ADDED


def test_they_are_part_of_a_key_only_where_they_differ() -> None:
    assert "counts" not in spelled(parse("pgd"))
    assert spelled(parse("pgd(counts='last')"))["counts"] == "last"
    assert "compat" not in spelled(parse("fmn"))["radius"]
    assert spelled(parse("fmn(radius=bracketing(0.05, compat=True))"))["radius"]["compat"] is True
