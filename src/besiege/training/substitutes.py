"""A substitute from a victim's labels: asked once for each image, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from besiege.core.ball import ball
from besiege.core.errors import InputError, VictimError
from besiege.core.oracle import Oracle, full_precision
from besiege.core.samples import Samples
from besiege.core.threat import Access, Linf
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.defenses.defended import load as load_victim
from besiege.models.black_box import black_box, know_classes
from besiege.models.classifier import Classifier
from besiege.training.fitting import build
from besiege.training.labelling import Account, labelled
from besiege.training.loop import train
from besiege.training.neighbours import Neighbours
from besiege.training.recipes import Recipe, natural

TRAINED = replace(natural, batch=16, rate=3e-3)
"""How a substitute is trained on what is labelled so far. That is little, so in small batches and
at a high rate: from 100 seeds of digits (seed 0) the networks for digits first agree with the
victim on 82 and 85 %, on 40 and 61 % at the usual rate."""


@dataclass(frozen=True)
class Round:
    """What one round of labelling and training gave.

    Attributes
    ----------
    number : int
        0 is the training on the seeds alone.
    points : int
        Labelled images that the substitute was trained on.
    queries : int
        Images the victim had been asked about by then, those for checking included.
    fitted : float
        Share of the points on which the substitute says what the victim said.
    agreement : float, optional
        The same share of the images held out, where there are any.
    """

    number: int
    points: int
    queries: int
    fitted: float
    agreement: float | None


@dataclass(frozen=True)
class Stolen:
    """A substitute and what it cost.

    Attributes
    ----------
    classifier : Classifier
        The substitute.
    queries : int
        Images the victim was asked about in all; `checks` of them were held out and only measured.
    agreement : float, optional
        Share of the images held out on which substitute and victim give one label. How far attacks
        transfer follows it.
    rounds : tuple of Round
        One after the other, the training on the seeds first.
    images, labels : Tensor
        All points with the labels the victim gave them.
    missing : tuple of int
        Classes that the victim never answered: the substitute cannot know them.
    made : dict
        What a card says of how the substitute is built.
    """

    classifier: Classifier
    queries: int
    checks: int
    agreement: float | None
    rounds: tuple[Round, ...]
    images: Tensor
    labels: Tensor
    missing: tuple[int, ...]
    made: dict[str, Any]

    def amortised(self, images: int) -> float:
        """Queries of the training per image, where so many are attacked with its help."""
        return self.queries / images


def steal(
    victim: Victim | str,
    seeds: Samples | Data,
    architecture: str,
    rounds: int = 6,
    *,
    epochs: int = 10,
    lam: float = 0.1,
    tau: int | None = 1,
    reservoir: tuple[int, int] | None = None,
    held: Samples | Data | None = None,
    how: Recipe = TRAINED,
    seed: int = 0,
    queries: int | None = None,
    device: str | torch.device | None = None,
    watch: Callable[[Round], None] | None = None,
    tick: Callable[[int, int], None] | None = None,
) -> Stolen:
    """Train a substitute on the victim's labels of images that are made where it is least sure.

    The seeds are labelled by the victim and the substitute is trained on them. Then, in every
    round, each point x with the victim's label O(x) gets a neighbour
    ``clip(x + lam sign(dF_O(x)(x) / dx))``, a step along the row of that class in the Jacobian of
    the substitute's logits F; the victim labels the neighbours, and training goes on with all:
    ``n 2^rounds`` points. No point is labelled twice; a neighbour that is a point already is left
    out. Only labels are asked, whatever the victim would grant.

    Parameters
    ----------
    victim : Victim or str
        What is asked, or the text of a model.
    seeds : Samples or Data
        About 100 images of all classes that the victim was not trained on. Their own labels are
        not used, except that all of one class are refused before anything is asked.
    architecture : str
        What is trained, as `besiege.training.fit` takes it; a model of known weights goes on from
        them.
    rounds, epochs : int
        How often points are added, and passes over all of them in every round.
    lam : float
        Length of the step in every pixel, as a share of the box.
    tau : int, optional
        Rounds after which the step changes its sign, again and again.
    reservoir : (int, int), optional
        ``(sigma, kappa)``: after the first sigma rounds only kappa points, chosen by chance, get a
        neighbour in each: ``n 2^sigma + kappa (rounds - sigma)`` points.
    held : Samples or Data, optional
        Images to measure the agreement on. The victim is asked about them once, after the seeds
        and on the same account; those that are seeds too are left out.
    how : Recipe
        How it is trained; the epochs are those given above.
    seed : int
        Of initial weights, order and choices.
    queries : int, optional
        The most images the victim may be asked about in all. The round in which they end takes as
        many points as can be paid for and is the last.
    device : optional
        Where the substitute is trained; where the victim is by default.
    watch : callable, optional
        Called after every round.
    tick : callable, optional
        Called while it trains with the work done and all there may be.

    Returns
    -------
    Stolen

    Examples
    --------
    >>> import besiege
    >>> from besiege.training import steal
    >>> data = besiege.data.load("digits")
    >>> stolen = steal("zoo:digits-natural", data.subset(40), "digits_mlp", rounds=1, epochs=2)
    >>> stolen.queries
    80

    References
    ----------
    Papernot et al. 2017, "Practical black-box attacks against machine learning"; the changes of
    sign and the reservoir are Papernot et al. 2016, "Transferability in machine learning".
    """
    asked = load_victim(victim) if isinstance(victim, str) else Classifier.of(victim)
    beside = Neighbours(lam, tau, reservoir, seed)
    _check_numbers(rounds, epochs, beside, queries)
    first, checked = _pixels(seeds, asked), None if held is None else _pixels(held, asked)
    _must_differ(seeds, len(first), 0 if checked is None else len(checked), queries)
    _must_know_classes(asked, seeds)
    account = Account(asked, seed, queries)
    substitute, made = _begun(account, architecture, seeds, first, device)
    if checked is not None:
        account.check(checked)
    recipe = replace(how, epochs=epochs)
    work = _Work(beside.planned(account, rounds), tick)
    told: list[Round] = []
    for number in range(rounds + 1):
        if number and not account.add(beside.of(account, substitute, number)):
            break  # nothing new, or nothing left to pay it with
        points = account.data()
        train(substitute, points, recipe, seed=seed + number, tick=work.during(len(points)))
        told.append(_measured(substitute, account, number))
        if watch is not None:
            watch(told[-1])
    return Stolen(
        substitute,
        account.served,
        len(account.checks[1]) if account.checks else 0,
        told[-1].agreement,
        tuple(told),
        account.images,
        account.labels,
        account.missing,
        made,
    )


def _must_know_classes(victim: Victim, seeds: Samples | Data) -> None:
    """Refuse a victim of labels of which nobody says how many there are, before it is paid."""
    if isinstance(seeds, Data):
        know_classes(victim, seeds.classes, seeds.labels)
    if (
        black_box(victim) is not None
        and victim.classes is None
        and victim.access is Access.DECISION
    ):
        raise InputError(
            "the victim answers labels, and nobody says how many classes there are: declare "
            "classes=10, or as many as there are"
        )


def _begun(
    account: Account,
    architecture: str,
    seeds: Samples | Data,
    images: Tensor,
    device: str | torch.device | None,
) -> tuple[Classifier, dict[str, Any]]:
    """A substitute before its training, and the seeds labelled on the account.

    It is built before anything is paid for, so that what cannot be built or does not fit costs
    nothing, and built again where the labels show other classes than were to be expected.
    """
    name = seeds.name if isinstance(seeds, Data) else "seeds"
    expected = account.victim.classes or (seeds.classes if isinstance(seeds, Data) else 0)
    new = partial(_built, account, architecture, name, images, device=device)
    made = new(max(2, expected or int(seeds.labels.max()) + 1))
    account.add(images)
    if len(torch.unique(account.labels)) < 2:
        raise VictimError(
            f"the victim gave all {len(account.labels)} seeds the label "
            f"{int(account.labels[0])}, so there is nothing to learn: give seeds of several classes"
        )
    return made if account.classes == expected else new(max(2, account.classes))


def _built(
    account: Account,
    architecture: str,
    name: str,
    images: Tensor,
    classes: int,
    device: str | torch.device | None,
) -> tuple[Classifier, dict[str, Any]]:
    """A substitute that takes the victim's images, and what its card says of how it is built."""
    victim = account.victim
    data = labelled(name, images, torch.zeros(len(images), dtype=torch.int64), classes)
    substitute, made = build(architecture, data, account.seed)
    substitute.box, substitute.grid = victim.box, victim.grid
    made |= {"box": victim.box} if victim.box != (0.0, 1.0) else {}
    made |= {"grid": victim.grid} if victim.grid is not None else {}
    substitute.to(victim.device if device is None else device)
    with substitute.held(), full_precision(substitute.device):
        Oracle(substitute).logits(images[:1].to(substitute.device))
    return substitute, made


class _Work:
    """How far the training is, counted in points trained on, for whoever wants to know."""

    def __init__(self, total: int, tick: Callable[[int, int], None] | None) -> None:
        self.total, self.tick, self.done = total, tick, 0

    def during(self, points: int) -> Callable[[int, int], None]:
        """What a training on so many points tells its steps to."""
        before, self.done = self.done, self.done + points

        def ticked(step: int, steps: int) -> None:
            if self.tick is not None:
                self.tick(min(self.total, before + points * step // steps), self.total)

        return ticked


def _measured(substitute: Classifier, account: Account, number: int) -> Round:
    """How a round went: agreement on the points, and on what was held out."""
    return Round(
        number,
        len(account.labels),
        account.served,
        _agreement(substitute, account.images, account.labels),
        _agreement(substitute, *account.checks) if account.checks else None,
    )


def _agreement(substitute: Classifier, images: Tensor, labels: Tensor) -> float:
    """Share of images of which the substitute says what the victim said."""
    with substitute.held(), full_precision(substitute.device):
        said = Oracle(substitute).logits(images.to(substitute.device)).argmax(1).cpu()
    return float((said == labels).double().mean())


def _pixels(data: Samples | Data, victim: Victim) -> Tensor:
    """Images as the victim takes them: data are in [0, 1], samples in its box already."""
    images = data.images
    if isinstance(data, Data):
        low, high = victim.box
        images = images * (high - low) + low
    images = images.detach().cpu().contiguous()
    return ball(Linf, images, torch.inf, victim.box, victim.grid).received(images)


def _must_differ(seeds: Samples | Data, count: int, checks: int, queries: int | None) -> None:
    """Refuse seeds of one class, and a budget that cannot pay for them, before anything is paid."""
    if len(torch.unique(seeds.labels)) < 2:
        raise InputError(
            f"the {count} seeds are all of class {int(seeds.labels[0])}: a substitute learns "
            "nothing from one class, so give some of every class"
        )
    if queries is not None and queries < count + checks:
        rest = f" and {checks} to check on" if checks else ""
        raise InputError(
            f"queries is {queries}, but there are {count} seeds{rest}, each of which is asked "
            "about once: allow more, or give fewer"
        )


def _check_numbers(rounds: int, epochs: int, beside: Neighbours, queries: int | None) -> None:
    least: dict[str, tuple[int | None, int]] = {"rounds": (rounds, 0), "epochs": (epochs, 1)}
    least |= {"tau": (beside.tau, 1), "queries": (queries, 1)}
    if beside.reservoir is not None:
        least |= {"sigma": (beside.reservoir[0], 0), "kappa": (beside.reservoir[1], 1)}
    for name, (value, lowest) in least.items():
        if value is not None and (type(value) is not int or value < lowest):
            raise InputError(f"{name} is {value!r}, but a whole number from {lowest} is needed")
    if not 0 < beside.lam <= 1:
        raise InputError(
            f"lam is {beside.lam!r}, but it is a share of the box, above 0 and up to 1"
        )
