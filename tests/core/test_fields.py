"""Checks declared on dataclass fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from besiege.core.fields import a_loss, check_fields, number, of_kind, one_of, whole_number


@dataclass(frozen=True)
class Thing:
    steps: int = whole_number(10)
    classes: int | None = whole_number(None, 2)
    rate: float | None = number(0.5, above=0, most=1, what="a share")
    momentum: float = number(0.5, below=1)
    growth: float = number(1.5, least=1, most=10)
    by: str = one_of("adam", "sign")
    loss: Any = a_loss(print)
    name: str = of_kind("it", str, "origin")
    free: object = None

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 0}, "steps is 0, but a whole number from 1 to 1,000,000,000 is needed"),
        ({"steps": True}, "steps is True, but a whole number"),
        ({"steps": None}, "steps is None, but a whole number"),
        ({"steps": 10**10}, "a whole number from 1 to"),
        ({"classes": 1}, "a whole number from 2"),
        ({"rate": 0}, "rate is 0, but a share above 0 up to 1 is needed"),
        ({"rate": 1.5}, "above 0 up to 1"),
        ({"rate": "fast"}, "rate is 'fast', but a share"),
        ({"rate": float("nan")}, "rate is nan, but a share"),
        ({"momentum": 1}, "momentum is 1, but a number from 0 and below 1 is needed"),
        ({"momentum": -0.1}, "from 0 and below 1"),
        ({"momentum": None}, "momentum is None, but a number"),
        ({"growth": float("inf")}, "growth is inf, but a number from 1 to 10 is needed"),
        ({"growth": 0.9}, "from 1 to 10"),
        ({"by": "adm"}, "by is 'adm', but 'adam' or 'sign' is needed"),
        ({"loss": "margin"}, "loss is 'margin', which is not a loss"),
        ({"name": 3}, "name is 3, which is not an origin"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(Thing(), **given)


def test_values_within_the_bounds_are_taken() -> None:
    assert Thing() == Thing(10, None, 0.5, 0.5, 1.5, "adam", print, "it")
    Thing(1, 2, 1, 0, 10, "sign", len, "", free=object())
    Thing(rate=None)
