"""UAP: one perturbation for all images, fitted on some and judged on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor

from besiege.attacks.attack import Attack, must_count
from besiege.attacks.losses import margin
from besiege.attacks.planes import against, straight, toward
from besiege.core.answer import Aim, Answer
from besiege.core.ball import Ball, ball
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, InputError, ThreatError
from besiege.core.oracle import Access, Oracle, Victim, plainly
from besiege.core.siege import Siege, register
from besiege.core.threat import L2, Goal, Linf, Threat

Method = Literal["gradient", "deepfool"]

CAP = 1.0
"""Beyond the boundary the margin counts up to this many times the mean lead of the clean images:
what is fooled already must not outweigh the others."""

LONGEST, SHORTEST = 0.2, 0.01
"""The first and the last step by gradient, as shares of the budget."""

INERTIA = 0.9
"""How much of the last direction is kept."""

CLASSES, OVERSHOOT, REACH = 10, 0.02, 10
"""DeepFool's part: classes that take part, how far beyond a plane, steps at most."""


@register("uap")
@dataclass(frozen=True)
class UAP(Attack):
    """The same perturbation added to every image.

    It is fitted once, by `fit_universal` or by an earlier run, and judged on images it has not
    seen: ``uap(file='v.safetensors')`` adds one that was saved. Without a file it is fitted on the
    very rows it is given, which pay for it, and then added to them; so rows depend on each other.

    Two ways to fit: projected gradient steps on the mean margin, capped so that images already
    fooled do not outweigh the others (in the spirit of Shafahi et al., Universal adversarial
    training, 2018), which is stronger and cheaper; or DeepFool steps from one image to the next
    (Moosavi-Dezfooli et al., Universal adversarial perturbations, 2017).

    Parameters
    ----------
    file : str, optional
        A perturbation saved by `save`.
    digest : str, optional
        What the perturbation hashes to; filled in, and compared where it is given.
    method : str
        ``'gradient'`` or ``'deepfool'``.
    steps : int
        Passes over the rows, at most.
    target : float
        The share of rows whose class must change for the fit to stop early.
    batch : int
        Rows between two updates; ``method='deepfool', batch=1`` is as published.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("uap(steps=10)"))
    'uap(steps=10)'
    """

    file: str | None = None
    digest: str | None = None
    method: Method = "gradient"
    steps: int = 40
    target: float = 1.0
    batch: int = 32
    tensor: Tensor | None = field(default=None, compare=False, repr=False)

    norms = frozenset({Linf, L2})
    goals = frozenset({Goal.UNTARGETED})
    source = "Moosavi-Dezfooli et al., Universal adversarial perturbations, 2017"

    def __post_init__(self) -> None:
        must_count(self, 1, "steps", "batch")
        if self.method not in get_args(Method):
            raise ValueError(f"method is {self.method!r}: 'gradient' or 'deepfool'")
        if not 0 < self.target <= 1:
            raise ValueError(f"target is {self.target!r}, but it is a share of rows, 0 to 1")
        tensor = self.tensor if self.file is None else _loaded(self.file)
        if tensor is None:
            if self.digest is not None:
                raise ValueError(
                    f"the perturbation {self.digest} was never saved: keep the value, or save it "
                    "and give its file"
                )
            return
        found = sha256(tensor.contiguous().cpu().numpy().tobytes()).hexdigest()[:12]
        if self.digest not in (None, found):
            raise ValueError(f"the perturbation is {found}, but {self.digest} was expected")
        object.__setattr__(self, "tensor", tensor.detach())
        object.__setattr__(self, "digest", found)

    @property
    def access(self) -> Access:  # type: ignore[override]  # a class attribute elsewhere
        return Access.GRADIENT if self.tensor is None else Access.DECISION

    @property
    def one_step(self) -> bool:
        return True

    def run(self, siege: Siege) -> None:
        v = self.tensor
        if v is None:
            v = self.fit(siege, hidden=True)
            siege.settle()
        center = siege.ball.center
        if v.shape != center.shape[1:]:
            raise AttackError(
                f"the perturbation has the shape {tuple(v.shape)}, but the images have "
                f"{tuple(center.shape[1:])}: fit one on such images"
            )
        if len(siege):
            siege.offer(siege.ball.project(center + v.to(center)))

    def save(self, path: str | Path) -> UAP:
        """Write the perturbation as ``.safetensors``; gives back the attack that reads it."""
        from safetensors.torch import save_file

        if self.tensor is None:
            raise InputError("this uap holds no perturbation yet: fit one with fit_universal")
        save_file({"perturbation": self.tensor.contiguous().cpu()}, str(path))
        return UAP(file=str(path))

    def fit(self, siege: Siege, *, hidden: bool) -> Tensor:
        """A perturbation for all rows of a siege, within the smallest of their radii.

        `hidden` asks through a map, so that only what is offered in the end counts as a success.
        """
        low, high = siege.ball.box
        start = torch.zeros_like(siege.ball.center[:1])
        # The perturbation itself may be as large as the box is wide.
        around = ball(
            siege.ball.norm, start, siege.ball.radius.min()[None], (low - high, high - low)
        )
        v = best = rise = start
        most = 0.0
        for turn in range(self.steps):
            fooled = asked = 0
            siege.settle()
            if not len(siege):
                break
            for rows in self._parts(siege, turn):
                if self.method == "gradient":
                    answer = _shifted(siege, v, rows)
                    v, rise = _ascended(around, v, rise, answer.gradient, turn / self.steps)
                    changed = _fooled(siege, rows, answer.labels)
                else:
                    move, changed = _reached(siege.view(rows), v, hidden)
                    v = around.confine(v + move)
                fooled, asked = fooled + int(changed.sum()), asked + len(rows)
            # The perturbation changed meanwhile: what looks like enough is measured. The gradient's
            # steps grow shorter and its last one is its best; DeepFool's do not.
            if self.method == "gradient" and fooled < self.target * asked:
                best = v
                continue
            share = _share(siege, v)
            if share > most or self.method == "gradient":
                best, most = v, share
            if share >= self.target:
                break
        return best[0]

    def _parts(self, siege: Siege, turn: int) -> list[Tensor]:
        """Row numbers in another order every time, in pieces, ascending in each."""
        drawn = siege.dice.of("order").uniform((1,), turn)[:, 0]
        order = drawn.argsort(stable=True)
        return [part.sort().values for part in torch.split(order, self.batch)]


def _share(siege: Siege, v: Tensor) -> float:
    """The share of rows whose class the perturbation changes."""
    siege.settle()
    rows = torch.arange(len(siege), device=v.device)
    if not len(rows):
        return 1.0
    return float(_fooled(siege, rows, _shifted(siege, v, rows).labels).double().mean())


def _fooled(siege: Siege, rows: Tensor, labels: Tensor) -> Tensor:
    """Which rows are; those whose queries have ended were not sent and have no label."""
    return siege.record.reached(siege.rows[rows], labels) & (labels >= 0)


def _shifted(siege: Siege, v: Tensor, rows: Tensor) -> Answer:
    """The gradient of the capped margin by the perturbation, which is that by the clean images."""
    clean = siege.aim.clean
    cap = torch.inf if clean is None else -CAP * float(margin(clean, siege.aim).mean())

    def capped(logits: Tensor, aim: Aim) -> Tensor:
        return margin(logits, aim).clamp_max(cap)

    def shift(image: Tensor, _: Dice, __: Tensor) -> Tensor:
        return (image + v).clamp(*siege.ball.box)

    return siege.gradient(siege.ball.center[rows], capped, through=shift, rows=rows)


def _ascended(
    around: Ball, v: Tensor, rise: Tensor, gradient: Tensor, gone: float
) -> tuple[Tensor, Tensor]:
    """One step of the perturbation, and the direction it took."""
    slope = gradient.sum(0, keepdim=True)
    slope = slope / slope.abs().mean().clamp_min(torch.finfo(slope.dtype).tiny)
    rise = INERTIA * rise + slope
    length = (LONGEST + (SHORTEST - LONGEST) * gone) * around.radius
    return around.confine(v + around.steepest(rise, v, length)), rise


def _reached(view: Siege, v: Tensor, hidden: bool) -> tuple[Tensor, Tensor]:
    """The moves that take those rows beyond the boundary which the perturbation does not, added.

    And which rows it does. A row that does not get there in time moves nothing, as the authors
    have it.
    """
    space, total = view.ball, torch.zeros_like(view.ball.center)
    start = (space.center + v).clamp(*space.box)
    read = _Planes(view, hidden)
    going = before = torch.ones_like(view.rows, dtype=torch.bool)
    for step in range(REACH):
        rows = going.nonzero()[:, 0]
        if not len(rows):
            break
        x = (start[rows] + (1.0 + OVERSHOOT) * total[rows]).clamp(*space.box)
        labels, w, f = read(x, rows)
        stands = ~_fooled(view, rows, labels)
        going = torch.zeros_like(going).index_copy(0, rows, stands)
        before = before if step else going
        size = straight(space, w.flatten(0, 1), f.double().flatten()).view_as(f)
        each, nearest = torch.arange(len(rows), device=x.device), size.argmin(1)
        move = space.at(rows).plane(x, w[each, nearest], -f[each, nearest].double())
        total = total.index_add(0, rows, move * _like(stands, move))
    moves = total * _like(before & ~going, total)
    return (1.0 + OVERSHOOT) * moves.sum(0, keepdim=True), ~before


class _Planes:
    """Planes of the likeliest classes of some rows.

    `hidden` asks for one class after the other through a map that changes nothing: what is seen on
    the way is no success of the perturbation.
    """

    def __init__(self, view: Siege, hidden: bool) -> None:
        self.view = view
        others = view.ranked()[:, : CLASSES - 1]
        self.ranked = torch.cat((view.aim.labels[:, None], others), 1)
        self.apart = [view.view(aim=k) for k in others.unbind(1)] if hidden else []

    def __call__(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.apart:
            answer = self.view.view(rows).gradients(x, self.ranked[rows])
            return answer.labels, *against(answer, self.ranked[rows])
        told = [one.gradient(x, toward, _unchanged, rows) for one in self.apart]
        w = torch.stack([answer.gradient for answer in told], 1)
        return told[0].labels, w, torch.stack([answer.loss for answer in told], 1)


def _unchanged(image: Tensor, _: Dice, __: Tensor) -> Tensor:
    return image


def _like(rows: Tensor, x: Tensor) -> Tensor:
    """A mask of rows, shaped to multiply images."""
    return rows.to(x.dtype).view(-1, *[1] * (x.dim() - 1))


def _loaded(file: str) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        held = load_file(file)
    except (OSError, SafetensorError) as problem:
        raise ValueError(f"'{file}' cannot be read: {problem}") from None
    if "perturbation" not in held:
        raise ValueError(f"'{file}' holds {', '.join(held) or 'nothing'}, no 'perturbation'")
    return held["perturbation"]


def fit_universal(
    victim: Victim,
    images: Tensor,
    labels: Tensor | None,
    threat: str | Threat,
    *,
    method: Method = "gradient",
    target: float = 0.8,
    steps: int = 40,
    batch: int = 32,
    seed: int = 0,
) -> UAP:
    """Fit one perturbation on some images, to be judged on others.

    Parameters
    ----------
    victim : Victim
        A `Classifier`, such as ``besiege.models.load("zoo:digits-natural")``.
    images : Tensor
        Images inside the victim's box.
    labels : Tensor, optional
        True classes: images that are seen wrongly are then left out. What counts is that the
        victim's answer changes, whatever the label.
    threat : str or Threat
        Norm and budget of the perturbation: ``"linf:10/255"``.
    method, steps, batch
        As of `UAP`.
    target : float
        The share of images whose class must change for the fit to stop.
    seed : int
        Of the order of the images.

    Returns
    -------
    UAP
        An attack that holds the perturbation; its `save` writes it.

    Examples
    --------
    >>> import besiege
    >>> from besiege.attacks.universal import fit_universal, fooling
    >>> model = besiege.models.load("zoo:digits-natural")
    >>> data = besiege.data.load("digits", count=64)
    >>> uap = fit_universal(model, data.images, data.labels, "linf:0.4")
    >>> fooling(uap, model, data.images, "linf:0.4") >= 0.8
    True
    """
    threat = Threat.parse(threat) if isinstance(threat, str) else threat
    form = UAP(method=method, steps=steps, batch=batch, target=target)
    if threat.norm not in form.norms or threat.eps is None:
        raise ThreatError(f"a perturbation is fitted within a budget in linf or l2, not '{threat}'")
    if not hasattr(victim, "held"):
        raise InputError(
            f"fit_universal was given {type(victim).__name__}, but a Classifier is needed: "
            "besiege.Classifier(net), or besiege.models.load(name)"
        )
    with victim.held(), plainly(victim.device):
        oracle = Oracle(victim, threat.access)
        images = images.to(victim.device).contiguous()
        answers = oracle.logits(images).argmax(1)
        if labels is not None:
            right = answers == labels.to(victim.device)
            images, answers = images[right], answers[right]
        if not len(images):
            raise InputError("no image is left to fit a perturbation on")
        ids = torch.arange(len(images), device=images.device)
        around = ball(threat.norm, images, threat.radius, victim.box, victim.grid)
        siege = Siege.lay(oracle, around, answers, Dice.throw(seed, ids), leave="end")
        siege.survey()
        return UAP(tensor=form.fit(siege.view(dice=siege.dice.of("uap")), hidden=False).cpu())


def fooling(uap: UAP, victim: Victim, images: Tensor, threat: str | Threat) -> float:
    """The share of images whose class changes, whether or not it was right."""
    threat = Threat.parse(threat) if isinstance(threat, str) else threat
    if uap.tensor is None:
        raise InputError("this uap holds no perturbation yet: fit one with fit_universal")
    with victim.held(), plainly(victim.device):
        oracle, images = Oracle(victim, Access.DECISION), images.to(victim.device)
        around = ball(threat.norm, images, threat.radius, victim.box, victim.grid)
        moved = around.project(images + uap.tensor.to(images))
        changed = oracle.logits(moved).argmax(1) != oracle.logits(images).argmax(1)
        return float(changed.double().mean())


PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "authors": "uap(method='deepfool', steps=10, target=0.8, batch=1)",
        "deepsec": "uap(method='deepfool', steps=10, target=0.8, batch=1)",
    }
)
"""Published settings: Moosavi-Dezfooli et al. 2017 (linf 10/255, l2 2000/255, a fooling rate of
0.8), and DEEPSEC 2019 (linf 0.1, 0.8 for CIFAR-10, 0.3 for MNIST)."""
