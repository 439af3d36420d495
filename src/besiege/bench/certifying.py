"""`certified`: certificates of randomised smoothing for images, from votes under noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from besiege.core.samples import Samples
from besiege.core.victim import Victim
from besiege.defenses.counting import Tick, counted, must_suffice, voter
from besiege.metrics.certificates import Certificates, certificates


def certified(
    victim: Victim | nn.Module | str,
    images: Any,
    labels: Any = None,
    *,
    ids: Any = None,
    seed: int = 0,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    batch: int | None = None,
    tick: Tick | None = None,
) -> Certificates:
    """CERTIFY of Cohen, Rosenfeld and Kolter (2019): l2 radii that no attack can break.

    `n0` noisy copies choose the class of an image, and n fresh ones bound its probability. With
    probability ``1 - alpha`` for each image, the smoothed classifier answers this class everywhere
    within the radius. A row follows from the seed and the id of its image: some images now and the
    others later are the same as all at once.

    Parameters
    ----------
    victim : Victim, nn.Module or str
        ``MODEL+smoothed(sigma=0.25)``; also ``MODEL+gaussian_noise``, ``MODEL+randmix`` and these
        with ``+pooled`` (`besiege.defenses.counting.voter`). It computes where its network is.
    images : Tensor or array
        ``[rows, channels, height, width]`` in the box.
    labels : Tensor or array, optional
        True classes, for `Certificates.accuracy`.
    ids : Tensor or array, optional
        Ids of the images; by default 0, 1, 2 and so on.
    seed : int
        Seed of the noise.
    n0, n : int
        Votes that choose, and votes that estimate.
    alpha : float
        Probability that the certificate of an image is wrong.
    batch : int, optional
        Noisy copies per call of the model.
    tick : callable, optional
        Called with the votes counted and their total.

    Examples
    --------
    >>> import besiege
    >>> from besiege.bench import certified
    >>> some = besiege.data.load("digits", count=4)
    >>> text = "zoo:digits-natural+smoothed(sigma=0.1)"
    >>> found = certified(text, some.images, some.labels, ids=some.ids, n=200)
    >>> found.radius.round(3)
    array([0.183, 0.127, 0.183, 0.131])
    """
    must_suffice(n0, n, alpha)  # first, since loading weights costs more
    caster = voter(victim)
    box = caster.victim.box
    given = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
    samples = Samples.of(images, given, box=box, classes=caster.victim.classes, ids=ids)
    found = counted(
        caster.victim,
        samples.images,
        samples.ids,
        n0=n0,
        n=n,
        alpha=alpha,
        seed=seed,
        batch=batch,
        tick=tick,
    )
    return certificates(
        found.chosen.cpu().numpy(),
        found.hits.cpu().numpy(),
        n,
        found.deviations,
        samples.images[0].numel(),
        alpha,
        None if labels is None else samples.labels.cpu().numpy(),
    )
