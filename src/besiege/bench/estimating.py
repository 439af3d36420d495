"""Upper bounds of the cost of an evaluation, without sending anything to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from besiege.attacks.attack import Attack
from besiege.bench.attack_spec import fitting_approach
from besiege.bench.request import Objects, ResolvedRequest, requested, resolve
from besiege.bench.spec import Request
from besiege.core.victim import Victim
from besiege.evaluation import preflight as probing
from besiege.evaluation.approach import approach
from besiege.evaluation.judging import AGAIN, DRAWS
from besiege.evaluation.transfer import Model
from besiege.models.black_box import CANARY, black_box

FIRST = 8
"""Images that are sent before the plan is made, to see that the model answers."""


@dataclass(frozen=True)
class Price:
    """The largest cost of one account.

    Attributes
    ----------
    account : str
        ``probe``, ``clean``, ``judge``, or the text of an attack.
    each : int, optional
        The most queries per image; None where unknown, or not counted per image.
    asked, sent : int, optional
        The most queries in all, and the most images sent for them: the ledger answers images that
        were sent before. None where unknown.
    """

    account: str
    each: int | None
    asked: int | None
    sent: int | None


@dataclass(frozen=True)
class Estimate:
    """The largest cost of an evaluation.

    Attributes
    ----------
    prices : tuple of Price
        The cost of every account.
    asked, sent : int, optional
        The sums; None where the cost of an attack is unknown and no query limit was given.
    rate : float, optional
        The rate limit of the model, in images per second.
    seconds : float, optional
        The time at that rate, where both are known.
    passes : int
        Forward passes of the model's networks for one query.
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
    passes: int = 1

    def plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def estimate(model: Model, data: Any, *, device: str | None = None, **asked: Any) -> Estimate:
    """The largest cost of `besiege.evaluate` with the same arguments; the model is not queried.

    Arguments that `evaluate` refuses are refused here, too.

    Examples
    --------
    >>> from besiege.bench import estimate
    >>> ask = {"threat": "linf:0.15", "access": "score", "attacks": "square", "queries": 500}
    >>> found = estimate("zoo:digits-natural", "digits", count=10, **ask)
    >>> [price.asked for price in found.prices if price.account == "square"]
    [5000]
    """
    return price(*requested(model, data, **asked), device=device)


def price(
    request: Request, objects: Objects | None = None, *, device: str | None = None
) -> Estimate:
    """The largest cost of a request."""
    resolved = resolve(request, objects, device)
    victim, first = resolved.victim, resolved.first(1)
    resolved.threat.check_units(victim.box, first.images[0].numel())
    for attack in resolved.attacks:
        fitting_approach(resolved, attack, resolved.threat)
    prices = _prices(resolved, tuple(first.images.shape[1:]))
    asked, sent = (_sum([getattr(p, name) for p in prices]) for name in ("asked", "sent"))
    inner = black_box(victim)
    rate = None if inner is None else inner.rate
    return Estimate(
        request.model,
        resolved.data.name,
        str(resolved.threat),
        len(resolved.data),
        request.queries,
        tuple(prices),
        asked,
        sent,
        rate,
        sent / rate if sent is not None and rate else None,
        victim.passes,
    )


def _prices(resolved: ResolvedRequest, shape: tuple[int, ...]) -> list[Price]:
    """The cost of every account, in the order of their queries."""
    victim, images, size = resolved.victim, len(resolved.data), resolved.request.shard
    assert size is not None, "resolve decides it"
    again = 0 if victim.stochastic else _repeated(images, size)
    prices = _before(victim, images, again)
    prices += [_price(resolved, attack, shape) for attack in resolved.attacks]
    prices.append(_judging(resolved, again))
    return prices + _canaries(victim, _sum([price.sent for price in prices]))


def _before(victim: Victim, images: int, again: int) -> list[Price]:
    """The queries before any attack: the probe, and the clean images."""
    probe = first = min(FIRST, images)
    if black_box(victim) is not None and not victim.stochastic:
        probe += probing.AGAIN + min(probing.BATCH, images)
    asked = (DRAWS if victim.stochastic else 1) * images + again
    # The probe already sent the first images; a ledger never answers repeated images.
    sent = images - first + again if _repeats(victim) else asked
    return [Price("probe", None, probe, probe), Price("clean", None, asked, sent)]


def _repeated(images: int, size: int) -> int:
    """The number of clean images that are sent twice: a few of every shard."""
    whole, rest = divmod(images, size)
    return whole * min(AGAIN, size) + min(AGAIN, rest)


def _repeats(victim: Victim) -> bool:
    """Whether a ledger answers images that were sent before."""
    inner = black_box(victim)
    if inner is None or inner.stochastic or victim.stochastic:
        return False
    return inner.remote or inner.ledger is not None


def _price(resolved: ResolvedRequest, attack: Attack, shape: tuple[int, ...]) -> Price:
    """The most queries of an attack: its own bound and the clean check, or the limit given."""
    victim, images, queries = resolved.victim, len(resolved.data), resolved.request.queries
    if _transfers(resolved, attack):
        return Price(str(attack), 0, 0, 0)
    own = attack.cost(shape, victim.classes or max(resolved.data.classes, 2))
    # The clean check is averaged like every answer.
    most = None if own is None else own + attack.draws
    if queries is not None:
        most = queries if most is None else min(most, queries)
    total = None if most is None else most * images
    # The clean check of every attack is the same image.
    saved = images if _repeats(victim) else 0
    return Price(str(attack), most, total, None if total is None else max(0, total - saved))


def _transfers(resolved: ResolvedRequest, attack: Attack) -> bool:
    return approach(resolved.victim, attack, resolved.threat, resolved.knowledge).transfer


def _judging(resolved: ResolvedRequest, again: int) -> Price:
    """The crafted and the clean images, once more for every attack.

    With a ledger, every success is confirmed by a query that the ledger does not answer.
    """
    victim, images = resolved.victim, len(resolved.data)
    asked = sent = 0
    for attack in resolved.attacks:
        many = DRAWS if victim.stochastic else 1
        one = 2 * many * images + again + (images if _repeats(victim) else 0)
        asked += one
        # The attack already sent the kept images, unless it ran on a substitute.
        crafted = images if _transfers(resolved, attack) else 0
        sent += crafted + images + again if _repeats(victim) else one
    return Price("judge", None, asked, sent)


def _canaries(victim: Victim, sent: int | None) -> list[Price]:
    """Known images that are sent now and then, to notice a model that changes during the run."""
    if not _repeats(victim):
        return []
    count = None if sent is None else sent // CANARY + 1
    return [Price("canary", None, count, count)]


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
