"""The base class of victims: its defaults, and what follows from the parts a victim names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.models import Classifier
from besiege.testing.victims import module_of

SOURCE = Path(besiege.__file__).parent
SHAPE = (1, 4, 4)


class Bare(Victim):
    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return x.flatten(1)


class Front(Bare):
    def __init__(self, victim: Victim) -> None:
        self.adopt(victim)


class Holding(Bare):
    def __init__(self, *inside: Victim | nn.Module) -> None:
        self.inside = inside

    @property
    def parts(self) -> Sequence[Victim | nn.Module]:
        return self.inside


def test_every_default_is_there() -> None:
    victim = Bare()
    assert (victim.name, victim.box, victim.grid, victim.classes) == ("Bare", (0, 1), None, None)
    assert (victim.outputs, victim.access) == ("logits", Access.GRADIENT)
    assert not (victim.metered or victim.stochastic or victim.rejects)
    assert (victim.passes, victim.together, victim.captures, victim.apart) == (1, 0, None, None)
    assert victim.bare is victim.source is victim and victim.behind is None
    assert victim.device == torch.device("cpu") and victim.parts == ()
    assert victim.to("cpu") is victim
    with pytest.raises(InputError, match="a Bare cannot be moved to 'cuda'"):
        victim.to("cuda")
    with victim.held():
        pass
    samples = besiege.core.samples.Samples.of(torch.rand(2, *SHAPE), torch.tensor([0, 1]))
    assert victim.twin(samples, besiege.Threat.parse("linf:0.1")) is None
    with pytest.raises(NotImplementedError, match="no members"):
        victim.fused([])
    with pytest.raises(TypeError, match="abstract"):
        Victim()  # type: ignore[abstract]  # that is the point


def test_a_victim_in_front_declares_what_the_one_behind_does() -> None:
    inner = Bare()
    inner.box, inner.grid, inner.classes, inner.outputs = (-1.0, 1.0), 0.5, 16, "probabilities"
    inner.access, inner.metered, inner.stochastic = Access.SCORE, True, True
    inner.rejects, inner.passes, inner.together = True, 3, 7
    outer = Front(Front(inner))
    for what in ("box", "grid", "classes", "outputs", "access", "metered", "stochastic"):
        assert getattr(outer, what) == getattr(inner, what), what
    assert (outer.rejects, outer.passes, outer.together) == (True, 3, 7)
    assert outer.source is inner and outer.bare is outer
    assert Front(Bare()).digest() != Front(Front(Bare())).digest()


def test_device_and_held_reach_all_parts() -> None:
    nets = [module_of(SHAPE, 3, seed).train() for seed in range(3)]
    victim = Holding(nets[0], Classifier(nets[1]), Front(Classifier(nets[2])))
    with victim.held():
        assert not any(part.training for net in nets for part in net.modules())
        assert not any(weight.requires_grad for net in nets for weight in net.parameters())
    assert all(part.training for net in nets for part in net.modules())
    assert all(weight.requires_grad for net in nets for weight in net.parameters())
    assert victim.to("meta").device == torch.device("meta")
    assert all(weight.is_meta for net in nets for weight in net.parameters())
    with pytest.raises(VictimError, match="Holding has weights on the meta device"), victim.held():
        pass
    with pytest.raises(InputError, match="did you mean 'cuda'"):
        victim.to("cudda")


def test_the_digest_covers_code_attributes_and_victims_inside() -> None:
    def digest(net: nn.Module, name: str = "net") -> str:
        return Holding(net, Classifier(net, name=name)).digest()

    first = module_of(SHAPE, 3)
    assert digest(first) == digest(module_of(SHAPE, 3)) == digest(first, "another")
    assert digest(first) != digest(module_of(SHAPE, 3, 1))
    with torch.no_grad():
        once = digest(first)
        next(first.parameters())[0] += 1
    assert digest(first) != once
    assert Bare().digest() != Front(Bare()).digest()

    class Other(Victim):
        def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
            return -x.flatten(1)

    assert Other().digest() not in (Bare().digest(), Front(Bare()).digest())
    coarse, named = Bare(), Bare()
    coarse.grid, named.name = 0.5, "other"
    assert coarse.digest() != Bare().digest() == named.digest()


def test_nothing_else_asks_whether_a_victim_has_an_attribute() -> None:
    probe = re.compile(
        r"(get|has)attr\((self\.)?_?(victim|model|oracle|searcher|substitute|asked|made|inner)\b"
    )
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "core" / "victim.py"
        for line in path.read_text().splitlines()
        if probe.search(line)
    ]
    assert not found
