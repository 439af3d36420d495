"""A victim with layers in front of it: a victim again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from hashlib import sha256

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError, UnknownNameError, VictimError, near
from besiege.core.identity import plain
from besiege.core.oracle import Victim
from besiege.core.threat import Access
from besiege.defenses.layers import LANGUAGE, LAYERS, Layer
from besiege.models.classifier import Classifier
from besiege.models.secrecy import must_hold_no_secret
from besiege.models.sources import find


class Defended:
    """Layers applied in order, then the victim.

    Parameters
    ----------
    model : Classifier, nn.Module or str
        What is defended; a text as `load` reads it.
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
        self.victim: Victim = load(model) if isinstance(model, str) else Classifier.of(model)
        self.layers = layers
        self.box: tuple[float, float] = self.victim.box
        self.grid: float | None = self.victim.grid
        self.classes: int | None = self.victim.classes
        self.outputs: str = getattr(self.victim, "outputs", "logits")
        self.access: Access = self.victim.access
        self.metered: bool = self.victim.metered
        self.together: int = getattr(self.victim, "together", 0)
        self.stochastic: bool = self.victim.stochastic or any(a.stochastic for a in layers)

    @property
    def device(self) -> torch.device:
        """Where the victim computes."""
        return self.victim.device

    def to(self, device: str | torch.device) -> Defended:
        """Move the victim itself, as torch does, and return this defended one."""
        _moved(self.victim, device)
        return self

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of the transformed images; the dice hold one chance per image."""
        if dice is None:
            if self.stochastic:
                raise VictimError(f"'{self}' answers by chance and was given no dice")
            dice = Dice(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        for place, layer in enumerate(self.layers):
            x = layer(x, self.box, dice.of("layer", place))
        return self.victim(x, dice.of("victim"))

    @property
    def apart(self) -> list[tuple[float, Victim]] | None:
        """Weights and members of an ensemble whose losses are fused, each behind the layers."""
        parts: list[tuple[float, Victim]] | None = getattr(self.victim, "apart", None)
        if parts is None:
            return None
        return [(weight, Defended(one, *self.layers)) for weight, one in parts]

    def fused(self, answers: Sequence[Tensor]) -> Tensor:
        """One answer from those of an ensemble's members."""
        fused: Tensor = self.victim.fused(answers)  # type: ignore[attr-defined]  # it has parts
        return fused

    def held(self) -> AbstractContextManager[None]:
        """Eval mode and frozen parameters of the victim for a while."""
        return self.victim.held()

    def digest(self) -> str:
        """SHA-256 of what identifies the victim together with its layers, in their order."""
        inner = getattr(self.victim, "digest", None)
        parts = [inner() if callable(inner) else plain(self.victim)]
        parts += [plain(layer) for layer in self.layers]
        return sha256("\n".join(parts).encode()).hexdigest()

    def __str__(self) -> str:
        name = getattr(self.victim, "name", str(self.victim))
        return "+".join([name, *map(str, self.layers)])

    __repr__ = __str__


def load(text: str, device: str | torch.device | None = None) -> Victim:
    """The victim that a text names, with the layers written after it.

    Parameters
    ----------
    text : str
        A model as `besiege.models.load` reads it, and any number of layers:
        ``zoo:digits-natural+bits(depth=3)+resize_pad``. They are applied to the image in this
        order. A ``+`` in a path is part of the path.
    device : str or torch.device, optional
        Where the model computes.

    Returns
    -------
    Victim
        A `Defended` where there are layers, else what the model's text names.

    Examples
    --------
    >>> from besiege.defenses import load
    >>> load("zoo:digits-natural+bits(depth=3)")
    zoo:digits-natural+bits(depth=3)
    """
    model, written = split(text)
    layers = [LANGUAGE.read(layer) for layer in written]  # before the weights: it is cheaper
    victim = find(model)
    if device is not None:
        _moved(victim, device)
    return Defended(victim, *layers) if layers else victim


def split(text: str) -> tuple[str, list[str]]:
    """The model and the layers of a text, from the right: what is no layer belongs to the model."""
    must_hold_no_secret(text)  # first: other messages repeat the text
    layers: list[str] = []
    while found := _LAST.fullmatch(text[: _opening(text)].rstrip()):
        name = found["name"]
        if name not in LAYERS:
            raise UnknownNameError(
                f"'{text}': no defense is called '{name}', {near(name, LAYERS.names())}"
            )
        layers.insert(0, text[found.start("name") :].strip())
        text = found["before"]
    if text.rstrip().endswith("+"):
        raise InputError(f"'{text}' ends in '+': write a layer after it, such as bits(depth=3)")
    return text.strip(), layers


# A name after the last plus; paths and factories have a point, a colon or a slash after theirs.
_LAST = re.compile(r"(?P<before>.*)\+\s*(?P<name>[A-Za-z_]\w*)", re.DOTALL)


def _opening(text: str) -> int:
    """Where the parentheses open that close at the end of a text; its end if none do."""
    depth, end = 0, len(text.rstrip())
    for place in range(end - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return place if place < end - 1 else end
    return end


def _moved(victim: Victim, device: str | torch.device) -> None:
    move = getattr(victim, "to", None)
    if not callable(move):
        raise InputError(
            f"a {type(victim).__name__} cannot be moved to '{device}': make it there in the first "
            "place"
        )
    move(device)
