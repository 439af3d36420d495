"""Words in texts of calls: without their quotes they are no names, and the error says so."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest

from besiege.attacks.attack import LANGUAGE as ATTACKS
from besiege.attacks.attack import parse
from besiege.core.errors import BesiegeError, InputError, UnknownNameError
from besiege.core.text import read_arguments
from besiege.core.vocabulary import Vocabulary
from besiege.defenses.layers import LANGUAGE as LAYERS
from besiege.training.recipes import recipe


def worded(language: Vocabulary) -> list[tuple[str, str, str]]:
    """Names of a language with each field that takes words, and each of these."""
    found = []
    for name in language.names():
        thing = language.find(name)
        if not isinstance(thing, type) or not hasattr(thing, "__dataclass_fields__"):
            continue
        needed = [f for f in fields(thing) if f.init and f.default is f.default_factory is MISSING]
        for f in (one for one in fields(thing) if one.init and not needed):
            if isinstance(f.default, str) and "check" in f.metadata:
                known = getattr(f.metadata["check"][0], "__self__", ())
                found += [(name, f.name, word) for word in known if word.isidentifier()]
    return found


ALL: list[tuple[Vocabulary, str, str, str]] = [
    (language, *one) for language in (ATTACKS, LAYERS) for one in worded(language)
]


def test_there_are_fields_of_both_languages() -> None:
    found = {(name, field) for _, name, field, _ in ALL}
    assert {("opgd", "projection"), ("lspga", "start"), ("jpeg", "backward")} <= found
    assert len(found) > 10


@pytest.mark.parametrize(("language", "name", "field", "word"), ALL)
def test_a_word_without_quotes_is_answered_with_them(
    language: Vocabulary, name: str, field: str, word: str
) -> None:
    assert language.read(f"{name}({field}='{word}')") is not None
    with pytest.raises(InputError, match=rf"'{word}' in .* is a word: .*{field}='{word}'"):
        language.read(f"{name}({field}={word})")
    with pytest.raises(InputError, match=rf"{field} is 'xyz', but .*'{word}'"):
        language.read(f"{name}({field}=xyz)")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("opgd(projection=selective)", "projection='selective'"),
        ("each_target(opgd(projection=selective))", "projection='selective'"),
        ("opgd(projection=selectiv)", "'orthogonal' or 'selective' is needed"),
        ("opgd(projection=selective, steps=nope)", "projection='selective'"),
        ("opgd(steps=nope, projection=selective)", "projection='selective'"),
        ("opgd(projection=pgd)", "'orthogonal' or 'selective' is needed"),
        ("pgd(loss=marginn)", "'marginn': did you mean 'margin'"),
        ("pgd(loss=marginn, steps=ten)", "'marginn': did you mean 'margin'"),
        ("minimal(pdg)", "'pdg': did you mean 'pgd'"),
    ],
)
def test_attacks_are_answered_with_what_helps(text: str, answer: str) -> None:
    with pytest.raises(BesiegeError) as problem:
        parse(text)
    assert answer in str(problem.value)


def test_words_are_not_looked_up_where_no_word_is_taken() -> None:
    with pytest.raises(UnknownNameError, match="no attack or piece is called 'foo'"):
        parse("pgd(norm=foo)")


@pytest.mark.parametrize(
    "read", [read_arguments, lambda text: recipe(f"natural({text})", "digits")]
)
def test_where_only_literals_are_known_a_word_in_quotes_is_suggested(read: Any) -> None:
    with pytest.raises(InputError, match=r"in quotes"):
        read("schedule=cosinee")
