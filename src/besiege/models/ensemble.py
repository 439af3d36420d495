"""`Ensemble`: several models as one victim, because what fools all of them transfers better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from hashlib import sha256
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from besiege.core.cells import coarsest
from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError, near
from besiege.core.victim import Victim
from besiege.models.classifier import Classifier

Fuse = Literal["logits", "probabilities", "losses"]


class Ensemble(Victim):
    """Several victims fused into one that transfer attacks are crafted on.

    With weights w that sum to one and members with logits z and probabilities p, an attack
    maximises

    - ``logits``: the loss of ``sum w z``, usually the strongest choice (Dong et al. 2018). The
      member with the largest logits dominates; `equalise` divides each member's logits of an image
      by their standard deviation over the classes;
    - ``probabilities``: the loss of ``log sum w p``;
    - ``losses``: the mean of the members' losses, ``sum w loss(z)``. The ensemble's answers, and
      losses computed without a gradient, are those of ``sum w z``.

    Every member keeps its own normalisation, and may have its own input size with the layer
    ``+adapt(size=...)``. Leave models of the victim's family out, or report that they are in.

    Parameters
    ----------
    members : sequence of Victim, nn.Module or str
        The models; all with the same classes and box, and on one device. For a text with layers,
        pass the result of `besiege.defenses.load`.
    fuse : {"logits", "probabilities", "losses"}
        What is averaged.
    weights : sequence of float, optional
        One positive number per member; they are divided by their sum. Equal by default.
    equalise : bool
        Whether each member's logits are brought to one scale first; for ``logits`` only.
    name : str, optional
        Name in reports; the members' names by default.

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
            raise InputError("an ensemble is a list of at least one model")
        if fuse not in get_args(Fuse):
            raise InputError(f"fuse is {fuse!r}: {near(str(fuse), get_args(Fuse))}")
        if not isinstance(equalise, bool):
            raise InputError(f"equalise is {equalise!r}: write True or False")
        if equalise and fuse != "logits":
            raise InputError(f"equalise brings logits to one scale, but fuse is {fuse!r}")
        self.members: list[Victim] = [Classifier.of(one) for one in members]
        if rejecting := [one.name for one in self.members if one.rejects]:
            # Its last column would be averaged as if it were a class.
            raise InputError(
                f"the member '{rejecting[0]}' rejects images, and a rejection cannot be averaged: "
                "write the detector after the ensemble, ensemble(...)+detector('FILE')"
            )
        self.fuse, self.equalise = fuse, equalise
        self.weights = _weights(weights, len(self.members))
        self.box = self._common("box")
        # A member without a grid accepts images on another member's grid.
        self.grid = self._common("grid")
        self.classes = self._common("classes")
        self.cells = coarsest([one.cells for one in self.members])
        self.access = min(one.access for one in self.members)
        self.stochastic = any(one.stochastic for one in self.members)
        self.draws = min((one.draws for one in self.members if one.stochastic), default=1)
        self.passes = sum(one.passes for one in self.members)
        self.metered = any(one.metered for one in self.members)
        self.name = self._written() if name is None else name
        self.device  # noqa: B018  # raises if the members are on several devices

    def _common(self, what: str) -> Any:
        """The value of an attribute that all members declaring it must share; None if none does."""
        each = [(one.name, getattr(one, what)) for one in self.members]
        each = [(name, value) for name, value in each if value is not None]
        if len({value for _, value in each}) > 1:
            values = ", ".join(f"that of {name} is {value}" for name, value in each)
            raise InputError(
                f"the members of an ensemble must agree on {what}, but {values}: leave out the "
                "ones that differ"
            )
        return each[0][1] if each else None

    def _written(self) -> str:
        parts = [one.name for one in self.members]
        if self.fuse != "logits":
            parts.append(f"fuse={self.fuse!r}")
        if len(set(self.weights)) > 1:
            parts.append(f"weights={self.weights}")
        if self.equalise:
            parts.append("equalise=True")
        return f"ensemble({', '.join(parts)})"

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
    def bare(self) -> Victim:
        """The ensemble of the members without their defenses; itself if they have none."""
        if all(one.bare is one for one in self.members):
            return self
        bare = [one.bare for one in self.members]
        return Ensemble(bare, self.fuse, self.weights, equalise=self.equalise)

    @property
    def apart(self) -> list[tuple[float, Victim]] | None:
        """Weights and members if their losses are fused, which needs each member's answer."""
        fused = self.fuse == "losses"
        return list(zip(self.weights, self.members, strict=True)) if fused else None

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Fused logits of images; every member has independent randomness."""
        dices = [None if dice is None else dice.of("member", k) for k in range(len(self.members))]
        # Each member gets a copy: a model may overwrite its input.
        return self.fused([m(x.clone(), own) for m, own in zip(self.members, dices, strict=True)])

    def fused(self, answers: Sequence[Tensor]) -> Tensor:
        """The fused logits of the members' logits, ``[rows, classes]`` each, in their order."""
        if len({z.shape for z in answers}) > 1:
            each = zip(self.members, answers, strict=True)
            shapes = ", ".join(f"{one.name} {tuple(z.shape)}" for one, z in each)
            raise VictimError(
                f"the members of an ensemble must have the same classes, but answered {shapes}: "
                "leave out the ones that differ"
            )
        if self.equalise:
            answers = [z / _spread(z) for z in answers]
        if self.fuse == "probabilities":
            pairs = zip(self.weights, answers, strict=True)
            return torch.logsumexp(
                torch.stack([z.log_softmax(1) + math.log(w) for w, z in pairs]), 0
            )
        return reduce(torch.add, [w * z for w, z in zip(self.weights, answers, strict=True)])

    def digest(self) -> str:
        """SHA-256 of the members' digests, their weights and how they are fused."""
        parts = ["ensemble", self.fuse, repr(self.equalise)]
        for weight, one in zip(self.weights, self.members, strict=True):
            parts += [repr(weight), one.digest()]
        return sha256("\n".join(parts).encode()).hexdigest()


def _weights(given: object, count: int) -> tuple[float, ...]:
    if given is None:
        return (1.0 / count,) * count
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError(f"the weights are {given!r}, but there is one for each model: (2, 1)")
    if not all(isinstance(w, (int, float)) for w in given):
        raise InputError(f"the weights are {list(given)}, but each is a number above zero")
    if len(given) != count:
        raise InputError(f"there are {len(given)} weights for {count} models: give one for each")
    if not all(math.isfinite(w) and w > 0 for w in given):
        raise InputError(f"the weights are {list(given)}, but each is a number above zero")
    return tuple(w / math.fsum(given) for w in given)


def _spread(z: Tensor) -> Tensor:
    """The standard deviation of each row, ``[rows, 1]``, bounded below so that it can divide."""
    return z.std(1, correction=0, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
