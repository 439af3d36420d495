"""Numbers and texts are bounded before they are read, and nothing is rounded."""

from __future__ import annotations

import os
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from besiege.core.errors import InputError
from besiege.core.text import (
    MOST,
    check_whole,
    from_file,
    number,
    read,
    read_arguments,
    short,
    whole,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", Fraction(8, 255)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1e-3", Fraction(1, 1000)),
        ("-1E+2", Fraction(-100)),
        ("+7", Fraction(7)),
        ("1_000", Fraction(1000)),
    ],
)
def test_numbers_are_exact(text: str, value: Fraction) -> None:
    assert number(text) == value


BAD = ["", " ", "1 ", "one", "nan", "inf", "1e", "1/0", "1/2/3", "1/2.5", "0x10", "1__0", "--1"]
OTHERS = ["٣", "１", "½", "²", "1٣", "१"]
LONG = ["1e999999999", "1e-999999999", "9" * 5000, "1" * 10**6]


@pytest.mark.parametrize("text", [*BAD, *OTHERS, *LONG], ids=short)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a number") as problem:
        number(text)
    assert len(str(problem.value)) < 200


@pytest.mark.parametrize(("text", "value"), [("20", 20), ("2.0", 2), ("1e3", 1000), ("4/2", 2)])
def test_whole_numbers(text: str, value: int) -> None:
    assert whole(text, "--count") == value


@pytest.mark.parametrize(
    "text", ["2.5", "1/3", "0", "-1", "٣", "9" * 25, "9" * 5000, "nan", ""], ids=short
)
def test_nothing_is_rounded_to_a_whole_number(text: str) -> None:
    with pytest.raises(InputError, match="but a whole number from 1"):
        whole(text, "--count")


@pytest.mark.parametrize(
    "value", [0, -1, 2.0, True, None, "3", MOST + 1, 10**5000], ids=lambda v: type(v).__name__
)
def test_values_are_checked_alike(value: object) -> None:
    with pytest.raises(InputError, match="but a whole number from 1 of at most 64 bits is needed"):
        check_whole(value, "count")
    check_whole(MOST, "count")


HOSTILE = {
    "signs": "a=" + "-" * 20_000 + "1",
    "few signs": "a=" + "-" * 500 + "1",
    "sums": "a=" + "+".join(["1"] * 3000),
    "parentheses": "a=" + "(" * 500 + ")" * 500,
    "a megabyte": "a=" + " " * 10**6 + "1",
    "digits": "a=" + "9" * 5000,
    "64 bits": f"a={2**64}",
    "products": "a=" + "*".join(["9999999999"] * 3),
    "an exponent": "a=1e400",
    "a difference": "a=1e308*10-1",
    "a zero byte": "a=1\x00",
    "half a letter": "a='\ud800'",
    "what Python warns of": "a=1if 1 else 2",
    "fullwidth digits": "a=１",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_texts_are_bounded_before_they_are_read(kind: str) -> None:
    with pytest.raises(InputError) as problem:
        read_arguments(HOSTILE[kind])
    assert len(str(problem.value)) < 300


def test_ordinary_texts_are_far_from_the_bounds() -> None:
    deep = "f(" * 12 + "1" + ")" * 12
    assert read(deep, lambda name, args, given: args[0] if args else 0) == 1
    assert read_arguments("a=-1/3, b=(1, (2, 3)), c='text'") == {
        "a": -1 / 3,
        "b": (1, (2, 3)),
        "c": "text",
    }


def test_long_texts_are_quoted_by_their_beginning() -> None:
    assert short("abc") == "abc" and short("a" * 100) == "a" * 60 + "..."


def test_a_file_changed_within_the_same_second_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for value in (1, 4):  # files of one length: compiled code is told apart by seconds and length
        path.write_text(f"def make():\n    return {value}\n")
        os.utime(path, ns=(1_700_000_000_000_000_000 + value,) * 2)
        made, _ = from_file(f"{path}:make")
        assert made() == value
