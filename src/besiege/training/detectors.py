"""`fit_detector`: fits a detector to a model, calibrates it, and writes its file and card."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save as write_tensors
from torch import Tensor

from besiege.attacks.losses import cross_entropy
from besiege.core.answer import Aim
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import InputError, near
from besiege.core.oracle import Oracle, full_precision
from besiege.core.samples import WithheldImages, in_box
from besiege.core.text import check_whole
from besiege.core.threat import Access, Linf
from besiege.core.victim import Victim
from besiege.data import load as load_data
from besiege.data.catalogue import CATALOGUE
from besiege.data.contents import contents
from besiege.data.dataset import Data, rank
from besiege.defenses.calibrating import calibrate, must_be_rate
from besiege.defenses.contents import digest_of
from besiege.defenses.defended import load as load_victim
from besiege.defenses.defended import split as split_layers
from besiege.defenses.detected import Calibration, must_be_guardable
from besiege.defenses.detecting import LANGUAGE, Detector, Material
from besiege.defenses.detector_files import as_ranges, read_detected
from besiege.models.catalogue import zoo_card, zoo_names
from besiege.training.checkpoints import make_room, replace_file

CALIBRATION = 2000
"""Images that a detector is calibrated on by default, but at most half of the split."""
FITTING = 1000
"""Images that a detector is fitted on by default."""
_STREAM = 26
"""Keeps the draw of calibration images apart from the draws of `Data.subset`."""
_SOLVED = 50
"""Bisections of the noise's standard deviation."""
Chosen = Literal["last", "random"]
Tick = Callable[[int, int], None]


def fit_detector(
    kind: str | Detector,
    model: str | Victim,
    data: Any,
    out: Path | str,
    *,
    fpr: float = 0.05,
    count: int | None = None,
    split: str = "test",
    chosen: Chosen = "last",
    fit_on: int = FITTING,
    seed: int = 0,
    force: bool = False,
    device: torch.device | str | None = None,
    tick: Tick | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Fit and calibrate a detector, and write it: all that ``besiege detector`` does.

    It is calibrated on the last images of a split, or on random ones. Evaluations of the model then
    leave these out. It is fitted on images of the training split, or, of data without splits, on
    the others.

    Parameters
    ----------
    kind : str or Detector
        ``squeezing``, ``lid`` or ``magnet``, also with parameters: ``lid(k=30)``.
    model : str or Victim
        The model to guard, with its layers.
    data : str, path, pair or Data
        Data as `besiege.data.load` takes it.
    out : path
        The file, ending in ``.safetensors``; its card ends in ``.json``.
    fpr : float
        The nominal share of clean images that are rejected.
    count : int, optional
        Images to calibrate on; by default 2,000, but at most half of the split.
    split : str
        The split whose images are used for that.
    chosen : {"last", "random"}
        Which of its images. The last ones are no fair sample where a data set is sorted: those of
        MNIST are easier than the others, so that random ones reject as many as they say.
    fit_on : int
        Images to fit on.
    seed : int
        Seed of the choice of these images, and of noise.
    force : bool
        Whether the images of the model's own training may be used for the calibration.
    device : torch.device or str, optional
        Where the model computes.
    tick : callable, optional
        Called with the images done and their number.
    about : mapping, optional
        More entries for the card, such as the command.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "squeezing.safetensors"
    >>> fit_detector("squeezing", "zoo:digits-natural", "digits", out).name
    'squeezing.safetensors'
    """
    target = _file(out)
    detector = LANGUAGE.read(kind) if isinstance(kind, str) else kind
    if count is not None:
        check_whole(count, "count")
    check_whole(fit_on, "fit_on", 10)
    if chosen not in get_args(Chosen):
        raise InputError(f"chosen is {chosen!r}: {near(str(chosen), get_args(Chosen))}")
    must_be_rate(fpr, CALIBRATION if count is None else count)
    if isinstance(model, str):
        _must_have_no_detector(model)
    victim = load_victim(model) if isinstance(model, str) else model
    if not isinstance(detector, Detector):
        raise InputError(
            f"'{kind}' is no detector: write squeezing, lid or magnet, also with parameters"
        )
    victim = victim if device is None else victim.to(device)
    everything = load_data(data, split)
    detector = detector.suited(everything.shape)
    must_be_guardable(victim, detector)
    held = _held_out(everything, count, fpr, None if chosen == "last" else seed)
    if not force:
        _must_not_be_trained_on(victim.name, held)
    material, reference = _material(detector, victim, data, held, fit_on, seed)
    tensors = detector.fit(victim, material)
    withheld = WithheldImages(
        held.name, held.split, tuple(held.ids.tolist()), held.digest, contents(held)
    )
    compared = {} if reference is None else {"reference": material.reference}
    calibration = calibrate(
        victim, detector, tensors | compared, in_box(held.images, victim.box), fpr, withheld, tick
    )
    named = reference is not None and reference.name in CATALOGUE
    if not named:  # images that no name leads to are kept in the file
        tensors |= compared
    card = {
        "name": target.stem,
        "kind": str(detector),
        "revision": detector.revision,
        "model": victim.name,
        "digest": digest_of(victim),
        "classes": _classes(victim, held),
        "shape": list(held.shape),
        "fpr": fpr,
        "threshold": calibration.threshold,
        "spread": calibration.spread,
        "gain": calibration.gain,
        "calibration": {**_chosen(held), "contents": withheld.contents},
        "reference": _chosen(reference) if reference is not None and named else None,
        "networks": [digest_of(part) for part in detector.parts],
        "fitted": len(material.kept) or len(material.clean),
        "seed": seed,
        **(about or {}),
    }
    write(target, tensors, calibration, card)
    read_detected(victim, target)  # what was written is read back, or refused now
    return target


def write(
    target: Path, tensors: Mapping[str, Tensor], calibration: Calibration, card: Mapping[str, Any]
) -> None:
    """Write the tensors of a detector and its card, which ends with their digest."""
    make_room(target)
    single = {
        name: torch.tensor(getattr(calibration, name), dtype=torch.float32)
        for name in ("threshold", "spread", "gain")
    }
    kept = {name: one.detach().cpu().contiguous() for name, one in {**tensors, **single}.items()}
    content = write_tensors(kept)
    full = {**card, "sha256": hashlib.sha256(content).hexdigest()}
    replace_file(target, content)
    replace_file(target.with_suffix(".json"), (json.dumps(full, indent=2) + "\n").encode())


def _file(out: Path | str) -> Path:
    target = Path(out)
    if target.suffix != ".safetensors":
        raise InputError(
            f"a detector is written as .safetensors, but '{target}' ends differently: write "
            f"'{target.with_suffix('.safetensors')}'"
        )
    return target


def _must_have_no_detector(model: str) -> None:
    written = split_layers(model)[1]
    if any(one.partition("(")[0].strip() == "detector" for one in written):
        raise InputError(f"'{model}' has a detector already: name the model without it")


def _held_out(data: Data, count: int | None, fpr: float, seed: int | None) -> Data:
    """The last images of a split, by their ids, or a random choice by a seed."""
    wanted = min(CALIBRATION, len(data) // 2) if count is None else count
    if wanted > len(data):
        raise InputError(
            f"{wanted} calibration images were requested, but {data.name} ({data.split}) has "
            f"{len(data)}: request fewer"
        )
    must_be_rate(fpr, wanted)
    if seed is not None:
        # A stream of its own: `data.subset` would draw the images of an evaluation at this seed.
        ids = data.ids.tolist()
        ranked = sorted(range(len(ids)), key=lambda row: rank(_STREAM, seed, ids[row]))
        return data.take(sorted(ranked[:wanted]))
    return data.take(torch.arange(len(data) - wanted, len(data)))


def _must_not_be_trained_on(model: str, held: Data) -> None:
    """Refuse the images that the model was trained on: it is too certain of them."""
    trained = _trained_on(split_layers(model)[0])
    same = trained is not None and trained == (held.name, held.split)
    if same or held.split == "train":
        raise InputError(
            f"the images of {held.name} ({held.split}) are those that '{model}' was trained on: "
            "its scores on them are too good, and it would reject more clean images than it says. "
            "Calibrate on other images, such as split='test', or force it with force=True"
        )


def _trained_on(model: str) -> tuple[str, str] | None:
    """Name and split of the data that a shipped model was trained on, or one with a card."""
    scheme, _, name = model.partition(":")
    facts: Any = None
    if scheme == "zoo" and name in zoo_names():
        facts = zoo_card(name).get("data")
    elif found := re.fullmatch(r"\w+(?:\(.*\))?:(.+\.safetensors)", model, re.DOTALL):
        card = Path(found[1]).with_suffix(".json")
        if card.is_file():
            try:
                facts = json.loads(card.read_text(encoding="utf-8")).get("data")
            except (OSError, ValueError, AttributeError):
                return None  # some other file of that name
    words = re.match(r"(\S+) (\w+),", facts) if isinstance(facts, str) else None
    return None if words is None else (words[1], words[2])


def _material(
    detector: Detector, victim: Victim, data: Any, held: Data, count: int, seed: int
) -> tuple[Material, Data | None]:
    """The images that a detector is fitted on, and the data of its references."""
    empty = torch.zeros(0, *held.shape)
    if type(detector).fit is Detector.fit and not detector.references:
        return Material(empty, empty, empty, empty, torch.zeros(0, dtype=torch.int64)), None
    pool = load_data(data, "train")
    # Data without splits are all in one: none may be fitted on and calibrated on.
    pool = pool.take(~torch.isin(pool.ids, held.ids)) if pool.split == held.split else pool
    needed = count + detector.references
    if len(pool) < detector.references + 10:
        raise InputError(
            f"{pool.name} ({pool.split}) has {len(pool)} images to fit the detector on, and "
            f"{detector.references + 10} or more are needed"
        )
    pool = pool.subset(min(needed, len(pool)), seed)
    reference: Data | None = None
    if detector.references:
        # None of them is a query: distances to itself would give an image away.
        reference = pool.subset(detector.references, seed)
        pool = pool.take(~torch.isin(pool.ids, reference.ids))
    clean = in_box(pool.images, victim.box)
    compared = empty if reference is None else in_box(reference.images, victim.box)
    eps = detector.contrast(held.shape)
    if eps is None:
        return Material(clean, compared, empty, empty, torch.arange(len(clean))), reference
    adversarial, kept = fooled(victim, clean, pool.labels, eps)
    if len(kept) < 10:
        raise InputError(
            f"FGSM of size {eps:g} fools '{victim.name}' on {len(kept)} of {len(clean)} images, "
            "too few to fit a detector: give a larger eps, such as lid(eps=0.3)"
        )
    noise = noisy(clean[kept], adversarial, victim.box, pool.ids[kept], seed)
    return Material(clean, compared, adversarial, noise, kept), reference


def fooled(victim: Victim, clean: Tensor, labels: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """FGSM images that fool a victim, and the numbers of the clean images they were made of.

    Only images that are classified correctly when clean are used.
    """
    if victim.access < Access.GRADIENT:
        raise InputError(
            f"'{victim.name}' grants no gradients, and this detector is fitted on FGSM"
        )
    x, own = clean.to(victim.device), labels.to(victim.device)
    low, high = victim.box
    with victim.held(), full_precision(victim.device):
        oracle = Oracle(victim)
        slope, _, logits = oracle.gradient(x, cross_entropy, Aim(own))
        radius = torch.full((len(x),), eps * (high - low), dtype=torch.float64, device=x.device)
        around = ball(Linf, x, radius, victim.box)
        made = around.project(x + around.steepest(slope, x, radius))
        now = oracle.logits(made)
    kept = ((logits.argmax(1) == own) & (now.argmax(1) != own)).nonzero()[:, 0]
    return made[kept].cpu(), kept.cpu()


def noisy(
    clean: Tensor, adversarial: Tensor, box: tuple[float, float], ids: Tensor, seed: int
) -> Tensor:
    """Clean images with Gaussian noise of the adversarial perturbations' mean l2 norm.

    Clipping to the box shortens noise, so that its standard deviation is found by bisection.
    Without such images a detector of adversarial images would be one of noise.
    """
    wanted = float((adversarial - clean).flatten(1).norm(dim=1).mean())
    drawn = Dice.throw(seed, ids).of("noise").normal(tuple(clean.shape[1:])).to(clean)

    def at(sigma: float) -> Tensor:
        return (clean + sigma * drawn).clamp(*box)

    low, high = 0.0, 10 * (box[1] - box[0])
    for _ in range(_SOLVED):
        middle = (low + high) / 2
        short = float((at(middle) - clean).flatten(1).norm(dim=1).mean()) < wanted
        low, high = (middle, high) if short else (low, middle)
    return at(high)


def _chosen(data: Data) -> dict[str, Any]:
    """The entries of a card that name some images."""
    return {
        "data": data.name,
        "split": data.split,
        "count": len(data),
        "ids": as_ranges(data.ids.tolist()),
        "digest": data.digest,
    }


def _classes(victim: Victim, data: Data) -> int:
    return data.classes if victim.classes is None else victim.classes
