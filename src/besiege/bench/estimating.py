"""What an evaluation would cost at most, before anything is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from besiege.attacks.attack import Attack
from besiege.bench.attack_spec import check_fit
from besiege.bench.knowledge import Fuse, Knowledge, read_knowledge
from besiege.bench.request import ResolvedRequest, check_numbers, resolve
from besiege.bench.shards import usual_size
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.evaluation import preflight as probing
from besiege.evaluation.judging import AGAIN, DRAWS
from besiege.evaluation.transfer import Model
from besiege.models.black_box import CANARY, black_box

FIRST = 8
"""Images that are asked about before the plan is made: whether it answers at all."""


@dataclass(frozen=True)
class Price:
    """The most that one account may cost.

    Attributes
    ----------
    account : str
        ``probe``, ``clean``, ``judge``, or the text of an attack.
    each : int, optional
        The most answers for one image, None where that is not known, or not by image.
    asked, sent : int, optional
        The most answers in all, and the most images that are sent for them. What was sent before
        comes from the ledger. None where it is not known.
    """

    account: str
    each: int | None
    asked: int | None
    sent: int | None


@dataclass(frozen=True)
class Estimate:
    """What an evaluation would cost at most; nothing was sent to find out.

    Attributes
    ----------
    prices : tuple of Price
        Account by account.
    asked, sent : int, optional
        In all; None where the cost of an attack is not known and no limit was given.
    rate : float, optional
        Images per second that the model may be sent.
    seconds : float, optional
        How long sending takes at that rate, where both are known.
    """

    model: str
    data: str
    threat: str
    images: int
    queries: int | None
    prices: tuple[Price, ...]
    asked: int | None
    sent: int | None
    rate: float | None
    seconds: float | None

    def plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def estimate(
    model: Model,
    data: str | Path | Data | tuple[Any, Any],
    *,
    threat: str | Threat,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    suite: str | Attack | Sequence[str | Attack] | None = None,
    goal: str | None = None,
    access: str | None = None,
    queries: int | None = None,
    count: int | None = None,
    seed: int = 0,
    split: str = "test",
    shard: int | None = None,
    substitute: Model | Sequence[Model] | None = None,
    fuse: Fuse = "logits",
    device: str | None = None,
) -> Estimate:
    """What `besiege.evaluate` would cost with the same arguments; it is refused where that is.

    The model is not asked anything.

    Examples
    --------
    >>> from besiege.bench import estimate
    >>> found = estimate(
    ...     "zoo:digits-natural",
    ...     "digits",
    ...     threat="linf:0.15",
    ...     access="score",
    ...     attacks="square",
    ...     queries=500,
    ...     count=10,
    ... )
    >>> [price.asked for price in found.prices if price.account == "square"]
    [5000]
    """
    check_numbers(queries=queries, count=count, seed=seed, shard=shard)
    resolved = resolve(
        model,
        data,
        threat,
        attacks=attacks,
        suite=suite,
        goal=goal,
        access=access,
        split=split,
        count=count,
        seed=seed,
        device=device,
        alone=substitute is None,
    )
    victim, samples, allowed = resolved.victim, resolved.data, resolved.threat
    knowledge = read_knowledge(substitute, fuse, victim, samples)
    first = resolved.first(1)
    allowed.check_units(victim.box, first.images[0].numel())
    for attack in resolved.attacks.values():
        check_fit(victim, attack, allowed, first, queries, seed, knowledge)
    shape, size = tuple(first.images.shape[1:]), shard or usual_size(victim)
    prices = _prices(resolved, knowledge, shape, size, queries)
    asked, sent = (_sum([getattr(p, name) for p in prices]) for name in ("asked", "sent"))
    inner = black_box(victim)
    rate = None if inner is None else inner.rate
    return Estimate(
        model if isinstance(model, str) else victim.name,
        samples.name,
        str(allowed),
        len(samples),
        queries,
        tuple(prices),
        asked,
        sent,
        rate,
        sent / rate if sent is not None and rate else None,
    )


def _prices(
    resolved: ResolvedRequest,
    knowledge: Knowledge,
    shape: tuple[int, ...],
    size: int,
    queries: int | None,
) -> list[Price]:
    """Account by account, in the order in which they are asked."""
    victim, images = resolved.victim, len(resolved.data)
    classes = victim.classes or max(resolved.data.classes, 2)
    again = 0 if victim.stochastic else _repeated(images, size)
    prices = _before(victim, images, again)
    for attack in resolved.attacks.values():
        prices += _price(victim, attack, knowledge, images, shape, classes, queries)
    prices.append(_judging(victim, resolved.attacks.values(), knowledge, images, again))
    return prices + _canaries(victim, _sum([price.sent for price in prices]))


def _before(victim: Victim, images: int, again: int) -> list[Price]:
    """What is asked before any attack: whether it answers, and how it takes the clean images."""
    probe = first = min(FIRST, images)
    if black_box(victim) is not None and not victim.stochastic:
        probe += probing.AGAIN + min(probing.COMPANY, images)
    asked = (DRAWS if victim.stochastic else 1) * images + again
    # The first images were sent by the probe; those that are repeated never come from a ledger.
    sent = images - first + again if _repeats(victim) else asked
    return [Price("probe", None, probe, probe), Price("clean", None, asked, sent)]


def _repeated(images: int, size: int) -> int:
    """Clean images that are asked about twice: a few of every shard."""
    whole, rest = divmod(images, size)
    return whole * min(AGAIN, size) + min(AGAIN, rest)


def _repeats(victim: Victim) -> bool:
    """Whether what was sent before comes from a ledger."""
    inner = black_box(victim)
    if inner is None or inner.stochastic or victim.stochastic:
        return False
    return inner.remote or inner.ledger is not None


def _price(
    victim: Victim,
    attack: Attack,
    knowledge: Knowledge,
    images: int,
    shape: tuple[int, ...],
    classes: int,
    queries: int | None,
) -> list[Price]:
    """The most that an attack asks: its own bound and the clean check, or the limit given."""
    if knowledge.crafts(attack):
        return [Price(str(attack), 0, 0, 0)]
    own = attack.cost(shape, classes)
    # The clean check is averaged as every answer is.
    most = None if own is None else own + attack.draws
    if queries is not None:
        most = queries if most is None else min(most, queries)
    total = None if most is None else most * images
    # The clean check of every attack is the same image.
    saved = images if _repeats(victim) else 0
    return [Price(str(attack), most, total, None if total is None else max(0, total - saved))]


def _judging(
    victim: Victim, attacks: Iterable[Attack], knowledge: Knowledge, images: int, again: int
) -> Price:
    """Every image that was kept, and the clean ones, once more for every attack.

    With a ledger every success is confirmed, and that answer never comes from it.
    """
    asked = sent = 0
    for attack in attacks:
        many = DRAWS if victim.stochastic else 1
        one = 2 * many * images + again + (images if _repeats(victim) else 0)
        asked += one
        # What is kept was asked about, unless it was made on a substitute.
        crafted = images if knowledge.crafts(attack) else 0
        sent += crafted + images + again if _repeats(victim) else one
    return Price("judge", None, asked, sent)


def _canaries(victim: Victim, sent: int | None) -> list[Price]:
    """One known image now and then, so that a model that changes on the way is noticed."""
    if not _repeats(victim):
        return []
    count = None if sent is None else sent // CANARY + 1
    return [Price("canary", None, count, count)]


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
