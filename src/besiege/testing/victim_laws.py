"""Laws every victim obeys, for victim types written here and elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.oracle import Oracle, full_precision
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.defenses.defended import load
from besiege.models.classifier import Classifier
from besiege.testing.conformance import demand, hold_to, untouched
from besiege.testing.surroundings import changed_in, state_of

ROWS = 11
"""Images the laws are tried on: more than a padded block of eight, and no multiple of it."""


@dataclass(frozen=True)
class VictimTrial:
    """A victim, the images it is sent, and the text it was read from."""

    victim: Victim
    images: Tensor
    text: str | None = None

    def dice(self, seed: int = 0, rows: Tensor | None = None) -> Dice:
        """Dice of the images, or of some of them."""
        ids = torch.arange(len(self.images)) if rows is None else rows
        return Dice.throw(seed, ids.to(self.images.device))

    def ask(self, rows: Tensor | None = None, seed: int = 0, batch: int | None = None) -> Tensor:
        """Logits of some images, queried as in a siege: padded, held and in full precision."""
        images = self.images if rows is None else self.images[rows]
        victim = self.victim
        dice = self.dice(seed, rows) if victim.stochastic else None
        with victim.held(), full_precision(victim.device):
            return Oracle(victim, batch=batch).logits(images, dice)


def answers_as_declared(trial: VictimTrial) -> None:
    """Logits are float32, without NaN, with `classes` columns and one more if it rejects."""
    victim, rows = trial.victim, len(trial.images)
    demand(bool(victim.name), "its name is empty")
    with victim.held(), full_precision(victim.device):
        dice = trial.dice() if victim.stochastic else None
        logits = victim(trial.images.clone(), dice)
    demand(
        logits.dtype == torch.float32 and logits.dim() == 2 and len(logits) == rows,
        f"it answered {rows} images with {logits.dtype} {list(logits.shape)}, but logits are "
        "float32 [rows, classes]",
    )
    demand(not bool(logits.isnan().any()), "it answered NaN")
    if victim.classes is not None:
        columns = victim.classes + victim.rejects
        demand(
            logits.shape[1] == columns,
            f"it answered {logits.shape[1]} columns, but declares {victim.classes} classes and "
            f"rejects={victim.rejects}",
        )


def rows_are_independent(trial: VictimTrial) -> None:
    """An image's logits do not depend on its batch: alone, permuted, in smaller batches.

    Bitwise on a CPU; to rounding on a GPU and of a metered victim, which is sent no padding.
    """
    victim, count = trial.victim, len(trial.images)
    if victim.metered and victim.stochastic:
        return  # its randomness is its own
    exact = victim.device.type == "cpu" and not victim.metered
    whole = trial.ask()
    shuffle = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    ways: list[tuple[str, Tensor, int | None]] = [
        ("alone", shuffle[:1], None),
        ("permuted", shuffle, None),
        ("split in two", shuffle[: count // 2], None),
        ("in batches of 8", torch.arange(count), 8),
    ]
    for how, rows, batch in ways:
        part, same = trial.ask(rows, batch=batch), whole[rows]
        equal = torch.equal(part, same) if exact else torch.allclose(part, same, 1e-3, 1e-4)
        demand(equal, f"logits differ between the whole batch and {how}")


def touches_nothing(trial: VictimTrial) -> None:
    """Global random states and modes, the caller's tensors and its networks stay as they were."""
    victim = trial.victim
    before = [(module, state_of(module)) for module in networks(victim)]

    def ask(images: Tensor, dice: Dice) -> None:
        with victim.held():
            Oracle(victim).logits(images, dice if victim.stochastic else None)

    untouched(ask, trial.images, trial.dice())
    for module, state in before:
        gone = changed_in(state, state_of(module))
        demand(not gone, f"asking changed its network: {', '.join(gone)}")


def held_reaches_every_network(trial: VictimTrial) -> None:
    """`held` sets evaluation mode and freezes parameters of all networks inside, then restores."""
    modules = list(networks(trial.victim))
    parts = [part for module in modules for part in module.modules()]
    weights = [weight for module in modules for weight in module.parameters()]
    modes, grads = [m.training for m in parts], [w.requires_grad for w in weights]
    try:
        for part in parts:
            part.training = True
        for weight in weights:
            weight.requires_grad_(weight.is_floating_point())
        before = [state_of(module) for module in modules]
        with trial.victim.held():
            demand(not any(m.training for m in parts), "a network inside is in training mode")
            demand(not any(w.requires_grad for w in weights), "a parameter inside is not frozen")
        for module, state in zip(modules, before, strict=True):
            gone = changed_in(state, state_of(module))
            demand(not gone, f"held() did not restore {', '.join(gone)}")
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
        for weight, grad in zip(weights, grads, strict=True):
            weight.requires_grad_(grad)


def to_reaches_every_network(trial: VictimTrial) -> None:
    """`to` returns the victim and moves all networks inside."""
    victim = trial.victim
    demand(victim.to(victim.device) is victim, "to() does not return the victim")
    if not any(True for _ in networks(victim)):
        return
    moved = copy.deepcopy(victim).to("meta")
    stayed = [
        name
        for module in networks(moved)
        for name, tensor in _tensors(module)
        if tensor.device.type != "meta"
    ]
    demand(not stayed, f"to() left {', '.join(stayed)} where it was")
    demand(moved.device.type == "meta", f"moved to meta, its device is {moved.device}")


def digest_identifies(trial: VictimTrial) -> None:
    """The digest changes with every parameter and buffer, and with nothing irrelevant.

    It stays the same from call to call, after answers and under another name.
    """
    victim = trial.victim
    digest = victim.digest()
    trial.ask()
    demand(victim.digest() == digest, "the digest changes when it is queried")
    name = victim.name
    try:
        victim.name = f"{name} by another name"
        demand(victim.digest() == digest, "the digest depends on the name")
    finally:
        victim.name = name
    for module in networks(victim):
        for what, tensor in _tensors(module):
            demand(_differs(victim, digest, tensor), f"the digest does not depend on {what}")
    demand(victim.digest() == digest, "the digest differs for the same weights")


def dice_decide(trial: VictimTrial) -> None:
    """The same dice give the same answer; other dice another one, if it is stochastic."""
    victim = trial.victim
    if victim.stochastic and victim.metered:
        return  # its randomness is its own
    once = trial.ask()
    demand(torch.equal(once, trial.ask()), "it answers differently when asked again")
    if victim.stochastic:
        demand(not torch.equal(once, trial.ask(seed=1)), "other dice give the same answers")


def gradients_flow(trial: VictimTrial) -> None:
    """A victim that grants gradients has finite ones, not all of them zero."""
    victim = trial.victim
    if victim.access is not Access.GRADIENT:
        return
    with victim.held(), full_precision(victim.device):
        dice = trial.dice() if victim.stochastic else None
        slope = Oracle(victim).gradient(trial.images, _height, None, dice)[0]
    demand(bool(slope.isfinite().all()), "its gradient is not finite")
    demand(bool((slope != 0).any()), "its gradient is zero everywhere")


def text_reads_back(trial: VictimTrial) -> None:
    """A text that is read again names a victim with the same digest and the same answers."""
    if trial.text is None:
        return
    again = replace(trial, victim=load(trial.text))
    demand(
        again.victim.digest() == trial.victim.digest(),
        f"'{trial.text}' names a victim with another digest when it is read again",
    )
    demand(torch.equal(again.ask(), trial.ask()), "read again, it answers differently")


VICTIM_LAWS: Mapping[str, Callable[[VictimTrial], None]] = MappingProxyType(
    {
        law.__name__: law
        for law in (
            *(touches_nothing, answers_as_declared, rows_are_independent),
            *(held_reaches_every_network, to_reaches_every_network, digest_identifies),
            *(dice_decide, gradients_flow, text_reads_back),
        )
    }
)
"""The laws of `conform_victim`, by name; each docstring says what it demands."""


def conform_victim(victim: Victim | nn.Module | str, images: Tensor) -> tuple[str, ...]:
    """Hold a victim to all laws; raises one `AssertionError` that lists every law it breaks.

    Parameters
    ----------
    victim : Victim, nn.Module or str
        A victim type of your own, or a text as `besiege.defenses.load` reads it.
    images : Tensor
        A few images it takes, ``[rows, channels, height, width]`` inside its box; 11 of them, with
        repeats, are used.

    Returns
    -------
    tuple of str
        The names of the laws it obeys.

    Examples
    --------
    >>> import besiege
    >>> from besiege.testing import conform_victim
    >>> images = besiege.data.load("digits", count=11).images
    >>> len(conform_victim("zoo:digits-natural+bits(depth=3)", images))
    9
    """
    text = victim if isinstance(victim, str) else None
    loaded = load(victim) if isinstance(victim, str) else Classifier.of(victim)
    rows = torch.arange(ROWS) % len(images)
    trial = VictimTrial(loaded, images[rows].to(loaded.device), text)
    return hold_to(VICTIM_LAWS, trial, str(loaded))


def networks(holder: object) -> Iterator[nn.Module]:
    """All modules that an object holds, in its attributes, in containers and inside victims."""
    yield from _networks(holder, set())


def _networks(holder: object, seen: set[int]) -> Iterator[nn.Module]:
    if id(holder) in seen:
        return
    seen.add(id(holder))
    inside: list[Any] = []
    if isinstance(holder, nn.Module):
        yield holder
    elif isinstance(holder, Victim):
        inside = list(vars(holder).values())
    elif is_dataclass(holder) and not isinstance(holder, type):
        inside = [getattr(holder, f.name, None) for f in fields(holder)]
    elif isinstance(holder, (list, tuple, set)):
        inside = list(holder)
    elif isinstance(holder, dict):
        inside = list(holder.values())
    for one in inside:
        yield from _networks(one, seen)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _height(logits: Tensor, _: object) -> Tensor:
    """A loss that depends on every logit."""
    return logits.square().sum(1)


def _differs(victim: Victim, digest: str, tensor: Tensor) -> bool:
    """Whether the digest is another one while a tensor is changed."""
    kept = tensor.detach().clone()
    with torch.no_grad():
        try:
            tensor.copy_(~kept if kept.dtype == torch.bool else kept + 1)
            return victim.digest() != digest
        finally:
            tensor.copy_(kept)
