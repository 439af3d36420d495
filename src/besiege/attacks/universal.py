"""UAP: one perturbation for all images, fitted on some and evaluated on others."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from besiege.attacks.attack import Attack, parse
from besiege.attacks.fitting import Boxing, Method, fit
from besiege.core import presets
from besiege.core.attack_registry import register
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, DataError, InputError, ThreatError
from besiege.core.fields import number, one_of, whole_number
from besiege.core.files import must_be_file
from besiege.core.oracle import Access, Oracle, full_precision
from besiege.core.siege import Siege
from besiege.core.terms import Terms
from besiege.core.text import short
from besiege.core.threat import L2, Goal, Linf, Threat
from besiege.core.victim import DERIVE, Victim

TARGET = 0.8
"""Published: the fooling rate at which a fit stops."""


@register("uap")
@dataclass(frozen=True)
class UAP(Attack):
    """Add the same perturbation to every image.

    It is fitted once, by `fit_universal` or an earlier run, and evaluated on unseen images:
    ``uap(file='v.safetensors')`` loads a saved one. Without a file it is fitted on the very rows it
    attacks, which pay for the queries; rows then depend on each other.

    Two methods: projected gradient steps on the mean margin, capped so that images already fooled
    do not outweigh the others (similar to Shafahi et al., Universal adversarial training, 2018),
    which is stronger and cheaper; or DeepFool steps from one image to the next (Moosavi-Dezfooli et
    al., Universal adversarial perturbations, 2017).

    Parameters
    ----------
    file : str, optional
        A perturbation saved by `save`.
    digest : str, optional
        Hash of the perturbation; filled in, and checked if given.
    method : str
        ``'gradient'`` or ``'deepfool'``.
    steps : int
        Most passes over the rows.
    target : float
        Fooling rate at which the fit stops early.
    batch : int
        Rows between two updates; published is one.
    box : str
        How DeepFool steps treat the box: ``'joint'`` are the shortest inside it, in the norm of the
        threat; ``'none'`` are as published, the shortest in l2 as if there were no box; ``'cut'``
        are such steps, longer by 1e-4, of images that are cut to the box (DEEPSEC 2019).

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("uap(steps=10)"))
    'uap(steps=10)'
    """

    file: str | None = None
    digest: str | None = None
    method: Method = one_of("gradient", "deepfool")
    steps: int = whole_number(40)
    target: float = number(1.0, above=0, most=1, what="a fraction of rows")
    batch: int = whole_number(32)
    box: Boxing = one_of("joint", "cut", "none", added=True)
    tensor: Tensor | None = field(default=None, compare=False, repr=False)

    norms = frozenset({Linf, L2})
    goals = frozenset({Goal.UNTARGETED})
    source = "Moosavi-Dezfooli et al., Universal adversarial perturbations, 2017"

    def __post_init__(self) -> None:
        super().__post_init__()
        tensor = self.tensor if self.file is None else _loaded(self.file)
        if tensor is None:
            if self.digest is not None:
                raise ValueError(
                    f"the perturbation {self.digest} was not saved: keep the UAP object, or save "
                    "it and give its file"
                )
            return
        digest = sha256(tensor.contiguous().cpu().numpy().tobytes()).hexdigest()[:12]
        if self.digest not in (None, digest):
            raise ValueError(f"the perturbation is {digest}, but {self.digest} was expected")
        object.__setattr__(self, "tensor", tensor.detach())
        object.__setattr__(self, "digest", digest)

    @property
    def access(self) -> Access:  # type: ignore[override]  # a class attribute elsewhere
        return Access.GRADIENT if self.tensor is None else Access.DECISION

    @property
    def one_step(self) -> bool:
        return True

    @property
    def mixes_rows(self) -> bool:
        return self.tensor is None

    def run(self, siege: Siege) -> None:
        v = self.tensor
        if v is None:
            v = self.fit(siege, hidden=True)
        center = siege.ball.center
        if v.shape != center.shape[1:]:
            raise AttackError(
                f"the perturbation has the shape {tuple(v.shape)}, but the images have "
                f"{tuple(center.shape[1:])}: fit one on such images"
            )
        if len(siege):
            siege.offer(siege.ball.project(center + v.to(center)))

    def fit(self, siege: Siege, *, hidden: bool) -> Tensor:
        """A perturbation for all rows of a siege; see `besiege.attacks.fitting.fit`."""
        return fit(
            siege,
            self.method,
            steps=self.steps,
            target=self.target,
            batch=self.batch,
            hidden=hidden,
            box=self.box,
        )

    def save(self, path: str | Path) -> UAP:
        """Write the perturbation as ``.safetensors``; returns the attack that loads it."""
        from safetensors.torch import save_file

        if self.tensor is None:
            raise InputError("this uap holds no perturbation yet: fit one with fit_universal")
        save_file({"perturbation": self.tensor.contiguous().cpu()}, str(path))
        return UAP(file=str(path))


def _loaded(file: str) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not isinstance(file, str):
        raise ValueError(f"file is {file!r}, but the path of a file is needed")
    try:
        must_be_file(file)
        held = load_file(file)
    except (DataError, OSError, SafetensorError) as problem:
        raise ValueError(f"'{short(file)}' cannot be read: {problem}") from None
    if "perturbation" not in held:
        raise ValueError(f"'{file}' holds {', '.join(held) or 'nothing'}, no 'perturbation'")
    return held["perturbation"]


def fit_universal(
    victim: Victim,
    images: Tensor,
    labels: Tensor | None,
    threat: str | Threat,
    *,
    method: Method = "gradient",
    target: float = TARGET,
    steps: int = 40,
    batch: int = 32,
    box: Boxing = "joint",
    seed: int = 0,
    form: str | UAP | None = None,
) -> UAP:
    """Fit one perturbation on some images, to be evaluated on others.

    Parameters
    ----------
    victim : Victim
        A `Classifier`, such as ``besiege.models.load("zoo:digits-natural")``.
    images : Tensor
        Images inside the victim's box.
    labels : Tensor, optional
        True classes: misclassified images are then left out. An image is fooled if the victim's
        answer changes, whatever its label.
    threat : str or Threat
        Norm and budget of the perturbation: ``"linf:10/255"``.
    method, steps, batch, box
        As in `UAP`.
    target : float
        Fooling rate at which the fit stops.
    seed : int
        Seed of the order of the images.
    form : str or UAP, optional
        An attack that has method, target, steps, batch and box, such as the preset
        ``"uap@moosavi"``, in place of these arguments.

    Returns
    -------
    UAP
        An attack that holds the perturbation; `save` writes it.

    Examples
    --------
    >>> import besiege
    >>> from besiege.attacks.universal import fit_universal, fooling
    >>> model = besiege.models.load("zoo:digits-natural")
    >>> data = besiege.data.load("digits", count=64)
    >>> uap = fit_universal(model, data.images, data.labels, "linf:0.4")
    >>> fooling(uap, model, data.images, "linf:0.4") >= 0.8
    True
    """
    threat = Threat.parse(threat) if isinstance(threat, str) else threat
    given = UAP(method=method, steps=steps, batch=batch, target=target, box=box)
    if form is not None:
        given = _form(form, given, threat)
    if threat.norm not in given.norms or threat.eps is None:
        raise ThreatError(f"a perturbation is fitted within a budget in linf or l2, not '{threat}'")
    if not isinstance(victim, Victim):
        raise InputError(
            f"fit_universal was given {type(victim).__name__}, but a Classifier is needed: "
            f"besiege.Classifier(net), or besiege.models.load(name) (or {DERIVE})"
        )
    with victim.held(), full_precision(victim.device):
        oracle = Oracle(victim, threat.access)
        images = images.to(victim.device).contiguous()
        answers, kept = _classes(oracle, images)
        if labels is not None:
            kept &= answers == labels.to(victim.device)
        images, answers = images[kept], answers[kept]
        if not len(images):
            raise InputError("no image is left to fit a perturbation on")
        ids = torch.arange(len(images), device=images.device)
        around = ball(threat.norm, images, threat.radius, victim.box, victim.grid)
        dice = Dice.throw(seed, ids)
        siege = Siege.start(oracle, around, answers, dice, Terms(leave="end"))
        siege.survey()
        return UAP(tensor=given.fit(siege.view(dice=siege.dice.of("uap")), hidden=False).cpu())


def _form(form: str | UAP, given: UAP, threat: Threat) -> UAP:
    """The attack of a text, whose parameters decide how to fit."""
    made = parse(form)
    if not isinstance(made, UAP) or made.tensor is not None:
        raise InputError(f"form is '{made}', but a uap without a perturbation is needed")
    if given != UAP(target=TARGET):
        raise InputError(
            f"'{made}' says how to fit: leave method, target, steps, batch and box out, or write "
            "them into its text"
        )
    presets.check_norms(form if isinstance(form, str) else "", threat)
    return made


def fooling(uap: UAP, victim: Victim, images: Tensor, threat: str | Threat) -> float:
    """The fooling rate: the fraction of images whose class changes, correct or not.

    Of a victim that may reject images, those that are rejected do not count as fooled.
    """
    threat = Threat.parse(threat) if isinstance(threat, str) else threat
    if uap.tensor is None:
        raise InputError("this uap holds no perturbation yet: fit one with fit_universal")
    with victim.held(), full_precision(victim.device):
        oracle, images = Oracle(victim, Access.DECISION), images.to(victim.device)
        around = ball(threat.norm, images, threat.radius, victim.box, victim.grid)
        moved = around.project(images + uap.tensor.to(images))
        before, _ = _classes(oracle, images)
        after, accepted = _classes(oracle, moved)
        return float(((after != before) & accepted).double().mean())


def _classes(oracle: Oracle, images: Tensor) -> tuple[Tensor, Tensor]:
    """The classes answered, and which images are accepted: all, unless the victim may reject."""
    logits = oracle.logits(images)
    if not oracle.victim.rejects:
        return logits.argmax(1), torch.ones(len(images), dtype=torch.bool, device=logits.device)
    top, classes = logits[:, :-1].max(1)
    return classes, logits[:, -1] <= top
