"""Certificates by votes under noise: randomised smoothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch

from besiege.bounds.votes import radius
from besiege.core.errors import BoundError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Linf, Norm
from besiege.core.victim import Victim
from besiege.defenses.counting import counted, voter
from besiege.defenses.smoothing import Smoothed
from besiege.evaluation.certificates import METHODS, OPEN, PROVED, Certificates, Method, Order


class Smoothing(Method):
    """CERTIFY of Cohen et al. (2019), for ``MODEL+smoothed``.

    Every image is certified, whatever attacks found and whatever the deployed vote answered: it is
    the smoothed classifier itself, which no finite number of votes shows, that has the radius. An
    image is proved where the class that was chosen is the label and its radius is above 0; the
    radius says up to which budget.
    """

    name: ClassVar[str] = "smoothing"
    norms: ClassVar[tuple[Norm, ...]] = (L2, Linf)

    def check(self, victim: Victim, samples: Samples) -> None:
        """Refuse a victim that does not vote under noise."""
        if not isinstance(victim, Smoothed):
            raise BoundError(
                f"'{victim.name}' does not vote under noise, and the method smoothing certifies "
                f"such a vote only: write '{victim.bare.name}+smoothed(sigma=0.25)', for a model "
                "that was trained with such noise (besiege train gaussian)"
            )
        voter(victim)

    def certify(self, order: Order) -> Certificates:
        """Radii in the norm of the threat: in linf that in l2 divided by the root of the pixels."""
        samples, poll = order.samples, order.poll
        found = counted(
            order.victim,
            samples.images,
            samples.ids,
            n0=poll.n0,
            n=poll.n,
            alpha=poll.alpha,
            seed=order.seed,
            batch=order.batch,
            tick=order.tick,
        )
        hits = found.hits.cpu()
        reach = torch.from_numpy(radius(hits.numpy(), poll.n, found.deviations, poll.alpha))
        if order.threat.norm is Linf:
            reach = reach / math.sqrt(samples.images[0].numel())
        right = (found.chosen == samples.labels.to(found.chosen)).cpu()
        certain = right & (reach > 0)
        every = torch.ones(len(samples), dtype=torch.bool)
        known = Certificates.before(replace(order, open=every))
        return replace(
            known,
            outcome=torch.where(certain, PROVED, OPEN),
            # A radius around a wrong class proves nothing of the label.
            radius=torch.where(certain, reach, 0.0),
            chosen=found.chosen.cpu(),
            hits=hits,
        )


METHODS.add(Smoothing.name, Smoothing())
