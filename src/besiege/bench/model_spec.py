"""The victim of an evaluation: read from its text, and described for the plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from besiege.bench.shards import Read
from besiege.bench.spec import ModelSpec, Request
from besiege.bench.undefended import is_undefended
from besiege.bench.withheld import calibrated_on
from besiege.core.dice import Dice
from besiege.core.errors import AccessError, Finding
from besiege.core.identity import noting
from besiege.core.oracle import Oracle, full_precision
from besiege.core.samples import Samples
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.defenses.defended import Defended
from besiege.defenses.defended import load as load_victim
from besiege.defenses.defended import split as split_layers
from besiege.defenses.layers import Layer
from besiege.evaluation.checking import answers
from besiege.evaluation.judging import DRAWS
from besiege.models.black_box import accounted, black_box
from besiege.models.classifier import Classifier
from besiege.models.sources import with_argument


def read_victim(
    model: str | nn.Module | Victim,
    device: str | None,
    access: str | None = None,
    read: Read | None = None,
) -> Victim:
    """The victim from its text or object; a victim from a text uses a GPU if there is one.

    A model behind HTTP has the access of the request, unless its own text names one. Models in
    `read` are not loaded again.
    """
    if not isinstance(model, str):
        victim = Classifier.of(model)
        return victim if device is None else victim.to(device)
    if access in ("score", "decision") and model.startswith(("http://", "https://")):
        source, layers = split_layers(model)
        model = "+".join([with_argument(source, "access", access), *layers])
    load = partial(_loaded, model, device)
    return load() if read is None else read.model((model, device), load)


def _loaded(model: str, device: str | None) -> Victim:
    victim = load_victim(model, device)
    # A metered victim computes elsewhere, and query-based attacks compute little here.
    if device is None and torch.cuda.is_available() and not victim.metered:
        victim = victim.to("cuda")
    return victim


def fresh_copies(
    model: str | nn.Module | Victim, victim: Victim, device: str | None
) -> Callable[[], Victim] | None:
    """A function that returns copies of a victim that were never queried; None without any.

    A text is loaded again. A model in memory is copied now, before its first query.
    """
    if victim.metered or black_box(victim) is not None:
        return None
    if isinstance(model, str):
        return partial(read_victim, model, device)
    try:
        untouched = copy.deepcopy(victim)
    except (Exception, SystemExit):  # a user's module may raise anything when it is copied
        return None
    return partial(copy.deepcopy, untouched)


def as_granted(threat: Threat, access: str | None, victim: Victim) -> Threat:
    """The threat with the victim's access, where the threat allows more."""
    if threat.access <= victim.access:
        return threat
    if access is not None or threat.access < Access.GRADIENT:
        raise AccessError(
            f"{threat.access} access was requested, but {victim.name} grants {victim.access} "
            "access only"
        )
    return replace(threat, access=victim.access)


def model_spec(
    victim: Victim,
    request: Request,
    classes: int,
    data: Data | None = None,
    box: tuple[float, float] = (0.0, 1.0),
) -> ModelSpec:
    """The description of the victim; `data` are the evaluated samples, with pixels in `box`."""
    set_on = victim.withheld
    return ModelSpec(
        name=request.model,
        digest=victim.digest(),
        kind=type(victim).__name__,
        classes=classes,
        parameters=_parameters(victim),
        box=victim.box,
        stochastic=victim.stochastic,
        draws=DRAWS if victim.stochastic else 1,
        undefended=request.textual and is_undefended(request.model),
        surrogates=tuple(dict.fromkeys(map(str, _with_surrogate(victim)))),
        pooled=victim.draws,
        passes=victim.passes,
        rejects=victim.rejects,
        rounds=victim.cells is not None,
        nominal_rejections=victim.nominal_rejections,
        calibrated_on=0 if set_on is None else len(set_on.ids),
        calibrated_here=(
            0 if set_on is None or data is None else int(calibrated_on(data, set_on, box).sum())
        ),
    )


def _with_surrogate(victim: Victim) -> Iterator[Layer]:
    """The layers, in the order of the image's way, that have a surrogate for their gradient."""
    if isinstance(victim, Defended):
        yield from (layer for layer in victim.layers if layer.has_surrogate)
    for part in victim.parts:
        if isinstance(part, Victim):
            yield from _with_surrogate(part)


def probe(victim: Victim, samples: Samples) -> int:
    """The victim's number of classes; an error where it does not accept the images."""
    with victim.held(), full_precision(victim.device), torch.no_grad(), accounted(victim, "probe"):
        oracle = Oracle(victim, pad=False)
        dice = Dice.throw(0, samples.ids.to(victim.device)) if victim.stochastic else None
        scores = oracle.logits(samples.images.to(victim.device), dice)
        answers(victim, scores)
        return int(scores.shape[1]) - victim.rejects


def unread(victim: Victim) -> list[Finding]:
    """Report a victim whose code cannot be read in full, so that its digest is not stable."""
    with noting() as names:
        victim.digest()
    if not names:
        return []
    return [
        Finding(
            "W43",
            f"the code of this model cannot be read in full ({names[0]}).",
            "Other processes do not reuse its records: write the model in a file, with classes and "
            "plain values.",
            "note",
        )
    ]


def _parameters(victim: Victim) -> int | None:
    modules = [part for part in victim.source.parts if isinstance(part, nn.Module)]
    if not modules:
        return None
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
