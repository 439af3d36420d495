"""The one training loop: natural and adversarial training differ in the images they see."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.oracle import Oracle
from besiege.core.siege import Siege
from besiege.data.dataset import Data
from besiege.models.classifier import Classifier
from besiege.training.recipes import Recipe, recipe


@dataclass(frozen=True)
class Epoch:
    """What one pass over the data gave: mean loss and accuracy on the images trained on."""

    number: int
    loss: float
    accuracy: float


def fresh(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A module with initial weights of a seed; the global random state is left alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def train(
    model: nn.Module | Classifier,
    data: Data,
    how: str | Recipe,
    *,
    seed: int = 0,
    watch: Callable[[Epoch], None] | None = None,
) -> list[Epoch]:
    """Train a model in place.

    Adversarial images are made with the model in eval mode by the same attacks that measure
    models, keeping the last iterate of every image. The same seed gives the same weights on the
    same machine; the global random state is left alone.

    Parameters
    ----------
    model : nn.Module or Classifier
        What is trained; a `Classifier` brings its normalisation.
    data : Data
        What it is trained on.
    how : str or Recipe
        A recipe or its name.
    seed : int
        Of the order of the images and of the attack's draws.
    watch : callable, optional
        Called after every epoch.
    """
    plan = recipe(how)
    if len(data) == 0:
        raise InputError("there is nothing to train on: the data are empty")
    victim = Classifier.of(model)
    module = victim.module
    device = victim.device
    images, labels, ids = (t.to(device) for t in (data.images, data.labels, data.ids))
    order = torch.Generator().manual_seed(seed)
    optimiser = _optimiser(plan, module)
    steps = plan.epochs * math.ceil(len(data) / plan.batch)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: 1.0 if plan.optimiser == "adam" else max(0.0, 1 - step / steps)
    )
    dice = Dice.throw(seed, ids)
    history = []
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    try:
        for number in range(1, plan.epochs + 1):
            total = right = 0.0
            for rows in torch.randperm(len(data), generator=order).split(plan.batch):  # type: ignore[no-untyped-call]
                rows = rows.to(device)
                x, y = images[rows], labels[rows]
                seen = _adversarial(victim, plan, x, y, dice.at(rows), number)
                logits = victim(seen)
                loss = functional.cross_entropy(logits, y)
                if plan.clean > 0 and seen is not x:
                    clean = functional.cross_entropy(victim(x), y)
                    loss = (1 - plan.clean) * loss + plan.clean * clean
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                falling.step()
                total += float(loss.detach()) * len(rows)
                right += float((logits.argmax(1) == y).sum())
            history.append(Epoch(number, total / len(data), right / len(data)))
            if watch is not None:
                watch(history[-1])
    finally:
        optimiser.zero_grad(set_to_none=True)
        for part, mode in modes:
            part.training = mode
    return history


def _optimiser(plan: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    if plan.optimiser == "adam":
        return torch.optim.Adam(module.parameters(), lr=plan.rate, weight_decay=plan.decay)
    return torch.optim.SGD(
        module.parameters(), lr=plan.rate, momentum=0.9, nesterov=True, weight_decay=plan.decay
    )


def _adversarial(
    victim: Classifier, plan: Recipe, x: Tensor, y: Tensor, dice: Dice, epoch: int
) -> Tensor:
    """The images an adversarial recipe trains on in this epoch."""
    if plan.attack is None or plan.threat is None:
        return x
    radius = plan.threat.radius * min(1.0, epoch / max(plan.ramp, 1))
    with victim.held():
        siege = Siege.lay(
            Oracle(victim),
            ball(plan.threat.norm, x, radius, victim.box),
            y,
            dice.of("epoch", epoch),
            keep="last",
            leave="end",
        )
        plan.attack.run(siege)
    return siege.record.images
