"""`steal`: trains a substitute on a victim's labels (Papernot et al. 2017)."""

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
from besiege.core.samples import Samples, in_box
from besiege.core.text import check_whole
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
from besiege.training.recipes import Recipe
from besiege.training.shipped import natural

TRAINED = replace(natural, batch=16, rate=3e-3)
"""Recipe of a substitute: small batches and a high rate, because there are few points. After 100
seeds of digits (seed 0) the two networks for digits agree with the victim on 82 and 85 % of the
images, with `natural`'s rate on 40 and 61 %."""


@dataclass(frozen=True)
class Round:
    """Results of one round of labelling and training.

    Attributes
    ----------
    number : int
        0 is the training on only the seeds.
    points : int
        Labelled images that the substitute was trained on.
    queries : int
        Queries so far, including those for checking.
    fitted : float
        Share of the points on which substitute and victim agree.
    agreement : float, optional
        The same share of the held-out images, if there are any.
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
        All queries; `checks` of them were for held-out images, which are not trained on.
    agreement : float, optional
        Share of the held-out images on which substitute and victim agree. The more they agree, the
        better attacks transfer.
    rounds : tuple of Round
        All rounds in order, the training on the seeds first.
    images, labels : Tensor
        All points with the victim's labels.
    missing : tuple of int
        Classes that the victim never answered: the substitute cannot know them.
    made : dict
        The card's entries on how the substitute is built.
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
        """Training queries per attacked image, if so many images are attacked."""
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
    """Train a substitute on the victim's labels, with Jacobian-based augmentation of few images.

    The victim labels the seeds, and the substitute is trained on them. Then, in every round, each
    point x with the victim's label O(x) gets a neighbour ``clip(x + lam sign(dF_O(x)(x) / dx))``,
    a step along the row of that class in the Jacobian of the substitute's logits F. The victim
    labels the neighbours, and training continues on all ``n 2^rounds`` points. No image is labelled
    twice: neighbours that are points already are left out. Only labels are used, even if the
    victim grants more.

    Parameters
    ----------
    victim : Victim or str
        The victim, or the text of a model.
    seeds : Samples or Data
        About 100 images of all classes that the victim was not trained on. Their own labels are
        not used, except to refuse seeds of a single class before the first query.
    architecture : str
        Architecture of the substitute, as `besiege.training.fit` takes it; a model with weights is
        trained further.
    rounds, epochs : int
        Number of rounds that add points, and passes over all points in every round.
    lam : float
        Length of the step in every pixel value, as a share of the box.
    tau : int, optional
        Number of rounds between changes of the step's sign.
    reservoir : (int, int), optional
        ``(sigma, kappa)``: after the first sigma rounds only kappa random points get a neighbour in
        each: ``n 2^sigma + kappa (rounds - sigma)`` points.
    held : Samples or Data, optional
        Images to measure the agreement on. The victim labels them once, after the seeds; these
        queries count too. Images that are also seeds are left out.
    how : Recipe
        Recipe of the training, with the epochs given above.
    seed : int
        Seed of initial weights, image order and choices.
    queries : int, optional
        Largest number of queries. The round that exhausts them labels as many points as it can and
        is the last.
    device : optional
        Where the substitute is trained; by default where the victim is.
    watch : callable, optional
        Called after every round.
    tick : callable, optional
        Called during training with the work done and the total work.

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
    model = load_victim(victim) if isinstance(victim, str) else Classifier.of(victim)
    neighbours = Neighbours(lam, tau, reservoir, seed)
    _check_numbers(rounds, epochs, neighbours, queries)
    first, checked = _pixels(seeds, model), None if held is None else _pixels(held, model)
    _must_differ(seeds, len(first), 0 if checked is None else len(checked), queries)
    _must_know_classes(model, seeds)
    account = Account(model, seed, queries)
    substitute, made = _begun(account, architecture, seeds, first, device)
    if checked is not None:
        account.check(checked)
    recipe = replace(how, epochs=epochs)
    work = _Work(neighbours.planned(account, rounds), tick)
    results: list[Round] = []
    for number in range(rounds + 1):
        if number and not account.add(neighbours.of(account, substitute, number)):
            break  # no new points, or no queries left
        points = account.data()
        ticked = work.during(len(points))
        train(substitute, points, recipe, seed=seed + number, tick=ticked, in_box=True)
        results.append(_measured(substitute, account, number))
        if watch is not None:
            watch(results[-1])
    return Stolen(
        substitute,
        account.served,
        len(account.checks[1]) if account.checks else 0,
        results[-1].agreement,
        tuple(results),
        account.images,
        account.labels,
        account.missing,
        made,
    )


def _must_know_classes(victim: Victim, seeds: Samples | Data) -> None:
    """Fail before the first query if the number of classes is not declared."""
    if isinstance(seeds, Data):
        know_classes(victim, seeds.classes, seeds.labels)
    unknown = black_box(victim) is not None and victim.classes is None
    if unknown and victim.access is Access.DECISION:
        raise InputError(
            "the victim answers labels, and its number of classes is not declared: declare it, "
            "such as classes=10"
        )


def _begun(
    account: Account,
    architecture: str,
    seeds: Samples | Data,
    images: Tensor,
    device: str | torch.device | None,
) -> tuple[Classifier, dict[str, Any]]:
    """An untrained substitute; also labels the seeds on the account.

    It is built before the first query, so that an architecture that cannot be built or does not
    fit costs nothing, and built again if the labels show another number of classes.
    """
    name = seeds.name if isinstance(seeds, Data) else "seeds"
    expected = account.victim.classes or (seeds.classes if isinstance(seeds, Data) else 0)
    new = partial(_built, account, architecture, name, images, device=device)
    made = new(max(2, expected or int(seeds.labels.max()) + 1))
    account.add(images)
    if len(torch.unique(account.labels)) < 2:
        raise VictimError(
            f"the victim gave all {len(account.labels)} seeds the label "
            f"{int(account.labels[0])}, so nothing can be learned: give seeds of several classes"
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
    """A substitute that takes the victim's images, and the card's entries on how it is built."""
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
    """Progress of the training, counted in points trained on, reported to `tick`."""

    def __init__(self, total: int, tick: Callable[[int, int], None] | None) -> None:
        self.total, self.tick, self.done = total, tick, 0

    def during(self, points: int) -> Callable[[int, int], None]:
        """The `tick` of a training on so many points."""
        before, self.done = self.done, self.done + points

        def ticked(step: int, steps: int) -> None:
            if self.tick is not None:
                self.tick(min(self.total, before + points * step // steps), self.total)

        return ticked


def _measured(substitute: Classifier, account: Account, number: int) -> Round:
    """The results of a round: agreement on the points, and on the held-out images."""
    return Round(
        number,
        len(account.labels),
        account.served,
        _agreement(substitute, account.images, account.labels),
        _agreement(substitute, *account.checks) if account.checks else None,
    )


def _agreement(substitute: Classifier, images: Tensor, labels: Tensor) -> float:
    """Share of images on which substitute and victim agree."""
    with substitute.held(), full_precision(substitute.device):
        predicted = Oracle(substitute).logits(images.to(substitute.device)).argmax(1).cpu()
    return float((predicted == labels).double().mean())


def _pixels(data: Samples | Data, victim: Victim) -> Tensor:
    """Images as the victim takes them: `Data` are in [0, 1], `Samples` already in its box."""
    images = data.images
    if isinstance(data, Data):
        images = in_box(images, victim.box)
    images = images.detach().cpu().contiguous()
    return ball(Linf, images, torch.inf, victim.box, victim.grid).received(images)


def _must_differ(seeds: Samples | Data, count: int, checks: int, queries: int | None) -> None:
    """Refuse seeds of one class, and a budget that they exceed, before the first query."""
    if len(torch.unique(seeds.labels)) < 2:
        raise InputError(
            f"the {count} seeds are all of class {int(seeds.labels[0])}: a substitute learns "
            "nothing from one class, so give some of every class"
        )
    if queries is not None and queries < count + checks:
        rest = f" and {checks} to check on" if checks else ""
        raise InputError(
            f"queries is {queries}, but there are {count} seeds{rest}, which need one query each: "
            "allow more, or give fewer"
        )


def _check_numbers(rounds: int, epochs: int, beside: Neighbours, queries: int | None) -> None:
    least: dict[str, tuple[int | None, int]] = {"rounds": (rounds, 0), "epochs": (epochs, 1)}
    least |= {"tau": (beside.tau, 1), "queries": (queries, 1)}
    if beside.reservoir is not None:
        least |= {"sigma": (beside.reservoir[0], 0), "kappa": (beside.reservoir[1], 1)}
    for name, (value, lowest) in least.items():
        if value is not None:
            check_whole(value, name, lowest)
    if not 0 < beside.lam <= 1:
        raise InputError(f"lam is {beside.lam!r}, but it is a share of the box in (0, 1]")
