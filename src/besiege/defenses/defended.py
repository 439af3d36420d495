"""`Defended`: a victim with defense layers in front of it; `load` reads both from a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError, UnknownNameError, VictimError, near
from besiege.core.samples import Samples
from besiege.core.text import read_arguments, short
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.defenses.detector_files import GUARDS, DetectorFile
from besiege.defenses.detector_files import LANGUAGE as GUARD_LANGUAGE
from besiege.defenses.layers import LANGUAGE, LAYERS, Layer, cells_of
from besiege.defenses.pooling import LANGUAGE as POOL_LANGUAGE
from besiege.defenses.pooling import POOLS
from besiege.defenses.presets import is_form, layers_of_form
from besiege.defenses.thermometer import Thermometer
from besiege.models.classifier import Classifier
from besiege.models.ensemble import Ensemble
from besiege.models.secrecy import must_hold_no_secret
from besiege.models.sources import find, layers_of, must_classify


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

    trained = False
    """Whether the model was trained behind these layers, so that its name stands for them too."""

    def __init__(self, model: Classifier | nn.Module | str | Victim, *layers: Layer) -> None:
        for layer in layers:
            _must_be_layer(layer)
        victim: Victim = load(model) if isinstance(model, str) else Classifier.of(model)
        self.victim = self.adopt(victim)
        self.layers = layers
        drawn = any(layer.stochastic for layer in layers)
        self.stochastic = victim.stochastic or drawn
        if drawn:
            self.draws = 1  # whatever the victim pools, one answer has one draw of the layers
        # A layer before it would transform codes.
        if layers and isinstance(layers[0], Thermometer):
            self.levels = layers[0].levels
        # Of layers behind the first, cells are those of its images, and not of pixel values.
        self.cells = cells_of(layers[0], self.box) if layers else victim.cells

    @cached_property
    def name(self) -> str:
        """The text that `load` reads back, if the model's name is one."""
        return "+".join([self.victim.name, *map(str, self.layers)])

    @property
    def parts(self) -> Sequence[Victim | nn.Module]:
        """The victim, then the networks inside its layers."""
        return (self.victim, *(part for layer in self.layers for part in layer.parts))

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
        given = x.shape
        x = self._shown(x, dice)
        try:
            return self.victim(x, dice.of("victim"))
        except (VictimError, InputError) as problem:  # the latter from its normalisation
            mismatch = _other_channels(self, given[1], x.shape[1])
            mismatch = mismatch or _other_size(self, given, x.shape)
            if mismatch is None:
                raise
            raise mismatch from problem

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
        parts = [self.victim.digest(), *(layer.identity() for layer in self.layers)]
        return sha256("\n".join(parts).encode()).hexdigest()

    def twin(self, samples: Samples, threat: Threat, *, seed: int = 0, **how: Any) -> Victim | None:
        """The layers in front of an accelerated copy of the victim, if there is one.

        The copy is compared with the victim around samples as the layers show them.
        """
        samples = samples.to(self.device)
        dice = Dice.throw(seed, samples.ids)
        with self.held(), torch.no_grad():
            shown = replace(samples, images=self._shown(samples.images, dice))
        inner = self.victim.twin(shown, threat, seed=seed, **how)
        return None if inner is None else Defended(inner, *self.layers)

    def _shown(self, x: Tensor, dice: Dice) -> Tensor:
        """What the victim sees of images."""
        for place, layer in enumerate(self.layers):
            x = layer(x, self.box, dice.of("layer", place))
        return x

    def __repr__(self) -> str:
        return self.name


def load(text: str, device: str | torch.device | None = None) -> Victim:
    """The victim that a text names, with the layers written after it.

    Parameters
    ----------
    text : str
        A model as `besiege.models.load` reads it, then any number of layers, which are applied to
        the image in this order: ``zoo:digits-natural+bits(depth=3)+resize_pad``. Last may stand
        ``pooled``, which pools the answers of several draws: ``...+resize_pad+pooled(draws=20)``,
        ``smoothed(sigma=0.25)``, which votes under noise and abstains where the vote is close, or
        ``detector('FILE')``, which rejects images; ``detector('zoo:NAME')`` is a shipped one.
        ``NAME@PAPER`` is a layer with a paper's parameters (`besiege.defenses.presets`).
        Several models are ``ensemble(zoo:a, zoo:b+bits, fuse=probabilities)``.
        A ``+`` in a path is part of the path.
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
    last = written[-1] if written else ""
    pool: Callable[[Victim], Victim] | None = None
    guard: DetectorFile | None = None
    ending = _name(last)
    if ending in POOLS:
        pool = POOL_LANGUAGE.read(written.pop())
    elif ending in GUARDS:
        guard = GUARD_LANGUAGE.read(written.pop())
        guard.must_exist()  # first: loading weights costs more
    layers = [LANGUAGE.read(layer) for layer in written]  # first: loading weights costs more
    members = re.fullmatch(r"ensemble\s*\((.*)\)", model, re.DOTALL)
    if members is None:
        must_classify(model)
    victim = find(model) if members is None else _ensemble(members[1], model)
    if own := layers_of(model):
        victim = Defended(victim, *(LANGUAGE.read(layer) for layer in split(f"{model}+{own}")[1]))
        victim.name, victim.trained = model, True
    if layers:
        victim = Defended(victim, *layers)
    if pool is not None:
        victim = pool(victim)
    if guard is not None:
        victim = guard(victim)
    return victim if device is None else victim.to(device)


_OPTIONS = ("fuse", "weights", "equalise")


def _ensemble(inside: str, text: str) -> Ensemble:
    """The ensemble of a text: members with layers of their own, then options."""
    members: list[str] = []
    options: list[str] = []
    for part in _parts(inside):
        option = re.match(r"(\w+)\s*=", part)
        if option is not None and option[1] not in _OPTIONS:
            raise UnknownNameError(
                f"'{short(text)}': an ensemble has no option '{option[1]}', "
                f"{near(option[1], _OPTIONS)}"
            )
        (members if option is None else options).append(part)
    # Bare words are the values of `fuse`: fuse=probabilities.
    given = read_arguments(", ".join(options), lambda name, args, named: name)
    if not members:
        raise InputError(f"'{short(text)}' has no members: write ensemble(zoo:NAME, zoo:OTHER)")
    return Ensemble([load(member) for member in members], **given)


def _parts(inside: str) -> list[str]:
    """The parts of a text between its commas, except those inside brackets."""
    depth, parts = 0, [""]
    for letter in inside:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def split(text: str) -> tuple[str, list[str]]:
    """The model and the layers of a text, split from the right at every ``+NAME``."""
    must_hold_no_secret(text)  # first, since other messages repeat the text
    layers: list[str] = []
    while found := _LAST.fullmatch(text[: _opening(text)].rstrip()):
        name = found["name"]
        written = [text[found.start("name") :].strip()]
        if is_form(name):
            written = layers_of_form(name, text[found.end() :])
            name = _name(written[-1])
        elif "@" in name:
            break  # part of a path
        if name not in LAYERS and name not in POOLS and name not in GUARDS:
            known = [*LAYERS.names(), *POOLS.names(), *GUARDS.names()]
            raise UnknownNameError(f"'{text}': no defense is called '{name}', {near(name, known)}")
        others = [_name(one) for one in layers if _name(one) in POOLS]
        if name in POOLS and others:
            raise InputError(_twice(text, name, others[0]))
        if name in POOLS and layers and _name(layers[-1]) in GUARDS:
            raise InputError(
                f"'{text}': a model with '{name}' is stochastic, and a detector's threshold would "
                "hold for some draws only: leave one of them out"
            )
        if (name in POOLS or name in GUARDS) and layers:
            raise InputError(
                f"'{text}': '{name}' is written last, because it covers all layers before it"
            )
        layers[:0] = written
        text = found["before"]
    if text.rstrip().endswith("+"):
        raise InputError(f"'{text}' ends in '+': write a layer after it, such as bits(depth=3)")
    return text.strip(), layers


# A name after the last plus; in paths and factories a dot, a colon or a slash follows.
_LAST = re.compile(r"(?P<before>.*)\+\s*(?P<name>[A-Za-z_]\w*(?:@[\w-]*)?)", re.DOTALL)


def _name(layer: str) -> str:
    """The name that the text of a layer begins with."""
    return layer.partition("(")[0].strip()


def _twice(text: str, first: str, second: str) -> str:
    """The message about two words that both make one answer of several draws."""
    if first == second:
        return f"'{text}' is {first} twice: give the larger number of draws once"
    return (
        f"'{text}' is {first} and {second}, and each makes one answer of several draws: leave one "
        "of them out"
    )


def _opening(text: str) -> int:
    """Where the parentheses that close at the end of a text open; its end if there are none."""
    depth, end = 0, len(text.rstrip())
    for place in range(end - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return place if place < end - 1 else end
    return end


def _other_channels(victim: Defended, given: int, made: int) -> VictimError | None:
    """The error where layers change the channels, and the network failed that takes others."""
    network = victim.source
    parts = network.module.modules() if isinstance(network, Classifier) else ()
    takes = next((part.in_channels for part in parts if isinstance(part, nn.Conv2d)), None)
    if made in (given, takes):
        return None
    others = "other images" if takes is None else f"images of {takes}"
    return VictimError(
        f"the layers of '{victim}' make {made} channels of {given}, but its network takes "
        f"{others}: train one for them, such as resnet20(in_channels={made})"
    )


def _other_size(victim: Defended, given: torch.Size, made: torch.Size) -> VictimError | None:
    """The error where layers change the size of images, and the network failed."""
    if given[2:] == made[2:]:
        return None
    old, new = ("x".join(map(str, shape[2:])) for shape in (given, made))
    return VictimError(
        f"the layers of '{victim}' make images of {new} pixels of {old}, which its network does "
        "not take: use one that ends in global pooling, such as resnet20, or layers that keep the "
        "size"
    )


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
