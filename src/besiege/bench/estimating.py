"""What an evaluation would cost at most, before anything is asked."""

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


def estimate(model: Model, data: Any, *, device: str | None = None, **asked: Any) -> Estimate:
    """What `besiege.evaluate` would cost with the same arguments; the model is not queried.

    What `evaluate` refuses is refused here, too.

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
    """What a request would cost."""
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
    )


def _prices(resolved: ResolvedRequest, shape: tuple[int, ...]) -> list[Price]:
    """Account by account, in the order in which they are asked."""
    victim, images, size = resolved.victim, len(resolved.data), resolved.request.shard
    assert size is not None, "resolve decides it"
    again = 0 if victim.stochastic else _repeated(images, size)
    prices = _before(victim, images, again)
    prices += [_price(resolved, attack, shape) for attack in resolved.attacks]
    prices.append(_judging(resolved, again))
    return prices + _canaries(victim, _sum([price.sent for price in prices]))


def _before(victim: Victim, images: int, again: int) -> list[Price]:
    """What is asked before any attack: whether it answers, and how it takes the clean images."""
    probe = first = min(FIRST, images)
    if black_box(victim) is not None and not victim.stochastic:
        probe += probing.AGAIN + min(probing.BATCH, images)
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


def _price(resolved: ResolvedRequest, attack: Attack, shape: tuple[int, ...]) -> Price:
    """The most queries of an attack: its own bound and the clean check, or the limit given."""
    victim, images, queries = resolved.victim, len(resolved.data), resolved.request.queries
    if _transfers(resolved, attack):
        return Price(str(attack), 0, 0, 0)
    own = attack.cost(shape, victim.classes or max(resolved.data.classes, 2))
    # The clean check is averaged as every answer is.
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
    """Every image that was kept, and the clean ones, once more for every attack.

    With a ledger every success is confirmed, and that answer never comes from it.
    """
    victim, images = resolved.victim, len(resolved.data)
    asked = sent = 0
    for attack in resolved.attacks:
        many = DRAWS if victim.stochastic else 1
        one = 2 * many * images + again + (images if _repeats(victim) else 0)
        asked += one
        # What is kept was asked about, unless it was made on a substitute.
        crafted = images if _transfers(resolved, attack) else 0
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
