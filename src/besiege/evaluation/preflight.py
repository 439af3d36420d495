"""A gentle look at a victim behind a wall, before anything is spent on it."""

from __future__ import annotations

from besiege.core.errors import Finding
from besiege.core.oracle import full_precision
from besiege.core.samples import Samples
from besiege.core.victim import Victim
from besiege.evaluation.judging import differ
from besiege.models.black_box import accounted, black_box

COMPANY = 4
"""Images in the batch that is compared with one image alone."""
AGAIN = 3
"""How often that image is asked about alone."""


def preflight(victim: Victim, samples: Samples) -> list[Finding]:
    """Whether a victim behind a wall answers the same again, alone and in company.

    Seven images at most, counted under ``probe``; none comes from a ledger. Where the victim
    answers by chance and nobody said so, its ledger serves nothing any more.
    """
    inner = black_box(victim)
    if inner is None or victim.stochastic or not len(samples):
        return []
    with full_precision(victim.device), accounted(victim, "probe", fresh=True):
        images = samples.images[:COMPANY].to(victim.device)
        alone = [victim(images[:1].clone()) for _ in range(AGAIN)]
        company = victim(images.clone())[:1]
    found = []
    if any(differ(alone[0], other) for other in alone[1:]):
        if inner.ledger is not None:
            inner.ledger.distrust()
        found.append(
            Finding(
                "W14",
                "the model answered the same image differently when asked again.",
                "It answers by chance: declare it with stochastic=True and attack within a "
                "budget; answers from the ledger are not used again.",
                "error",
            )
        )
    elif len(images) > 1 and differ(alone[0], company):
        found.append(
            Finding(
                "W41",
                "the model answered an image differently alone and in the company of "
                f"{len(images) - 1} others.",
                "What it says of an image depends on its neighbours, and figures depend on how "
                "images were put together: ask about one at a time with batch=1.",
            )
        )
    return found
