"""From a victim, some images and an architecture to the weights of a substitute and its card."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from besiege.core.errors import InputError
from besiege.core.victim import Victim
from besiege.data import load as load_data
from besiege.data.dataset import Data
from besiege.defenses.defended import load as load_victim
from besiege.models.black_box import accounted, black_box, know_classes, labels_alone
from besiege.models.classifier import Classifier
from besiege.models.endpoint import kept_below
from besiege.training.checkpoints import make_room
from besiege.training.fitting import made_already, write
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
    """Steal a substitute and write its weights with a card: all ``besiege substitute`` does.

    Parameters
    ----------
    victim : Victim or str
        What is asked. One behind a wall is asked for labels, whatever it was declared to answer.
    data : str, path, pair or Data
        Images to ask about: `count` seeds, and of the others `check` to measure the agreement on,
        or as many as there are.
    arch : str
        What is trained.
    out : path
        The file of weights, ending in ``.safetensors``. Where it is there already and of the same
        theft nothing is asked again.
    rounds, seed, watch
        As for `steal`.
    split : str
        Which part of the data; the test images are those a victim was not trained on.
    resume : bool
        False asks and trains anew, and replaces what is there. What an address has answered
        before comes from its ledger, in the folder ``ledgers`` beside the weights.
    about : mapping, optional
        More entries for the card, such as the command.
    **given
        As for `steal`: ``epochs``, ``lam``, ``tau``, ``reservoir``, ``queries``, ...

    Returns
    -------
    Path
        The file of weights.
    """
    target = Path(out)
    if target.suffix != ".safetensors":
        raise InputError(f"weights are written as .safetensors, and '{target}' ends otherwise")
    samples = data if isinstance(data, Data) else load_data(data, split)
    seeds = samples.subset(count, seed)
    rest = samples.take(~torch.isin(samples.ids, seeds.ids))
    held = rest.subset(min(check, len(rest)), seed) if check and len(rest) else None
    asked = load_victim(victim) if isinstance(victim, str) else Classifier.of(victim)
    with labels_alone(asked):
        return _fitted(
            asked, samples, seeds, held, arch, target, rounds, seed, resume, about, watch, given
        )


def _fitted(
    asked: Victim,
    samples: Data,
    seeds: Data,
    held: Data | None,
    arch: str,
    target: Path,
    rounds: int,
    seed: int,
    resume: bool,
    about: dict[str, Any] | None,
    watch: Callable[[Round], None] | None,
    given: dict[str, Any],
) -> Path:
    know_classes(asked, samples.classes, samples.labels)
    decided = {k: v for k, v in given.items() if k not in ("tick", "device") and v is not None}
    settings = json.loads(json.dumps({"rounds": rounds, **decided}, sort_keys=True, default=str))
    identity = {
        "victim": asked.digest(),
        "seeds": seeds.digest,
        "held": "none" if held is None else held.digest,
        "arch": arch,
        "settings": json.dumps(settings),
        "seed": str(seed),
    }
    make_room(target)
    if resume and made_already(target, target.with_suffix(".json"), identity):
        return target
    kept_below(black_box(asked), target.parent)
    with accounted(asked, "steal"):
        stolen = steal(
            asked, seeds, arch, held=held, rounds=rounds, seed=seed, watch=watch, **given
        )
    card = {
        "victim": asked.name,
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
