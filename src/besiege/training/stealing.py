"""`fit_substitute`: trains a substitute on a victim's labels and writes its weights and card."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from besiege.core.victim import Victim
from besiege.data import load as load_data
from besiege.data.dataset import Data
from besiege.defenses.defended import load as load_victim
from besiege.models.black_box import accounted, black_box, know_classes, labels_alone
from besiege.models.classifier import Classifier
from besiege.models.endpoint import kept_below
from besiege.training.checkpoints import make_room
from besiege.training.fitting import made_already, weights_file, write
from besiege.training.substitutes import Round, steal


def fit_substitute(
    victim: Victim | str,
    data: Any,
    arch: str,
    out: Path | str,
    *,
    rounds: int = 6,
    count: int = 100,
    check: int = 200,
    split: str = "test",
    seed: int = 0,
    resume: bool = True,
    about: dict[str, Any] | None = None,
    watch: Callable[[Round], None] | None = None,
    **given: Any,
) -> Path:
    """Train a substitute and write its weights with a card: all that ``besiege substitute`` does.

    Parameters
    ----------
    victim : Victim or str
        The victim. Only labels of a black-box victim are used, whatever it was declared to answer.
    data : str, path, pair or Data
        Images to query: `count` seeds, and up to `check` others to measure the agreement on.
    arch : str
        Architecture of the substitute.
    out : path
        The file of weights, ending in ``.safetensors``. If it exists and has the same settings,
        the victim is not queried again.
    rounds, seed, watch
        As for `steal`.
    split : str
        Part of the data; a victim is usually not trained on the test images.
    resume : bool
        False queries and trains again, and replaces existing files. Earlier answers of an endpoint
        still come from its ledger, in the folder ``ledgers`` beside the weights.
    about : mapping, optional
        More entries for the card, such as the command.
    **given
        As for `steal`: ``epochs``, ``lam``, ``tau``, ``reservoir``, ``queries``, ...

    Returns
    -------
    Path
        The file of weights.
    """
    target = weights_file(out)
    samples = data if isinstance(data, Data) else load_data(data, split)
    seeds = samples.subset(count, seed)
    rest = samples.take(~torch.isin(samples.ids, seeds.ids))
    held = rest.subset(min(check, len(rest)), seed) if check and len(rest) else None
    model = load_victim(victim) if isinstance(victim, str) else Classifier.of(victim)
    decided = {k: v for k, v in given.items() if k not in ("tick", "device") and v is not None}
    settings = json.loads(json.dumps({"rounds": rounds, **decided}, sort_keys=True, default=str))
    with labels_alone(model):
        know_classes(model, samples.classes, samples.labels)
        identity = {
            "victim": model.digest(),
            "seeds": seeds.digest,
            "held": "none" if held is None else held.digest,
            "arch": arch,
            "settings": json.dumps(settings),
            "seed": str(seed),
        }
        make_room(target)
        if resume and made_already(target, identity):
            return target
        kept_below(black_box(model), target.parent)
        with accounted(model, "steal"):
            stolen = steal(
                model, seeds, arch, held=held, rounds=rounds, seed=seed, watch=watch, **given
            )
    card = {
        "victim": model.name,
        "data": f"{samples.name} {samples.split}, {len(seeds)} seeds",
        "settings": settings,
        "seed": seed,
        "queries": stolen.queries,
        "checks": stolen.checks,
        "agreement": stolen.agreement,
        "missing": list(stolen.missing),
        "rounds": [asdict(one) for one in stolen.rounds],
        **(about or {}),
        "identity": identity,
    }
    return write(target, stolen.classifier, stolen.made, card)
