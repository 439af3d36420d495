"""A victim with layers in front of it: a victim again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from hashlib import sha256

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import VictimError
from besiege.core.oracle import Victim
from besiege.core.threat import Access
from besiege.defenses.layers import Layer
from besiege.models.classifier import Classifier


class Defended:
    """Layers applied in order, then the victim.

    Parameters
    ----------
    model : Classifier, nn.Module or str
        What is defended.
    *layers : Layer
        From the image inwards. If one draws by chance, the whole victim is stochastic: gradient
        attacks must then ask for an expectation, ``averaged(pgd, 20)``.

    Examples
    --------
    >>> from besiege.defenses import BitDepth, Defended
    >>> str(Defended("zoo:digits-natural", BitDepth(3)))
    'zoo:digits-natural+bits(depth=3)'
    """

    def __init__(self, model: Classifier | nn.Module | str | Victim, *layers: Layer) -> None:
        self.victim: Victim = Classifier.of(model)
        self.layers = layers
        self.box: tuple[float, float] = self.victim.box
        self.grid: float | None = self.victim.grid
        self.classes: int | None = self.victim.classes
        self.outputs: str = getattr(self.victim, "outputs", "logits")
        self.access: Access = self.victim.access
        self.metered: bool = self.victim.metered
        self.stochastic: bool = self.victim.stochastic or any(a.stochastic for a in layers)

    @property
    def device(self) -> torch.device:
        """Where the victim computes."""
        return self.victim.device

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of the transformed images; the dice hold one chance per image."""
        if dice is None:
            if self.stochastic:
                raise VictimError(f"'{self}' answers by chance and was given no dice")
            dice = Dice(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        for place, layer in enumerate(self.layers):
            x = layer(x, self.box, dice.of("layer", place))
        return self.victim(x, dice.of("victim"))

    def held(self) -> AbstractContextManager[None]:
        """Eval mode and frozen parameters of the victim for a while."""
        return self.victim.held()

    def digest(self) -> str:
        """What identifies the victim together with its layers."""
        inner = getattr(self.victim, "digest", None)
        parts = [inner() if callable(inner) else repr(self.victim), *map(str, self.layers)]
        return sha256("\n".join(parts).encode()).hexdigest()

    def __str__(self) -> str:
        name = getattr(self.victim, "name", str(self.victim))
        return "+".join([name, *map(str, self.layers)])

    __repr__ = __str__
