"""Several models as one victim: what fools all of them is likelier to fool another one too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError, near
from besiege.core.victim import Victim
from besiege.models.classifier import Classifier

Fuse = Literal["logits", "probabilities", "losses"]


class Ensemble(Victim):
    """A victim made of several, to be crafted on.

    With weights w that sum to one and members with logits z and probabilities p, the loss that an
    attack raises is

    - ``logits``: that of ``sum w z``, as a rule the strongest (Dong et al. 2018). The member with
      the largest logits rules; `equalise` divides each member's logits of an image by their
      standard deviation over the classes;
    - ``probabilities``: that of ``log sum w p``;
    - ``losses``: the mean of the members' own, ``sum w loss(z)``. What it answers, and a loss where
      no gradient was asked, is that of ``sum w z``.

    Every member keeps its own normalisation, and may bring its own input size as the layer
    ``+adapt(size=...)``. Leave models of the victim's family out, or say that they are in.

    Parameters
    ----------
    members : sequence of Victim, nn.Module or str
        What is fused; all of the same classes and box, and on one device. Of a text that names
        layers, give what `besiege.defenses.load` makes of it.
    fuse : {"logits", "probabilities", "losses"}
        Of what the mean is taken.
    weights : sequence of float, optional
        One positive number per member; they are divided by their sum. Equal by default.
    equalise : bool
        Whether each member's logits are brought to one scale first; for ``logits`` alone.
    name : str, optional
        What reports call it; the members' names by default.

    Examples
    --------
    >>> both = Ensemble(["zoo:digits-natural", "zoo:digits-pgd-at"], weights=[2, 1])
    >>> both(torch.zeros(4, 1, 8, 8)).shape
    torch.Size([4, 10])

    References
    ----------
    Liu et al. 2017, "Delving into transferable adversarial examples and black-box attacks";
    Dong et al. 2018, "Boosting adversarial attacks with momentum".
    """

    def __init__(
        self,
        members: Sequence[Victim | Classifier | nn.Module | str],
        fuse: Fuse = "logits",
        weights: Sequence[float] | None = None,
        *,
        equalise: bool = False,
        name: str | None = None,
    ) -> None:
        if isinstance(members, (str, nn.Module)) or not len(members):
            raise InputError("an ensemble is a list of models, one at least")
        if fuse not in get_args(Fuse):
            raise InputError(f"fuse is {fuse!r}: {near(str(fuse), get_args(Fuse))}")
        if equalise and fuse != "logits":
            raise InputError(f"equalise brings logits to one scale, but fuse is {fuse!r}")
        self.members: list[Victim] = [Classifier.of(one) for one in members]
        self.fuse, self.equalise = fuse, equalise
        self.weights = _weights(weights, len(self.members))
        self.box = self._common("box")
        # A member without a grid takes what lies on another's.
        self.grid = self._common("grid")
        self.classes = self._common("classes")
        self.access = min(one.access for one in self.members)
        self.stochastic = any(one.stochastic for one in self.members)
        self.metered = any(one.metered for one in self.members)
        self.name = self._written() if name is None else name
        self.device  # noqa: B018  # refuses members on several

    def _common(self, what: str) -> Any:
        """What all members that say so must agree on; None if none does."""
        each = [(one.name, getattr(one, what)) for one in self.members]
        each = [(name, value) for name, value in each if value is not None]
        if len({value for _, value in each}) > 1:
            said = ", ".join(f"that of {name} is {value}" for name, value in each)
            raise InputError(f"the members of an ensemble must agree on {what}, but {said}")
        return each[0][1] if each else None

    def _written(self) -> str:
        told = [one.name for one in self.members]
        if self.fuse != "logits":
            told.append(f"fuse={self.fuse!r}")
        if len(set(self.weights)) > 1:
            told.append(f"weights={tuple(float(f'{w:.6g}') for w in self.weights)}")
        if self.equalise:
            told.append("equalise=True")
        return f"ensemble({', '.join(told)})"

    def __repr__(self) -> str:
        return self.name

    @property
    def device(self) -> torch.device:
        """Where the members compute."""
        devices = {str(one.device) for one in self.members}
        if len(devices) > 1:
            raise InputError(
                f"the members of an ensemble are on {' and '.join(sorted(devices))}: move them to "
                "one device with .to(device)"
            )
        return self.members[0].device

    @property
    def parts(self) -> Sequence[Victim]:
        """The members."""
        return self.members

    @property
    def apart(self) -> list[tuple[float, Victim]] | None:
        """Weights and members whose losses are asked one by one, where those are fused."""
        if self.fuse != "losses":
            return None
        return list(zip(self.weights, self.members, strict=True))

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Fused logits of images; a member's chances are its own."""
        chances = [None if dice is None else dice.of("member", k) for k in range(len(self.members))]
        # Each gets a copy of its own: a model may write over what it is given.
        answers = [one(x.clone(), own) for one, own in zip(self.members, chances, strict=True)]
        return self.fused(answers)

    def fused(self, answers: Sequence[Tensor]) -> Tensor:
        """One answer from the members', ``[rows, classes]`` each, in their order."""
        if len({z.shape for z in answers}) > 1:
            each = zip(self.members, answers, strict=True)
            said = ", ".join(f"{one.name} {tuple(z.shape)}" for one, z in each)
            raise VictimError(
                f"the members of an ensemble must tell the same classes apart, but answered {said}"
            )
        if self.equalise:
            answers = [z / _spread(z) for z in answers]
        if self.fuse == "probabilities":
            shares = [
                z.log_softmax(1) + math.log(w) for w, z in zip(self.weights, answers, strict=True)
            ]
            return torch.logsumexp(torch.stack(shares), 0)
        total = self.weights[0] * answers[0]
        for weight, z in zip(self.weights[1:], answers[1:], strict=True):
            total = total + weight * z
        return total

    def digest(self) -> str:
        """SHA-256 of what identifies the members, their weights and how they are fused."""
        parts = ["ensemble", self.fuse, repr(self.equalise)]
        for weight, one in zip(self.weights, self.members, strict=True):
            parts += [repr(weight), one.digest()]
        return sha256("\n".join(parts).encode()).hexdigest()


def _weights(given: Sequence[float] | None, count: int) -> tuple[float, ...]:
    if given is None:
        return (1.0 / count,) * count
    if len(given) != count:
        raise InputError(f"there are {len(given)} weights for {count} models: give one for each")
    if not all(math.isfinite(w) and w > 0 for w in given):
        raise InputError(f"the weights are {list(given)}, but each is a number above zero")
    return tuple(w / math.fsum(given) for w in given)


def _spread(z: Tensor) -> Tensor:
    """The standard deviation of each row, ``[rows, 1]``; no smaller than what can be divided by."""
    return z.std(1, correction=0, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
