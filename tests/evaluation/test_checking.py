"""What fits together, and what is offered where something does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import besiege
from besiege.attacks import Attack, parse
from besiege.core.attack_registry import ATTACKS
from besiege.core.errors import AccessError, AttackError, ThreatError
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Access, Linf, Norm, Threat
from besiege.evaluation.checking import fits, fitting

DATA = besiege.data.load("digits", count=2)


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("more", ["", " targeted:random", " targeted:least-likely"])
@pytest.mark.parametrize("access", Access)
@pytest.mark.parametrize("bounded", [True, False])
def test_what_is_offered_fits_and_nothing_else_does(
    norm: Norm, more: str, access: Access, bounded: bool
) -> None:
    budget = norm.example if bounded else str(norm)
    threat = Threat.parse(f"{budget}{more} {access}")
    offered = fitting(threat, has_substitute=True)
    for name, thing in ATTACKS.items():
        if not isinstance(getattr(thing, "access", None), Access):
            continue  # made of attacks
        if thing.sends_codes or thing.needs_cells:  # for models behind a certain layer
            assert name not in offered
            continue
        try:
            fits(parse(name), threat, has_substitute=True)
        except (AccessError, ThreatError):
            assert name not in offered
        else:
            assert name in offered


def test_a_refusal_offers_only_what_would_run() -> None:
    for threat, offered in (
        ("linf:0.1 score", "bandits, geoda, hopskipjump, nattack, nes, noise, opt, rays, rgf"),
        ("linf:0.1 decision", "geoda, hopskipjump, noise, opt, rays, signopt"),
        ("l1:3 decision", "geoda, noise"),
    ):
        with pytest.raises(AccessError, match=f"attacks that fit: {offered}"):
            besiege.attack("pgd", "zoo:digits-natural", DATA.images, DATA.labels, threat=threat)
    assert "prgf" in fitting(Threat.parse("linf:0.1 score"), has_substitute=True)
    assert "prgf" not in fitting(Threat.parse("linf:0.1 score"))


def test_another_norm_or_goal_is_refused_with_what_fits() -> None:
    fit = "attacks that fit: " + ", ".join(fitting(Threat.parse("linf:0.2 decision")))
    with pytest.raises(ThreatError, match=f"works in l2, not in linf; {fit}"):
        fits(parse("evolutionary"), Threat.parse("linf:0.2 decision"))
    with pytest.raises(ThreatError, match=r"threat='linf:0.2 targeted:random'; attacks that fit"):
        fits(parse("nes_labels"), Threat.parse("linf:0.2"))
    with pytest.raises(ThreatError, match=r"threat='linf:0.2 decision'; .* geoda, hopskipjump"):
        fits(parse("rays"), Threat.parse("linf:0.2 targeted:random decision"))


@pytest.mark.parametrize("norm", [Linf, L2, L1])
def test_the_budget_of_an_advice_is_one_of_its_norm(norm: Norm) -> None:
    Threat.parse(norm.example).check_units((0.0, 1.0), 3 * 32 * 32)
    with pytest.raises(ThreatError, match=f"write for example '{norm.example}'"):
        fits(parse("pgd"), Threat(norm))


@pytest.mark.parametrize(
    "text",
    [
        "minimal(" * 6 + "pgd" + ")" * 6,
        "repeat(repeat(repeat(pgd, 999), 999), 999)",
        "repeat(pgd, 1000000000)",
        "each_target(repeat(cascade(fgsm, repeat(pgd, 1000)), 1000), 9)",
    ],
)
def test_nested_attacks_that_never_end_are_refused(text: str) -> None:
    with pytest.raises(AttackError, match="nest fewer"):
        fits(parse(text), Threat.parse("linf:0.1"))


def test_nested_attacks_that_end_are_not() -> None:
    text = "minimal(cascade(fgsm, repeat(averaged(mim(steps=5), 4), 2)))"
    fits(parse(text), Threat.parse("linf:0.1"))
    fits(parse("minimal(each_target(repeat(pgd, 10), 9))"), Threat.parse("linf"))


@dataclass(frozen=True)
class _Hungry(Attack):
    def run(self, siege: Siege) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 999 bytes")


def test_an_attack_that_needs_more_memory_than_there_is_says_so() -> None:
    with pytest.raises(AttackError, match="more memory than is available for 2 images"):
        besiege.attack(_Hungry(), "zoo:digits-natural", DATA.images, DATA.labels, threat="linf:0.1")
