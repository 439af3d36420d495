"""Attacks as text: what is printed reads back, and mistakes are named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from besiege.attacks import Ascent, Attack, parse, split
from besiege.attacks.attack import LANGUAGE, PIECES, configured
from besiege.attacks.combine import BestOf, Cascade, EachTarget, Minimal, Repeat
from besiege.attacks.directions import Chain, Momentum, Steepest, Translation
from besiege.attacks.losses import DLR, CrossEntropy, Margin
from besiege.attacks.pieces import Signs, Spread
from besiege.core.attack_registry import ATTACKS
from besiege.core.errors import AttackError, BesiegeError, UnknownNameError
from besiege.core.siege import Siege
from besiege.core.text import short

MADE: dict[str, Any] = {n: thing for n, thing in ATTACKS.items() if isinstance(thing, Attack)}
TEXTS = [
    "pgd",
    "pgd(steps=100, restarts=5)",
    "pgd(loss=margin)",
    "pgd(loss=cross_entropy(stable=False))",
    "pgd(schedule=spread(path=4.0))",
    "pgd(start=signs(share=0.25), loss=dlr)",
    "bim(aim='least-likely')",
    "mim(direction=chain(momentum(decay=0.9), steepest))",
    "tim(direction=chain(translation(size=7, reach=2.0), momentum, steepest))",
    "dim(direction=chain(diverse(least=0.8, probability=0.7), momentum, steepest), steps=5)",
    "minimal(pgd(steps=20))",
    "minimal(fgsm, first=0.001, scan=64)",
    "repeat(pgd, 3)",
    "each_target(pgd(loss=dlr), 9)",
    "each_target(pgd)",
    "cascade(fgsm, pgd(steps=20), each_target(pgd(loss=dlr), 3))",
    "best_of(fgsm, minimal(bim))",
    "averaged(pgd, 20)",
    "minimal(cascade(fgsm, repeat(averaged(mim(steps=5), 4), 2)), tolerance=0.01)",
]


@pytest.mark.parametrize("name", MADE)
def test_a_registered_attack_prints_as_its_name(name: str) -> None:
    attack = MADE[name]
    assert str(attack) == attack.title() == name
    assert parse(name) == attack and parse(f"{name}()") == attack
    assert parse(attack) is attack
    assert hash(parse(name)) == hash(attack)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_read_back(text: str) -> None:
    attack = parse(text)
    again = parse(str(attack))
    assert again == attack and str(again) == str(attack) and hash(again) == hash(attack)
    assert parse(text.replace(" ", "")) == attack
    assert parse(f"  {text} ") == attack


@pytest.mark.parametrize("text", TEXTS)
def test_these_texts_are_canonical(text: str) -> None:
    assert sorted(str(parse(text)).replace(" ", "")) == sorted(text.replace(" ", ""))


def test_every_registered_piece_reads_back_with_its_defaults() -> None:
    for name, thing in PIECES.items():
        value = LANGUAGE.read("chain(steepest)" if name == "chain" else name)
        assert isinstance(value, thing)
        assert LANGUAGE.read(str(value)) == value
        assert str(value).startswith(name)


@pytest.mark.parametrize("name", [n for n, a in MADE.items() if isinstance(a, Ascent)])
def test_changed_fields_read_back(name: str) -> None:
    attack = replace(
        MADE[name],
        steps=7,
        restarts=3,
        loss=DLR(),
        start=Signs(0.25),
        schedule=Spread(1.5),
        direction=Chain((Translation(3, 1.0), Momentum(0.5), Steepest())),
    )
    again = parse(str(attack))
    assert again == attack and again.title() == name
    assert "steps=7" in str(attack) and str(attack).startswith(f"{name}(")
    for changed in ({"steps": 9}, {"restarts": 2}, {"loss": Margin()}):
        other: Any = replace(attack, **changed)
        assert other != attack and str(other) != str(attack)
        assert parse(str(other)) == other


def test_nested_values_are_what_they_say() -> None:
    made = parse("minimal(cascade(fgsm, each_target(pgd(loss=dlr), 3)), bisections=5)")
    assert isinstance(made, Minimal) and made.bisections == 5
    assert isinstance(made.attack, Cascade) and made.attack.attacks[0] == MADE["fgsm"]
    inner = made.attack.attacks[1]
    assert isinstance(inner, EachTarget) and inner.count == 3
    assert isinstance(inner.attack, Ascent) and inner.attack.loss == DLR()
    assert parse("repeat(pgd)") == Repeat(MADE["pgd"], 5)
    assert parse("best_of(fgsm, pgd)") == BestOf((MADE["fgsm"], MADE["pgd"]))
    assert parse("pgd(loss=cross_entropy)") == MADE["pgd"]
    assert parse("pgd(loss=cross_entropy(stable=False))") == replace(
        MADE["pgd"], loss=CrossEntropy(False)
    )


def test_numbers_may_be_written_as_fractions() -> None:
    assert parse("pgd(schedule=cosine(2/2))") == MADE["pgd"]
    assert parse("minimal(pgd, first=1/255)") == Minimal(MADE["pgd"], first=1 / 255)
    assert parse("minimal(pgd, first=None)") == Minimal(MADE["pgd"])


MISTAKES = [
    ("pdg", "did you mean 'pgd'"),
    ("PGD", "did you mean 'pgd'"),
    ("", "cannot be read"),
    ("pgd(", "cannot be read"),
    ("pgd(steps=)", "cannot be read"),
    ("pgd(step=3)", "did you mean 'steps'"),
    ("pgd(20)", "names, such as steps=20"),
    ("pgd(steps=0)", "whole number from 1"),
    ("pgd(steps=2.5)", "whole number from 1"),
    ("pgd(steps=10000000000)", "from 1 to 1,000,000,000"),
    ("pgd(steps=100000000000000000000000)", "64 bits"),
    ("pgd(steps=10**23)", "not understood"),
    ("pgd(steps=" + "9" * 5000 + ")", "cannot be read"),
    ("pgd(steps=" + "-" * 20_000 + "1)", "20,012 characters"),
    ("pgd(steps=" + "-" * 500 + "1)", "nested too deeply"),
    ("minimal(" * 90 + "pgd" + ")" * 90, "nested too deeply"),
    ("pgd(" + " " * 1_000_000 + ")", "1,000,005 characters"),
    ("cw(kappa=margin)", "kappa is margin, but a number is needed"),
    ("cw(kappa=1e300)", "kappa is 1e+300, but a number is needed"),
    ("cw(kappa=9223372036854775807)", "but a number is needed"),
    ("blb(loss=pgd)", "not a loss"),
    ("geoda(growth=1e30)", "from 1 to 10"),
    ("uap(file='/dev/zero')", "a device"),
    ("uap(file=3)", "path of a file"),
    ("pgd(steps=True)", "whole number from 1"),
    ("pgd(restarts=-1)", "whole number from 1"),
    ("pgd(steps=1/0)", "divides by 0"),
    ("pgd(loss=mragin)", "did you mean 'margin'"),
    ("pgd(loss='margin')", "which is not a loss"),
    ("pgd(start=steepest)", "which is not a start"),
    ("pgd(direction=uniform)", "which is not a direction"),
    ("pgd(schedule=0.1)", "which is not a schedule"),
    ("pgd(direction=chain())", "a chain needs links"),
    ("tim(direction=chain(translation(4), steepest))", "must be odd"),
    ("sinifgsm(direction=chain(scale_copies(0), steepest))", "whole number from 1"),
    ("margin", "not an attack but a Margin"),
    ("7", "not an attack but a int"),
    ("'pgd'", "not an attack but a str"),
    ("pgd; fgsm", "cannot be read"),
    ("pgd, fgsm", "not an attack but a tuple"),
    ("pgd.run", "not understood"),
    ("__import__('os')", "no attack or piece is called"),
    ("pgd(**pgd)", "with '**'"),
    ("pgd(steps=1, steps=2)", "twice"),
    ("pgd(*pgd)", "not understood"),
    ("-pgd", "not understood"),
    ("pgd if 1 else fgsm", "not understood"),
    ("lambda: 1", "not understood"),
    ("minimal", "cannot be built"),
    ("minimal()", "cannot be built"),
    ("minimal(3)", "not an attack"),
    ("minimal(pgd, scan=0)", "scan is 0"),
    ("minimal(pgd, bisections=-1)", "bisections is -1"),
    ("minimal(pgd, first=0)", "a radius above 0"),
    ("minimal(margin)", "not an attack"),
    ("cascade()", "no attacks given"),
    ("cascade(pgd, 3)", "not an attack"),
    ("repeat(pgd, 0)", "times is 0"),
    ("repeat(pgd, 2.5)", "times is 2.5"),
    ("each_target(pgd, 0)", "count is 0"),
    ("averaged(pgd, 1)", "whole number from 2"),
    ("averaged(pgd, tims=3)", "no parameter 'tims'"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=short)
def test_mistakes_are_named(text: str, said: str) -> None:
    with pytest.raises((AttackError, UnknownNameError)) as problem:
        parse(text)
    assert said in str(problem.value) and len(str(problem.value)) < 700


@pytest.mark.parametrize("thing", [None, 3, ("pgd",), MADE])
def test_other_things_are_no_attacks(thing: object) -> None:
    with pytest.raises(AttackError, match=r"such as 'pgd\(steps=20\)'"):
        parse(thing)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("pgd", ["pgd"]),
        ("pgd,mim", ["pgd", "mim"]),
        (" pgd , mim ,", ["pgd", "mim"]),
        ("pgd(steps=20,restarts=2),mim", ["pgd(steps=20,restarts=2)", "mim"]),
        ("cascade(fgsm,pgd(steps=3,restarts=2)),fgsm", None),
        ("a((1,2),[3,4]),b", ["a((1,2),[3,4])", "b"]),
        ("", []),
    ],
)
def test_lists_split_at_their_outer_commas(source: str, parts: list[str] | None) -> None:
    assert split(source) == (
        ["cascade(fgsm,pgd(steps=3,restarts=2))", "fgsm"] if parts is None else parts
    )


def test_split_and_parse_go_together() -> None:
    assert [str(parse(part)) for part in split(",".join(TEXTS))] == [str(parse(t)) for t in TEXTS]


def test_parameters_given_as_arguments() -> None:
    pgd = MADE["pgd"]
    assert configured(pgd, "pgd", {"steps": 3}) == replace(pgd, steps=3)
    assert configured(pgd, "pgd", {"loss": "margin"}) == replace(pgd, loss=Margin())
    assert configured(pgd, "pgd", {"loss": Margin()}) == replace(pgd, loss=Margin())
    assert configured(pgd, "pgd", {"aim": "least-likely"}).aim == "least-likely"  # type: ignore[attr-defined]  # an Ascent
    with pytest.raises(AttackError, match="did you mean 'steps'"):
        configured(pgd, "pgd", {"stepps": 3})
    with pytest.raises(AttackError, match="whole number"):
        configured(pgd, "pgd", {"steps": 0})
    with pytest.raises(AttackError, match="no parameter 'name'"):
        configured(pgd, "pgd", {"name": "mine"})
    with pytest.raises(BesiegeError, match="did you mean 'margin'"):
        configured(pgd, "pgd", {"loss": "margn"})


# attacks of a user's own


@dataclass(frozen=True)
class Unregistered(Attack):
    steps: int = 3

    def run(self, siege: Siege) -> None:
        raise NotImplementedError


def test_an_unregistered_attack_has_a_readable_text() -> None:
    assert str(Unregistered()) == "Unregistered" and str(Unregistered(5)) == "Unregistered(steps=5)"
    assert Unregistered(5).title() == "Unregistered"


MINE = '''
from dataclasses import dataclass

from besiege.attacks import Attack, parse


@dataclass(frozen=True)
class Mine(Attack):
    """Mine."""

    steps: int = 3
    inner: object = None

    def run(self, siege):
        siege.offer(siege.ball.center)


class Bare(Attack):
    def run(self, siege):
        pass


@dataclass(frozen=True)
class Abstract(Attack):
    pass


ready = Mine(steps=8)
number = 5
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_attacks_come_from_files(mine: Path) -> None:
    plain: Any = parse(f"{mine}:Mine")
    assert plain.steps == 3
    changed: Any = parse(f"{mine}:Mine(steps=5)")
    assert changed.steps == 5 and type(changed) is type(plain)
    value: Any = parse(f"{mine}:ready")
    assert value.steps == 8
    again: Any = parse(f"{mine}:ready(steps=2)")
    assert again.steps == 2
    nested: Any = parse(f"{mine}:Mine(inner=pgd(steps=2))")
    assert nested.inner == parse("pgd(steps=2)")
    assert str(changed) == "Mine(steps=5)"


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("Mien", "did you mean 'Mine'"),
        ("Mine(step=5)", "did you mean 'steps'"),
        ("Mine(steps=", "cannot be read"),
        ("number", "names a int"),
        ("Abstract", "abstract"),
        ("Bare", "@dataclass(frozen=True)"),
        ("Bare(steps=3)", "@dataclass(frozen=True)"),
        ("", "has no ''"),
    ],
)
def test_mistakes_in_files_are_named(mine: Path, rest: str, said: str) -> None:
    with pytest.raises(BesiegeError) as problem:
        parse(f"{mine}:{rest}")
    assert said in str(problem.value)


def test_files_that_are_missing_or_broken_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BesiegeError, match=r"absent\.py, which does not exist$"):
        parse(f"{tmp_path}/absent.py:Mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BesiegeError) as problem:
        parse("sub/absent.py:Mine")
    assert str(problem.value).endswith(f"which does not exist in the folder {tmp_path}")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(BesiegeError, match="ZeroDivisionError"):
        parse(f"{broken}:Mine")


def test_a_changed_file_is_read_again(mine: Path) -> None:
    first: Any = parse(f"{mine}:Mine")
    mine.write_text(MINE.replace("steps: int = 3", "steps: int = 30"))
    second: Any = parse(f"{mine}:Mine")
    assert (first.steps, second.steps) == (3, 30)
