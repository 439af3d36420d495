"""A cheap check of a black-box victim before queries are spent on it."""

from __future__ import annotations

from besiege.core.errors import Finding
from besiege.core.oracle import full_precision
from besiege.core.samples import Samples
from besiege.core.victim import Victim
from besiege.evaluation.judging import differ
from besiege.models.black_box import accounted, black_box

BATCH = 4
"""Size of the batch that is compared with a single image."""
AGAIN = 3
"""Number of queries of the single image."""


def preflight(victim: Victim, samples: Samples) -> list[Finding]:
    """Check that a black-box victim gives an image the same answer again, alone and in a batch.

    It sends at most seven images, counted under ``probe``, and takes no answer from a ledger. The
    ledger of a victim that turns out to be stochastic is not used any more.
    """
    inner = black_box(victim)
    if inner is None or victim.stochastic or not len(samples):
        return []
    with full_precision(victim.device), accounted(victim, "probe", fresh=True):
        images = samples.images[:BATCH].to(victim.device)
        alone = [victim(images[:1].clone()) for _ in range(AGAIN)]
        batched = victim(images.clone())[:1]
    if any(differ(alone[0], other) for other in alone[1:]):
        if inner.ledger is not None:
            inner.ledger.distrust()
        return [
            Finding(
                "W14",
                "the model gave different answers to the same image.",
                "It is stochastic: declare it with stochastic=True and attack within a budget; "
                "answers from the ledger are not used again.",
                "stop",
            )
        ]
    if len(images) > 1 and differ(alone[0], batched):
        return [
            Finding(
                "W41",
                "the model gave different answers to an image alone and in a batch with "
                f"{len(images) - 1} others.",
                "Its answers, and so the figures, depend on the batch: send one image at a time "
                "with batch=1.",
            )
        ]
    return []
