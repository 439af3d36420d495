from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from besiege.core import registry as registry_module
from besiege.core.errors import BesiegeError, UnknownNameError
from besiege.core.registry import Registry


def test_names_lead_to_things() -> None:
    known: Registry[int] = Registry("number")
    known.add("two", 2)
    known.add("one", 1)
    assert known.get("one") == 1
    assert known.names() == ["one", "two"]
    assert list(known.items()) == [("one", 1), ("two", 2)]
    assert "two" in known and "three" not in known


def test_the_decorator_gives_back_what_it_registers() -> None:
    known: Registry[type] = Registry("class")

    @known.register("thing")
    class Thing:
        pass

    assert known.get("thing") is Thing


def test_misspelt_names_are_helped() -> None:
    known: Registry[int] = Registry("attack")
    for place, name in enumerate(("pgd", "apgd", "fgsm", "square")):
        known.add(name, place)
    with pytest.raises(UnknownNameError) as problem:
        known.get("pdg")
    assert str(problem.value) == "no attack is called 'pdg': did you mean 'pgd' or 'apgd'?"
    with pytest.raises(UnknownNameError, match="known: apgd, fgsm, pgd, square"):
        known.get("zzzzz")
    with pytest.raises(UnknownNameError, match="none are known"):
        Registry("thing").get("x")


def test_a_name_is_given_once() -> None:
    known: Registry[object] = Registry("thing")
    first = object()
    known.add("a", first)
    known.add("a", first)  # the same again is no harm
    with pytest.raises(BesiegeError, match="the thing 'a' is registered already"):
        known.add("a", object())
    assert known.get("a") is first


def test_a_class_that_is_defined_anew_replaces_itself() -> None:
    known: Registry[type] = Registry("thing")

    def define() -> type:
        class Thing:
            pass

        return Thing

    old, new = define(), define()
    known.add("a", old)
    known.add("a", new)
    assert old is not new and known.get("a") is new


def test_modules_are_imported_on_the_first_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazily_registered.py").write_text(
        "import tests.core.test_registry as here\nhere.LAZY.add('late', 5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    global LAZY
    LAZY = Registry("thing", ("lazily_registered",))
    monkeypatch.setitem(sys.modules, "tests.core.test_registry", sys.modules[__name__])
    LAZY.add("early", 1)
    assert "lazily_registered" not in sys.modules
    assert LAZY.get("late") == 5
    assert LAZY.names() == ["early", "late"]
    del sys.modules["lazily_registered"]


LAZY: Registry[int]


def test_a_failed_import_is_not_forgotten() -> None:
    """The second look-up must not say that the name is unknown."""
    known: Registry[int] = Registry("thing", ("besiege.no_such_module",))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            known.get("a")


def test_other_packages_add_names(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("theirs", "math:pi", "besiege.numbers")]

    def found(group: str) -> list[EntryPoint]:
        return points if group == "besiege.numbers" else []

    monkeypatch.setattr(registry_module, "entry_points", found)
    known: Registry[float] = Registry("number", group="besiege.numbers")
    known.add("ours", 1.0)
    assert known.names() == ["ours", "theirs"]
    assert known.get("theirs") == pytest.approx(3.14159, abs=1e-5)
    assert Registry("number", group="besiege.others").names() == []


def test_the_name_of_a_thing_is_its_first_one_and_follows_changes() -> None:
    known: Registry[object] = Registry("thing")
    one, other = object(), object()
    known.add("b", one)
    assert (known.name_of(one), known.name_of(other)) == ("b", None)
    known.add("a", one)
    known.add("c", other)
    assert (known.name_of(one), known.name_of(other)) == ("a", "c")
