"""Results that are kept while nothing changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from besiege.core.identity import fingerprint
from besiege.core.unchanged import once, unchanged

calls: list[object] = []


def note(one: object, *, more: object = None) -> object:
    calls.append((one, more))
    return object()


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()


def test_outside_a_block_nothing_is_kept() -> None:
    assert once(note, 1) is not once(note, 1)


def test_values_are_told_apart_by_value_and_objects_by_identity() -> None:
    first, second = [1], [1]
    with unchanged():
        assert once(note, (1, "a")) is once(note, (1, "a"))
        assert once(note, 1) is not once(note, True) is not once(note, 1.0)
        assert once(note, first) is once(note, first) is not once(note, second)
        assert once(note, first, more=1) is not once(note, first, more=2)
    assert len(calls) == 8


def test_a_block_inside_another_shares_what_is_kept_and_the_end_forgets_it() -> None:
    with unchanged():
        with unchanged():
            inner = once(note, 1)
        assert once(note, 1) is inner
    with unchanged():
        assert once(note, 1) is not inner


def test_what_raises_is_tried_again() -> None:
    tries = []

    def fails() -> None:
        tries.append(1)
        raise ValueError("no")

    with unchanged():
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                once(fails)
    assert len(tries) == 2


def test_arguments_stay_alive_so_that_no_other_one_takes_their_address() -> None:
    with unchanged():
        found = {id(once(note, [number])) for number in range(50)}
    assert len(found) == 50


def test_a_fingerprint_is_computed_once_in_a_block_and_every_time_outside() -> None:
    net = nn.Linear(2, 2)
    with unchanged():
        before = fingerprint(net)
        with torch.no_grad():
            net.weight += 1  # this is what the caller says does not happen
        assert fingerprint(net) == before
        assert fingerprint(net, "other") != before
    after = fingerprint(net)
    assert after != before
    with torch.no_grad():
        net.weight += 1
    assert fingerprint(net) != after
