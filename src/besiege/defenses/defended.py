"""`Defended`: a victim with defense layers in front of it; `load` reads both from a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError, UnknownNameError, VictimError, near
from besiege.core.identity import plain
from besiege.core.victim import Victim
from besiege.defenses.layers import LANGUAGE, LAYERS, Layer
from besiege.models.classifier import Classifier
from besiege.models.secrecy import must_hold_no_secret
from besiege.models.sources import find


class Defended(Victim):
    """Layers applied in order, then the victim.

    Parameters
    ----------
    model : Classifier, nn.Module or str
        The model to defend; a text as `load` reads it.
    *layers : Layer
        From the image inwards. If one is stochastic, so is the whole victim: gradient attacks
        should then average over its randomness, ``averaged(pgd, 20)``.

    Examples
    --------
    >>> from besiege.defenses import BitDepth, Defended
    >>> str(Defended("zoo:digits-natural", BitDepth(3)))
    'zoo:digits-natural+bits(depth=3)'
    """

    def __init__(self, model: Classifier | nn.Module | str | Victim, *layers: Layer) -> None:
        for layer in layers:
            _must_be_layer(layer)
        victim: Victim = load(model) if isinstance(model, str) else Classifier.of(model)
        self.victim = self.adopt(victim)
        self.layers = layers
        self.stochastic = victim.stochastic or any(layer.stochastic for layer in layers)

    @cached_property
    def name(self) -> str:
        """The text that `load` reads back, if the model's name is one."""
        return "+".join([self.victim.name, *map(str, self.layers)])

    @property
    def bare(self) -> Victim:
        """The model behind all layers."""
        return self.victim.bare

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits of the transformed images; the dice hold the randomness of every image."""
        if dice is None:
            if self.stochastic:
                raise VictimError(f"'{self}' is stochastic and was given no dice")
            dice = Dice(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        for place, layer in enumerate(self.layers):
            x = layer(x, self.box, dice.of("layer", place))
        return self.victim(x, dice.of("victim"))

    @property
    def apart(self) -> list[tuple[float, Victim]] | None:
        """Weights and members, behind the layers, of an ensemble whose losses are fused."""
        members = self.victim.apart
        if members is None:
            return None
        return [(weight, Defended(one, *self.layers)) for weight, one in members]

    def fused(self, answers: Sequence[Tensor]) -> Tensor:
        """The fused logits of an ensemble's members."""
        return self.victim.fused(answers)

    def digest(self) -> str:
        """SHA-256 of the victim's digest and of its layers, in their order."""
        parts = [self.victim.digest(), *map(plain, self.layers)]
        return sha256("\n".join(parts).encode()).hexdigest()

    def __repr__(self) -> str:
        return self.name


def load(text: str, device: str | torch.device | None = None) -> Victim:
    """The victim that a text names, with the layers written after it.

    Parameters
    ----------
    text : str
        A model as `besiege.models.load` reads it, then any number of layers, which are applied to
        the image in this order: ``zoo:digits-natural+bits(depth=3)+resize_pad``. A ``+`` in a path
        is part of the path.
    device : str or torch.device, optional
        Where the model computes.

    Returns
    -------
    Victim
        A `Defended` if there are layers, otherwise the model itself.

    Examples
    --------
    >>> from besiege.defenses import load
    >>> load("zoo:digits-natural+bits(depth=3)")
    zoo:digits-natural+bits(depth=3)
    """
    model, written = split(text)
    layers = [LANGUAGE.read(layer) for layer in written]  # first: loading weights costs more
    victim = find(model)
    if device is not None:
        victim.to(device)
    return Defended(victim, *layers) if layers else victim


def split(text: str) -> tuple[str, list[str]]:
    """The model and the layers of a text, split from the right at every ``+NAME``."""
    must_hold_no_secret(text)  # first, since other messages repeat the text
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


# A name after the last plus; in paths and factories a dot, a colon or a slash follows.
_LAST = re.compile(r"(?P<before>.*)\+\s*(?P<name>[A-Za-z_]\w*)", re.DOTALL)


def _opening(text: str) -> int:
    """Where the parentheses that close at the end of a text open; its end if there are none."""
    depth, end = 0, len(text.rstrip())
    for place in range(end - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return place if place < end - 1 else end
    return end


def _must_be_layer(given: object) -> None:
    """Refuse what is no layer, with what to write instead."""
    if isinstance(given, Layer):
        return
    what = f"a {type(given).__name__}"
    if isinstance(given, type) and issubclass(given, Layer):
        what = f"the class {given.__name__}, not an object of it ({given.__name__}())"
    elif isinstance(given, (list, tuple)):
        what += ": give its layers one by one"
    raise InputError(
        f"a layer of Defended is {what}; write Defended(model, first, second), each an object of a "
        "class that derives from besiege.defenses.Layer (besiege show Layer)"
    )
