"""A siege is made of parts that know each other by their public names only."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from tests.victims import siege, uniform
from torch import Tensor

from besiege.core import queries, tracker
from besiege.core import siege as core
from besiege.core.answer import Answer
from besiege.core.errors import AttackError
from besiege.core.queries import Queries
from besiege.core.siege import Siege
from besiege.core.tracker import Tracker
from besiege.testing.victims import untrained


@pytest.mark.parametrize("part", [Siege, Queries, Tracker])
def test_a_part_inherits_from_nothing(part: type) -> None:
    assert part.__bases__ == (object,)


@pytest.mark.parametrize("module", [core, queries, tracker])
def test_no_part_reads_what_is_private_to_another(module: ModuleType) -> None:
    private = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if ast.unparse(node.value) not in ("self", "level", "parent")  # the last two are equals
    }
    assert {name for name in private if not name.endswith(("._replace", "._make"))} == set()


class Inner(NamedTuple):
    a: Tensor
    b: Tensor


class Outer(NamedTuple):
    inner: Inner
    answer: Answer
    pair: tuple[Tensor, Tensor]


def _laid() -> tuple[Siege, Outer]:
    victim, x = untrained((1, 4, 4), 3), uniform(4, 1, 4, 4)
    s = siege(victim, x, victim(x).argmax(1).detach(), leave="end")
    answer, n = s.logits(x), torch.arange(4)
    return s, Outer(Inner(n, 10 * n), answer, (x, n))


def test_settle_gives_back_states_in_their_shape() -> None:
    s, state = _laid()
    s.leave(torch.tensor([True, False, True, False]))
    settled, numbers, none = s.settle(state, torch.arange(4), ())
    assert type(settled) is Outer and type(settled.inner) is Inner and none == ()
    assert settled.inner.a.tolist() == numbers.tolist() == [1, 3]
    assert settled.inner.b.tolist() == [10, 30]
    assert torch.equal(settled.answer.logits, state.answer.logits[[1, 3]])
    assert torch.equal(settled.pair[0], state.pair[0][[1, 3]])
    one = s.settle(settled)
    assert one is settled and len(s) == 2


def test_a_state_of_other_rows_is_refused_at_any_depth() -> None:
    s, state = _laid()
    with pytest.raises(AttackError, match="a state of 3 rows, but 4 rows are in the siege"):
        s.settle(state._replace(inner=Inner(torch.arange(4), torch.arange(3))))
